//! The boot plane against a real ledger, audit and credential store in a folder of the test's own; a device made of the
//! same library as the firmware program.

mod believed;
mod compatibility;
mod keys;
mod subnets;

use super::verify::DeviceKey;
use super::*;
use crate::credentials;
use crate::shared::Shared;
use ed25519_dalek::SigningKey;
use kurrent_core::config::Config;
use kurrent_core::id::{OsTag, WorkerId, disk_file_name, disk_nqn};
use kurrent_core::ledger::{Change, Disk, DiskSource};
use kurrent_core::stage1::Credentials;
use kurrent_core::time::Mono;
use kurrent_handshake::{Answer as Signed, Challenge, Session, Side, boot_public_key, report_proof};
use kurrent_sys::clock;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const MAC: &str = "52:54:00:00:00:01";
const OTHER: &str = "52:54:00:00:00:02";
/// Of the boot network; nobody has leased it.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const DEVICE_SECRET: [u8; 32] = [6; 32];

/// A boot plane with its folder.
pub(crate) struct Bench {
    pub(crate) plane: Arc<BootPlane>,
    pub(crate) folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(enforcement: bool) -> Self {
        Self::with(Config { enforcement, ..Config::default() })
    }

    pub(crate) fn with(config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name| folder.path().join(name);
        let mut config = Config { state_dir: at("state"), files_dir: at("files"), ..config };
        config.agent.disk_dir = at("disks");
        std::fs::create_dir_all(at("files/worker")).unwrap();
        let shared = Shared::open(config).unwrap();
        // No kernel target in a unit test: the secrets alone decide whether a boot is ready.
        let issue: Issue = Arc::new(|shared, ledger, facts| {
            let made = credentials::for_boot(&shared.credentials, &shared.config, &ledger, &facts).map_err(|e| e.to_string());
            Box::pin(std::future::ready(made))
        });
        Self { plane: Arc::new(BootPlane::new(shared, issue, clock::now())), folder }
    }

    pub(crate) async fn change(&self, change: Change) {
        self.plane.shared.ledger.submit(change, "user admin").await.unwrap();
    }

    pub(crate) async fn open_window(&self) {
        self.change(Change::OpenWindow { until: clock::now().wall + Duration::from_secs(600) }).await;
    }

    /// A Worker with a disk.
    pub(crate) async fn worker(&self, id: &str) {
        let (worker, os, os_tag): (WorkerId, kurrent_core::id::OsName, _) =
            (id.parse().unwrap(), "debian".parse().unwrap(), OsTag::from_random([1; 6]));
        self.change(Change::CreateWorker { worker: worker.clone() }).await;
        let disk = Disk {
            nqn: disk_nqn(&self.plane.shared.config.agent.nqn_base, &worker, &os, &os_tag),
            filename: disk_file_name(&worker, &os, &os_tag),
            os_tag,
            os,
            os_version: "12".parse().unwrap(),
            agent: kurrent_core::id::AgentName::local(),
            size_bytes: 4096,
            uuid: uuid::Uuid::from_u128(7),
            source: DiskSource::Empty,
            remark: String::new(),
            created_at: clock::now().wall,
        };
        self.change(Change::AddDisk { worker, disk }).await;
    }

    /// Binds a device and makes its secrets, as the reconciler does.
    pub(crate) async fn bind(&self, mac: &str, worker: &str) {
        let (mac, worker): (MacAddr, WorkerId) = (mac.parse().unwrap(), worker.parse().unwrap());
        self.change(Change::Bind { mac, worker: worker.clone(), force: false }).await;
        let epoch = self.plane.shared.ledger.snapshot().device(mac).unwrap().epoch;
        self.plane.shared.credentials.ensure(&[(worker, epoch, mac)]).unwrap();
    }

    /// `mac` holds the address that tests come from.
    pub(crate) fn lease(&self, mac: &str) {
        self.plane.shared.leases.store(Arc::new([(Ipv4Addr::LOCALHOST, mac.parse().unwrap())].into_iter().collect()));
    }

