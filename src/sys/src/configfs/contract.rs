//! What any target tree must hold, the copy in a folder as well as the kernel's: run by unit tests and in a virtual machine.

use super::Nvmet;
use kurrent_core::target::Secret;
use kurrent_core::target::plan::{Step, plan};
use kurrent_core::target::tree::{Desired, Keys, NAMESPACE_ID, Observed, Port, Subsystem};
use std::path::Path;
use uuid::Uuid;
use zeroize::Zeroizing;

/// Prefix of every name in the contract.
pub const BASE: &str = "nqn.2026-11.contract:";

/// Keys made of one octet.
#[must_use]
pub fn keys(octet: u8) -> Keys {
    let secret = |octet| Secret::from_random(&Zeroizing::new([octet; 32]));
    Keys { host: secret(octet), controller: secret(!octet) }
}

/// The host NQN of an epoch.
#[must_use]
pub fn host(epoch: u8) -> String {
    format!("{BASE}host.w1.e{epoch}")
}

/// The subsystem NQN of the one disk.
#[must_use]
pub fn subsystem() -> String {
    format!("{BASE}w1.debian.000102abcdef")
}

/// One Worker at an epoch, its disk in `image`; or nothing but the port.
#[must_use]
pub fn desired(epoch: Option<u8>, image: &Path) -> Desired {
    let port = Port { address: [127, 0, 0, 1].into(), service: 4420 };
    let mut desired = Desired { base: BASE.into(), port: Some(port), ..Desired::default() };
    if let Some(epoch) = epoch {
        let uuid = Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888);
        let disk = Subsystem { serial: "000102abcdef".into(), host: host(epoch), path: image.to_owned(), uuid, nguid: uuid };
        desired.hosts.insert(host(epoch), keys(epoch));
        desired.subsystems.insert(subsystem(), disk);
    }
    desired
}

/// Plans, runs every step twice, observes, and demands that nothing is left to do.
///
/// # Panics
/// When the tree does not hold the contract.
pub fn reach(nvmet: &Nvmet, desired: &Desired) -> (Vec<Step>, Observed) {
    let steps = plan(desired, &nvmet.observe().expect("the tree can be read"));
    for step in &steps {
        nvmet.run(step).unwrap_or_else(|e| panic!("{step}: {e}"));
        if is_repeatable(step) {
            nvmet.run(step).unwrap_or_else(|e| panic!("{step}, a second time: {e}"));
        }
    }
    let after = nvmet.observe().expect("the tree can be read");
    assert_eq!(plan(desired, &after), [], "after running the plan the plan is empty");
    (steps, after)
}

/// Attributes of a port in use can not be written again; the planner never asks for it.
fn is_repeatable(step: &Step) -> bool {
    !matches!(step, Step::CreatePort(_))
}

/// Export, a new epoch, other keys under the same name, drift made by hand, withdrawal.
///
/// # Panics
/// When the tree does not hold the contract.
pub fn check(nvmet: &Nvmet, image: &Path) {
    let (_, after) = reach(nvmet, &desired(Some(1), image));
    let exported =
        |o: &Observed, epoch| o.is_exported(&subsystem().parse().expect("an NQN"), &host(epoch).parse().expect("an NQN"), &keys(epoch));
    assert!(exported(&after, 1), "{after:?}");
    assert!(nvmet.revalidate(&subsystem(), NAMESPACE_ID).expect("a file that is there"), "the kernel looks at the size again");
    let (steps, _) = reach(nvmet, &desired(Some(1), image));
    assert_eq!(steps, [], "what is right is not touched");
    let (steps, after) = reach(nvmet, &desired(Some(2), image));
    assert_eq!(steps.first(), Some(&Step::Unlink(subsystem())), "cut first");
    assert!(exported(&after, 2) && !after.hosts.contains_key(&host(1)), "{after:?}");

    let mut other_keys = desired(Some(2), image);
    other_keys.hosts.insert(host(2), keys(9));
    let (_, after) = reach(nvmet, &other_keys);
    assert_eq!(after.hosts.get(&host(2)).and_then(|h| h.keys.clone()), Some(keys(9)));

    for drift in [
        Step::Unlink(subsystem()),
        Step::DisableNamespace(subsystem(), 1),
        Step::CreateHost(host(7)),
        Step::CreateSubsystem(format!("{BASE}stray")),
        Step::Disallow(subsystem(), host(2)),
    ] {
        nvmet.run(&drift).expect("drift can be made");
        reach(nvmet, &other_keys);
    }
    assert!(!nvmet.revalidate(&format!("{BASE}none"), NAMESPACE_ID).expect("nothing to look at"), "what is not enabled has no size");
    let (_, after) = reach(nvmet, &desired(None, image));
    assert!(after.hosts.is_empty() && after.subsystems.is_empty(), "{after:?}");
    assert!(after.port.is_some_and(|p| p.links.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configfs::fake::FakeKernel;

    #[test]
    fn the_copy_in_a_folder_holds_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, [0; 4096]).unwrap();
        let root = folder.path().join("nvmet");
        let nvmet = Nvmet::new(root.clone(), Box::new(FakeKernel::new(&root).unwrap()));
        check(&nvmet, &image);
    }

    #[test]
    fn a_kernel_without_target_is_told_from_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let nvmet = Nvmet::new(folder.path().into(), Box::new(crate::configfs::RealKernel));
        assert!(matches!(nvmet.observe(), Err(crate::configfs::TargetError::NotAvailable(_))));
    }
}
