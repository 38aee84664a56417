//! A machine that speaks the boot plane's language, made of the firmware program's own library, and says what it likes.

use crate::net::{Client, Net, SERVER};
use crate::raw_dhcp::RawDhcp;
use anyhow::{Context, Result, ensure};
use ed25519_dalek::SigningKey;
use kurrent_core::id::MacAddr;
use kurrent_handshake::{Answer, Challenge, boot_public_key};
use kurrent_harness::api::{self, Api};
use serde_json::json;
use std::net::SocketAddrV4;

const BOOT_SECRET: [u8; 32] = [6; 32];

/// A machine with a NIC, an address by DHCP and a device key.
pub struct Device {
    /// Its NIC.
    pub client: Client,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its device key.
    pub key: SigningKey,
}

impl Device {
    /// On the network, with a lease.
    pub fn new(net: &Net, number: u8) -> Result<Self> {
        let mac = [0x52, 0x54, 0, 0, 0x0a, number];
        let client = net.client(&MacAddr(mac).to_string())?;
        let lease = RawDhcp::open(&client)?.lease(mac, u32::from(number), &[])?;
        client.address(&format!("{}/24", lease.yiaddr))?;
        Ok(Self { client, mac, key: SigningKey::from_bytes(&[number; 32]) })
    }

    /// Registered with its key, and bound to a Worker of this name that has no disk: an answer that is believed is told so.
    pub fn bound(net: &Net, api: &Api, number: u8, worker: &str) -> Result<Self> {
        let device = Self::new(net, number)?;
        api.ask("PUT", "/v1/settings/registration-window", Some(&json!({ "minutes": 10 })))?;
        let said = device.report(&device.key)?;
        ensure!(said.contains("waiting to be bound"), "{said}");
        api.ask("DELETE", "/v1/settings/registration-window", None)?;
        api.ask("POST", "/v1/workers", Some(&json!({ "worker_id": worker })))?;
        api.ask("POST", &format!("/v1/devices/{}/bind", device.text()), Some(&json!({ "worker_id": worker })))?;
        Ok(device)
    }

    /// Its MAC address as text.
    pub fn text(&self) -> String {
        MacAddr(self.mac).to_string()
    }

    /// A form to the boot plane, and what comes back, whatever that is.
    pub fn post(&self, path: &str, form: &str) -> Result<api::Answer> {
        let head = "Content-Type: application/x-www-form-urlencoded\r\n";
        let netns = Some(self.client.netns.clone());
        let plane = Api { address: SocketAddrV4::new(SERVER, 80), token: String::new(), netns, ca: None };
        plane.exchange("POST", path, head, form.as_bytes())
    }

    /// A report of itself with this key.
    pub fn report(&self, key: &SigningKey) -> Result<String> {
        let form = format!("mac={}&product=QEMU&public_key={}", self.text(), hex::encode(key.verifying_key().as_bytes()));
        Ok(self.post("/devices/report", &form)?.text())
    }

    /// A challenge for a MAC.
    pub fn challenge(&self, mac: &[u8; 6]) -> Result<(Challenge, [u8; 32])> {
        let script = self.post("/devices/challenge", &format!("mac={}", MacAddr(*mac)))?.text();
        read(&script, mac).with_context(|| format!("a challenge: {script}"))
    }

    /// The form that answers a challenge, signed by `sign`.
    pub fn answer(&self, challenge: Challenge, server_key: [u8; 32], sign: impl FnOnce(&Answer) -> [u8; 64]) -> String {
        answer(&self.mac, challenge, server_key, sign)
    }

    /// What `/boot-vars` says to an honest answer to this challenge.
    pub fn boots(&self, (challenge, server_key): (Challenge, [u8; 32])) -> Result<String> {
        let form = self.answer(challenge, server_key, |answer| answer.sign(&self.key));
        Ok(self.post("/boot-vars", &form)?.text())
    }
}

/// What is said to who is believed: the Workers here have no disk.
pub const BELIEVED: &str = "no system disk";

/// The form by which this MAC answers a challenge, signed by `sign`.
pub fn answer(mac: &[u8; 6], challenge: Challenge, server_key: [u8; 32], sign: impl FnOnce(&Answer) -> [u8; 64]) -> String {
    let answer = Answer { challenge, uuid: [0; 16], server_key, device_boot_key: boot_public_key(&BOOT_SECRET) };
    format!(
        "mac={}&uuid=00000000-0000-0000-0000-000000000000&nonce={}&sig={}&boot_key={}",
        MacAddr(*mac),
        hex::encode(challenge.nonce),
        hex::encode(sign(&answer)),
        hex::encode(answer.device_boot_key)
    )
}

/// A variable that a script sets.
pub fn set<'a>(script: &'a str, name: &str) -> Option<&'a str> {
    script.lines().find_map(|line| line.strip_prefix(&format!("set {name} ")))
}

/// The challenge in a script, and the server key that it names.
pub fn read(script: &str, mac: &[u8; 6]) -> Option<(Challenge, [u8; 32])> {
    let set = |name: &str| set(script, name);
    fn octets<const N: usize>(text: &str) -> Option<[u8; N]> {
        hex::decode(text).ok()?.try_into().ok()
    }
    let challenge = Challenge {
        nonce: octets(set("knonce")?)?,
        mac: *mac,
        server_boot_key: octets(set("kserverboot")?)?,
        flags: set("kflags")?.parse().ok()?,
        expected: octets(set("kexpected")?)?,
    };
    Some((challenge, octets(set("kserver")?)?))
}
