//! Each granted boot is a session of its own: two boots of one device never have the disk together.

use super::*;
use crate::boot_plane::session::begin;

/// A bound device whose disk is exported, and the reconciler at work.
async fn served() -> Bench {
    let bench = Bench::new().await;
    let kernel = Kernel { nvmet: bench.nvmet(), tcp: bench.folder.path().join("tcp") };
    tokio::spawn(serve(bench.shared.clone(), kernel));
    let bound = bench.bind(A, "w1").await;
    bench.shared.target.settled(bound, WITHIN).await.unwrap();
    bench
}

async fn boots(bench: &Bench) -> Result<stage1::Credentials, String> {
    begin(bench.shared.clone(), bench.shared.ledger.snapshot(), facts(A, ADDRESS_OF_A)).await
}

fn epoch(bench: &Bench) -> u64 {
    bench.shared.ledger.snapshot().device(A).unwrap().epoch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_is_answered_when_what_the_boot_before_it_had_opens_nothing_any_more() {
    let bench = served().await;
    let first = boots(&bench).await.unwrap();
    let second = boots(&bench).await.unwrap();
    assert!(first.host != second.host && first.host_secret != second.host_secret && first.host_id != second.host_id);
    let tree = bench.nvmet().observe().unwrap();
    assert!(!tree.hosts.contains_key(first.host.as_str()), "{tree:?}");
    assert_eq!(bench.shared.target.ready(&second), Ok(()));
    assert!(bench.shared.target.ready(&first).is_err());
    assert_eq!(bench.shared.credentials.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_is_not_answered_while_a_connection_of_an_earlier_one_lives() {
    let bench = served().await;
    boots(&bench).await.unwrap();
    bench.connections(&[ADDRESS_OF_A]);
    let refused = boots(&bench).await.err().unwrap();
    // The pass waits for the connection to go; a boot does not wait longer for a slow one.
    assert!(refused.contains("still open") || refused.contains("has not followed yet"), "{refused}");
    bench.shared.target.followed(epoch(&bench), WITHIN).await.unwrap();
    assert_blocked(&bench.shared.target.observation());
    // Asked again it cuts nobody anew.
    let was = epoch(&bench);
    assert!(boots(&bench).await.is_err());
    assert_eq!(epoch(&bench), was);
    bench.connections(&[]);
    bench.shared.target.settled(was, WITHIN).await.unwrap();
    boots(&bench).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_boots_at_one_moment_one_is_told_to_ask_again() {
    let bench = served().await;
    let ledger = bench.shared.ledger.snapshot();
    let boot = || begin(bench.shared.clone(), ledger.clone(), facts(A, ADDRESS_OF_A));
    let (one, other) = tokio::join!(boot(), boot());
    let (granted, refused) = if one.is_ok() { (one, other) } else { (other, one) };
    assert_eq!(bench.shared.target.ready(&granted.unwrap()), Ok(()));
    let why = refused.err().unwrap();
    // The later one may look when the earlier one has the disk already.
    let transient = ["ask again", "not ready yet", "not exported yet"];
    assert!(transient.iter().any(|word| why.contains(word)), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_cut_for_a_boot_that_could_not_be_granted() {
    let bench = served().await;
    // Its answer was on the way when the Worker was given to another machine.
    let before = bench.shared.ledger.snapshot();
    let bound = bench.bind(B, "w1").await;
    bench.shared.target.settled(bound, WITHIN).await.unwrap();
    assert!(begin(bench.shared.clone(), before, facts(A, ADDRESS_OF_A)).await.is_err());
    let ledger = bench.shared.ledger.snapshot();
    assert_eq!(ledger.generation, bound);
    begin(bench.shared.clone(), ledger, facts(B, ADDRESS_OF_A)).await.unwrap();
}
