//! Real state folders, archives as they may come, and cuts at every step.

mod hostile;
mod people;

use super::*;
use crate::boot_plane::tests::{Bench, MAC};
use kurrent_core::ledger::{Change, Ledger};
use kurrent_sys::clock;
use std::collections::BTreeMap;
use std::io;
use zeroize::Zeroizing;

const PASSPHRASE: &str = "correct horse battery";

pub(super) fn passphrase(text: &str) -> Passphrase {
    Passphrase::given(Zeroizing::new(text.to_owned()))
}

/// A state folder with a bound device, a Worker with a disk, secrets, leases and an audit; an open window and a rekey order.
pub(super) struct Lived {
    pub(super) bench: Bench,
    pub(super) ledger: std::sync::Arc<Ledger>,
    pub(super) archive: PathBuf,
}

impl Lived {
    pub(super) async fn new() -> Self {
        let bench = Bench::new(true);
        let mac = MAC.parse().unwrap();
        let register = Change::Register {
            mac,
            public_key: None,
            keyless_allowed: true,
            note: "rack 1".into(),
            labels: BTreeMap::new(),
            address: None,
        };
        bench.change(register).await;
        bench.worker("w1").await;
        bench.bind(MAC, "w1").await;
        bench.open_window().await;
        bench.change(Change::Rekey { mac, until: Some(clock::now().wall + std::time::Duration::from_secs(600)), signed: false }).await;
        crate::secrets::first_run_token(&bench.folder.path().join("state/secrets")).unwrap();
        std::fs::write(bench.folder.path().join("state/leases"), "kurrent leases 1\n").unwrap();
        std::fs::write(bench.folder.path().join("kurrent.yaml"), "kind: ApplianceConfiguration\n").unwrap();
        let archive = bench.folder.path().join("backup.tar");
        let lived = Self { ledger: bench.plane.shared().ledger.snapshot(), bench, archive };
        lived.back_up();
        lived
    }

    /// Makes the archive anew.
    pub(super) fn back_up(&self) {
        let shared = self.bench.plane.shared().clone();
        shared.audit.flush();
        let source = Source {
            state_dir: &shared.config.state_dir,
            ledger: &shared.ledger.snapshot(),
            people: shared.people.octets().unwrap(),
            name: "lab".into(),
            config: Some(self.bench.folder.path().join("kurrent.yaml")),
            now: clock::now().wall,
        };
        let mut file = std::fs::File::create(&self.archive).unwrap();
        write(&source, &passphrase(PASSPHRASE), &mut file, &self.archive).unwrap();
    }

    /// Another appliance's state folder, with something in it.
    pub(super) fn other(&self) -> PathBuf {
        let state = self.bench.folder.path().join("other/state");
        std::fs::create_dir_all(&state).unwrap();
        std::fs::write(state.join("devices.yml"), "the old state").unwrap();
        state
    }

    pub(super) fn stage(&self, state_dir: &Path, archive: &Path, words: &str, dry_run: bool) -> Result<Restored, BackupError> {
        let disks = self.bench.folder.path().join("disks");
        let target = Target { state_dir, present: 7, disk_dir: Some(&disks), now: clock::now().wall };
        stage(archive, &passphrase(words), target, dry_run)
    }
}

/// Every file below a folder with its octets.
pub(super) fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(contents(&path)) } else { drop(all.insert(path.clone(), std::fs::read(&path).unwrap())) }
    }
    all
}

