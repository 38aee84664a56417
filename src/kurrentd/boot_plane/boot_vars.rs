//! `POST /boot-vars`: the answer to a challenge, and what follows from it: a boot, a new device key, or a refusal.

use super::verify::{self, Claim, DeviceKey};
use super::{Answer, BootPlane, Peer, Refused, boots, jitter};
use crate::challenges::{Outstanding, Parties};
use crate::credentials::BootFacts;
use crate::identity::Held;
use crate::ledger::SubmitError;
use kurrent_core::boot::{self, BootId, Evidence, Grant, Proven, Refusal, Standing, Wait};
use kurrent_core::http::Form;
use kurrent_core::id::MacAddr;
use kurrent_core::ipxe;
use kurrent_core::ledger::schema::key_octets;
use kurrent_core::ledger::{Change, DeviceState, Ledger};
use kurrent_core::time::Now;
use kurrent_core::timeline::Step;
use kurrent_handshake::{FLAG_REKEY, Rekey, Side, SignedRekey};
use kurrent_sys::entropy;
use std::net::IpAddr;
use std::sync::Arc;
use zeroize::Zeroizing;

const VERB: &str = "boot-vars";

/// One request.
#[derive(Clone, Copy)]
struct Asked<'a> {
    peer: Peer,
    mac: MacAddr,
    form: &'a Form,
    now: Now,
}

/// What a request shows.
struct Seen {
    found: Result<Outstanding, Evidence>,
    answer: Option<kurrent_handshake::Answer>,
    evidence: Evidence,
}

impl BootPlane {
    /// `POST /boot-vars`.
    pub async fn boot_vars(&self, peer: Peer, form: &Form, now: Now) -> Answer {
        let ledger = self.shared.ledger.snapshot();
        let mac = match boot::identify(&ledger, form.get("mac"), peer.lease) {
            Ok(mac) => mac,
            Err(refusal) => return self.refuse(form.get("mac").parse().ok(), VERB, refusal, now),
        };
        let asked = Asked { peer, mac, form, now };
        let json = form.get("format") == "json";
        let identity = self.shared.server_key.now();
        let seen = self.look(&ledger, &identity, asked);
        if !json && seen.evidence == Evidence::Genuine && ledger.device(mac).is_some_and(|d| d.state != DeviceState::Revoked) {
            self.note_proof(asked).await;
        }
        let decided = match ordered_rekey(&ledger, &identity, asked, &seen) {
            // Looking at it as a person does changes nothing.
            Some(_) | None if json => self.decide(&ledger, asked, seen, true).await,
            Some(Err(refusal)) => Err(refusal.into()),
            Some(Ok(change)) => match self.store_new_key(asked, &seen, change).await {
                Some(decided) => decided,
                None => self.decide(&ledger, asked, seen, false).await,
            },
            None => self.decide(&ledger, asked, seen, false).await,
        };
        match decided {
            Ok(answer) => answer,
            Err(Refused(refusal, _)) if json && !refusal.is_silent() => {
                if refusal.is_audited() {
                    self.audit(Some(mac), VERB, "", refusal.code());
                }
                let variables = if refusal == Refusal::NoDisk { &boot::no_disk_variables()[..] } else { &[] };
                let mut seen = as_json(variables);
                seen.insert("mac".into(), mac.to_string().into());
                seen.insert("state".into(), Standing::of(&ledger, mac).word().into());
                seen.insert("code".into(), refusal.code().into());
                seen.insert("reason".into(), refusal.line().into());
                Answer::Json(serde_json::Value::Object(seen).to_string())
            }
            Err(refused) => self.refuse(Some(mac), VERB, refused, now),
        }
    }

    /// Durable with the next change, at the latest with the boot itself. As of when it came: the server's key may be another one by now.
    async fn note_proof(&self, asked: Asked<'_>) {
        let Asked { mac, now, .. } = asked;
        if let Err(error) = self.shared.ledger.submit(Change::Proved { mac, at: now.wall }, &format!("device {mac}")).await {
            tracing::info!(%mac, %error, "that a machine has proved its key could not be noted");
        }
    }

