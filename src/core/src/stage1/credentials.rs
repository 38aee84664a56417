//! What the appliance tells stage-1, sealed: `key=value` lines, one encoder and one strict parser.

use crate::id::{MacAddr, Nqn, WorkerId};
use crate::target::Secret;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;
use zeroize::Zeroizing;

/// More is not ours: a full set is about 900 octets.
const MAX_BYTES: usize = 8192;
/// Resolvers handed on at most.
const MAX_DNS: usize = 8;

/// Everything stage-1 needs to become its Worker. Travels sealed; no `Debug`, because it holds secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Hostname to set.
    pub worker: WorkerId,
    /// The NIC that booted.
    pub mac: MacAddr,
    /// The address it has from DHCP; kept, no second DHCP.
    pub address: Ipv4Addr,
    /// Prefix length.
    pub prefix: u8,
    /// Default router, if DHCP gives one.
    pub gateway: Option<Ipv4Addr>,
    /// Resolvers.
    pub dns: Vec<Ipv4Addr>,
    /// Boot plane, for reports.
    pub server: SocketAddrV4,
    /// This boot's name.
    pub boot_id: String,
    /// Key of [`kurrent_handshake::report_proof`].
    pub report_key: Zeroizing<[u8; 32]>,
    /// NVMe/TCP target.
    pub target: SocketAddrV4,
    /// Subsystem NQN of the disk.
    pub subsystem: Nqn,
    /// Host NQN of this epoch.
    pub host: Nqn,
    /// NVMe host identifier.
    pub host_id: uuid::Uuid,
    /// The host proves itself with it.
    pub host_secret: Secret,
    /// The target proves itself with it.
    pub controller_secret: Secret,
    /// Namespace to wait for.
    pub namespace: uuid::Uuid,
}

/// The text is not a set of credentials. Names the key, never the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("boot credentials: {key} is {fault}")]
pub struct Malformed {
    /// Which key.
    pub key: &'static str,
    /// `missing`, `not valid`, `not known`, …
    pub fault: &'static str,
}

/// Every key, each exactly once.
const KEYS: [&str; 16] = [
    "worker",
    "mac",
    "address",
    "prefix",
    "gateway",
    "dns",
    "server",
    "boot_id",
    "report_key",
    "target",
    "subsystem",
    "host",
    "host_id",
    "host_secret",
    "controller_secret",
    "namespace",
];

impl Credentials {
    /// One `key=value` line per field; a field that has no value has an empty one.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<String> {
        // Room for all of it from the start: a buffer that grows would leave copies of secrets behind.
        let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES));
        let dns: Vec<String> = self.dns.iter().take(MAX_DNS).map(ToString::to_string).collect();
        let report_key = Zeroizing::new(hex::encode(self.report_key.as_slice()));
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{key}={value}");
        };
        line("worker", &self.worker);
        line("mac", &self.mac);
        line("address", &self.address);
        line("prefix", &self.prefix);
        line("gateway", &self.gateway.map(|g| g.to_string()).unwrap_or_default());
        line("dns", &dns.join(","));
        line("server", &self.server);
        line("boot_id", &self.boot_id);
        line("report_key", &*report_key);
        line("target", &self.target);
        line("subsystem", &self.subsystem);
        line("host", &self.host);
        line("host_id", &self.host_id);
        line("host_secret", &self.host_secret.reveal());
        line("controller_secret", &self.controller_secret.reveal());
        line("namespace", &self.namespace);
        text
    }

    /// Reads [`Credentials::encode`]. Every key once, nothing unknown, nothing left out.
    ///
    /// # Errors
    /// [`Malformed`] with the first key that is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let whole = |fault| Malformed { key: "the text", fault };
        if text.len() > MAX_BYTES {
            return Err(whole("too long"));
        }
        let text = std::str::from_utf8(text).map_err(|_| whole("not UTF-8"))?;
        let mut values = BTreeMap::new();
        for line in text.strip_suffix('\n').ok_or(whole("cut off"))?.split('\n') {
            let (key, value) = line.split_once('=').ok_or(whole("not lines of key=value"))?;
            let key = KEYS.into_iter().find(|k| *k == key).ok_or(whole("of another version: a key is not known"))?;
            if values.insert(key, value).is_some() {
                return Err(Malformed { key, fault: "given twice" });
            }
        }
        let fields = Fields(values);
        let credentials = Self {
            worker: fields.parse("worker")?,
            mac: fields.parse("mac")?,
            address: fields.parse("address")?,
            prefix: fields.parse("prefix")?,
            gateway: fields.list("gateway", 1)?.first().copied(),
            dns: fields.list("dns", MAX_DNS)?,
            server: fields.parse("server")?,
            boot_id: fields.get("boot_id")?.to_owned(),
            report_key: fields.key("report_key")?,
            target: fields.parse("target")?,
            subsystem: fields.parse("subsystem")?,
            host: fields.parse("host")?,
            host_id: fields.parse("host_id")?,
            host_secret: fields.parse("host_secret")?,
            controller_secret: fields.parse("controller_secret")?,
            namespace: fields.parse("namespace")?,
        };
        if !(1..=32).contains(&credentials.prefix) {
            return Err(Malformed { key: "prefix", fault: "not valid" });
        }
        if !is_boot_id(&credentials.boot_id) {
            return Err(Malformed { key: "boot_id", fault: "not valid" });
        }
        Ok(credentials)
    }
}