#[tokio::test]
async fn what_was_backed_up_is_restored_and_its_epochs_are_new() {
    let lived = Lived::new().await;
    let state = lived.other();
    let told = lived.stage(&state, &lived.archive, PASSPHRASE, false).unwrap();
    assert_eq!((told.name.as_str(), told.devices, told.bound, told.workers, told.disks), ("lab", 1, 1, 1, 1));
    assert_eq!(
        (told.missing_disks.len(), told.audit_broken.as_ref()),
        (1, None),
        "a backup holds no disk files, and says which are missing"
    );
    assert_eq!(std::fs::read(state.join("devices.yml")).unwrap(), b"the old state", "staging changes nothing");
    let Swapped::Restored(Some(aside)) = swap::carry_out(&state).unwrap() else { panic!("nothing was swapped") };
    assert_eq!(Some(aside.display().to_string()), told.kept_aside);
    assert_eq!(std::fs::read(aside.join("devices.yml")).unwrap(), b"the old state");
    assert_eq!(swap::carry_out(&state).unwrap(), Swapped::Nothing);

    let after = crate::ledger::load::check(&state).unwrap().unwrap();
    let (was, is) = (lived.ledger.device(MAC.parse().unwrap()).unwrap(), after.device(MAC.parse().unwrap()).unwrap());
    assert!(after.generation > lived.ledger.generation + 1_000_000 && after.generation > 7);
    assert_eq!((is.epoch, is.rekey_until, after.settings.registration_open_until), (after.generation, None, None), "it opens nothing");
    assert_eq!(kurrent_core::ledger::Device { epoch: was.epoch, rekey_until: was.rekey_until, ..is.clone() }, *was);
    assert_eq!(after.workers, lived.ledger.workers);
    let original = lived.bench.folder.path().join("state");
    for name in ["secrets/server.key", "secrets/first-run-token", "secrets/credentials.yml", "leases", "operations.jsonl"] {
        assert_eq!(std::fs::read(original.join(name)).unwrap(), std::fs::read(state.join(name)).unwrap(), "{name}");
    }
    assert!(crate::audit::verify(&state).unwrap() > 0);
    use std::os::unix::fs::PermissionsExt;
    for path in contents(&state).into_keys() {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
    }
    let names: Vec<String> = contents(&state).keys().map(|p| p.strip_prefix(&state).unwrap().display().to_string()).collect();
    assert!(!names.iter().any(|n| n.contains("restore") || n.contains("manifest") || n.contains(".enc")), "{names:?}");
}

/// A restore into an appliance that is further on, and one of an appliance that was never seen.
#[tokio::test]
async fn epochs_never_repeat_whatever_generation_is_there() {
    let lived = Lived::new().await;
    for present in [0, 1, lived.ledger.generation + 5, 1 << 57] {
        let after = Ledger::clone(&lived.ledger).after_restore(present, clock::now().wall, 0).unwrap();
        let epoch = after.device(MAC.parse().unwrap()).unwrap().epoch;
        assert!(epoch > present + 1_000_000 && epoch > lived.ledger.generation + 1_000_000 && epoch == after.generation);
    }
}

/// Restored, run on, damaged, restored again from the same archive: what was given out in between opens nothing.
#[tokio::test]
async fn the_same_backup_restored_twice_over_damage_gives_no_epoch_out_again() {
    let lived = Lived::new().await;
    let state = lived.bench.folder.path().join("again/state");
    let mut seen = Vec::new();
    for round in 0..3 {
        let disks = lived.bench.folder.path().join("disks");
        offline::restore(&state, &lived.archive, Zeroizing::new(PASSPHRASE.into()), Some(&disks), round > 0, clock::now()).unwrap();
        let after = crate::ledger::load::check(&state).unwrap().unwrap();
        seen.push(after.device(MAC.parse().unwrap()).unwrap().epoch);
        // Not even heads and journal read.
        for name in crate::ledger::load::names() {
            std::fs::write(state.join(name), "\0\0\0").unwrap();
        }
        assert!(crate::ledger::load::check(&state).is_err());
    }
    let distinct: std::collections::BTreeSet<u64> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), 3, "{seen:?}");
    // A little that reads is enough to go on from.
    std::fs::write(state.join("devices.yml"), "version: 3\ngeneration: 7\ndevices:\n  - epoch: 300000000000000000\n  - {").unwrap();
    std::fs::write(state.join("journal.jsonl"), "{\"version\":2,\"from\":1,\"generation\":18446744073709551615,").unwrap();
    assert_eq!(crate::ledger::load::highest_readable(&state), 300_000_000_000_000_000);
    let lowest = 300_000_000_000_000_000 + 1_000_000;
    let told = offline::restore(&state, &lived.archive, Zeroizing::new(PASSPHRASE.into()), None, true, clock::now()).unwrap();
    assert!(told.restored_generation > lowest);
}

