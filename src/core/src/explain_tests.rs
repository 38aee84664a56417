//! One situation a row.

use super::*;
use crate::id::{MacAddr, OsTag, WorkerId, disk_file_name, disk_nqn};
use crate::ledger::apply::apply;
use crate::ledger::{BootSettings, Change, Disk, DiskSource};
use crate::time::{Mono, Now};
use std::time::Duration;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);

fn now() -> Now {
    Now { mono: Mono(Duration::from_secs(1000)), wall: Wall::from_second(1_800_000_000).unwrap() }
}

fn wall(ago: i64) -> Wall {
    Wall::from_second(1_800_000_000 - ago).unwrap()
}

struct Case {
    ledger: Ledger,
    knocked: Option<Knocked>,
    boot: Option<Boot>,
    sightings: Vec<Sighting>,
    enforcement: bool,
    served: bool,
    target: TargetFacts,
    has_credentials: bool,
    address: Option<Ipv4Addr>,
}

impl Case {
    fn new(changes: Vec<Change>) -> Self {
        let ledger = changes.into_iter().fold(Ledger::default(), |l, c| apply(&l, c, now()).unwrap().0);
        let target = TargetFacts { looked: true, exported: true, ..TargetFacts::default() };
        Self {
            ledger,
            knocked: None,
            boot: None,
            sightings: vec![],
            enforcement: true,
            served: true,
            target,
            has_credentials: true,
            address: Some(Ipv4Addr::LOCALHOST),
        }
    }

    fn steps(mut self, steps: &[Step], fault: &str) -> Self {
        let mut boot = Boot::default();
        steps.iter().for_each(|s| boot.mark(*s, now()));
        boot.fault = (!fault.is_empty()).then(|| fault.to_owned());
        self.boot = Some(boot);
        self
    }

    fn edit(mut self, edit: impl FnOnce(&mut Self)) -> Self {
        edit(&mut self);
        self
    }

    fn check(self, expected: &[(Severity, &str)]) {
        let audit = [Evidence { what: "audit".into(), at: Some(wall(9)) }];
        let facts = Facts {
            ledger: &self.ledger,
            mac: MAC,
            knocked: self.knocked,
            address: self.address,
            boot: self.boot.as_ref(),
            sightings: &self.sightings,
            enforcement: self.enforcement,
            served: self.served,
            target: &self.target,
            has_credentials: self.has_credentials,
            dhcp_served: true,
            audit: &audit,
            now: now().wall,
        };
        let findings = explain(&facts);
        let found: Vec<(Severity, &str)> = findings.iter().map(|f| (f.severity, f.code)).collect();
        assert_eq!(found, expected, "{findings:#?}");
        for finding in &findings {
            assert!(finding.what.len() > 20 && (finding.severity == Severity::Fine) == finding.next_step.is_empty(), "{finding:?}");
        }
        let first = findings.first().unwrap();
        assert!(first.evidence.iter().any(|e| e.at.is_some()), "{first:?}");
    }
}

fn register(key: Option<&str>, keyless_allowed: bool) -> Change {
    let public_key = key.map(str::to_owned);
    Change::Register { mac: MAC, public_key, keyless_allowed, note: String::new(), labels: Default::default(), address: None }
}

fn ed25519() -> String {
    format!("ed25519:{}", "11".repeat(32))
}

fn worker() -> WorkerId {
    "w1".parse().unwrap()
}

fn bind() -> Vec<Change> {
    vec![
        register(Some(&ed25519()), false),
        Change::CreateWorker { worker: worker() },
        Change::Bind { mac: MAC, worker: worker(), force: false },
    ]
}

fn with_disk() -> Vec<Change> {
    let (os, os_tag) = ("debian".parse().unwrap(), OsTag::from_random([1; 6]));
    let disk = Disk {
        nqn: disk_nqn(&crate::id::Nqn::default_base(), &worker(), &os, &os_tag),
        filename: disk_file_name(&worker(), &os, &os_tag),
        os_tag,
        os,
        os_version: "12".parse().unwrap(),
        agent: crate::id::AgentName::local(),
        size_bytes: 4096,
        uuid: uuid::Uuid::from_u128(7),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: now().wall,
    };
    bind().into_iter().chain([Change::AddDisk { worker: worker(), disk }]).collect()
}

fn sighting(part: &'static str, refused: bool) -> Sighting {
    Sighting { part, outcome: "x".into(), refused, at: wall(5) }
}

use Severity::{Blocking, Fine, Warning};
use Step::{Attest, Connect, Dhcp, Kernel, Loader, Root, Script};