/// 16 lower-case hex digits (contract 0001).
#[must_use]
pub fn is_boot_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

struct Fields<'a>(BTreeMap<&'static str, &'a str>);

impl<'a> Fields<'a> {
    fn get(&self, key: &'static str) -> Result<&'a str, Malformed> {
        self.0.get(key).copied().ok_or(Malformed { key, fault: "missing" })
    }

    fn parse<T: FromStr>(&self, key: &'static str) -> Result<T, Malformed> {
        self.get(key)?.parse().map_err(|_| Malformed { key, fault: "not valid" })
    }

    fn list(&self, key: &'static str, most: usize) -> Result<Vec<Ipv4Addr>, Malformed> {
        let wrong = Malformed { key, fault: "not valid" };
        let text = self.get(key)?;
        let addresses: Vec<Ipv4Addr> =
            if text.is_empty() { Vec::new() } else { text.split(',').map(|a| a.parse().map_err(|_| wrong)).collect::<Result<_, _>>()? };
        if addresses.len() > most { Err(wrong) } else { Ok(addresses) }
    }

    fn key(&self, key: &'static str) -> Result<Zeroizing<[u8; 32]>, Malformed> {
        let mut octets = Zeroizing::new([0; 32]);
        hex::decode_to_slice(self.get(key)?, octets.as_mut_slice()).map_err(|_| Malformed { key, fault: "not valid" })?;
        Ok(octets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Credentials {
        Credentials {
            worker: "w1".parse().unwrap(),
            mac: "52:54:00:12:34:56".parse().unwrap(),
            address: [10, 0, 0, 100].into(),
            prefix: 24,
            gateway: None,
            dns: vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
            server: "10.0.0.1:80".parse().unwrap(),
            boot_id: "00112233445566ff".into(),
            report_key: Zeroizing::new([9; 32]),
            target: "10.0.0.1:4420".parse().unwrap(),
            subsystem: "nqn.2026-11.test:w1.debian.000000000001".parse().unwrap(),
            host: "nqn.2026-11.test:host.w1.e1".parse().unwrap(),
            host_id: uuid::Uuid::from_u128(1),
            host_secret: Secret::from_random(&Zeroizing::new([1; 32])),
            controller_secret: Secret::from_random(&Zeroizing::new([2; 32])),
            namespace: uuid::Uuid::from_u128(2),
        }
    }

    #[test]
    fn what_is_encoded_is_what_is_parsed() {
        let mut credentials = sample();
        assert!(Credentials::parse(credentials.encode().as_bytes()) == Ok(credentials.clone()));
        credentials.gateway = Some([10, 0, 0, 254].into());
        credentials.dns.clear();
        assert!(Credentials::parse(credentials.encode().as_bytes()) == Ok(credentials));
    }

    #[test]
    fn anything_missing_doubled_unknown_cut_or_wrong_is_refused_by_key_and_without_its_value() {
        let text = sample().encode();
        for key in KEYS {
            let without: String = text.split_inclusive('\n').filter(|l| !l.starts_with(&format!("{key}="))).collect();
            assert_eq!(Credentials::parse(without.as_bytes()).err(), Some(Malformed { key, fault: "missing" }));
            let line = text.split_inclusive('\n').find(|l| l.starts_with(&format!("{key}="))).unwrap();
            assert_eq!(Credentials::parse(format!("{}{line}", *text).as_bytes()).err(), Some(Malformed { key, fault: "given twice" }));
            let wrong = text.replace(line, &format!("{key}=?\n"));
            assert_eq!(Credentials::parse(wrong.as_bytes()).err(), Some(Malformed { key, fault: "not valid" }));
        }
        for cut in 0..text.len() {
            assert!(Credentials::parse(&text.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Credentials::parse(format!("{}more=1\n", *text).as_bytes()).is_err());
        assert!(Credentials::parse(&[b'\n'; MAX_BYTES + 1]).is_err());
    }

    proptest! {
        #[test]
        fn no_octets_make_it_panic(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Credentials::parse(&octets);
        }
    }
}
