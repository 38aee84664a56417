//! Why does this machine not boot? From what is known of a MAC to findings in plain words, the most important first.
//!
//! A finding says what is so, what to do about it, and what it rests on. Every question is asked in the order of a boot: is the
//! machine shut out, is it seen at all, did it get as far as a script, may it boot, has it something to boot from, does the disk
//! go out, what did its system say. What is fine is said as well, so that a person knows that it was looked at.

mod keys;
mod migration;

use crate::dhcp::pxe::NO_LOADER;
use crate::ledger::schema::MENU_REBOOT;
use crate::ledger::{Device, DeviceState, Ledger, Worker};
use crate::time::Wall;
use crate::timeline::{Boot, Mark, Step};
use serde::Serialize;
use std::net::Ipv4Addr;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// This alone keeps the machine from booting.
    Blocking,
    /// It may, or will later.
    Warning,
    /// Looked at, and fine.
    Fine,
}

/// One thing that was seen, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// In words.
    pub what: String,
    /// When, if that is known.
    pub at: Option<Wall>,
}

/// One sentence about a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable, for programs.
    pub code: &'static str,
    /// See [`Severity`].
    pub severity: Severity,
    /// What is so.
    pub what: String,
    /// What to do; empty when there is nothing.
    pub next_step: &'static str,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

/// The last thing that one part of the appliance did for a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sighting {
    /// `dhcp`, `tftp`, `http`.
    pub part: &'static str,
    /// What came of it, in words.
    pub outcome: String,
    /// Whether it was refused or ignored.
    pub refused: bool,
    /// When.
    pub at: Wall,
}

/// What an unknown machine that knocks has shown.
#[derive(Clone, Copy, Debug)]
pub struct Knocked {
    /// Whether it reported a key.
    pub has_key: bool,
    /// Two keys were reported for its MAC.
    pub key_changed: bool,
    /// Last heard.
    pub last_seen: Wall,
}

/// What the target does for a machine's Worker.
#[derive(Clone, Debug, Default)]
pub struct TargetFacts {
    /// Whether the kernel was looked at at all.
    pub looked: bool,
    /// Whether the disk that boots is exported to this device's present epoch.
    pub exported: bool,
    /// Whether a connection comes from its address.
    pub connected: bool,
    /// What stands in the way, in words.
    pub faults: Vec<String>,
}

/// All that is known.
pub struct Facts<'a> {
    /// One snapshot.
    pub ledger: &'a Ledger,
    /// Whose boot it is about.
    pub mac: crate::id::MacAddr,
    /// Its entry among the knocking.
    pub knocked: Option<Knocked>,
    /// Its lease.
    pub address: Option<Ipv4Addr>,
    /// Its latest boot.
    pub boot: Option<&'a Boot>,
    /// The latest of each part.
    pub sightings: &'a [Sighting],
    /// The effective signature rule.
    pub enforcement: bool,
    /// Whether the ledgers can be served.
    pub served: bool,
    /// Of its Worker.
    pub target: &'a TargetFacts,
    /// Whether the secrets of its present epoch are there.
    pub has_credentials: bool,
    /// Whether we give the addresses.
    pub dhcp_served: bool,
    /// The last lines of the audit about it, the latest first.
    pub audit: &'a [Evidence],
    /// The time now.
    pub now: Wall,
}

/// The findings, the most important first.
#[must_use]
pub fn explain(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend((!facts.served).then(|| {
        blocking(
            "ledger_unreadable",
            "the ledgers do not read, so nothing that they govern is served",
            "repair them and restart kurrentd; GET /v1/status names file and line",
        )
    }));
    match facts.ledger.device(facts.mac) {
        None => findings.extend(of_stranger(facts)),
        Some(device) => {
            findings.extend(migration::of_device(facts, device));
            findings.extend(of_device(facts, device));
        }
    }
    if let Some(latest) = latest_refusal(facts) {
        for finding in findings.iter_mut().filter(|f| f.severity != Severity::Fine && f.evidence.is_empty()) {
            finding.evidence.push(latest.clone());
        }
    }
    if let Some(first) = findings.iter_mut().find(|f| f.severity != Severity::Fine) {
        first.evidence.extend(facts.audit.iter().take(3).cloned());
    }
    // Stable: within one severity the order of a boot stays.
    findings.sort_by_key(|f| f.severity);
    findings
}

