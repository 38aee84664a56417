//! What people write down may hold a password: no free text of any verb gets into the audit, and no secret.

use super::*;
use crate::ledger::LedgerHandle;
use kurrent_core::ledger::schema::{Agent, JoinToken, MasterTags};
use kurrent_core::ledger::{BootSettings, Change, Fingerprint};

const MARK: &str = "hunter2-hunter2";

#[tokio::test]
async fn nothing_that_a_verb_carries_besides_names_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Audit::open(folder.path()).unwrap();
    let ledger = LedgerHandle::open(folder.path(), audit.clone());
    let (mac, worker) = (MacAddr([2, 0, 0, 0, 0, 1]), "w1".parse::<kurrent_core::id::WorkerId>().unwrap());
    let (mark, tag) = (|| MARK.to_owned(), kurrent_core::id::OsTag::from_random([1; 6]));
    let wall = kurrent_sys::clock::now().wall + Duration::from_secs(600);
    let name = "node-2".parse::<kurrent_core::id::AgentName>().unwrap();
    let master: kurrent_core::id::FileName = "a_tpl_b.img".parse().unwrap();
    let changes = vec![
        Change::OpenWindow { until: wall },
        Change::Report {
            mac,
            uuid: mark(),
            public_key: Some(format!("ed25519:{}", "11".repeat(32))),
            fingerprint: Fingerprint { serial: mark(), ..Fingerprint::default() },
        },
        Change::Register {
            mac: MacAddr([2, 0, 0, 0, 0, 2]),
            public_key: None,
            keyless_allowed: false,
            note: mark(),
            labels: [(mark(), mark())].into(),
            address: None,
        },
        Change::EditDevice { mac, note: Some(mark()), keyless_allowed: None, loader: Some(Some(mark())), address: None },
        Change::Label { mac, labels: [(mark(), mark())].into() },
        Change::CreateWorker { worker: worker.clone() },
        Change::SetWorkerError { worker: worker.clone(), error: mark() },
        Change::Bind { mac, worker: worker.clone(), force: false },
        Change::RotateCredentials { worker: worker.clone() },
        Change::Rekey { mac, until: Some(wall), signed: false },
        Change::Boot { mac, worker: worker.clone(), epoch: 1 },
        Change::SetBoot { worker: worker.clone(), boot: BootSettings { menu_default: Some(mark()), ..BootSettings::default() } },
        Change::EditSettings { enforcement: None, boot: Some(BootSettings { method: Some(mark()), ..BootSettings::default() }) },
        Change::RemarkDisk { worker: worker.clone(), os_tag: tag.clone(), remark: mark() },
        Change::ResizeDisk { worker: worker.clone(), os_tag: tag.clone(), size_bytes: 4096 },
        Change::SetDefaultDisk { worker: worker.clone(), os_tag: tag.clone() },
        Change::RemoveDisk { worker: worker.clone(), os_tag: tag },
        Change::EditSettings { enforcement: Some(Some(true)), boot: None },
        Change::TagMaster { tags: MasterTags { name: master.clone(), os: None, os_version: None, remark: mark() } },
        Change::ForgetMaster { name: master },
        Change::AddAgent { agent: Agent { name: name.clone(), base_url: format!("https://{MARK}"), note: mark(), ..Agent::local() } },
        Change::EditAgent { name: name.clone(), base_url: None, roles: None, drained: Some(true), note: Some(mark()) },
        Change::RemoveAgent { name },
        Change::AddJoinToken {
            token: JoinToken { id: "id-1".into(), token_hash: mark(), created_at: wall, expires_at: wall, note: mark() },
        },
        Change::RevokeJoinToken { id: "id-1".into() },
        Change::Unbind { mac },
        Change::Revoke { mac },
        Change::Purge { mac },
        Change::DeleteWorker { worker },
        Change::CloseWindow,
    ];
    let verbs: Vec<&str> = changes.iter().map(Change::verb).collect();
    for change in changes {
        // Whether it is done or refused: both are written.
        let _ = ledger.submit(change, "user admin").await;
    }
    audit.flush();
    let text = std::fs::read_to_string(folder.path().join(file::NAME)).unwrap();
    for verb in verbs {
        assert!(text.contains(&format!("\"verb\":\"{verb}\"")), "{verb} is not in the audit");
    }
    assert!(!text.contains(MARK), "{text}");
    assert!(!text.contains(&"11".repeat(32)), "not even public keys");
}
