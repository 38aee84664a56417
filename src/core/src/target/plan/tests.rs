//! The laws of `plan`, over random trees.

use super::*;
use crate::target::Secret;
use crate::target::tree::{DHCHAP_GROUP, DHCHAP_HASH};
use proptest::prelude::*;
use zeroize::Zeroizing;

const BASE: &str = "nqn.2026-11.test:";

fn keys(n: u8) -> Keys {
    let secret = |n| Secret::from_random(&Zeroizing::new([n; 32]));
    Keys { host: secret(n), controller: secret(n ^ 0x80) }
}

fn host(worker: u8, epoch: u8) -> String {
    format!("{BASE}host.w{worker}.e{epoch}")
}

fn disk(n: u8) -> String {
    format!("{BASE}w{n}.debian.{n:012x}")
}

/// Desired state of three workers with one disk each: absent, or at an epoch.
fn desired(epochs: [Option<u8>; 3], address: u8) -> Desired {
    let mut desired = Desired { base: BASE.into(), ..Desired::default() };
    desired.port = Some(Port { address: [10, 0, 0, address].into(), service: 4420 });
    for (worker, epoch) in (0u8..).zip(epochs).filter_map(|(w, e)| e.map(|e| (w, e))) {
        desired.hosts.insert(host(worker, epoch), keys(epoch));
        let uuid = Uuid::from_u128(u128::from(worker) + 1);
        let subsystem = Subsystem {
            serial: format!("{worker:012x}"),
            host: host(worker, epoch),
            path: format!("/d/{worker}").into(),
            uuid,
            nguid: uuid,
        };
        desired.subsystems.insert(disk(worker), subsystem);
    }
    desired
}

fn observed() -> impl Strategy<Value = Observed> {
    let host_entry = ((0u8..3, 0u8..3), 0u8..3, any::<bool>());
    let namespace = (any::<bool>(), 0u8..3, 0u128..4, prop::bool::weighted(0.1)).prop_map(|(enabled, path, uuid, buffered)| {
        let uuid = Uuid::from_u128(uuid);
        ObservedNamespace { enabled, path: format!("/d/{path}"), uuid, nguid: uuid, buffered }
    });
    let subsystem = (
        (prop::bool::weighted(0.1), 0u8..3, prop::bool::weighted(0.7)),
        prop::collection::btree_set((0u8..3, 0u8..3), 0..3),
        prop::collection::btree_map(1u32..3, namespace, 0..2),
    );
    let link = prop::collection::btree_set(0u8..3, 0..3);
    (prop::collection::vec(host_entry, 0..5), prop::collection::btree_map(0u8..3, subsystem, 0..4), prop::option::of((1u8..3, link)))
        .prop_map(|(hosts, subsystems, port)| {
            let mut tree = Observed::default();
            for ((w, e), key, whole) in hosts {
                let host_keys = whole.then(|| keys(key));
                tree.hosts.insert(host(w, e), ObservedHost { keys: host_keys, method: [DHCHAP_HASH.into(), DHCHAP_GROUP.into()] });
            }
            for (n, ((allow_any, serial, serial_right), allowed, namespaces)) in subsystems {
                // The kernel links only hosts that exist.
                let allowed: BTreeSet<String> = allowed.into_iter().map(|(w, e)| host(w, e)).collect();
                for h in &allowed {
                    tree.hosts.entry(h.clone()).or_default();
                }
                let serial = format!("{:012x}", if serial_right { n } else { serial });
                tree.subsystems.insert(disk(n), ObservedSubsystem { allow_any, serial, allowed, namespaces });
            }
            // Somebody else's export, never ours to touch.
            tree.hosts.insert("nqn.2014-08.org.other:h".into(), ObservedHost::default());
            tree.subsystems.insert("nqn.2014-08.org.other:s".into(), ObservedSubsystem::default());
            tree.port = port.map(|(address, links)| {
                let links = links.into_iter().map(disk).filter(|d| tree.subsystems.contains_key(d)).collect();
                ObservedPort { address: Port { address: [10, 0, 0, address].into(), service: 4420 }.attributes(), links }
            });
            tree
        })
}

/// Whether nobody is allowed and no namespace enabled.
fn is_closed(tree: &Observed, subsystem: &str) -> bool {
    tree.subsystems.get(subsystem).is_none_or(|s| s.allowed.is_empty() && s.namespaces.values().all(|n| !n.enabled))
}

