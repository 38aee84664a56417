use super::*;
use crate::audit::{Audit, Filter};
use crate::ledger::{ChangeNote, LedgerHandle, SubmitError};
use kurrent_core::ledger::{BootSettings, Change, Fingerprint, Outcome};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::sync::broadcast::error::TryRecvError;

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn worker(name: &str) -> WorkerId {
    name.parse().unwrap()
}

fn register(n: u8) -> Change {
    Change::Register { mac: mac(n), public_key: None, keyless_allowed: false, note: String::new(), labels: BTreeMap::new(), address: None }
}

fn note(n: u8, text: &str) -> Change {
    Change::EditDevice { mac: mac(n), note: Some(text.into()), keyless_allowed: None, loader: None, address: None }
}

fn bind(n: u8, name: &str, force: bool) -> Change {
    Change::Bind { mac: mac(n), worker: worker(name), force }
}

async fn with(folder: &Path, changes: impl IntoIterator<Item = Change>) -> (LedgerHandle, Audit) {
    let audit = Audit::open(folder).unwrap();
    let handle = LedgerHandle::open(folder, audit.clone());
    for change in changes {
        handle.submit(change, "user admin").await.unwrap();
    }
    (handle, audit)
}

fn code(answer: Result<crate::ledger::Submitted, SubmitError>) -> (u16, &'static str) {
    match answer {
        Ok(_) => (200, "ok"),
        Err(SubmitError::Rejected(rejected)) => (rejected.status, rejected.code),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_change_is_refused_when_its_record_is_not_what_was_seen() {
    let folder = tempfile::tempdir().unwrap();
    let master: FileName = "debian_tpl_12.img".parse().unwrap();
    let (handle, _) = with(folder.path(), [register(1), Change::CreateWorker { worker: worker("w1") }]).await;
    let seen = handle.snapshot();
    let device = etag_of(seen.device(mac(1)).unwrap());
    let all = vec![
        Expectation::Generation(seen.generation),
        Expectation::Device(mac(1), device.clone()),
        Expectation::Device(mac(1), format!("\"other\", {device}")),
        Expectation::Device(mac(1), "*".into()),
        Expectation::Worker(worker("w1"), etag_of(&**seen.workers.get(&worker("w1")).unwrap())),
        Expectation::Master(master.clone(), etag_of(&untagged(master.clone()))),
        Expectation::Agent(AgentName::local(), etag_of(&seen.agent(&AgentName::local()).unwrap())),
        Expectation::Settings(etag_of(&seen.settings)),
    ];
    assert_eq!(code(handle.submit_if(note(1, "first"), "user admin", all.clone()).await), (200, "ok"));
    handle.submit(bind(1, "w1", false), "user admin").await.unwrap();
    handle
        .submit(
            Change::SetBoot { worker: worker("w1"), boot: BootSettings { method: Some("nvme".into()), ..Default::default() } },
            "user admin",
        )
        .await
        .unwrap();
    let tags = kurrent_core::ledger::MasterTags { remark: "twelve".into(), ..untagged(master) };
    handle.submit(Change::TagMaster { tags }, "user admin").await.unwrap();
    let drain = Change::EditAgent { name: AgentName::local(), base_url: None, roles: None, drained: Some(true), note: None };
    handle.submit(drain, "user admin").await.unwrap();
    handle.submit(Change::EditSettings { enforcement: Some(Some(false)), boot: None }, "user admin").await.unwrap();
    for (at, stale) in all.into_iter().enumerate() {
        let expected = match &stale {
            Expectation::Generation(_) => (409, "plan_stale"),
            Expectation::Device(_, any) if any == "*" => (200, "ok"),
            _ => (412, "precondition_failed"),
        };
        assert_eq!(code(handle.submit_if(note(1, "second"), "user admin", vec![stale]).await), expected, "{at}");
    }
    assert_eq!(
        code(handle.submit_if(note(1, "x"), "user admin", vec![Expectation::Device(mac(9), "*".into())]).await),
        (412, "precondition_failed")
    );
    let weak = format!("W/{}", etag_of(handle.snapshot().device(mac(1)).unwrap()));
    assert_eq!(
        code(handle.submit_if(note(1, "x"), "user admin", vec![Expectation::Device(mac(1), weak)]).await),
        (412, "precondition_failed")
    );
}

/// Long work ends for the Worker that it was begun for, or not at all.
#[tokio::test]
async fn what_was_begun_for_a_worker_does_not_go_to_another_one_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, _) = with(folder.path(), [register(1), Change::CreateWorker { worker: worker("w1") }]).await;
    let since = handle.snapshot().workers.get(&worker("w1")).unwrap().created_at;
    let begun = || vec![Expectation::WorkerSince(worker("w1"), since)];
    let failed = || Change::SetWorkerError { worker: worker("w1"), error: "the copy failed".into() };
    handle.submit(bind(1, "w1", false), "user admin").await.unwrap();
    assert_eq!(code(handle.submit_if(failed(), "system", begun()).await), (200, "ok"), "whatever else happened to it");
    handle.submit(Change::DeleteWorker { worker: worker("w1") }, "user admin").await.unwrap();
    assert_eq!(code(handle.submit_if(failed(), "system", begun()).await), (404, "worker_not_found"));
    handle.submit(Change::CreateWorker { worker: worker("w1") }, "user admin").await.unwrap();
    assert_eq!(code(handle.submit_if(failed(), "system", begun()).await), (409, "worker_replaced"));
    assert!(handle.snapshot().workers.get(&worker("w1")).unwrap().error.is_empty());
}