#[tokio::test]
async fn a_backup_shows_no_secret_and_opens_only_with_its_passphrase() {
    let lived = Lived::new().await;
    let octets = std::fs::read(&lived.archive).unwrap();
    let state = lived.bench.folder.path().join("state/secrets");
    let mut secrets = 0;
    for (path, secret) in contents(&state) {
        for line in String::from_utf8(secret).unwrap().lines() {
            let word = line.trim_matches('"').rsplit(' ').next().unwrap_or_default().trim_matches('"');
            if word.len() >= 24 {
                secrets += 1;
                assert!(!octets.windows(word.len()).any(|w| w == word.as_bytes()), "{} is readable", path.display());
            }
        }
    }
    assert!(secrets >= 4, "{secrets}");
    let state = lived.other();
    let before = contents(state.parent().unwrap());
    for wrong in ["", "correct horse batterz", "correct horse battery "] {
        assert_eq!(lived.stage(&state, &lived.archive, wrong, false).unwrap_err().code(), "passphrase_wrong", "{wrong:?}");
    }
    assert!(lived.stage(&state, &lived.archive, PASSPHRASE, true).is_ok());
    assert_eq!(contents(state.parent().unwrap()), before, "refused, or only looked at: nothing changed");
    assert_eq!(Passphrase::new(Zeroizing::new("12345678901".into())).err().unwrap().code(), "passphrase_too_short");
    assert_eq!(*Passphrase::line(&Zeroizing::new(b"two words\r\nmore".to_vec())), "two words");
}

#[tokio::test]
async fn wherever_the_swap_is_cut_the_next_start_has_the_old_state_or_the_new_one() {
    let lived = Lived::new().await;
    let mut steps = 0;
    for cut in 0.. {
        let state = lived.bench.folder.path().join(format!("cut{cut}/state"));
        std::fs::create_dir_all(&state).unwrap();
        std::fs::write(state.join("devices.yml"), "the old state").unwrap();
        lived.stage(&state, &lived.archive, PASSPHRASE, false).unwrap();
        let mut at = 0;
        let swapped = swap::carry_out_stepwise(&state, &mut |_| {
            at += 1;
            if at > cut { Err(io::Error::other("cut")) } else { Ok(()) }
        });
        let whole = swapped.is_ok();
        steps = at;
        let _ = swap::carry_out(&state).unwrap();
        assert!(crate::ledger::load::check(&state).unwrap().is_some_and(|l| l.devices.len() == 1), "cut {cut}");
        let folders: Vec<String> =
            std::fs::read_dir(state.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into()).collect();
        assert_eq!(folders.len(), 2, "the state and the former one, nothing else: {folders:?}");
        if whole {
            break;
        }
    }
    assert!(steps >= 6, "{steps}");
    // Cut while it was staged: no marker.
    let state = lived.other();
    lived.stage(&state, &lived.archive, PASSPHRASE, false).unwrap();
    let staged = state.with_file_name("state.restore");
    std::fs::remove_file(staged.join("restore-complete.json")).unwrap();
    assert_eq!(swap::carry_out(&state).unwrap(), Swapped::Nothing);
    assert!(!staged.exists());
    assert_eq!(std::fs::read(state.join("devices.yml")).unwrap(), b"the old state");
}

#[tokio::test]
async fn a_folder_that_a_daemon_uses_is_neither_swapped_nor_locked() {
    let lived = Lived::new().await;
    let state = lived.bench.folder.path().join("state");
    assert_eq!(swap::lock(&state).unwrap_err().code(), "in_use");
    lived.stage(&state, &lived.archive, PASSPHRASE, false).unwrap();
    assert_eq!(swap::carry_out(&state).unwrap_err().code(), "in_use");
    assert!(crate::ledger::load::check(&state).unwrap().is_some_and(|l| l.generation == lived.ledger.generation));
}

use swap::Swapped;
