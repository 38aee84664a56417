//! Placement as tables, and its laws over random clusters.

use super::*;
use crate::ledger::{Change, Disk, DiskSource, apply::apply};
use crate::time::{Mono, Now};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const MASTER: &str = "debian_tpl_13.img";

fn now() -> Now {
    Now { mono: Mono::default(), wall: jiff::Timestamp::UNIX_EPOCH }
}

fn name<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: fmt::Debug,
{
    text.parse().unwrap()
}

/// A node that could take anything: 10 GiB free, the master at no cost.
fn status() -> NodeStatus {
    NodeStatus {
        reachable: Ok(()),
        data_plane: DataPlane::Ready,
        free_bytes: 10 * GIB,
        total_bytes: 100 * GIB,
        masters: [(name(MASTER), MasterFile { size_bytes: 2 * GIB, clone_bytes: 0 })].into(),
    }
}

fn agent(id: &str, drained: bool, roles: Vec<Role>) -> Agent {
    Agent { name: name(id), base_url: "https://10.0.0.9:8443".into(), roles, drained, note: String::new(), added_at: None }
}

fn change(ledger: &Ledger, change: Change) -> Ledger {
    apply(ledger, change, now()).unwrap().0
}

/// Workers `w0` to `w9`, and these nodes beside `local`, which is drained.
fn ledger(agents: Vec<Agent>) -> Ledger {
    let mut ledger = Ledger::default();
    for n in 0..10 {
        ledger = change(&ledger, Change::CreateWorker { worker: name(&format!("w{n}")) });
    }
    for agent in agents {
        ledger = change(&ledger, Change::AddAgent { agent });
    }
    let drain = Change::EditAgent { name: AgentName::local(), base_url: None, roles: None, drained: Some(true), note: None };
    change(&ledger, drain)
}

fn add_disk(ledger: &Ledger, number: u8, on: &AgentName, wanted: &Wanted, size_bytes: u64) -> Ledger {
    let os_tag = crate::id::OsTag::from_random([number, 9, 0, 0, 0, 0]);
    let disk = Disk {
        nqn: name(&format!("nqn.2026-11.test:{number}")),
        filename: name(&format!("f{number}.img")),
        uuid: uuid::Uuid::from_u128(u128::from(number) + 1),
        os_tag,
        os: wanted.os.clone(),
        os_version: wanted.os_version.clone(),
        agent: on.clone(),
        size_bytes,
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: now().wall,
    };
    change(ledger, Change::AddDisk { worker: wanted.worker.clone(), disk })
}

fn wanted(worker: &str, version: &str, content: Content, pin: Option<&str>) -> Wanted {
    Wanted { worker: name(worker), os: name("debian"), os_version: name(version), content, pin: pin.map(name) }
}

fn clone_of(worker: &str) -> Wanted {
    wanted(worker, "13", Content::Master(name(MASTER)), None)
}

fn where_to(ledger: &Ledger, nodes: &[(&str, NodeStatus)], wanted: &[Wanted]) -> Vec<String> {
    let nodes: Vec<(AgentName, NodeStatus)> = nodes.iter().map(|(n, s)| (name(n), s.clone())).collect();
    let show = |r: Result<Placement, Refusal>| r.map_or_else(|r| format!("{} {}", r.status, r.code), |p| p.agent.to_string());
    plan(ledger, &nodes, wanted).into_iter().map(show).collect()
}

#[test]
fn k32_each_condition_alone_keeps_a_disk_away_and_is_named() {
    let cases: [(&str, Agent, NodeStatus); 6] = [
        ("it has not the disk role", agent("a", false, vec![]), status()),
        ("it is drained", agent("a", true, vec![Role::Disk]), status()),
        ("it is not reachable: no route", agent("a", false, vec![Role::Disk]), NodeStatus::unreachable("no route".into())),
        (
            "its data-plane port is not ready: no port",
            agent("a", false, vec![Role::Disk]),
            NodeStatus { data_plane: DataPlane::NotReady("no port".into()), ..status() },
        ),
        ("it has not the master", agent("a", false, vec![Role::Disk]), NodeStatus { masters: BTreeMap::new(), ..status() }),
        (
            "7 bytes are needed, 6 are free",
            agent("a", false, vec![Role::Disk]),
            NodeStatus { free_bytes: 6, masters: [(name(MASTER), MasterFile { size_bytes: 4096, clone_bytes: 7 })].into(), ..status() },
        ),
    ];
    for (reason, agent, status) in cases {
        let ledger = ledger(vec![agent]);
        let nodes = [(name("a"), status), (AgentName::local(), self::status())];
        let refused = plan(&ledger, &nodes, &[clone_of("w1")]).remove(0).unwrap_err();
        assert!(refused.detail.contains(&format!("a: {reason}")), "{reason}: {refused}");
        assert!(refused.detail.contains("local: it is drained"), "every node is named: {refused}");
    }
}

