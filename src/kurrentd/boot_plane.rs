//! What the boot plane answers: the shell around `core::boot`. Each request reads one snapshot and the clock once.
//!
//! A refusal is one value from its decision to its four places: the console of the machine, the audit, the timeline,
//! and the status of the answer. Revoked machines hear nothing: an empty 404, whatever they ask for.

mod boot_vars;
pub mod boots;
mod budget;
mod migrated;
mod report;
pub mod session;
pub mod verify;

use crate::audit::Event;
use crate::challenges::{Challenges, Parties};
use crate::shared::SharedRef;
use boots::Boots;
use hyper::body::Bytes;
use kurrent_core::boot::{self, BootId, Refusal, Standing};
use kurrent_core::http::Form;
use kurrent_core::id::MacAddr;
use kurrent_core::ipxe;
use kurrent_core::ledger::Outcome;
use kurrent_core::ledger::schema::key_octets;
use kurrent_core::policy::Silence;
use kurrent_core::time::Now;
use kurrent_core::timeline::Step;
use kurrent_handshake::{FLAG_MAY_PIN, FLAG_REKEY};
use kurrent_sys::entropy;
use report::Report;
use session::Issue;
use std::net::{IpAddr, SocketAddrV4};

/// Longest `detail` of a stage-1 report, characters.
const MAX_DETAIL: usize = 200;

/// A refusal, and what more can be said to a machine that has proven itself.
struct Refused(Refusal, String);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal, String::new())
    }
}

/// One answer of the boot plane.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// An iPXE script.
    Script(String),
    /// JSON for people.
    Json(String),
    /// An initrd.
    Blob(Bytes),
    /// 204.
    Done,
    /// 400: the request is not one that we take.
    Malformed,
    /// 403: a stage-1 report that is not genuine.
    Forbidden,
    /// 429: one too many.
    TooMany,
    /// 404, empty: unknown, or revoked.
    Nothing,
}

/// Who sent a request.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Who holds that address: by DHCP, or as the kernel's neighbour.
    pub lease: Option<MacAddr>,
}

/// The boot plane. One for the daemon.
pub struct BootPlane {
    shared: SharedRef,
    issue: Issue,
    challenges: Challenges,
    boots: Boots,
    requests: budget::Requests,
}

impl BootPlane {
    /// With nothing outstanding.
    #[must_use]
    pub fn new(shared: SharedRef, issue: Issue, now: Now) -> Self {
        let challenges = Challenges::new(entropy::random, now);
        Self { shared, issue, challenges, boots: Boots::default(), requests: budget::Requests::new(now) }
    }

    /// What every task shares.
    #[must_use]
    pub fn shared(&self) -> &SharedRef {
        &self.shared
    }

    /// Who sends from this address.
    #[must_use]
    pub fn peer(&self, address: IpAddr) -> Peer {
        Peer { address, lease: self.shared.holder(address) }
    }