fn blocking(code: &'static str, what: impl Into<String>, next_step: &'static str) -> Finding {
    Finding { code, severity: Severity::Blocking, what: what.into(), next_step, evidence: Vec::new() }
}

fn warning(code: &'static str, what: impl Into<String>, next_step: &'static str) -> Finding {
    Finding { severity: Severity::Warning, ..blocking(code, what, next_step) }
}

fn fine(code: &'static str, what: impl Into<String>) -> Finding {
    Finding { severity: Severity::Fine, ..blocking(code, what, "") }
}

fn seen(sighting: &Sighting) -> Evidence {
    Evidence { what: format!("{}: {}", sighting.part, sighting.outcome), at: Some(sighting.at) }
}

fn latest_refusal(facts: &Facts<'_>) -> Option<Evidence> {
    facts.sightings.iter().filter(|s| s.refused).max_by_key(|s| s.at).map(seen)
}

fn of_stranger(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let open = facts.ledger.window_open(facts.now);
    match facts.knocked {
        Some(knocked) => {
            let evidence = vec![Evidence { what: "it reported itself".into(), at: Some(knocked.last_seen) }];
            let mut finding = match (open, knocked.has_key) {
                (_, false) => blocking(
                    "no_key",
                    "the machine is not registered and shows no device key, so it is not admitted by itself",
                    "register it by hand; with keyless_allowed only if it can not have a key",
                ),
                (false, true) => blocking(
                    "window_closed",
                    "the machine is not registered: it asks to be, and the registration window is closed",
                    "admit it after comparing its key's hash, or open the registration window",
                ),
                (true, true) => warning("admitted_soon", "the window is open: its next report admits it", "wait half a minute"),
            };
            finding.evidence = evidence;
            findings.push(finding);
            if knocked.key_changed {
                findings.push(warning(
                    "key_changed",
                    "two keys were reported for this MAC: two machines claim it, or one has a new key",
                    "compare the hash on the machine's console and name it when you admit it",
                ));
            }
        }
        None => findings.extend(how_far(facts, "the machine is not registered")),
    }
    findings
}

/// How far a machine came that has not reported itself.
fn how_far(facts: &Facts<'_>, standing: &str) -> Option<Finding> {
    let reached = facts.boot.and_then(|b| b.marks.iter().max_by_key(|m| m.step));
    let without = facts.sightings.iter().find(|s| s.outcome.starts_with(NO_LOADER));
    if let Some(without) = without.filter(|_| reached.is_none_or(|mark| mark.step == Step::Dhcp)) {
        let what = format!("{standing}; it asked to boot, and there is {}", without.outcome);
        let next_step =
            "set its firmware to one that has a loader (x64, ARM64, RISC-V 64, LoongArch 64), or choose a loader for this device";
        let mut finding = blocking("no_loader_for_architecture", what, next_step);
        finding.evidence = vec![seen(without)];
        return Some(finding);
    }
    let mut finding = match reached.map(|m| m.step) {
        None if facts.sightings.is_empty() => blocking(
            "never_seen",
            format!("{standing}, and nothing was seen of it since the appliance started"),
            "switch it on; check the cable, the VLAN and that network boot is enabled and first in its firmware; check the MAC",
        ),
        None => blocking(
            "no_network_boot",
            format!("{standing}; it was seen, but never began a network boot that was answered"),
            "see the evidence; enable network boot (UEFI PXE or HTTP) in its firmware",
        ),
        Some(Step::Dhcp) => blocking(
            "no_loader",
            format!("{standing}; it got an address and never fetched the boot program"),
            "another DHCP server may answer first; a firewall may drop TFTP (UDP 69); its firmware may not do network boot over this NIC",
        ),
        Some(Step::Loader) => blocking(
            "no_script",
            format!("{standing}; it fetched the boot program and never asked for the boot script"),
            "turn Secure Boot off or enrol the loader; try another loader for this device; check that its NIC is supported (its console says)",
        ),
        Some(Step::Script | Step::Attest | Step::Kernel | Step::Connect | Step::Root) => blocking(
            "no_report",
            format!("{standing}; it has the boot script and no report of it was taken"),
            "see the evidence and the machine's console; set its firmware to UEFI network boot",
        ),
    };
    finding.evidence = reached.map(mark).into_iter().chain(facts.sightings.iter().map(seen)).collect();
    Some(finding)
}