#[test]
fn k33_a_clone_goes_where_its_master_is() {
    let ledger = ledger(vec![agent("a", false, vec![Role::Disk]), agent("b", false, vec![Role::Disk])]);
    let without = NodeStatus { masters: BTreeMap::new(), free_bytes: 50 * GIB, ..status() };
    assert_eq!(where_to(&ledger, &[("a", without.clone()), ("b", status())], &[clone_of("w1")]), ["b"]);
    assert_eq!(where_to(&ledger, &[("a", without.clone()), ("b", without)], &[clone_of("w1")]), ["404 master_not_found"]);
}

#[test]
fn k34_fewest_disks_wins_then_more_space_then_the_name() {
    let three = ["a", "b", "c"].map(|n| agent(n, false, vec![Role::Disk])).to_vec();
    let ledger = ledger(three);
    let more = NodeStatus { free_bytes: 11 * GIB, ..status() };
    let nodes = [("c", status()), ("b", status()), ("a", status())];
    assert_eq!(where_to(&ledger, &nodes, &[clone_of("w1")]), ["a"], "the name decides last");
    assert_eq!(where_to(&ledger, &[("a", status()), ("b", status()), ("c", more.clone())], &[clone_of("w1")]), ["c"], "space before it");
    let with_one = add_disk(&ledger, 1, &name("c"), &clone_of("w2"), 2 * GIB);
    assert_eq!(where_to(&with_one, &[("a", status()), ("b", status()), ("c", more)], &[clone_of("w1")]), ["a"], "disks before space");
}

#[test]
fn k35_a_pin_overrides_but_passes_the_same_checks() {
    let ledger = ledger(vec![agent("a", false, vec![Role::Disk]), agent("b", false, vec![Role::Disk]), agent("c", true, vec![Role::Disk])]);
    let busy = add_disk(&ledger, 1, &name("b"), &clone_of("w2"), 2 * GIB);
    let nodes = [("a", status()), ("b", status()), ("c", status())];
    for (pin, goes) in [("b", "b"), ("c", "409 no_storage_node"), ("d", "404 agent_not_found")] {
        let pinned = Wanted { pin: Some(name(pin)), ..clone_of("w1") };
        assert_eq!(where_to(&busy, &nodes, &[pinned]), [goes], "{pin}");
    }
}

#[test]
fn k36_each_placement_of_a_batch_counts_for_the_next() {
    let ledger = ledger(vec![agent("a", false, vec![Role::Disk]), agent("b", false, vec![Role::Disk])]);
    let nodes = [("a", status()), ("b", status())];
    let empty = |worker: &str, gib: u64| wanted(worker, "1", Content::Empty(gib * GIB), None);
    let batch = [empty("w0", 6), empty("w1", 6), empty("w2", 6), empty("w3", 4)];
    assert_eq!(where_to(&ledger, &nodes, &batch), ["a", "b", "507 disk_full", "a"]);
    let twice = [clone_of("w0"), clone_of("w0"), clone_of("w1")];
    assert_eq!(where_to(&ledger, &nodes, &twice), ["a", "409 disk_exists", "b"]);
}

#[test]
fn what_is_asked_for_wrongly_is_refused_whatever_the_nodes_are() {
    let ledger = ledger(vec![agent("a", false, vec![Role::Disk])]);
    let ledger = add_disk(&ledger, 1, &name("a"), &clone_of("w2"), GIB);
    let nodes = [("a", status())];
    for (asked, refused) in [
        (clone_of("nobody"), "404 worker_not_found"),
        (clone_of("w2"), "409 disk_exists"),
        (wanted("w1", "", Content::Empty(0), None), "422 size"),
        (wanted("w1", "", Content::Empty(4095), None), "422 size"),
        (wanted("w1", "", Content::Master(name("w2.debian.img")), None), "422 not_a_master"),
        (Wanted { os: name("a_tpl_b"), ..clone_of("w1") }, "422 file_is_master"),
        (wanted("w1", "", Content::Master(name("other_tpl_1.img")), None), "404 master_not_found"),
        (wanted("w1", "", Content::Empty(11 * GIB), None), "507 disk_full"),
    ] {
        assert_eq!(where_to(&ledger, &nodes, &[asked]), [refused]);
    }
}