    pub(crate) fn audited(&self) -> Vec<(String, String)> {
        self.plane.shared.audit.flush();
        let text = std::fs::read_to_string(self.folder.path().join("state/operations.jsonl")).unwrap();
        let entries = text.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        entries.map(|e| (e["verb"].as_str().unwrap().to_owned(), e["result"].as_str().unwrap().to_owned())).collect()
    }

    fn was_audited(&self, verb: &str, result: &str) -> bool {
        self.audited().contains(&(verb.to_owned(), result.to_owned()))
    }

    async fn report(&self, device: &SigningKey) -> String {
        text(self.report_from(MAC, &report_form(MAC, device)).await)
    }

    /// A report from the address that `holder` has leased.
    async fn report_from(&self, holder: &str, fields: &str) -> Answer {
        self.lease(holder);
        self.plane.report(self.plane.peer(Ipv4Addr::LOCALHOST.into()), &form(fields), clock::now()).await
    }

    fn challenge(&self, mac: &str, now: Now) -> Result<(Challenge, [u8; 32]), String> {
        read_challenge(&text(self.plane.challenge(peer(), &form(&format!("mac={mac}")), now)), mac)
    }

    async fn boot_vars(&self, fields: &str, now: Now) -> Answer {
        self.plane.boot_vars(peer(), &form(fields), now).await
    }

    /// A bound device, its key in the ledger.
    async fn bound(enforcement: bool, device: &SigningKey) -> Self {
        let bench = Self::new(enforcement);
        bench.open_window().await;
        bench.report(device).await;
        bench.worker("w1").await;
        bench.bind(MAC, "w1").await;
        bench
    }
}

pub(crate) fn key() -> SigningKey {
    SigningKey::from_bytes(&[2; 32])
}

fn peer() -> Peer {
    Peer { address: ADDRESS.into(), lease: None }
}

fn form(text: &str) -> Form {
    Form::parse(text.as_bytes()).unwrap()
}

fn text(answer: Answer) -> String {
    match answer {
        Answer::Script(text) | Answer::Json(text) => text,
        other => format!("{other:?}"),
    }
}

pub(crate) fn report_form(mac: &str, device: &SigningKey) -> String {
    let key = hex::encode(device.verifying_key().as_bytes());
    format!(
        "mac={mac}&uuid=&manufacturer=QEMU&product=PC%20(Q35)&serial=1&cpu_model=x&memory_total=256&memory_type=RAM&memory_speed=0&nic_chip=SNP&nic_busid=1&public_key={key}"
    )
}

/// The value that a script sets.
pub(crate) fn set<'a>(script: &'a str, name: &str) -> &'a str {
    script.lines().find_map(|line| line.strip_prefix(&format!("set {name} "))).unwrap_or("")
}

pub(crate) fn read_challenge(script: &str, mac: &str) -> Result<(Challenge, [u8; 32]), String> {
    let hex32 = |name| verify::octets::<32>(set(script, name)).ok_or_else(|| script.to_owned());
    let mac: MacAddr = mac.parse().unwrap();
    let challenge = Challenge {
        nonce: hex32("knonce")?,
        mac: mac.0,
        server_boot_key: hex32("kserverboot")?,
        flags: set(script, "kflags").parse().unwrap(),
        expected: verify::octets(set(script, "kexpected")).ok_or_else(|| script.to_owned())?,
    };
    let server = hex32("kserver")?;
    challenge.verify(&server, &verify::octets(set(script, "ksig")).unwrap()).unwrap();
    Ok((challenge, server))
}

/// The form that a device answers with, and its session.
pub(crate) fn answer_form(challenge: Challenge, server: [u8; 32], device: &SigningKey) -> (String, Session) {
    let signed = Signed { challenge, uuid: [0; 16], server_key: server, device_boot_key: boot_public_key(&DEVICE_SECRET) };
    let fields = format!(
        "mac={}&uuid=00000000-0000-0000-0000-000000000000&nonce={}&sig={}&boot_key={}",
        MacAddr(challenge.mac),
        hex::encode(challenge.nonce),
        hex::encode(signed.sign(device)),
        hex::encode(signed.device_boot_key)
    );
    (fields, signed.session(&DEVICE_SECRET, Side::Device).unwrap())
}

