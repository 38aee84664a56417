//! The tables of boot-chain 3 and 4, state by state.

use super::*;
use crate::id::{OsTag, WorkerId, disk_file_name, disk_nqn};
use crate::ledger::{Disk, DiskSource, Fingerprint, Source, Worker};
use crate::time::Wall;
use proptest::prelude::*;
use std::sync::Arc;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
const EVIDENCE: [Evidence; 8] = [
    Evidence::Nothing,
    Evidence::Declined(Refusal::WrongServer),
    Evidence::Declined(Refusal::Firmware),
    Evidence::NonceUnknown,
    Evidence::NonceExpired,
    Evidence::ServerKeyRotated,
    Evidence::Wrong,
    Evidence::Genuine,
];

fn device(mac: MacAddr, state: DeviceState, key: bool, keyless_allowed: bool) -> Device {
    Device {
        mac,
        uuid: String::new(),
        state,
        bound_worker_id: (state == DeviceState::Bound).then(|| "w1".parse().unwrap()),
        public_key: key.then(|| format!("ed25519:{}", "ab".repeat(32))),
        public_key_hash: None,
        source: Source::Ipxe,
        first_seen: Wall::UNIX_EPOCH,
        last_seen: None,
        proved_at: None,
        epoch: 3,
        rekey_until: None,
        rekey_signed: false,
        keyless_allowed,
        loader: None,
        address: None,
        labels: Default::default(),
        note: String::new(),
        fingerprint: Fingerprint::default(),
    }
}

fn ledger(device: Option<Device>, with_disk: bool) -> Ledger {
    let mut ledger = Ledger::default();
    let (worker, os, tag): (WorkerId, crate::id::OsName, _) =
        ("w1".parse().unwrap(), "debian".parse().unwrap(), OsTag::from_random([1; 6]));
    let disk = Disk {
        os_tag: tag.clone(),
        nqn: disk_nqn(&Config::default().agent.nqn_base, &worker, &os, &tag),
        filename: disk_file_name(&worker, &os, &tag),
        os,
        os_version: "12".parse().unwrap(),
        agent: crate::id::AgentName::local(),
        size_bytes: 4096,
        uuid: uuid::Uuid::nil(),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: Wall::UNIX_EPOCH,
    };
    let record = Worker {
        worker_id: worker.clone(),
        created_at: Wall::UNIX_EPOCH,
        default_disk: with_disk.then_some(tag),
        boot: Default::default(),
        error: String::new(),
        migration: None,
        disks: vec![disk],
    };
    ledger.workers.insert(worker.clone(), Arc::new(record));
    if let Some(device) = device {
        if device.state == DeviceState::Bound {
            ledger.bound.insert(worker, device.mac);
        }
        ledger.devices.insert(device.mac, Arc::new(device));
    }
    ledger
}

fn config(enforcement: bool) -> Config {
    Config { enforcement, ..Config::default() }
}

/// What boot-chain 3 and 4 say, written a second time as a table of rules in another order than the program's.
fn expected(
    state: Option<DeviceState>,
    key: bool,
    keyless_allowed: bool,
    enforcement: bool,
    evidence: Evidence,
    disk: bool,
) -> Result<Proven, Refusal> {
    let refused = match (state, evidence) {
        (None | Some(DeviceState::Pooled), _) => Some(Refusal::NotBound),
        (Some(DeviceState::Revoked), _) => Some(Refusal::Revoked),
        (Some(DeviceState::Bound), Evidence::Wrong) => Some(Refusal::VerifyFailed),
        (Some(DeviceState::Bound), Evidence::Declined(Refusal::WrongServer)) => Some(Refusal::WrongServer),
        (Some(DeviceState::Bound), Evidence::ServerKeyRotated) => Some(Refusal::ServerKeyRotated),
        (Some(DeviceState::Bound), _) if !enforcement || (keyless_allowed && !key) => None,
        (Some(DeviceState::Bound), _) if !key => Some(Refusal::NoKey),
        (Some(DeviceState::Bound), Evidence::Genuine) => None,
        (Some(DeviceState::Bound), Evidence::Nothing) => Some(Refusal::MissingSig),
        (Some(DeviceState::Bound), Evidence::NonceUnknown) => Some(Refusal::NonceUnknown),
        (Some(DeviceState::Bound), Evidence::NonceExpired) => Some(Refusal::NonceExpired),
        (Some(DeviceState::Bound), Evidence::Declined(why)) => Some(why),
    };
    match refused {
        Some(refusal) => Err(refusal),
        None if !disk => Err(Refusal::NoDisk),
        None if key && evidence == Evidence::Genuine => Ok(Proven::Verified),
        None => Ok(Proven::Keyless),
    }
}

