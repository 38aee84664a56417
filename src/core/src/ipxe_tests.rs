//! Whatever text comes in, scripts keep their shape. The texts themselves: `src/core/tests/golden_ipxe.rs`.

use super::*;
use crate::config::Config;
use crate::id::{OsTag, disk_file_name, disk_nqn, host_nqn};
use crate::ledger::{Disk, DiskSource};
use proptest::prelude::*;

const SERVER: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 77, 0, 1), 80);
const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

fn grant(worker: &str, os: &str, version: &str) -> Option<Grant> {
    let (base, worker, os) = (Config::default().agent.nqn_base, worker.parse().ok()?, os.parse().ok()?);
    let tag = OsTag::from_random([1, 2, 3, 4, 5, 6]);
    let disk = Disk {
        nqn: disk_nqn(&base, &worker, &os, &tag),
        filename: disk_file_name(&worker, &os, &tag),
        os_tag: tag,
        os,
        os_version: version.parse().ok()?,
        agent: crate::id::AgentName::local(),
        size_bytes: 4096,
        uuid: uuid::Uuid::nil(),
        source: DiskSource::Empty,
        remark: String::new(),
        created_at: crate::time::Wall::UNIX_EPOCH,
    };
    Some(Grant { host: host_nqn(&base, &worker, 3), worker, disk, epoch: 3, nqn_base: base, storager: *SERVER.ip(), menu_timeout_ms: 5000 })
}

#[test]
fn templates_are_filled_whole_and_every_goto_has_its_label() {
    for script in [
        autoexec(SERVER),
        boot_script(SERVER),
        grant_script(&grant("w1", "debian", "12").unwrap(), MAC, BootId::from_random([7; 8]), SERVER),
    ] {
        assert!(script.starts_with("#!ipxe\n") && script.ends_with('\n') && !script.contains("{{"), "{script}");
        for target in script.split("goto ").skip(1).filter_map(|rest| rest.split_whitespace().next()) {
            assert!(script.lines().any(|l| l == format!(":{target}")), "no label :{target}");
        }
        for secret in ["secret", "DHHC", "password", "chap"] {
            assert!(!script.lines().filter(|l| !l.starts_with('#')).any(|l| l.contains(secret)), "{secret}");
        }
    }
}

/// `autoexec.ipxe` as iPXE runs it on a machine without a lease, whose switch port passes nothing for so long; whoever makes the
/// boot script answers from `served` seconds on. How long until it fetches that, and how often it asked for an address.
///
/// A `dhcp` that fails takes seconds in iPXE; here none, so that the pauses alone must suffice.
fn autoexec_runs(forwards: u64, served: u64) -> (u64, usize) {
    let script = autoexec(SERVER);
    let lines: Vec<&str> = script.lines().collect();
    let (mut at, mut secs, mut pause, mut asked) = (0, 0_u64, 0_u64, 0);
    while secs < 24 * 3600 {
        let line = lines.get(at).expect("the script never ends by itself");
        at += 1;
        if line.starts_with(['#', ':']) {
            continue;
        }
        let mut words = line.split(' ').peekable();
        let (mut ok, mut process) = (true, true);
        loop {
            let command: Vec<&str> = std::iter::from_fn(|| words.next_if(|word| !["&&", "||"].contains(word))).collect();
            match command.as_slice() {
                _ if !process => {}
                [] | ["echo", ..] => ok = true,
                ["set", "kpause:int32", first] => ok = first.parse().map(|first| pause = first).is_ok(),
                ["inc", "kpause", more] => ok = more.parse::<u64>().map(|more| pause += more).is_ok(),
                ["isset", "${netX/ip}"] => ok = false,
                ["iseq", "${kpause}", most] => ok = most.parse() == Ok(pause),
                ["sleep", "${kpause}"] => {
                    secs += pause;
                    ok = true;
                }
                ["goto", label] => {
                    at = lines.iter().position(|line| *line == format!(":{label}")).expect("its label");
                    break;
                }
                ["dhcp"] => {
                    asked += 1;
                    ok = secs >= forwards;
                }
                ["chain", "--autofree", _] if secs >= served => return (secs, asked),
                ["chain", "--autofree", _] => ok = false,
                other => panic!("{other:?}: not known here"),
            }
            process = match words.next() {
                Some("&&") => ok,
                Some(_) => !ok,
                None => break assert!(ok, "the script ends at {line}"),
            };
        }
    }
    panic!("a day has passed")
}

#[test]
fn barclamp_provisioner_2_a_switch_port_with_spanning_tree_only_delays_the_boot() {
    for forwards in [0, 15, 30, 50, 90, 600, 3600] {
        let (secs, asked) = autoexec_runs(forwards, 0);
        assert!((forwards..=forwards + 30).contains(&secs) && asked > 0, "{forwards}: {secs} s, {asked} times");
    }
    // Nor does a boot server that starts later than its machines, as after a power cut.
    let (secs, _) = autoexec_runs(40, 400);
    assert!((400..=430).contains(&secs), "{secs}");
}

/// The commands of a script, without their values.
fn shape(script: &str) -> Vec<String> {
    script.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

proptest! {
    /// Whatever text gets in, the lines and commands are those of a harmless text.
    #[test]
    fn no_reason_can_add_a_line_a_command_an_option_or_an_expansion(reason in "(?s).{0,300}|(\\|\\||&&|\\$\\{net0/mac\\}|#|\\\\|--|-x|;|\r?\n| ){0,40}") {
        let wait = |reason: String| wait_script(Standing::Pooled, &Wait { secs: 3, reason }, true);
        let script = wait(reason);
        prop_assert_eq!(shape(&script), shape(&wait("x".into())));
        let line = script.lines().find(|l| l.starts_with("set kreason")).unwrap();
        let value = line.trim_start_matches("set kreason").trim();
        prop_assert!(value.len() <= MAX_LINE);
        let harmless = !value.contains(['$', '#', '|', '&', '\\', '{', '"', '%']);
        prop_assert!(harmless, "{value}");
        prop_assert!(value.split(' ').all(|word| !word.starts_with('-')));
    }

    /// Names that pass their own check can not change a script's shape either.
    #[test]
    fn no_name_can_change_the_boot_script(worker in ".{1,40}|[a-z0-9-]{1,40}", os in ".{1,20}|[a-z0-9._-]{1,20}", version in ".{0,20}|[a-z0-9._-]{0,20}") {
        if let Some(grant) = grant(&worker, &os, &version) {
            let plain = grant_script(&self::grant("w1", "debian", "12").unwrap(), MAC, BootId::from_random([7; 8]), SERVER);
            let script = grant_script(&grant, MAC, BootId::from_random([7; 8]), SERVER);
            prop_assert_eq!(shape(&script), shape(&plain));
            let harmless = script.lines().filter(|l| l.starts_with("set ")).all(|l| !l.contains(['$', '#', '|', '&', '\\']));
            prop_assert!(harmless, "{script}");
        }
    }
}