#[tokio::test]
async fn k05_a_machine_reports_waits_is_bound_proves_itself_and_gets_sealed_credentials() {
    let (bench, device) = (Bench::new(true), key());
    bench.open_window().await;
    let pooled = bench.report(&device).await;
    assert_eq!((set(&pooled, "kstate"), set(&pooled, "kreason")), ("pooled", "registered; waiting to be bound to a worker"));
    bench.worker("w1").await;
    bench.bind(MAC, "w1").await;
    assert_eq!(set(&bench.report(&device).await, "kstate"), "bound");

    let now = clock::now();
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let (fields, session) = answer_form(challenge, server, &device);
    let script = text(bench.boot_vars(&fields, now).await);
    for (name, value) in [
        ("hostname", "w1"),
        ("os", "debian"),
        ("os-version", "12"),
        ("os-tag", "010101010101"),
        ("storager-ip", "10.77.0.1"),
        ("method", "nvme"),
    ] {
        assert_eq!(set(&script, name), value, "{script}");
    }
    let boot_id = script.split("kurrent.boot=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let (archive, credentials) = bench.unsealed(&boot_id, &session, now);
    assert_eq!((credentials.worker.as_str(), credentials.boot_id.as_str(), credentials.address), ("w1", boot_id.as_str(), ADDRESS));
    let said = format!("{script:?}{archive:?}{:?}", bench.audited());
    assert!(!said.contains(credentials.host_secret.reveal()), "secrets are only inside the seal");

    let report = |step: &str, detail: &str, key: &[u8; 32]| {
        let proof = hex::encode(report_proof(key, &boot_id, step, detail));
        bench.plane.stage1_report(&form(&format!("boot_id={boot_id}&step={step}&detail={}&proof={proof}", detail.replace(' ', "%20"))), now)
    };
    assert_eq!(report("connect", "", &credentials.report_key), Answer::Done);
    assert_eq!(report("failed", "no root", &credentials.report_key), Answer::Done);
    let boot = bench.plane.shared.timelines.of(MAC.parse().unwrap()).unwrap();
    assert_eq!(boot.fault.as_deref(), Some("stage-1: no root"));
    assert_eq!(report("root", "", &[0; 32]), Answer::Forbidden, "a report without the key is not believed");
    assert_eq!(report("root", "", &credentials.report_key), Answer::Done);
    let boot = bench.plane.shared.timelines.of(MAC.parse().unwrap()).unwrap();
    let steps: Vec<Step> = boot.marks.iter().map(|m| m.step).collect();
    assert_eq!(steps, [Step::Script, Step::Attest, Step::Kernel, Step::Connect, Step::Root]);
    assert_eq!(boot.fault, None);
    assert!(bench.was_audited("boot-vars", "ok"));
}

#[tokio::test]
async fn every_wrong_answer_is_refused_with_its_reason_at_the_machine_in_the_audit_and_in_the_timeline() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    let now = clock::now();
    let later = |secs| Now { mono: now.mono.after(Duration::from_secs(secs)), ..now };
    let refused = async |fields: &str, now, code: &str| {
        let script = text(bench.boot_vars(fields, now).await);
        assert!(set(&script, "kreason").contains(&format!("({code})")), "{code}: {script}");
        assert!(!script.contains("hostname") && !script.contains("w1"), "nothing else is revealed: {script}");
        assert!(bench.was_audited("boot-vars", code), "{code}");
        let fault = bench.plane.shared.timelines.of(MAC.parse().unwrap()).and_then(|b| b.fault).unwrap();
        assert!(fault.contains(code), "{fault}");
    };
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let (good, _) = answer_form(challenge, server, &device);
    refused(&answer_form(challenge, server, &SigningKey::from_bytes(&[9; 32])).0, now, "verify_failed").await;
    refused(&answer_form(challenge, [9; 32], &device).0, now, "verify_failed").await;
    refused(&good.replace("boot_key=", "boot_key=00").replace("sig=", "sig=00"), now, "missing_sig").await;
    refused(&format!("mac={MAC}&nonce={}", hex::encode(challenge.nonce)), now, "missing_sig").await;
    refused(&format!("mac={MAC}"), now, "missing_sig").await;
    refused(&good.replace(&hex::encode(challenge.nonce), &"ab".repeat(32)), now, "nonce_unknown").await;
    refused(&format!("mac={MAC}&error=wrong_server"), now, "wrong_server").await;
    refused(&format!("mac={MAC}&error=no_entropy"), now, "firmware").await;
    refused(&good, later(61), "nonce_expired").await;
    // None of that has used the challenge up.
    assert!(text(bench.boot_vars(&good, later(59)).await).contains("kernel --name vmlinuz"));
    refused(&good, later(59), "nonce_unknown").await;
    assert_eq!(bench.boot_vars("mac=&nonce=", now).await, Answer::Nothing);
    assert!(bench.was_audited("boot-vars", "no_mac"));
}