#[test]
fn k10_k21_k28_the_table_holds_in_every_state() {
    let mut boots = 0;
    for state in [None, Some(DeviceState::Pooled), Some(DeviceState::Bound), Some(DeviceState::Revoked)] {
        for bits in 0..16u8 {
            let [key, keyless, enforcement, disk] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            for evidence in EVIDENCE {
                let ledger = ledger(state.map(|s| device(MAC, s, key, keyless)), disk);
                let got = boot_vars(&ledger, &config(enforcement), MAC, evidence);
                let want = expected(state, key, keyless, enforcement, evidence, disk);
                let case = format!("{state:?} key={key} keyless_allowed={keyless} enforcement={enforcement} disk={disk} {evidence:?}");
                assert_eq!(got.as_ref().map(|(proven, _)| *proven), want.as_ref().copied(), "{case}");
                if let Ok((_, grant)) = got {
                    boots += 1;
                    assert_eq!(state, Some(DeviceState::Bound), "{case}");
                    assert_eq!((grant.worker.as_str(), grant.epoch), ("w1", 3));
                    assert!(grant.host.as_str().ends_with(":host.w1.e3"));
                }
            }
        }
    }
    assert!(boots > 0);
}

#[test]
fn with_enforcement_only_a_genuine_answer_or_an_explicit_allowance_boots() {
    for evidence in EVIDENCE {
        let bound = |key, keyless| {
            boot_vars(&ledger(Some(device(MAC, DeviceState::Bound, key, keyless)), true), &config(true), MAC, evidence).is_ok()
        };
        assert_eq!(bound(true, false), evidence == Evidence::Genuine, "{evidence:?}");
        assert_eq!(bound(true, true), evidence == Evidence::Genuine, "a stored key must be proven: {evidence:?}");
        assert!(!bound(false, false), "{evidence:?}");
    }
}

#[test]
fn a_stranger_does_not_learn_whether_a_bound_machine_has_a_disk() {
    for evidence in [Evidence::Nothing, Evidence::Wrong, Evidence::NonceUnknown] {
        let of = |disk| boot_vars(&ledger(Some(device(MAC, DeviceState::Bound, true, false)), disk), &config(true), MAC, evidence).err();
        assert_eq!(of(true), of(false));
    }
}

#[test]
fn k28_a_device_that_is_not_its_workers_one_device_does_not_boot() {
    let mut ledger = ledger(Some(device(MAC, DeviceState::Bound, true, false)), true);
    ledger.bound.insert("w1".parse().unwrap(), OTHER);
    assert_eq!(boot_vars(&ledger, &config(true), MAC, Evidence::Genuine).err(), Some(Refusal::NotBound));
}

#[test]
fn who_asks_is_the_holder_of_the_address_and_never_a_revoked_machine() {
    let mut ledger = ledger(Some(device(OTHER, DeviceState::Revoked, true, false)), true);
    ledger.devices.insert(MAC, Arc::new(device(MAC, DeviceState::Pooled, true, false)));
    let claim = |text: &str, lease| identify(&ledger, text, lease);
    assert_eq!(claim("52:54:00:00:00:01", None), Ok(MAC));
    assert_eq!(claim("52-54-00-00-00-01", Some(MAC)), Ok(MAC), "any form of a MAC");
    assert_eq!(claim("52:54:00:00:00:03", Some(MAC)), Err(Refusal::MacMismatch));
    assert_eq!(claim("52:54:00:00:00:01", Some(OTHER)), Err(Refusal::Revoked), "a revoked machine hears nothing under another's name");
    assert_eq!(claim("52:54:00:00:00:02", None), Err(Refusal::Revoked));
    assert_eq!(claim("52:54:00:00:00:02", Some(MAC)), Err(Refusal::Revoked));
    for text in ["", "nonsense", "ff:ff:ff:ff:ff:ff", "52:54:00:00:00:01\n"] {
        assert_eq!(claim(text, Some(MAC)), Err(Refusal::NoMac), "{text:?}");
    }
}