#[test]
fn a_node_without_a_target_in_its_kernel_is_the_last_choice() {
    let ledger = ledger(vec![agent("a", false, vec![Role::Disk]), agent("b", false, vec![Role::Disk])]);
    let absent = NodeStatus { data_plane: DataPlane::Absent("no nvmet".into()), free_bytes: 90 * GIB, ..status() };
    let busy = add_disk(&ledger, 1, &name("b"), &clone_of("w2"), GIB);
    assert_eq!(where_to(&busy, &[("a", absent.clone()), ("b", status())], &[clone_of("w1")]), ["b"]);
    assert_eq!(where_to(&busy, &[("a", absent)], &[clone_of("w1")]), ["a"]);
}

#[derive(Clone, Debug)]
struct AnyNode {
    role: bool,
    drained: bool,
    reachable: bool,
    plane: u8,
    free_gib: u64,
    master: Option<u64>,
}

fn any_node() -> impl Strategy<Value = AnyNode> {
    let often = || prop::bool::weighted(0.8);
    (often(), prop::bool::weighted(0.2), often(), 0u8..4, 0u64..12, prop::option::weighted(0.7, 0u64..4))
        .prop_map(|(role, drained, reachable, plane, free_gib, master)| AnyNode { role, drained, reachable, plane, free_gib, master })
}

impl AnyNode {
    fn status(&self) -> NodeStatus {
        if !self.reachable {
            return NodeStatus::unreachable("cut".into());
        }
        let data_plane = match self.plane {
            0 => DataPlane::NotReady("no port".into()),
            1 => DataPlane::Absent("no nvmet".into()),
            _ => DataPlane::Ready,
        };
        let master = |gib: u64| (name(MASTER), MasterFile { size_bytes: 2 * GIB, clone_bytes: gib * GIB });
        NodeStatus { data_plane, free_bytes: self.free_gib * GIB, masters: self.master.map(master).into_iter().collect(), ..status() }
    }
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    let content =
        prop_oneof![Just(Content::Master(name(MASTER))), (0u64..5).prop_map(|gib| Content::Empty(gib * GIB)), Just(Content::Empty(17)),];
    let pin = prop::option::weighted(0.2, (0u8..5).prop_map(|n| name(&format!("n{n}"))));
    (0u8..12, 0u8..2, content, pin).prop_map(|(w, v, content, pin)| Wanted {
        worker: name(&format!("w{w}")),
        os: name("debian"),
        os_version: name(&v.to_string()),
        content,
        pin,
    })
}

proptest! {
    #[test]
    fn a_plan_can_be_carried_out_step_by_step_and_never_uses_a_node_that_is_no_candidate(
        nodes in prop::collection::vec(any_node(), 1..5),
        wanted in prop::collection::vec(any_wanted(), 1..12),
        turn in 0usize..4,
    ) {
        let agents = nodes.iter().enumerate().map(|(n, node)| {
            agent(&format!("n{n}"), node.drained, if node.role { vec![Role::Disk] } else { vec![] })
        });
        let mut ledger = ledger(agents.collect());
        let mut known: Vec<(AgentName, NodeStatus)> =
            nodes.iter().enumerate().map(|(n, node)| (name(&format!("n{n}")), node.status())).collect();
        let preview = plan(&ledger, &known, &wanted);
        prop_assert_eq!(&preview, &plan(&ledger, &known, &wanted), "deterministic");
        let mut turned = known.clone();
        turned.rotate_left(turn % known.len());
        prop_assert_eq!(&preview, &plan(&ledger, &turned, &wanted), "whatever order the nodes answered in");
        // Carried out one by one, every disk alone goes where the preview says.
        for (number, (one, foreseen)) in wanted.iter().zip(&preview).enumerate() {
            let done = plan(&ledger, &known, std::slice::from_ref(one)).remove(0);
            prop_assert_eq!(&done, foreseen);
            let Ok(placed) = done else { continue };
            let at = known.iter().position(|(n, _)| *n == placed.agent).unwrap();
            let node = &nodes[at];
            prop_assert!(node.role && !node.drained && node.reachable && node.plane != 0);
            prop_assert!(one.pin.as_ref().is_none_or(|pin| *pin == placed.agent));
            let needed = match &one.content {
                Content::Empty(size) => *size,
                Content::Master(_) => node.master.unwrap() * GIB,
            };
            let status = &mut known[at].1;
            prop_assert!(needed <= status.free_bytes);
            status.free_bytes -= needed;
            ledger = add_disk(&ledger, u8::try_from(number).unwrap(), &placed.agent, one, placed.size_bytes);
        }
    }
}