#[test]
fn a_stranger_is_told_how_far_it_came() {
    let open = || vec![Change::OpenWindow { until: now().wall + Duration::from_secs(600) }];
    let knocked = |has_key, key_changed| Some(Knocked { has_key, key_changed, last_seen: wall(3) });
    let none = || Case::new(vec![]);
    none().check(&[(Blocking, "never_seen")]);
    none().edit(|c| c.sightings = vec![sighting("dhcp", true)]).check(&[(Blocking, "no_network_boot")]);
    none().steps(&[Dhcp], "").check(&[(Blocking, "no_loader")]);
    none().steps(&[Dhcp, Loader], "").check(&[(Blocking, "no_script")]);
    none().steps(&[Dhcp, Loader, Script], "").edit(|c| c.sightings = vec![sighting("http", true)]).check(&[(Blocking, "no_report")]);
    none().edit(|c| c.knocked = knocked(true, false)).check(&[(Blocking, "window_closed")]);
    none().edit(|c| c.knocked = knocked(false, false)).check(&[(Blocking, "no_key")]);
    none().edit(|c| c.knocked = knocked(true, true)).check(&[(Blocking, "window_closed"), (Warning, "key_changed")]);
    Case::new(open()).edit(|c| c.knocked = knocked(true, false)).check(&[(Warning, "admitted_soon")]);
    Case::new(open()).edit(|c| c.knocked = knocked(false, false)).check(&[(Blocking, "no_key")]);
    none().edit(|c| c.served = false).check(&[(Blocking, "ledger_unreadable"), (Blocking, "never_seen")]);
}

#[test]
fn a_device_that_may_not_boot_is_told_why() {
    Case::new(vec![register(Some(&ed25519()), false)]).check(&[(Blocking, "pooled")]);
    Case::new(vec![register(None, false)]).check(&[(Blocking, "pooled"), (Blocking, "no_key")]);
    Case::new(vec![register(Some(&ed25519()), false), Change::Revoke { mac: MAC }]).check(&[(Blocking, "revoked")]);
    let keyless = |allowed| {
        let mut changes = with_disk();
        changes[0] = register(None, allowed);
        Case::new(changes).steps(&[Dhcp, Loader, Script], "")
    };
    keyless(false).check(&[(Blocking, "no_key"), (Warning, "not_answered")]);
    keyless(false).edit(|c| c.enforcement = false).check(&[(Warning, "keyless"), (Warning, "not_answered")]);
    keyless(true).check(&[(Warning, "keyless"), (Warning, "not_answered")]);
    let mut p256 = with_disk();
    p256[0] = register(Some(&format!("p256:04{}", "11".repeat(64))), false);
    Case::new(p256).steps(&[Dhcp, Script], "").check(&[(Blocking, "no_channel"), (Warning, "not_answered")]);
}

#[test]
fn k21_a_worker_without_a_disk_that_boots_is_told_which_kind() {
    let script = |changes| Case::new(changes).steps(&[Dhcp, Script], "");
    script(bind()).check(&[(Blocking, "no_disk"), (Warning, "not_answered")]);
    let menu = |entry: &str| Change::SetBoot {
        worker: worker(),
        boot: BootSettings { menu_default: Some(entry.into()), ..BootSettings::default() },
    };
    script(with_disk().into_iter().chain([menu("reboot")]).collect()).check(&[(Blocking, "menu_reboot"), (Warning, "not_answered")]);
    let edited = |edit: fn(&mut Worker)| {
        script(with_disk()).edit(|c| {
            let mut changed = Worker::clone(&c.ledger.workers[&worker()]);
            edit(&mut changed);
            c.ledger.workers.insert(worker(), std::sync::Arc::new(changed));
        })
    };
    edited(|w| w.default_disk = None).check(&[(Blocking, "no_default"), (Warning, "not_answered")]);
    edited(|w| w.boot.menu_default = Some("gone".into())).check(&[(Blocking, "menu_unknown"), (Warning, "not_answered")]);
}

