//! What the daemon has given up, seen from outside: in every thread.

use crate::net::{DEADLINE, Net};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;

/// `NET_BIND_SERVICE`, `NET_ADMIN`, `NET_RAW`, `DAC_OVERRIDE` (linux/capability.h).
const KEPT: u64 = 1 << 10 | 1 << 12 | 1 << 13 | 1 << 1;

/// The states of all parts.
fn states(status: &Value) -> Vec<&str> {
    let parts = status.get("confinement").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    parts.iter().filter_map(|part| part.get("state")?.as_str()).collect()
}

/// Every thread's rights, by the kernel's word.
pub fn every_thread_is_confined(pid: u32, kept: u64) -> Result<usize> {
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that has just ended has no rights to look at.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).context("a line of the status");
        ensure!(value("NoNewPrivs:")? == "1" && value("Seccomp:")? == "2", "{status}");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            ensure!(u64::from_str_radix(value(set)?, 16)? & !kept == 0, "{set} {status}");
        }
        threads += 1;
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("the limit of cores")?;
    ensure!(core.split_whitespace().skip(4).take(2).eq(["0", "0"]), "{core}");
    Ok(threads)
}

#[test]
fn no_thread_of_the_daemon_has_more_rights_than_it_needs() -> Result<()> {
    let net = Net::new("confined")?;
    let daemon = net.serve()?;
    let api = net.api()?;
    let status = api.wait_for("an answer", "/v1/status", DEADLINE, |s| Some(s.clone()))?;
    ensure!(states(&status) == ["on"; 5], "{status}");
    let threads = every_thread_is_confined(daemon.pid()?, KEPT)?;
    ensure!(threads > 3, "only {threads} threads were looked at");
    net.keep(daemon);
    net.passed();
    Ok(())
}

#[test]
fn confinement_off_is_a_warning_everywhere() -> Result<()> {
    let net = Net::new("unconfined")?;
    net.configure("  security:\n    confinement: off\n")?;
    let daemon = net.serve()?;
    daemon.wait_for_log("confinement is off")?;
    let status = net.api()?.wait_for("an answer", "/v1/status", DEADLINE, |s| Some(s.clone()))?;
    ensure!(status.get("warnings").is_some_and(|w| w.to_string().contains("confinement is off")), "{status}");
    ensure!(states(&status) == ["off"; 5], "{status}");
    net.keep(daemon);
    net.passed();
    Ok(())
}