    /// Which challenge is answered, and what the answer proves.
    fn look(&self, ledger: &Ledger, identity: &Held, asked: Asked<'_>) -> Seen {
        let Asked { mac, form, now, .. } = asked;
        let claim = Claim { signature: form.get("sig"), boot_key: form.get("boot_key"), uuid: form.get("uuid") };
        let device = ledger.device(mac);
        let stored = device.and_then(|d| d.public_key.as_deref());
        let (server_key, octets) = (identity.public(), stored.and_then(key_octets));
        let parties = Parties { mac, server_key: &server_key, device_key: octets.as_deref() };
        let found = match verify::octets(form.get("nonce")) {
            Some(nonce) => self.challenges.find(parties, identity.former(), &nonce, entropy::random, now),
            None => Err(Evidence::Nothing),
        };
        let answer = found.as_ref().ok().and_then(|o| claim.answer(o, server_key));
        let error = form.get("error");
        let evidence = match (&found, stored.map(DeviceKey::of_ledger)) {
            _ if claim.signature.is_empty() && !error.is_empty() => Evidence::Declined(Refusal::of_firmware(error)),
            (Err(evidence), _) => *evidence,
            (Ok(_), None) => Evidence::Nothing,
            // A stored key that can not be read proves nothing for anybody.
            (Ok(_), Some(None)) => Evidence::Wrong,
            (Ok(outstanding), Some(Some(key))) => {
                let worker = device.and_then(|d| d.bound_worker_id.as_ref());
                verify::evidence(&key, &claim, answer.as_ref(), &outstanding.challenge, worker)
            }
        };
        Seen { found, answer, evidence }
    }

    /// Stores the key that a device has made and signed; it is asked again then, and proves itself with the new one. `None` when
    /// the order ended meanwhile: the old key answered, and is as good as before.
    async fn store_new_key(&self, asked: Asked<'_>, seen: &Seen, change: Change) -> Option<Result<Answer, Refused>> {
        let Asked { mac, now, .. } = asked;
        match self.shared.ledger.submit(change, &format!("device {mac}")).await {
            Ok(_) => {}
            Err(SubmitError::Rejected(rejected)) => {
                tracing::info!(%mac, %rejected, "a new device key came when none was ordered any more");
                return None;
            }
            Err(error) => {
                tracing::warn!(%mac, %error, "a new device key could not be stored");
                return Some(Err(Refusal::Unavailable.into()));
            }
        }
        // The old key signs nothing any more; the nonce is used up besides.
        if let Ok(outstanding) = &seen.found {
            let _ = self.challenges.use_up(mac, outstanding, now);
        }
        tracing::info!(%mac, "a device has a new key, signed by its old one");
        self.shared.timelines.sight(mac, "http", "new device key stored", false, now);
        let wait = Wait { secs: 1, reason: "the new device key is stored; proving it".into() };
        Some(Ok(Answer::Script(ipxe::again_script(Standing::Bound, &wait))))
    }