/// What the kernel demands of each step, and what must hold of the tree before it. `confirmed`: subsystems whose cut was.
fn check_step(tree: &Observed, step: &Step, desired: &Desired, confirmed: &mut BTreeSet<String>) {
    let linked = |s: &String| tree.port.as_ref().is_some_and(|p| p.links.contains(s));
    match step {
        Step::RemoveHost(h) => assert!(tree.subsystems.values().all(|s| !s.allowed.contains(h)), "{step}: still allowed"),
        Step::Disallow(s, _) | Step::RemoveSubsystem(s) | Step::DisableNamespace(s, _) => assert!(!linked(s), "{step}: still linked"),
        Step::RemovePort => assert!(tree.port.as_ref().is_some_and(|p| p.links.is_empty()), "{step}"),
        Step::DescribeNamespace(s, ..) => {
            assert!(tree.subsystems[s].namespaces.get(&NAMESPACE_ID).is_some_and(|n| !n.enabled), "{step}: the kernel says busy");
        }
        Step::ConfirmCut(s) => {
            assert!(!linked(s) && is_closed(tree, s), "{step}: open before the cut is confirmed");
            confirmed.insert(s.clone());
        }
        Step::EnableNamespace(s, _) => assert!(linked(s) || confirmed.contains(s), "{step}: the cut is not confirmed"),
        Step::Allow(s, h) => {
            assert!(confirmed.contains(s), "{step}: the cut is not confirmed");
            assert!(!tree.subsystems[s].allow_any, "{step}: the kernel says busy");
            assert!(tree.hosts[h].keys.is_some(), "{step}: no keys yet");
        }
        Step::Link(s) => {
            assert!(confirmed.contains(s), "{step}: the cut is not confirmed");
            let (is, wanted) = (&tree.subsystems[s], &desired.subsystems[s]);
            assert_eq!(is.allowed.iter().collect::<Vec<_>>(), [&wanted.host], "{step}");
            assert!(!is.allow_any && is.namespaces[&NAMESPACE_ID].enabled && is.namespaces[&NAMESPACE_ID].fits(wanted), "{step}");
            assert_eq!(tree.hosts[&wanted.host].keys.as_ref(), desired.hosts.get(&wanted.host), "{step}");
        }
        _ => {}
    }
    assert!(!matches!(step.subject(), Subject::Host(n) | Subject::Subsystem(n) if !n.starts_with(BASE)), "{step}: not ours");
}

fn run(desired: &Desired, observed: &Observed) -> Observed {
    let (mut tree, mut confirmed) = (observed.clone(), BTreeSet::new());
    for step in plan(desired, observed) {
        check_step(&tree, &step, desired, &mut confirmed);
        tree.apply(&step);
    }
    tree
}

fn some_desired() -> impl Strategy<Value = Desired> {
    (prop::array::uniform3(prop::option::of(0u8..3)), 1u8..3).prop_map(|(epochs, address)| desired(epochs, address))
}

proptest! {
    #[test]
    fn after_running_the_plan_the_plan_is_empty(desired in some_desired(), observed in observed()) {
        let after = run(&desired, &observed);
        prop_assert_eq!(plan(&desired, &after), vec![]);
        let ours = |names: Vec<&String>| names.into_iter().filter(|n| n.starts_with(BASE)).cloned().collect::<Vec<_>>();
        prop_assert_eq!(ours(after.hosts.keys().collect()), desired.hosts.keys().cloned().collect::<Vec<_>>());
        prop_assert_eq!(ours(after.subsystems.keys().collect()), desired.subsystems.keys().cloned().collect::<Vec<_>>());
    }

    #[test]
    fn a_crash_after_any_step_is_repaired_by_the_next_plan(desired in some_desired(), observed in observed(), stop in 0usize..30) {
        let mut tree = observed.clone();
        for step in plan(&desired, &observed).iter().take(stop) {
            tree.apply(step);
        }
        let after = run(&desired, &tree);
        prop_assert_eq!(plan(&desired, &after), vec![]);
    }

    #[test]
    fn one_workers_change_never_unlinks_another(from in prop::array::uniform3(prop::option::of(0u8..3)), worker in 0usize..3, to in prop::option::of(0u8..3)) {
        let before = run(&desired(from, 1), &Observed::default());
        let mut epochs = from;
        epochs[worker] = to;
        let other = disk(u8::try_from(worker).unwrap());
        for step in plan(&desired(epochs, 1), &before) {
            if let Subject::Subsystem(s) = step.subject() {
                prop_assert_eq!(s, &other);
            }
        }
    }
}

#[test]
fn what_is_right_already_is_not_touched() {
    let wanted = desired([Some(1), Some(2), None], 1);
    let tree = run(&wanted, &Observed::default());
    assert_eq!(plan(&wanted, &tree), vec![]);
}