    fn server(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.shared.config.boot_network.address, self.shared.config.boot_port)
    }

    /// Wipes what has expired; called every few seconds.
    pub fn expire(&self, now: Now) {
        self.challenges.expire(entropy::random, now);
        self.boots.expire(now);
        self.requests.expire(now);
    }

    /// Whether the holder of this address is answered by silence; audited.
    #[must_use]
    pub fn is_silenced(&self, peer: Peer, what: &'static str) -> bool {
        let silence = self.shared.silence(peer.lease);
        if silence == Some(Silence::Revoked) {
            self.audit(peer.lease, what, "", Refusal::Revoked.code());
        }
        silence.is_some()
    }

    fn audit(&self, mac: Option<MacAddr>, verb: &'static str, object: &str, result: &str) {
        let actor = mac.map_or_else(|| "device".to_owned(), |mac| format!("device {mac}"));
        self.shared.audit.record(Event {
            actor,
            verb,
            device: mac,
            object: object.to_owned(),
            result: result.to_owned(),
            detail: String::new(),
        });
    }

    /// Marks a step for the holder of an address, if there is one.
    pub fn mark(&self, peer: Peer, step: Step, now: Now) {
        if let Some(mac) = peer.lease {
            self.shared.timelines.mark(mac, step, now);
        }
    }

    /// Audit, timeline and console of one refusal.
    fn refuse(&self, mac: Option<MacAddr>, verb: &'static str, refused: impl Into<Refused>, now: Now) -> Answer {
        let Refused(refusal, because) = refused.into();
        if refusal.is_audited() {
            self.audit(mac, verb, "", refusal.code());
        }
        if let Some(mac) = mac {
            self.shared.timelines.sight(mac, "http", &format!("{verb}: {}", refusal.code()), true, now);
        }
        if refusal.is_silent() {
            return Answer::Nothing;
        }
        let mut wait = refusal.wait(jitter());
        if !because.is_empty() {
            wait.reason = format!("{}: {because}", wait.reason);
        }
        let standing = mac.map_or(Standing::Unknown, |mac| Standing::of(&self.shared.ledger.snapshot(), mac));
        if let Some(mac) = mac {
            self.shared.timelines.fault(mac, &wait.reason, now);
        }
        Answer::Script(match refusal {
            Refusal::ServerKeyRotated => ipxe::again_script(standing, &wait),
            Refusal::NoDisk => ipxe::wait_with_variables(&boot::no_disk_variables(), standing, &wait),
            _ => ipxe::wait_script(standing, &wait, refusal.needs_lease()),
        })
    }

    /// The script that every machine starts with.
    #[must_use]
    pub fn boot_script(&self) -> Answer {
        Answer::Script(ipxe::boot_script(self.server()))
    }

    /// The script of the loader that came by HTTP instead of TFTP.
    #[must_use]
    pub fn autoexec(&self) -> Answer {
        Answer::Script(ipxe::autoexec(self.server()))
    }

    /// `POST /devices/report`.
    pub async fn report(&self, peer: Peer, form: &Form, now: Now) -> Answer {
        const VERB: &str = "report";
        let ledger = self.shared.ledger.snapshot();
        let mac = match boot::identify(&ledger, form.get("mac"), peer.lease) {
            Ok(mac) => mac,
            Err(refusal) => return self.refuse(form.get("mac").parse().ok(), VERB, refusal, now),
        };
        if let Err(refusal) = boot::may_report(self.shared.config.dhcp.mode, self.shared.leased(peer), mac) {
            return self.refuse(Some(mac), VERB, refusal, now);
        }
        self.shared.timelines.mark(mac, Step::Script, now);
        let report = Report::read(mac, form);
        let has_key = report.has_key();
        let mut ledger = ledger;
        if report.is_news(ledger.device(mac), now) {
            match self.shared.ledger.submit(report.into_change(), &format!("device {mac}")).await {
                Ok((Outcome::KeyMismatch, _)) => return self.refuse(Some(mac), VERB, Refusal::KeyMismatch, now),
                Ok((_, after)) => ledger = after,
                Err(error) => {
                    tracing::warn!(%mac, %error, "a report could not be taken");
                    return self.refuse(Some(mac), VERB, Refusal::Unavailable, now);
                }
            }
        }
        let standing = Standing::of(&ledger, mac);
        self.shared.timelines.sight(mac, "http", &format!("report taken: {}", standing.word()), false, now);
        let wait = boot::after_report(standing, ledger.window_open(now.wall), has_key, form.get("polls").parse().unwrap_or(0), jitter());
        let firmware_fault = form.get("error");
        if !has_key && !firmware_fault.is_empty() {
            self.shared.timelines.fault(mac, Refusal::of_firmware(firmware_fault).line(), now);
        }
        // Half of the lease, as a DHCP client does (RFC 2131 section 4.4.5); iPXE itself never renews.
        let renew_at = self.shared.config.dhcp.local.lease_secs / 2;
        let renew = form.get("age").parse::<u32>().is_ok_and(|age| age >= renew_at);
        Answer::Script(ipxe::wait_script(standing, &wait, renew))
    }

    /// `POST /devices/challenge`.
    #[must_use]
    pub fn challenge(&self, peer: Peer, form: &Form, now: Now) -> Answer {
        const VERB: &str = "challenge";
        let ledger = self.shared.ledger.snapshot();
        let mac = match boot::identify(&ledger, form.get("mac"), peer.lease) {
            Ok(mac) => mac,
            Err(refusal) => return self.refuse(form.get("mac").parse().ok(), VERB, refusal, now),
        };
        let standing = Standing::of(&ledger, mac);
        if standing != Standing::Bound {
            return self.refuse(Some(mac), VERB, Refusal::NotBound, now);
        }
        let flags = if boot::may_pin(standing, ledger.window_open(now.wall)) { FLAG_MAY_PIN } else { 0 };
        let device = ledger.device(mac);
        let rekey = if device.is_some_and(|d| d.owes_new_key(now.wall)) { FLAG_REKEY } else { 0 };
        let identity = self.shared.server_key.now();
        let server_key = identity.public();
        let device_key = device.and_then(|d| d.public_key.as_deref()).and_then(key_octets);
        let parties = Parties { mac, server_key: &server_key, device_key: device_key.as_deref() };
        let challenge = self.challenges.issue(parties, flags | rekey, entropy::random(), entropy::random, now);
        let links = verify::octets(form.get("pinned")).map(|pinned| identity.links_from(&pinned)).unwrap_or_default();
        if !links.is_empty() {
            tracing::info!(%mac, rotations = links.len(), "it has pinned a former server key and is told the way to the present one");
        }
        Answer::Script(ipxe::challenge_script(&challenge, &server_key, &identity.sign(&challenge), links))
    }

    /// `GET /stage1/<boot_id>/sealed`.
    #[must_use]
    pub fn sealed(&self, boot_id: &str, now: Now) -> Answer {
        let Some((mac, blob)) = BootId::parse(boot_id).and_then(|id| self.boots.sealed(id, now)) else { return Answer::Nothing };
        if self.shared.ledger.snapshot().is_revoked(mac) {
            return self.refuse(Some(mac), "sealed", Refusal::Revoked, now);
        }
        // iPXE asks for it after the kernel: for machines whose lease is not ours this is how the step is seen.
        self.shared.timelines.mark(mac, Step::Kernel, now);
        Answer::Blob(blob)
    }

    /// `POST /stage1/report`.
    #[must_use]
    pub fn stage1_report(&self, form: &Form, now: Now) -> Answer {
        const VERB: &str = "stage1";
        let (step, detail) = (form.get("step"), form.get("detail"));
        let Some(id) = BootId::parse(form.get("boot_id")) else { return Answer::Malformed };
        let Some(proof) = verify::octets(form.get("proof")) else { return Answer::Malformed };
        let Some(mac) = self.boots.reporter(id, step, detail, &proof) else {
            self.audit(None, VERB, &id.to_string(), Refusal::VerifyFailed.code());
            return Answer::Forbidden;
        };
        if self.shared.ledger.snapshot().is_revoked(mac) {
            return self.refuse(Some(mac), VERB, Refusal::Revoked, now);
        }
        match step {
            "booted" => self.shared.timelines.mark(mac, Step::Kernel, now),
            "connect" => self.shared.timelines.mark(mac, Step::Connect, now),
            "root" => {
                self.shared.timelines.mark(mac, Step::Root, now);
                self.shared.timelines.fault(mac, "", now);
            }
            "failed" => {
                let detail: String = detail.chars().filter(|c| !c.is_control()).take(MAX_DETAIL).collect();
                tracing::warn!(%mac, boot_id = %id, detail, "a worker's start failed");
                self.shared.timelines.fault(mac, &format!("stage-1: {detail}"), now);
            }
            _ => return Answer::Malformed,
        }
        Answer::Done
    }
}

fn jitter() -> u8 {
    u8::from_ne_bytes(entropy::random())
}

#[cfg(test)]
pub(crate) mod tests;