    async fn decide(&self, ledger: &Arc<Ledger>, asked: Asked<'_>, seen: Seen, json: bool) -> Result<Answer, Refused> {
        let Asked { peer, mac, now, .. } = asked;
        let (proven, mut grant) = boot::boot_vars(ledger, &self.shared.config, mac, seen.evidence)?;
        if json {
            return Ok(Answer::Json(preview(&grant)));
        }
        boot::has_kernel(asked.form.get("arch"))?;
        // Without a key agreed on there is nothing to seal to, and nothing secret travels in clear.
        let Ok(outstanding) = seen.found else { return Err(Refusal::NoChannel.into()) };
        if proven == Proven::Unsealable {
            // The answer was genuine: it is good for no second look either.
            if !self.challenges.use_up(mac, &outstanding, now) {
                return Err(Refusal::TooMany.into());
            }
            return Ok(self.tell_variables(&grant, mac, now));
        }
        let Some(answer) = seen.answer else { return Err(Refusal::NoChannel.into()) };
        let session = answer.session(&outstanding.secret, Side::Appliance).map_err(|_| Refusal::VerifyFailed)?;
        let boot_id = BootId::from_random(entropy::random());
        let report_key = Zeroizing::new(entropy::random());
        let config = &self.shared.config;
        // The data plane is IPv4's: who came by IPv6 connects from the address that it was given by DHCP.
        let address = match peer.address {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => {
                let given = self.shared.address_of(mac);
                given.ok_or_else(|| Refused(Refusal::NotReady, "it has no IPv4 address for its disk".into()))?
            }
        };
        // The worker keeps the address and asks no DHCP server: what its own network is like it learns here.
        let subnet = config.dhcp.subnets().find(|subnet| subnet.contains(address)).ok_or_else(|| {
            let why = format!("its address {address} is in none of the networks that are known; name its network in spec.dhcp.subnets");
            Refused(Refusal::NotReady, why)
        })?;
        let facts = BootFacts {
            mac,
            address,
            prefix: subnet.prefix,
            gateway: subnet.router,
            dns: subnet.dns.clone(),
            boot_id: boot_id.to_string(),
            report_key: report_key.clone(),
        };
        // Before anybody is cut for it: an answer is good for one boot, and boots are bounded.
        if !self.challenges.use_up(mac, &outstanding, now) {
            return Err(Refusal::TooMany.into());
        }
        let issuing = (self.issue)(Arc::clone(&self.shared), Arc::clone(ledger), facts);
        let credentials = issuing.await.map_err(|why| Refused(Refusal::NotReady, why))?;
        grant.host = credentials.host.clone();
        self.settle_migration(ledger, &grant.worker, mac).await?;
        let sealed = session.seal(credentials.encode().as_bytes());
        let initrd = boots::as_initrd(&sealed).map_err(|error| {
            tracing::error!(%mac, %error, "the sealed credentials could not be packed");
            Refusal::Unavailable
        })?;
        self.boots.insert(boot_id, mac, initrd.into(), report_key, now);
        self.shared.timelines.fault(mac, "", now);
        self.shared.timelines.mark(mac, Step::Attest, now);
        self.shared.timelines.sight(mac, "http", "boot granted", false, now);
        self.audit(Some(mac), VERB, grant.worker.as_str(), "ok");
        tracing::info!(%mac, worker = %grant.worker, %boot_id, ?proven, "boot granted");
        Ok(Answer::Script(ipxe::grant_script(&grant, mac, boot_id, self.server())))
    }

    /// The existing firmware's scripts read their variables, none of which is secret; our own reads why it waits.
    fn tell_variables(&self, grant: &Grant, mac: MacAddr, now: Now) -> Answer {
        let refusal = Refusal::NoChannel;
        self.audit(Some(mac), VERB, grant.worker.as_str(), refusal.code());
        self.shared.timelines.fault(mac, refusal.line(), now);
        Answer::Script(ipxe::wait_with_variables(&grant.variables(), Standing::Bound, &refusal.wait(jitter())))
    }
}

/// The change that a device's new key asks for, if one was ordered and has come; a key that is not signed as it must be is refused.
fn ordered_rekey(ledger: &Ledger, identity: &Held, asked: Asked<'_>, seen: &Seen) -> Option<Result<Change, Refusal>> {
    let text = asked.form.get("rekey");
    let outstanding = seen.found.as_ref().ok().filter(|o| o.challenge.flags & FLAG_REKEY != 0)?;
    let device = ledger.device(asked.mac).filter(|d| d.owes_new_key(asked.now.wall))?;
    if text.is_empty() || seen.evidence != Evidence::Genuine {
        return None;
    }
    let stored = device.public_key.as_ref()?;
    let Some(DeviceKey::Ed25519(old)) = DeviceKey::of_ledger(stored) else { return None };
    let Some(signed) = verify::octets(text).map(|octets| SignedRekey::from_bytes(&octets)) else { return Some(Err(Refusal::RekeyFailed)) };
    let (nonce, mac) = (outstanding.challenge.nonce, asked.mac.0);
    let rekey = Rekey { nonce, mac, server_key: identity.public(), old, new: signed.new };
    if rekey.verify(&signed).is_err() {
        return Some(Err(Refusal::RekeyFailed));
    }
    let new = DeviceKey::Ed25519(signed.new).text();
    Some(Ok(Change::ReplaceKey { mac: asked.mac, old: stored.clone(), new }))
}

/// The boot variables for people.
fn preview(grant: &Grant) -> String {
    let mut seen = as_json(&grant.variables());
    seen.insert("state".into(), Standing::Bound.word().into());
    serde_json::Value::Object(seen).to_string()
}

fn as_json(variables: &[(&'static str, String)]) -> serde_json::Map<String, serde_json::Value> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect()
}
