//! Backups: whole files or none, and a passphrase nobody else sees.

use crate::fake::{Fake, Reply};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

fn archive() -> Fake {
    Fake::start(|seen, _| match seen.path.as_str() {
        "/v1/backup" => Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nARCHIVE".to_vec()),
        _ => Reply::Json(200, json!({ "devices": 3 })),
    })
}

fn path(fake: &Fake, name: &str) -> String {
    fake.folder().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_backup_is_a_new_file_for_its_user_alone() {
    let fake = archive();
    let (file, secret) = (path(&fake, "b.kurrent"), path(&fake, "passphrase"));
    std::fs::write(&secret, "correct horse\n").unwrap();
    fake.ok(&["backup", &file, "--passphrase-file", &secret]);
    assert_eq!(std::fs::read(&file).unwrap(), b"ARCHIVE");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fake.seen()[0].json(), json!({ "passphrase": "correct horse" }));
    assert!(fake.fails(&["backup", &file, "--passphrase-file", &secret], 1).contains("is there already"));
    let output = fake.command(&["backup", &path(&fake, "c.kurrent")]).env("KURRENT_PASSPHRASE_FILE", &secret).output().unwrap();
    assert!(output.status.success());
    let none = fake.fails(&["backup", &path(&fake, "d.kurrent")], 1);
    assert!(none.contains("--passphrase-file"), "there is no terminal to ask on: {none}");
    std::fs::write(&secret, "\n").unwrap();
    assert!(fake.fails(&["backup", &path(&fake, "d.kurrent"), "--passphrase-file", &secret], 1).contains("empty"));
}

#[test]
fn a_backup_that_is_cut_leaves_no_file() {
    let fake = Fake::start(|_, _| Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 700\r\n\r\nARCHIVE".to_vec()));
    let secret = path(&fake, "passphrase");
    std::fs::write(&secret, "x").unwrap();
    assert!(fake.fails(&["backup", &path(&fake, "b.kurrent"), "--passphrase-file", &secret], 3).contains("cut"));
    let left: Vec<_> = std::fs::read_dir(fake.folder()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("b.")), "{left:?}");
}

#[test]
fn a_restore_sends_the_archive_and_then_the_passphrase() {
    let fake = archive();
    let (file, secret) = (path(&fake, "b.kurrent"), path(&fake, "passphrase"));
    std::fs::write(&secret, "x").unwrap();
    assert!(fake.fails(&["restore", &file, "--passphrase-file", &secret], 1).contains("b.kurrent"));
    std::fs::write(&file, "ARCHIVE").unwrap();
    assert!(fake.ok(&["restore", &file, "--passphrase-file", &secret, "--dry-run"]).contains("nothing was changed"));
    assert_eq!(fake.lines(), ["PUT /v1/restore/archive", "POST /v1/restore"]);
    assert_eq!(fake.seen()[0].body, b"ARCHIVE");
    assert_eq!(fake.seen()[1].json(), json!({ "passphrase": "x", "dry_run": true }));
}

#[test]
fn a_restore_says_what_becomes_of_tokens() {
    for (known, expected) in [(true, "revoked since the backup stay revoked"), (false, "revoke what was revoked since the backup")] {
        let fake = Fake::answering(200, json!({ "revocations_known": known, "tokens_restored": 2 }));
        let (file, secret) = (path(&fake, "b.kurrent"), path(&fake, "passphrase"));
        std::fs::write(&secret, "x").unwrap();
        std::fs::write(&file, "ARCHIVE").unwrap();
        let said = fake.ok(&["restore", &file, "--passphrase-file", &secret, "--yes"]);
        assert!(said.contains(expected) && said.contains("all sessions have ended: kurrent login"), "{said}");
    }
}
