//! Every script that machines are given, as it was reviewed. `UPDATE=1` rewrites the files; the diff is reviewed.

use kurrent_core::boot::{BootId, Grant, Refusal, Standing, Wait, no_disk_variables};
use kurrent_core::config::Config;
use kurrent_core::id::{MacAddr, OsName, OsTag, WorkerId, disk_file_name, disk_nqn, host_nqn};
use kurrent_core::ipxe::{again_script, autoexec, boot_script, challenge_script, grant_script, wait_script, wait_with_variables};
use kurrent_core::ledger::{Disk, DiskSource};
use kurrent_core::time::Wall;
use kurrent_handshake::{Challenge, Link};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 80);
const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

fn grant(version: &str) -> Grant {
    let (base, worker, os) = (Config::default().agent.nqn_base, "w1".parse::<WorkerId>().unwrap(), "debian".parse::<OsName>().unwrap());
    let tag = OsTag::from_random([1, 2, 3, 4, 5, 6]);
    let disk = Disk {
        nqn: disk_nqn(&base, &worker, &os, &tag),
        filename: disk_file_name(&worker, &os, &tag),
        os_tag: tag,
        os,
        os_version: version.parse().unwrap(),
        agent: kurrent_core::id::AgentName::local(),
        size_bytes: 4096,
        uuid: uuid::Uuid::nil(),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: Wall::UNIX_EPOCH,
    };
    Grant { host: host_nqn(&base, &worker, 3), worker, disk, epoch: 3, nqn_base: base, storager: *SERVER.ip(), menu_timeout_ms: 5000 }
}

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/ipxe").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}; UPDATE=1 makes it", path.display()));
    assert_eq!(text, expected, "{name} differs from {}", path.display());
}

#[test]
fn scripts_are_as_reviewed() {
    check("autoexec.ipxe", &autoexec(SERVER));
    check("boot.ipxe", &boot_script(SERVER));
    let wait = Wait { secs: 3, reason: "registered; waiting to be bound to a worker".into() };
    check("report-pooled.ipxe", &wait_script(Standing::Pooled, &wait, false));
    check("report-renew.ipxe", &wait_script(Standing::Pooled, &wait, true));
    check("refused.ipxe", &wait_script(Standing::Bound, &Refusal::VerifyFailed.wait(128), false));
    let challenge = Challenge { nonce: [0xa1; 32], mac: MAC.0, server_boot_key: [0xb2; 32], flags: 1, expected: [0xe5; 16] };
    check("challenge.ipxe", &challenge_script(&challenge, &[0xc3; 32], &[0xd4; 64], &[]));
    let links = [0xa0, 0xb0].map(|n| Link { new: [n; 32], signature: [n + 1; 64] });
    check("challenge-rotated.ipxe", &challenge_script(&challenge, &[0xc3; 32], &[0xd4; 64], &links));
    let wait = Wait { secs: 1, reason: "the new device key is stored; proving it".into() };
    check("boot-vars-again.ipxe", &again_script(Standing::Bound, &wait));
    check("boot-vars-nvme.ipxe", &grant_script(&grant("12"), MAC, BootId::from_random([7; 8]), SERVER));
    check("boot-vars-no-disk.ipxe", &wait_with_variables(&no_disk_variables(), Standing::Bound, &Refusal::NoDisk.wait(128)));
    check("boot-vars-p256.ipxe", &wait_with_variables(&grant("12").variables(), Standing::Bound, &Refusal::NoChannel.wait(128)));
    check("boot-vars-no-version.ipxe", &grant_script(&grant(""), MAC, BootId::from_random([7; 8]), SERVER));
}