#[tokio::test]
async fn k28_another_machine_under_a_bound_mac_gets_nothing() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    let now = clock::now();
    // By its lease.
    let stranger = Peer { address: Ipv4Addr::LOCALHOST.into(), lease: Some(OTHER.parse().unwrap()) };
    let script = text(bench.plane.challenge(stranger, &form(&format!("mac={MAC}")), now));
    assert!(set(&script, "kreason").contains("mac_mismatch") && set(&script, "knonce").is_empty());
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let (good, _) = answer_form(challenge, server, &device);
    let script = text(bench.plane.boot_vars(stranger, &form(&good), now).await);
    assert!(set(&script, "kreason").contains("mac_mismatch"), "{script}");
    assert!(bench.was_audited("challenge", "mac_mismatch") && bench.was_audited("boot-vars", "mac_mismatch"));
    // An unknown machine, with a key of its own.
    let script = text(bench.boot_vars(&good.replace(MAC, OTHER), now).await);
    assert!(set(&script, "kreason").contains("not_bound"), "{script}");
    assert!(bench.challenge(OTHER, now).unwrap_err().contains("not_bound"));
}

#[tokio::test]
async fn k12_a_revoked_machine_hears_nothing_whatever_it_asks() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    let now = clock::now();
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let (good, _) = answer_form(challenge, server, &device);
    let script = text(bench.boot_vars(&good, now).await);
    let boot_id = script.split("kurrent.boot=").nth(1).unwrap().split(' ').next().unwrap();
    bench.change(Change::Revoke { mac: MAC.parse().unwrap() }).await;
    let by_lease = Peer { address: Ipv4Addr::LOCALHOST.into(), lease: Some(MAC.parse().unwrap()) };
    let named = form(&format!("mac={MAC}"));
    assert_eq!(bench.plane.report(peer(), &form(&report_form(MAC, &device)), now).await, Answer::Nothing);
    assert_eq!(bench.plane.challenge(peer(), &named, now), Answer::Nothing);
    assert_eq!(bench.plane.challenge(by_lease, &form(&format!("mac={OTHER}")), now), Answer::Nothing);
    assert_eq!(bench.boot_vars(&good, now).await, Answer::Nothing);
    assert_eq!(bench.plane.sealed(boot_id, now), Answer::Nothing);
    assert!(bench.plane.is_silenced(by_lease, "http") && !bench.plane.is_silenced(peer(), "http"));
    for verb in ["report", "challenge", "boot-vars", "sealed", "http"] {
        assert!(bench.was_audited(verb, "revoked"), "{verb}");
    }
}

#[tokio::test]
async fn k07_k08_strangers_are_admitted_only_with_window_and_key_and_unchanged_reports_write_nothing() {
    let (bench, device) = (Bench::new(true), key());
    let closed = bench.report(&device).await;
    assert_eq!(set(&closed, "kstate"), "unknown");
    bench.open_window().await;
    let keyless = report_form(MAC, &device).split("&public_key").next().unwrap().to_owned();
    for bad in [keyless.clone(), format!("{keyless}&public_key={}", "00".repeat(32)), format!("{keyless}&public_key=abc")] {
        let script = text(bench.report_from(MAC, &bad).await);
        assert!(set(&script, "kreason").contains("no_key"), "{script}");
    }
    assert_eq!(set(&bench.report(&device).await, "kstate"), "pooled");
    let after = bench.plane.shared.ledger.snapshot();
    for _ in 0..20 {
        bench.report(&device).await;
    }
    let again = bench.plane.shared.ledger.snapshot();
    assert!(Arc::ptr_eq(&after, &again), "twenty polls changed nothing at all");
}