fn mark(mark: &Mark) -> Evidence {
    Evidence { what: format!("step {:?} of its latest boot", mark.step).to_lowercase(), at: Some(mark.at) }
}

fn of_device(facts: &Facts<'_>, device: &Device) -> Vec<Finding> {
    match device.state {
        DeviceState::Revoked => {
            let what = "the device is revoked: it is answered by silence on every path";
            vec![blocking("revoked", what, "purge it, and register it again, if it shall come back")]
        }
        DeviceState::Pooled => {
            let mut findings =
                vec![blocking("pooled", "the device is registered and not bound to a Worker: it waits", "bind it to a Worker")];
            findings.extend(keys::of_device(facts, device));
            findings
        }
        DeviceState::Bound => match facts.ledger.worker_of(device.mac) {
            Some(worker) => bound(facts, device, worker),
            None => vec![blocking("no_worker", "the device is bound to a Worker that is not there", "restore workers.yml, or unbind it")],
        },
    }
}

fn bound(facts: &Facts<'_>, device: &Device, worker: &Worker) -> Vec<Finding> {
    let mut findings = keys::of_device(facts, device);
    findings.extend(disk(facts, worker));
    let has_disk = facts.ledger.boot_disk(worker).is_some();
    if has_disk && !facts.target.exported {
        let mut finding = match facts.target.faults.first() {
            Some(fault) => {
                blocking("target_fault", format!("the disk is not exported: {fault}"), "repair that; GET /v1/target shows when it is done")
            }
            None if !facts.target.looked => {
                warning("target_not_looked", "the kernel's target was not looked at yet since the start", "wait a few seconds")
            }
            None => warning("not_exported", "the disk is not exported to this device yet", "wait a few seconds; see GET /v1/target"),
        };
        finding.evidence = facts.target.faults.iter().map(|f| Evidence { what: format!("target: {f}"), at: Some(facts.now) }).collect();
        findings.push(finding);
    }
    if has_disk && !facts.has_credentials {
        findings.push(warning(
            "no_credentials",
            "the secrets of its present binding are not made yet",
            "wait; see the faults in GET /v1/status",
        ));
    }
    findings.extend(progress(facts, worker));
    if facts.dhcp_served && facts.address.is_none() && facts.boot.is_some() {
        findings.push(warning(
            "no_lease",
            "it has no lease now, so its reports change nothing",
            "start it again; it asks for an address by DHCP",
        ));
    }
    findings
}

fn disk(facts: &Facts<'_>, worker: &Worker) -> Option<Finding> {
    if facts.ledger.boot_disk(worker).is_some() {
        return None;
    }
    let id = &worker.worker_id;
    Some(match facts.ledger.boot_of(worker).menu_default.as_deref() {
        _ if worker.disks.is_empty() => {
            blocking("no_disk", format!("Worker {id} has no system disk"), "create one, or adopt a retained file")
        }
        Some(MENU_REBOOT) => blocking(
            "menu_reboot",
            format!("the menu entry of Worker {id} is reboot: it boots nothing, on purpose"),
            "choose a disk as menu_default, or clear it",
        ),
        Some(_) => blocking(
            "menu_unknown",
            format!("the menu entry of Worker {id} names none of its disks"),
            "choose one of its disks, or clear menu_default",
        ),
        None => blocking("no_default", format!("Worker {id} has disks, and none is its default"), "choose a default disk"),
    })
}

