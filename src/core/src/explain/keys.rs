//! The key of a device, and the order of a new one.

use super::{Evidence, Facts, Finding, blocking, warning};
use crate::ledger::Device;
use crate::ledger::rules::is_live;

pub(super) fn of_device(facts: &Facts<'_>, device: &Device) -> Vec<Finding> {
    stored(facts, device).into_iter().chain(ordered(facts, device)).collect()
}

fn stored(facts: &Facts<'_>, device: &Device) -> Option<Finding> {
    match &device.public_key {
        Some(key) if key.starts_with("p256:") => Some(blocking(
            "no_channel",
            "the device has a P-256 key of the existing firmware: it proves who it is, but can not receive the secrets of an NVMe boot",
            "let it boot kurrent-attest.efi, and order a rekey with --replaced",
        )),
        Some(_) => None,
        None if device.keyless_allowed || !facts.enforcement => Some(warning(
            "keyless",
            "the device has no key and boots without proof of who it is",
            "order a rekey with --replaced when it can have one",
        )),
        None => Some(blocking(
            "no_key",
            "no key is stored for the device, and it may not boot without",
            "start it while the registration window is open, or order a rekey with --replaced; or allow it keyless",
        )),
    }
}

/// A rekey that waits for the machine.
fn ordered(facts: &Facts<'_>, device: &Device) -> Option<Finding> {
    let ordered = device.rekey_until.filter(|until| is_live(*until, facts.now))?;
    let until = ordered.strftime("%H:%M:%S UTC");
    let mut finding = if device.rekey_signed {
        let what = format!("a new key is ordered until {until}: at its next boot the machine makes one and signs it with its old one");
        warning("rekey_waits", what, "start it before then; kurrent device rekey MAC --minutes 0 withdraws the order")
    } else {
        let what = format!("its next report until {until} may bring any key, as after a change of its mainboard");
        warning("rekey_replaced_waits", what, "start it before then; kurrent device rekey MAC --minutes 0 withdraws the order")
    };
    finding.evidence.push(Evidence { what: "the order ends".into(), at: Some(ordered) });
    Some(finding)
}
