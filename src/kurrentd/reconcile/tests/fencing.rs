//! Nobody is let in while those who lost the disk may still be connected.

use super::*;

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 101);
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 102);

#[tokio::test(flavor = "multi_thread")]
async fn the_new_device_is_let_in_only_when_the_old_ones_connections_are_gone() {
    let bench = Bench::new().await;
    let mut follower = bench.follower();
    bench.bind(A, "w1").await;
    assert_eq!(bench.pass(&mut follower).faults, Vec::<String>::new());
    let old = bench.boot(A).unwrap();
    bench.connections(&[ADDRESS_OF_A, [10, 0, 0, 101].into()]);
    bench.bind(B, "w1").await;
    let seen = bench.pass(&mut follower);
    assert_blocked(&seen);
    assert_eq!(seen.faults.len(), 1, "told once: {:?}", seen.faults);
    assert!(!seen.tree.hosts.contains_key(old.host.as_str()), "and the old host is out");
    // Another worker's connection is nobody's business here.
    bench.connections(&[[10, 0, 0, 101].into()]);
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 1));
    let new = bench.boot(B).unwrap();
    assert!(new.host_secret != old.host_secret, "secrets are never those of another epoch or device");
    assert_eq!(bench.shared.credentials.all().len(), 1, "the old record is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_dhcp_a_device_is_known_by_the_address_its_boot_was_granted_to_also_after_a_restart() {
    let bench = Bench::new().await;
    bench.shared.leases.store(Arc::default());
    bench.bind(A, "w1").await;
    let mut follower = bench.follower();
    bench.pass(&mut follower);
    bench.boot_at(A, OTHER).unwrap();
    assert_eq!(bench.pass(&mut follower).faults, Vec::<String>::new());
    let bench = bench.restart().await;
    bench.bind(B, "w1").await;
    bench.connections(&[OTHER, STRANGER]);
    let mut follower = bench.follower();
    assert_blocked(&bench.pass(&mut follower));
    bench.connections(&[STRANGER]);
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_device_without_a_known_address_every_connection_counts_that_is_not_another_workers() {
    let bench = Bench::new().await;
    bench.worker("w2").await;
    bench.shared.leases.store(Arc::default());
    bench.bind(A, "w1").await;
    bench.bind(B, "w2").await;
    let mut follower = bench.follower();
    bench.pass(&mut follower);
    bench.boot_at(B, OTHER).unwrap();
    bench.connections(&[OTHER, STRANGER]);
    bench.change(Change::Revoke { mac: A }).await;
    let seen = bench.pass(&mut follower);
    assert!(seen.faults.iter().any(|f| f.contains("1 connections of the old epoch are still open")), "{:?}", seen.faults);
    bench.connections(&[OTHER]);
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 1), "the other worker goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_by_a_daemon_that_ended_opens_only_when_nobody_unknown_is_connected() {
    let bench = Bench::new().await;
    bench.bind(A, "w1").await;
    let subsystem = bench.pass(&mut bench.follower()).exports()[0].subsystem.clone();
    bench.bind(B, "w1").await;
    // As far as the old daemon came: the old host is off the list, its connections are still there.
    for done in [Step::Unlink(subsystem.clone()), Step::DisableNamespace(subsystem.clone(), 1)] {
        bench.nvmet().run(&done).unwrap();
    }
    let host = bench.nvmet().observe().unwrap().subsystems[&subsystem].allowed.first().cloned().unwrap();
    bench.nvmet().run(&Step::Disallow(subsystem, host)).unwrap();
    bench.connections(&[ADDRESS_OF_A]);
    let bench = bench.restart().await;
    let mut follower = bench.follower();
    assert_blocked(&bench.pass(&mut follower));
    assert_blocked(&bench.pass(&mut follower));
    bench.connections(&[]);
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_connections_that_can_not_be_read_keeps_nothing_from_closing_and_everything_from_opening() {
    let bench = Bench::new().await;
    let mut follower = bench.follower();
    bench.bind(A, "w1").await;
    bench.pass(&mut follower);
    fs::remove_file(bench.folder.path().join("tcp")).unwrap();
    bench.bind(B, "w1").await;
    let seen = bench.pass(&mut follower);
    assert!(seen.faults.iter().any(|f| f.contains("confirm that") && f.contains("can not be read")), "{:?}", seen.faults);
    assert_closed(&seen);
    bench.connections(&[ADDRESS_OF_A]);
    assert_blocked(&bench.pass(&mut follower));
    bench.connections(&[OTHER]);
    let seen = bench.pass(&mut follower);
    assert_eq!((seen.faults.clone(), seen.exports().len()), (vec![], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_device_counts_as_cut_only_when_its_connections_are_gone() {
    let bench = Bench::new().await;
    let mut follower = bench.follower();
    bench.bind(A, "w1").await;
    bench.pass(&mut follower);
    bench.connections(&[ADDRESS_OF_A]);
    bench.change(Change::Revoke { mac: A }).await;
    let seen = bench.pass(&mut follower);
    assert!(seen.faults.iter().any(|f| f.contains("still open")), "{:?}", seen.faults);
    bench.connections(&[]);
    assert_eq!(bench.pass(&mut follower).faults, Vec::<String>::new());
}