/// Two that saw the same: the one that the writer takes first wins, also when both are in one group.
#[tokio::test]
async fn of_two_changes_that_expect_the_same_only_one_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, _) = with(folder.path(), [register(1)]).await;
    let seen = etag_of(handle.snapshot().device(mac(1)).unwrap());
    let expected = || vec![Expectation::Device(mac(1), seen.clone())];
    let (one, two) = tokio::join!(
        handle.submit_if(note(1, "one"), "user admin", expected()),
        handle.submit_if(note(1, "two"), "user admin", expected())
    );
    let mut codes = [code(one), code(two)];
    codes.sort();
    assert_eq!(codes, [(200, "ok"), (412, "precondition_failed")]);
}

#[tokio::test]
async fn a_report_that_only_says_i_am_here_does_not_change_the_etag() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, _) = with(folder.path(), [register(1)]).await;
    let report = |product: &str| Change::Report {
        mac: mac(1),
        uuid: String::new(),
        public_key: None,
        fingerprint: Fingerprint { product: product.into(), ..Default::default() },
    };
    let etag = |handle: &LedgerHandle| etag_of(handle.snapshot().device(mac(1)).unwrap());
    let before = etag(&handle);
    assert_eq!(handle.submit(report(""), "device").await.unwrap().0, Outcome::Refreshed);
    assert!(handle.snapshot().device(mac(1)).unwrap().last_seen.is_some() && etag(&handle) == before);
    handle.submit(report("box"), "device").await.unwrap();
    assert_ne!(etag(&handle), before, "what people see did change");
    assert!(before.len() == 34 && before.starts_with('"') && before.ends_with('"'));
}

#[tokio::test]
async fn a_displaced_device_finds_who_displaced_it_under_its_own_mac() {
    let folder = tempfile::tempdir().unwrap();
    let workers = Change::CreateWorkers { workers: ["w1", "w2", "w3"].map(worker).to_vec() };
    let (handle, audit) = with(
        folder.path(),
        [register(1), register(2), register(3), workers, bind(1, "w1", false), bind(2, "w2", false), bind(3, "w3", false)],
    )
    .await;
    let mut notes = handle.changes();
    handle.submit(Change::BindAll { pairs: vec![(mac(2), worker("w1")), (mac(1), worker("w2"))], force: true }, "eve").await.unwrap();
    handle.submit(Change::DeleteWorker { worker: worker("w3") }, "eve").await.unwrap();
    let unbound = |n: u8| {
        let entries = audit.read(&Filter { device: Some(mac(n)), verb: Some("unbind".into()), ..Default::default() }).unwrap();
        entries.entries.into_iter().rev().map(|e| (e.actor, e.object, e.result)).collect::<Vec<_>>()
    };
    for (n, left) in [(1, "w1"), (2, "w2"), (3, "w3")] {
        assert_eq!(unbound(n), [("eve".into(), left.into(), "ok".into())]);
    }
    let mut told = Vec::new();
    while let Ok(ChangeNote { verb, device, object, generation }) = notes.try_recv() {
        assert!(generation > 7);
        told.push((verb, device, object));
    }
    let expected = [("bind", Some(2), "w1"), ("bind", Some(1), "w2"), ("unbind", Some(1), "w1"), ("unbind", Some(2), "w2")]
        .into_iter()
        .chain([("worker-delete", None, "w3"), ("unbind", Some(3), "w3")]);
    assert_eq!(told, expected.map(|(verb, n, object)| (verb, n.map(mac), object.to_owned())).collect::<Vec<_>>());
}

#[tokio::test]
async fn listeners_are_told_of_durable_changes_only_and_when_they_missed_some() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, _) = with(folder.path(), [register(1)]).await;
    let mut notes = handle.changes();
    let report = Change::Report { mac: mac(1), uuid: "u".into(), public_key: None, fingerprint: Fingerprint::default() };
    handle.submit(report, "device").await.unwrap();
    assert!(handle.submit(register(1), "user admin").await.is_err());
    handle.submit(bind(1, "w9", false), "user admin").await.unwrap_err();
    assert_eq!(notes.try_recv(), Err(TryRecvError::Empty));
    let many = (0..5000).map(|n| worker(&format!("n{n}"))).collect();
    handle.submit(Change::CreateWorkers { workers: many }, "user admin").await.unwrap();
    assert!(matches!(notes.try_recv(), Err(TryRecvError::Lagged(_))));
}