#[test]
fn a_report_is_believed_only_from_the_machines_own_lease_where_we_give_the_addresses() {
    for (lease, of_server) in [(Some(MAC), Ok(())), (Some(OTHER), Err(Refusal::NoLease)), (None, Err(Refusal::NoLease))] {
        assert_eq!(may_report(DhcpMode::Server, lease, MAC), of_server, "{lease:?}");
        assert_eq!(may_report(DhcpMode::Off, lease, MAC), Ok(()), "{lease:?}");
    }
}

#[test]
fn only_a_key_that_signs_the_boot_key_is_sealed_to() {
    for (text, proven) in
        [(format!("ed25519:{}", "11".repeat(32)), Proven::Verified), (format!("p256:04{}", "11".repeat(64)), Proven::Unsealable)]
    {
        let device = Device { public_key: Some(text), ..device(MAC, DeviceState::Bound, true, false) };
        for enforcement in [true, false] {
            assert_eq!(authorise(&device, enforcement, Evidence::Genuine), Ok(proven));
        }
    }
}

#[test]
fn every_refusal_has_its_code_and_only_the_silent_ones_have_no_line() {
    use Refusal::*;
    let all = [
        NoMac,
        MacMismatch,
        NoLease,
        Revoked,
        NotBound,
        NoKey,
        MissingSig,
        NonceUnknown,
        NonceExpired,
        VerifyFailed,
        WrongServer,
        Firmware,
        NoDisk,
        NotReady,
        NoChannel,
        KeyMismatch,
        TooMany,
        Unavailable,
    ];
    let codes: std::collections::BTreeSet<&str> = all.iter().map(|r| r.code()).collect();
    assert_eq!(codes.len(), all.len());
    for refusal in all {
        assert!(refusal.is_silent() || !refusal.line().is_empty(), "{refusal:?}");
        assert!((1..=30).contains(&refusal.wait(0).secs) && (1..=30).contains(&refusal.wait(255).secs), "{refusal:?}");
    }
    assert!(Revoked.is_silent() && NoMac.is_silent() && Revoked.line().is_empty());
}

#[test]
fn pinning_is_open_with_the_window_or_by_binding() {
    use Standing::*;
    for (standing, window, may) in
        [(Unknown, false, false), (Pooled, false, false), (Bound, false, true), (Unknown, true, true), (Pooled, true, true)]
    {
        assert_eq!(may_pin(standing, window), may, "{standing:?} {window}");
    }
}

proptest! {
    #[test]
    fn waits_stay_between_a_second_and_half_a_minute_and_a_pooled_machine_is_asked_often(polls: u32, jitter: u8, key: bool, window: bool) {
        for standing in [Standing::Unknown, Standing::Pooled, Standing::Bound, Standing::Revoked] {
            let wait = after_report(standing, window, key, polls, jitter);
            prop_assert!((WAIT_MIN_SECS..=WAIT_MAX_SECS).contains(&wait.secs));
            prop_assert!(standing != Standing::Pooled || wait.secs <= 7, "binding is noticed within seconds");
            prop_assert!(standing != Standing::Unknown || wait.secs >= 7, "a stranger does not ask often");
        }
    }

    #[test]
    fn a_boot_id_is_16_lower_case_digits(octets: [u8; 8], text in "[0-9a-fA-F]{0,18}|.{0,18}") {
        let id = BootId::from_random(octets);
        prop_assert_eq!(BootId::parse(&id.to_string()), Some(id));
        prop_assert!(crate::stage1::credentials::is_boot_id(&id.to_string()));
        prop_assert_eq!(BootId::parse(&text).is_some(), crate::stage1::credentials::is_boot_id(&text));
    }
}
