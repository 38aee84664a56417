//! `kurrent worker migrate`: what is shown before, while it goes on, and when it went wrong.

use crate::daemon::Daemon;
use crate::fake::{Fake, Reply};
use serde_json::{Value, json};

const MIGRATE: [&str; 5] = ["worker", "migrate", "w1", "--to", "52:54:00:00:00:02"];

fn job(state: &str, more: Value) -> Reply {
    let mut job = json!({ "id": "j1", "kind": "migrate", "what": "migrating w1", "state": state, "done_bytes": 0, "total_bytes": 0 });
    job.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    Reply::Json(200, job)
}

/// A server whose job goes through these answers and stays at the last.
fn goes(through: &'static [(&'static str, &'static str)]) -> Fake {
    Fake::start(move |seen, before| match seen.method.as_str() {
        "POST" => Reply::Json(202, json!({ "job": "j1" })),
        _ => {
            let (state, said) = through[(before - 1).min(through.len() - 1)];
            match state {
                "failed" => job(state, json!({ "code": "rolled_back", "detail": said })),
                "cancelled" => job(state, json!({ "warning": said })),
                _ => job(state, json!({ "doing": said })),
            }
        }
    })
}

#[test]
fn where_a_migration_is_is_told_as_it_goes_on() {
    let fake = goes(&[
        ("running", "waiting for a, 9 s left"),
        ("running", "waiting for a, 8 s left"),
        ("running", "b is proven; root"),
        ("done", ""),
    ]);
    let output = fake.run(&[&MIGRATE[..], &["--wait", "0", "--attest", "2h"]].concat());
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "w1 is on device 52:54:00:00:00:02 now");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((said.matches("waiting for a").count(), said.matches("b is proven; root").count()), (0, 1), "{said}");
    let asked = json!({ "to": "52:54:00:00:00:02", "wait_minutes": 0, "attest_minutes": 120, "dry_run": false });
    assert_eq!(fake.seen()[0].json(), asked, "nobody is asked where there is no terminal");
    assert!(fake.ok(&[&MIGRATE[..], &["--no-follow"]].concat()).contains("kurrent job wait j1"));
}

#[test]
fn a_migration_that_went_back_fails_and_says_who_has_the_worker() {
    let fake = goes(&[("failed", "device b did not prove itself in time; device a has Worker w1 again; start it")]);
    let said = fake.fails(&MIGRATE, 1);
    assert!(said.contains("device a has Worker w1 again") && said.contains("rolled_back"), "{said}");
    let fake = goes(&[("cancelled", "device a has Worker w1 again; start it")]);
    assert!(fake.fails(&MIGRATE, 1).contains("the job is cancelled: device a has Worker w1 again"));
}

#[test]
fn a_dry_run_shows_the_plan_and_what_is_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path());
    daemon.ok(&["worker", "create", "w1"]);
    let output = daemon.kurrent(&[&MIGRATE[..], &["--dry-run"]].concat());
    assert_eq!(output.status.code(), Some(6), "nothing can be done");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in ["w1 is on no device", "must prove itself within 15 min", "refused (no_disk)", "refused (device_not_found)"] {
        assert!(shown.contains(line), "{shown}");
    }
    daemon.fails(&MIGRATE, 6, "no_disk");
    daemon.fails(&["worker", "migrate", "w9", "--to", "52:54:00:00:00:02"], 5, "worker_not_found");
    assert_eq!(daemon.json(&["job", "list"])["jobs"], json!([]));
}