#[test]
fn a_new_epoch_cuts_first_then_lets_the_new_host_in() {
    let before = run(&desired([Some(1), None, None], 1), &Observed::default());
    let (s, old, new) = (disk(0), host(0, 1), host(0, 2));
    let expected = vec![
        Step::Unlink(s.clone()),
        Step::DisableNamespace(s.clone(), 1),
        Step::Disallow(s.clone(), old.clone()),
        Step::RemoveHost(old),
        Step::CreateHost(new.clone()),
        Step::SetKeys(new.clone(), keys(2)),
        Step::ConfirmCut(s.clone()),
        Step::CheckImage(s.clone(), "/d/0".into()),
        Step::EnableNamespace(s.clone(), 1),
        Step::Allow(s.clone(), new),
        Step::Link(s.clone()),
    ];
    let steps = plan(&desired([Some(2), None, None], 1), &before);
    assert_eq!(steps, expected);
    let mut tree = before;
    for step in steps.iter().take_while(|step| !matches!(step, Step::ConfirmCut(_))) {
        tree.apply(step);
    }
    assert!(is_closed(&tree, &s), "{tree:?}");
}

#[test]
fn what_is_found_half_open_is_closed_before_it_opens() {
    let wanted = desired([Some(1), None, None], 1);
    let (right, s) = (run(&wanted, &Observed::default()), disk(0));
    // Unlinked by hand, or by a crash after the first step; and a host that was taken off the list while it was connected.
    for (half, first) in
        [(Step::Unlink(s.clone()), Step::DisableNamespace(s.clone(), 1)), (Step::Disallow(s.clone(), host(0, 1)), Step::Unlink(s.clone()))]
    {
        let mut tree = right.clone();
        tree.apply(&half);
        assert_eq!(plan(&wanted, &tree).first(), Some(&first), "{half}");
        assert_eq!(run(&wanted, &tree), right);
    }
}

#[test]
fn no_host_is_let_in_and_nothing_linked_when_what_that_needs_has_failed() {
    let (s, h) = (disk(0), host(0, 1));
    let needs = |step: &Step| step.needs().map(|n| format!("{n:?}")).collect::<Vec<_>>();
    let (subsystem, of_host) = (format!("{:?}", Subject::Subsystem(&s)), format!("{:?}", Subject::Host(&h)));
    assert_eq!(needs(&Step::Allow(s.clone(), h.clone())), [subsystem.clone(), of_host.clone()]);
    assert_eq!(needs(&Step::Link(s.clone())), [subsystem.clone(), format!("{:?}", Subject::Port)]);
    assert_eq!(needs(&Step::SetKeys(h, keys(1))), [of_host]);
    assert_eq!(needs(&Step::Unlink(s)), [subsystem], "closing waits for nothing else");
}

#[test]
fn other_keys_under_the_same_host_name_are_another_host_and_are_fenced() {
    let mut wanted = desired([Some(1), None, None], 1);
    let before = run(&wanted, &Observed::default());
    wanted.hosts.insert(host(0, 1), keys(9));
    let steps = plan(&wanted, &before);
    assert_eq!(steps.first(), Some(&Step::Unlink(disk(0))));
    assert!(steps.contains(&Step::RemoveHost(host(0, 1))));
    let after = run(&wanted, &before);
    assert_eq!(after.hosts[&host(0, 1)].keys, Some(keys(9)));
}

#[test]
fn unbinding_everybody_leaves_the_port_and_nothing_else() {
    let before = run(&desired([Some(1), Some(1), Some(1)], 1), &Observed::default());
    let after = run(&desired([None; 3], 1), &before);
    assert!(after.hosts.is_empty() && after.subsystems.is_empty(), "{after:?}");
    assert!(after.port.is_some_and(|p| p.links.is_empty()));
}

#[test]
fn another_boot_of_the_same_device_is_let_in_only_after_the_earlier_ones_cut_is_confirmed() {
    let (before, after) = (desired([Some(1), None, None], 1), desired([Some(2), None, None], 1));
    let mut tree = Observed::default();
    plan(&before, &tree).iter().for_each(|step| tree.apply(step));
    let steps = plan(&after, &tree);
    let at = |wanted: &dyn Fn(&Step) -> bool| steps.iter().position(wanted).unwrap_or_else(|| panic!("{steps:?}"));
    let order = [
        at(&|s| matches!(s, Step::Unlink(_))),
        at(&|s| matches!(s, Step::DisableNamespace(..))),
        at(&|s| matches!(s, Step::RemoveHost(h) if *h == host(0, 1))),
        at(&|s| matches!(s, Step::ConfirmCut(_))),
        at(&|s| matches!(s, Step::EnableNamespace(..))),
        at(&|s| matches!(s, Step::Allow(_, h) if *h == host(0, 2))),
        at(&|s| matches!(s, Step::Link(_))),
    ];
    assert!(order.is_sorted(), "{steps:?}");
}