/// What the latest boot of a bound device came to.
fn progress(facts: &Facts<'_>, worker: &Worker) -> Vec<Finding> {
    let mut findings = Vec::new();
    let at = |step: Step| facts.boot.and_then(|b| b.marks.iter().find(|m| m.step == step));
    if let Some(fault) = facts.boot.and_then(|b| b.fault.as_deref()) {
        let (code, next_step) = of_refusal(fault);
        let mut finding = blocking(code, format!("its latest boot stopped: {fault}"), next_step);
        finding.evidence = facts.boot.and_then(|b| b.marks.last()).map(mark).into_iter().chain(latest_refusal(facts)).collect();
        findings.push(finding);
        return findings;
    }
    if let Some(root) = at(Step::Root) {
        let mut finding = if facts.target.connected {
            fine("running", format!("it runs as {} since then, and is connected to its disk", worker.worker_id))
        } else {
            warning(
                "not_connected",
                "it started its system, and has no connection to its disk now",
                "switched off? if not, see its console",
            )
        };
        finding.evidence.push(mark(root));
        findings.push(finding);
    } else if let Some(connect) = at(Step::Connect) {
        let mut finding = warning(
            "no_root",
            "it is connected to its disk and has not found its system on it yet",
            "see its console: does the disk hold a root partition?",
        );
        finding.evidence.push(mark(connect));
        findings.push(finding);
    } else if let Some(kernel) = at(Step::Kernel) {
        let mut finding = blocking(
            "no_connection",
            "it fetched the kernel, and its stage-1 never connected to the disk",
            "see its console; is TCP 4420 open between them, and the NIC's driver in stage1.img?",
        );
        finding.evidence.push(mark(kernel));
        findings.push(finding);
    } else if let Some(attest) = at(Step::Attest) {
        let mut finding = blocking("no_kernel", "it may boot, and never fetched its kernel", "see its console; is it short of memory?");
        finding.evidence.push(mark(attest));
        findings.push(finding);
    } else if at(Step::Script).is_some() {
        let what = "it has the boot script and has not answered a challenge yet";
        findings.push(warning("not_answered", what, "wait half a minute; then see its console"));
    } else {
        findings.extend(how_far(facts, "the device may boot"));
    }
    findings
}

/// What a refusal on the machine's console means for the person who looks here.
fn of_refusal(line: &str) -> (&'static str, &'static str) {
    const KNOWN: [(&str, &str, &str); 10] = [
        (
            "(key_mismatch)",
            "key_mismatch",
            "if its board was replaced, order a rekey with --replaced; else find the other machine with this MAC",
        ),
        (
            "(verify_failed)",
            "verify_failed",
            "another machine answers under this MAC, or its key was made anew: order a rekey with --replaced if that is right",
        ),
        (
            "(wrong_server)",
            "wrong_server",
            "it has pinned another appliance: clear its keys in the firmware; or a backup of before the last rotation of the server key was restored",
        ),
        ("(missing_sig)", "missing_sig", "see its console: the firmware program did not answer"),
        ("(nonce_", "nonce", "it asks again by itself; look again in a minute"),
        ("(no_key)", "no_key", "start it while the registration window is open, or order a rekey with --replaced"),
        ("(no_lease)", "no_lease", "it must get its address from this appliance by DHCP; look for another DHCP server"),
        (
            "(mac_mismatch)",
            "mac_mismatch",
            "its address is leased to another machine; look for another DHCP server, or two machines with one address",
        ),
        ("(no_channel)", "no_channel", "let it boot kurrent-attest.efi"),
        ("(firmware)", "firmware", "see its console: entropy or the variable store of its firmware fails"),
    ];
    let known = KNOWN.iter().find(|(word, ..)| line.contains(word)).map(|(_, code, next_step)| (*code, *next_step));
    known.unwrap_or(if line.starts_with("stage-1") {
        ("stage1_failed", "see its console; stage-1 tries again by itself")
    } else {
        ("stopped", "see its console")
    })
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
