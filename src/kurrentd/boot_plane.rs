//! What the boot plane answers: the shell around `core::boot`. Each request reads one snapshot and the clock once.
//!
//! A refusal is one value from its decision to its four places: the console of the machine, the audit, the timeline,
//! and the status of the answer. Revoked machines hear nothing: an empty 404, whatever they ask for.

pub mod boots;
mod budget;
mod migrated;
mod report;
pub mod verify;

use crate::audit::Event;
use crate::challenges::{Challenges, Outstanding};
use crate::credentials::{self, BootFacts};
use crate::shared::{Shared, SharedRef};
use boots::Boots;
use hyper::body::Bytes;
use kurrent_core::boot::{self, BootId, Evidence, Grant, Proven, Refusal, Standing};
use kurrent_core::http::Form;
use kurrent_core::ledger::{Ledger, Outcome};
use kurrent_core::policy::Silence;
use kurrent_core::stage1::Credentials;
use kurrent_core::time::Now;
use kurrent_core::timeline::Step;
use kurrent_core::{id::MacAddr, ipxe};
use kurrent_handshake::{FLAG_MAY_PIN, Side};
use kurrent_sys::entropy;
use report::Report;
use std::net::{IpAddr, SocketAddrV4};
use std::sync::Arc;
use verify::{Claim, DeviceKey};
use zeroize::Zeroizing;

/// Longest `detail` of a stage-1 report, characters.
const MAX_DETAIL: usize = 200;

/// Makes the credentials of a granted boot; says in words why not yet.
pub type Issue = Arc<dyn Fn(&Shared, &Ledger, BootFacts) -> Result<Credentials, String> + Send + Sync>;

/// The credentials of a device whose disk the kernel exports, to exactly it.
///
/// # Errors
/// In words, for the worker's console.
pub fn issue_when_exported(shared: &Shared, ledger: &Ledger, facts: BootFacts) -> Result<Credentials, String> {
    let credentials = credentials::for_boot(&shared.credentials, &shared.config, ledger, facts).map_err(|e| e.to_string())?;
    shared.target.ready(&credentials)?;
    Ok(credentials)
}

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
        let challenge = self.challenges.issue(mac, flags, entropy::random(), entropy::random, now);
        let server = &self.shared.server_key;
        Answer::Script(ipxe::challenge_script(&challenge, server.verifying_key().as_bytes(), &challenge.sign(server)))
    }

    /// `POST /boot-vars`.
    pub async fn boot_vars(&self, peer: Peer, form: &Form, now: Now) -> Answer {
        const VERB: &str = "boot-vars";
        let json = form.get("format") == "json";
        let ledger = self.shared.ledger.snapshot();
        let mac = match boot::identify(&ledger, form.get("mac"), peer.lease) {
            Ok(mac) => mac,
            Err(refusal) => return self.refuse(form.get("mac").parse().ok(), VERB, refusal, now),
        };
        let decided = self.decide(&ledger, peer, mac, form, json, now).await;
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

    async fn decide(&self, ledger: &Ledger, peer: Peer, mac: MacAddr, form: &Form, json: bool, now: Now) -> Result<Answer, Refused> {
        let claim = Claim { signature: form.get("sig"), boot_key: form.get("boot_key"), uuid: form.get("uuid") };
        let found = match verify::octets(form.get("nonce")) {
            Some(nonce) => self.challenges.find(mac, &nonce, entropy::random, now),
            None => Err(Evidence::Nothing),
        };
        let answer = found.as_ref().ok().and_then(|o| claim.answer(o, self.shared.server_key.verifying_key().to_bytes()));
        let evidence = self.evidence(ledger, mac, form.get("error"), &claim, answer.as_ref(), found.as_ref());
        let (proven, grant) = boot::boot_vars(ledger, &self.shared.config, mac, evidence)?;
        if json {
            return Ok(Answer::Json(preview(&grant)));
        }
        boot::has_kernel(form.get("arch"))?;
        // Without a key agreed on there is nothing to seal to, and nothing secret travels in clear.
        let Ok(outstanding) = found else { return Err(Refusal::NoChannel.into()) };
        if proven == Proven::Unsealable {
            // The answer was genuine: it is good for no second look either.
            if !self.challenges.use_up(mac, &outstanding, now) {
                return Err(Refusal::TooMany.into());
            }
            return Ok(self.tell_variables(&grant, mac, now));
        }
        let Some(answer) = answer else { return Err(Refusal::NoChannel.into()) };
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
        let credentials = (self.issue)(&self.shared, ledger, facts).map_err(|why| Refused(Refusal::NotReady, why))?;
        if !self.challenges.use_up(mac, &outstanding, now) {
            return Err(Refusal::TooMany.into());
        }
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
        self.audit(Some(mac), "boot-vars", grant.worker.as_str(), "ok");
        tracing::info!(%mac, worker = %grant.worker, %boot_id, ?proven, "boot granted");
        Ok(Answer::Script(ipxe::grant_script(&grant, mac, boot_id, self.server())))
    }

    /// The existing firmware's scripts read their variables, none of which is secret; our own reads why it waits.
    fn tell_variables(&self, grant: &Grant, mac: MacAddr, now: Now) -> Answer {
        let refusal = Refusal::NoChannel;
        self.audit(Some(mac), "boot-vars", grant.worker.as_str(), refusal.code());
        self.shared.timelines.fault(mac, refusal.line(), now);
        Answer::Script(ipxe::wait_with_variables(&grant.variables(), Standing::Bound, &refusal.wait(jitter())))
    }

    fn evidence(
        &self,
        ledger: &Ledger,
        mac: MacAddr,
        error: &str,
        claim: &Claim<'_>,
        answer: Option<&kurrent_handshake::Answer>,
        found: Result<&Outstanding, &Evidence>,
    ) -> Evidence {
        if claim.signature.is_empty() && !error.is_empty() {
            return Evidence::Declined(Refusal::of_firmware(error));
        }
        let outstanding = match found {
            Ok(outstanding) => outstanding,
            Err(evidence) => return *evidence,
        };
        let Some(device) = ledger.device(mac) else { return Evidence::Nothing };
        match device.public_key.as_deref().map(DeviceKey::of_ledger) {
            None => Evidence::Nothing,
            // A stored key that can not be read proves nothing for anybody.
            Some(None) => Evidence::Wrong,
            Some(Some(key)) => verify::evidence(&key, claim, answer, &outstanding.challenge, device.bound_worker_id.as_ref()),
        }
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

/// The boot variables for people.
fn preview(grant: &Grant) -> String {
    let mut seen = as_json(&grant.variables());
    seen.insert("state".into(), Standing::Bound.word().into());
    serde_json::Value::Object(seen).to_string()
}

fn as_json(variables: &[(&'static str, String)]) -> serde_json::Map<String, serde_json::Value> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect()
}

fn jitter() -> u8 {
    u8::from_ne_bytes(entropy::random())
}

#[cfg(test)]
pub(crate) mod tests;
