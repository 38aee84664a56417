//! How large a ledger gets, and how far its generation goes.

use super::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn at(secs: u64) -> Now {
    Now { mono: crate::time::Mono(std::time::Duration::from_secs(secs)), wall: crate::time::Wall::UNIX_EPOCH }
}

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

fn worker(n: u8) -> WorkerId {
    format!("w{n}").parse().unwrap()
}

fn register(n: u8) -> Change {
    Change::Register { mac: mac(n), public_key: None, keyless_allowed: false, note: String::new(), labels: BTreeMap::new(), address: None }
}

/// What is acknowledged must be read by the next start, which reads ledgers of a bounded size.
#[test]
fn devices_and_workers_are_bounded_however_they_come() {
    let now = at(0);
    let (full, _) = apply(&Ledger::default(), register(1), now).unwrap();
    let (mut full, _) = apply(&full, Change::CreateWorker { worker: worker(1) }, now).unwrap();
    let device = full.device(mac(1)).unwrap().clone();
    let first = Worker::clone(full.workers.values().next().unwrap());
    for n in 0..u32::try_from(MAX_DEVICES.max(MAX_WORKERS)).unwrap() {
        let [_, b, c, d] = n.to_be_bytes();
        let mac = MacAddr([0x02, 0, 1, b, c, d]);
        full.devices.insert(mac, Arc::new(Device { mac, ..device.clone() }));
        let worker_id: WorkerId = format!("many{n}").parse().unwrap();
        full.workers.insert(worker_id.clone(), Arc::new(Worker { worker_id, ..first.clone() }));
    }
    let code = |change| apply(&full, change, now).map(|_| ()).unwrap_err().code;
    assert_eq!(code(register(9)), "too_many_devices");
    assert_eq!(code(Change::CreateWorker { worker: worker(9) }), "too_many_workers");
    assert_eq!(code(Change::CreateWorkers { workers: vec![worker(9)] }), "too_many_workers");
}

#[test]
fn behind_the_last_generation_no_change_is_taken() {
    let ledger = Ledger { generation: LAST_GENERATION, ..Ledger::default() };
    assert_eq!(apply(&ledger, register(1), at(0)).map(|_| ()).unwrap_err().code, "generations_used_up");
}