#[tokio::test]
async fn a_report_with_another_key_changes_nothing_and_says_so() {
    let bench = Bench::new(true);
    bench.open_window().await;
    bench.report(&key()).await;
    let stored = bench.plane.shared.ledger.snapshot().device(MAC.parse().unwrap()).unwrap().public_key.clone();
    let script = bench.report(&SigningKey::from_bytes(&[9; 32])).await;
    assert!(set(&script, "kreason").contains("key_mismatch"), "{script}");
    assert_eq!(bench.plane.shared.ledger.snapshot().device(MAC.parse().unwrap()).unwrap().public_key, stored);
    assert!(bench.was_audited("report", "key_mismatch"));
}

#[tokio::test]
async fn keyless_machines_boot_only_when_allowed_and_only_to_a_seal() {
    for (enforcement, allowed) in [(true, true), (false, false), (true, false)] {
        let bench = Bench::new(enforcement);
        let mac: MacAddr = MAC.parse().unwrap();
        bench
            .change(Change::Register {
                mac,
                public_key: None,
                keyless_allowed: allowed,
                note: String::new(),
                labels: std::collections::BTreeMap::new(),
                address: None,
            })
            .await;
        bench.worker("w1").await;
        bench.bind(MAC, "w1").await;
        let now = clock::now();
        let (challenge, server) = bench.challenge(MAC, now).unwrap();
        let script = text(bench.boot_vars(&answer_form(challenge, server, &key()).0, now).await);
        assert_eq!(script.contains("kernel --name"), !enforcement || allowed, "{script}");
        assert_eq!(script.contains("no_key"), enforcement && !allowed);
        let bare = text(bench.boot_vars(&format!("mac={MAC}"), now).await);
        assert!(!bare.contains("kernel --name"), "no secret in clear: {bare}");
    }
}

#[tokio::test]
async fn people_see_the_same_decision_as_json_without_secrets() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    let now = clock::now();
    let refused: serde_json::Value = serde_json::from_str(&text(bench.boot_vars(&format!("mac={MAC}&format=json"), now).await)).unwrap();
    assert!(bench.was_audited("boot-vars", "missing_sig"), "a refusal is audited in whatever form it is asked for");
    assert_eq!((refused["state"].as_str(), refused["code"].as_str()), (Some("bound"), Some("missing_sig")));
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let good = answer_form(challenge, server, &device).0;
    let granted: serde_json::Value = serde_json::from_str(&text(bench.boot_vars(&format!("{good}&format=json"), now).await)).unwrap();
    assert_eq!(granted["hostname"].as_str(), Some("w1"));
    assert!(text(bench.boot_vars(&good, now).await).contains("kernel --name"), "looking at it did not use the challenge up");
}

#[tokio::test]
async fn a_waiting_machine_is_told_to_renew_its_lease_when_half_of_it_is_over() {
    let (bench, device) = (Bench::new(true), key());
    bench.open_window().await;
    for (age, renew) in [("", false), ("1799", false), ("1800", true), ("99999999999", false), ("x", false)] {
        let script = text(bench.report_from(MAC, &format!("{}&age={age}", report_form(MAC, &device))).await);
        assert_eq!(script.contains("set krenew 1"), renew, "age {age}");
    }
}

#[tokio::test]
async fn a_nonce_survives_what_happens_to_others() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    let now = Now { mono: Mono(Duration::from_secs(1_000_000)), ..clock::now() };
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    for _ in 0..500 {
        bench.challenge(MAC, now).unwrap();
    }
    assert!(text(bench.boot_vars(&answer_form(challenge, server, &device).0, now).await).contains("kernel --name"));
}