#[test]
fn a_boot_that_stopped_is_told_where_and_one_that_went_well_since_when() {
    let at = |steps: &[Step], fault: &str| Case::new(with_disk()).steps(steps, fault);
    Case::new(with_disk()).check(&[(Blocking, "never_seen")]);
    at(&[Dhcp], "").check(&[(Blocking, "no_loader")]);
    at(&[Dhcp, Loader], "").check(&[(Blocking, "no_script")]);
    for code in ["key_mismatch", "verify_failed", "wrong_server", "missing_sig", "no_lease", "mac_mismatch", "firmware", "no_channel"] {
        let fault = format!("refused ({code}): so");
        at(&[Dhcp, Loader, Script], &fault).check(&[(Blocking, code)]);
    }
    at(&[Dhcp, Script], "refused (nonce_expired): so").check(&[(Blocking, "nonce")]);
    at(&[Dhcp, Script], "something else").check(&[(Blocking, "stopped")]);
    at(&[Dhcp, Script, Attest], "").check(&[(Blocking, "no_kernel")]);
    at(&[Dhcp, Script, Attest, Kernel], "").check(&[(Blocking, "no_connection")]);
    at(&[Dhcp, Script, Attest, Kernel], "stage-1: no disk").check(&[(Blocking, "stage1_failed")]);
    at(&[Dhcp, Script, Attest, Kernel, Connect], "").check(&[(Warning, "no_root")]);
    let all = [Dhcp, Loader, Script, Attest, Kernel, Connect, Root];
    at(&all, "").edit(|c| c.target.connected = true).check(&[(Fine, "running")]);
    at(&all, "").check(&[(Warning, "not_connected")]);
    at(&all, "").edit(|c| (c.target.connected, c.address) = (true, None)).check(&[(Warning, "no_lease"), (Fine, "running")]);
}

#[test]
fn what_the_target_does_not_do_is_told_before_what_the_machine_did() {
    let script = || Case::new(with_disk()).steps(&[Dhcp, Script], "");
    script()
        .edit(|c| (c.target.exported, c.target.faults) = (false, vec!["no such file".into()]))
        .check(&[(Blocking, "target_fault"), (Warning, "not_answered")]);
    script().edit(|c| c.target.exported = false).edit(|c| c.has_credentials = false).check(&[
        (Warning, "not_exported"),
        (Warning, "no_credentials"),
        (Warning, "not_answered"),
    ]);
    script().edit(|c| c.target = TargetFacts::default()).check(&[(Warning, "target_not_looked"), (Warning, "not_answered")]);
}

#[test]
fn a_machine_of_an_architecture_without_loader_is_told_so_until_it_gets_further() {
    let sighting =
        || Sighting { part: "loader", outcome: format!("{NO_LOADER} its architecture (6 x86 UEFI)"), refused: true, at: now().wall };
    let at = |steps: &[Step]| Case::new(with_disk()).steps(steps, "").edit(|c| c.sightings = vec![sighting()]);
    at(&[Dhcp]).check(&[(Blocking, "no_loader_for_architecture")]);
    at(&[Dhcp, Loader]).check(&[(Blocking, "no_script")]);
}

#[test]
fn both_devices_of_a_migration_are_told_where_the_worker_is() {
    let other = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
    let second = Change::Register {
        mac: other,
        public_key: Some(ed25519()),
        keyless_allowed: false,
        note: String::new(),
        labels: Default::default(),
        address: None,
    };
    let until = now().wall + Duration::from_secs(600);
    let migrate = |from, to| {
        let note = crate::ledger::Migration { from: Some(from), to, since: now().wall, until };
        Change::Migrate { worker: worker(), note, enforcement: true }
    };
    let away = || with_disk().into_iter().chain([second.clone(), migrate(MAC, other)]);
    Case::new(away().collect()).check(&[(Blocking, "migrating_away"), (Blocking, "pooled")]);
    let hand_over = Change::Bind { mac: other, worker: worker(), force: true };
    let here = with_disk().into_iter().chain([second.clone(), hand_over, migrate(other, MAC)]);
    Case::new(here.collect()).steps(&[Dhcp, Script], "").check(&[(Warning, "migrating"), (Warning, "not_answered")]);
}

#[test]
fn a_rekey_that_waits_is_told_with_its_kind_until_it_ends() {
    let order = |signed, secs| {
        let rekey = Change::Rekey { mac: MAC, until: Some(now().wall + Duration::from_secs(60)), signed };
        let mut case = Case::new([with_disk(), vec![rekey]].concat()).steps(&[Dhcp, Loader, Script, Attest, Kernel, Connect, Root], "");
        let device = case.ledger.device(MAC).unwrap();
        let ended = crate::ledger::Device { rekey_until: Some(now().wall + Duration::from_secs(secs)), ..device.clone() };
        case.ledger.devices.insert(MAC, std::sync::Arc::new(ended));
        case.target.connected = true;
        case
    };
    order(true, 60).check(&[(Warning, "rekey_waits"), (Fine, "running")]);
    order(false, 60).check(&[(Warning, "rekey_replaced_waits"), (Fine, "running")]);
    order(true, 0).check(&[(Fine, "running")]);
}
