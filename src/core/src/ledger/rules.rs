//! What may go into a record: bounds and forms of what people and machines give.

use super::apply::rejected;
use super::change::Rejected;
use super::schema::{BootSettings, Disk, Fingerprint, MENU_REBOOT};
use crate::dhcp::pxe::{LOADERS, is_loader};
use crate::time::{Now, Wall};
use jiff::SignedDuration;
use std::collections::BTreeMap;

/// Longest registration window and rekey order, in minutes.
pub const MAX_WINDOW_MINUTES: i64 = 60;
/// Longest value kept from a report, in octets.
const MAX_REPORTED_OCTETS: usize = 128;
const MAX_LABELS: usize = 64;
const MAX_MENU_TIMEOUT_MS: u32 = 60 * 60 * 1000;
const MAX_NOTE_CHARS: usize = 1024;

/// Firmware text is foreign: printable and bounded, or it does not go into the ledger.
pub(super) fn clip(text: String) -> String {
    let mut kept = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if kept.len() + c.len_utf8() > MAX_REPORTED_OCTETS {
            break;
        }
        kept.push(c);
    }
    kept.trim().to_owned()
}

/// A reported fingerprint, printable and bounded.
#[must_use]
pub fn clipped(f: Fingerprint) -> Fingerprint {
    Fingerprint {
        manufacturer: clip(f.manufacturer),
        product: clip(f.product),
        serial: clip(f.serial),
        cpu_model: clip(f.cpu_model),
        memory_total: clip(f.memory_total),
        memory_type: clip(f.memory_type),
        memory_speed: clip(f.memory_speed),
        nic_chip: clip(f.nic_chip),
        nic_busid: clip(f.nic_busid),
    }
}

/// Whether something that is open until `until` is open at `wall`. One whose end lies further ahead than anybody may open it
/// for is not: the wall clock was set back (a board without a battery), and what ran out must not come to life again.
#[must_use]
pub fn is_live(until: Wall, wall: Wall) -> bool {
    let left = until.duration_since(wall);
    left > SignedDuration::ZERO && left <= SignedDuration::from_mins(MAX_WINDOW_MINUTES)
}

pub(super) fn check_until(until: Wall, now: Now) -> Result<(), Rejected> {
    if is_live(until, now.wall) {
        return Ok(());
    }
    let detail = format!("it can be open for 1 to {MAX_WINDOW_MINUTES} minutes; choose a time in that range");
    Err(rejected(422, "minutes_out_of_range", detail).at("minutes"))
}

/// What people wrote down, as the field `note`.
pub(super) fn checked_note(note: String) -> Result<String, Rejected> {
    checked_text(note, "note_invalid", "note")
}

/// What people wrote down about a disk or a master, as the field `remark`.
pub(super) fn checked_remark(remark: String) -> Result<String, Rejected> {
    checked_text(remark, "remark_invalid", "remark")
}

/// `code` is that of `field`.
pub(super) fn checked_text(text: String, code: &'static str, field: &'static str) -> Result<String, Rejected> {
    if text.chars().count() > MAX_NOTE_CHARS {
        let detail = format!("the {field} is longer than {MAX_NOTE_CHARS} characters; shorten it");
        return Err(rejected(422, code, detail).at(field));
    }
    if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        let detail = format!("the {field} holds control characters; leave them out");
        return Err(rejected(422, code, detail).at(field));
    }
    Ok(text)
}

/// A loader is one of the table; whether it suits the device is for the operator to know.
pub(super) fn checked_loader(loader: String) -> Result<String, Rejected> {
    if !is_loader(&loader) {
        let detail = format!("the loader is one of {}; correct it", LOADERS.join(", "));
        return Err(rejected(422, "loader_invalid", detail).at("loader"));
    }
    Ok(loader)
}

/// `http://HOST[:PORT]` or with `https`, nothing behind it.
pub(super) fn check_base_url(url: &str) -> Result<(), Rejected> {
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    let fine = |b: u8| b.is_ascii_alphanumeric() || b".:-[]".contains(&b);
    if host.is_empty() || url.len() > 255 || !host.bytes().all(fine) {
        let detail = "base_url is https://HOST:PORT and nothing behind it; correct it".into();
        return Err(rejected(422, "base_url_invalid", detail).at("base_url"));
    }
    Ok(())
}

pub(super) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Rejected> {
    let key_ok = |k: &str| (1..=63).contains(&k.len()) && k.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
    let value_ok = |v: &str| v.chars().count() <= 253 && !v.chars().any(char::is_control);
    if labels.len() > MAX_LABELS || labels.iter().any(|(k, v)| !key_ok(k) || !value_ok(v)) {
        let detail = format!(
            "at most {MAX_LABELS} labels; keys of 1 to 63 letters, digits, '.', '_', '-' and '/'; values of at most 253 characters"
        );
        return Err(rejected(422, "labels_invalid", detail).at("labels"));
    }
    Ok(())
}

/// What every disk record fulfils, whether asked for or loaded.
pub(super) fn check_disk(disk: &Disk) -> Result<(), String> {
    if disk.size_bytes == 0 || !disk.size_bytes.is_multiple_of(4096) {
        return Err(format!("disk {} has {} bytes; the size is a multiple of 4096 and not 0", disk.os_tag, disk.size_bytes));
    }
    if disk.filename.is_master() {
        return Err(format!("disk {} has the file {}, a master's name: masters are only cloned, never disks", disk.os_tag, disk.filename));
    }
    Ok(())
}

/// What can be asked for. The form of version 1 has more than this program does; a setting that changes nothing is refused
/// rather than kept. Records that have one load all the same. `disks` are those that the settings are for: none for all Workers.
pub(super) fn check_boot(boot: &BootSettings, disks: &[Disk]) -> Result<(), Rejected> {
    let one_of = |what: &'static str, value: &Option<String>, works: &str, later: &str| match value.as_deref() {
        Some(v) if v == later => Err(not_yet(&format!("{what} {later}"), &format!("choose {works}, or leave it out")).at(what)),
        Some(v) if v != works => {
            Err(rejected(422, "boot_settings_invalid", format!("{what} is {works}; choose that, or leave it out")).at(what))
        }
        Some(_) | None => Ok(()),
    };
    one_of("method", &boot.method, "nvme", "iscsi")?;
    one_of("kernel", &boot.kernel, "appliance", "disk")?;
    if let Some(entry) = &boot.menu_default
        && entry != MENU_REBOOT
        && !disks.iter().any(|d| d.os_tag.as_str() == entry)
    {
        let detail = "menu_default is the os_tag of one of the Worker's disks, or reboot; for all Workers only reboot; choose one";
        return Err(rejected(422, "boot_settings_invalid", detail.into()).at("menu_default"));
    }
    if boot.menu_timeout_ms.is_some_and(|ms| ms > MAX_MENU_TIMEOUT_MS) {
        let detail = format!("menu_timeout_ms is at most {MAX_MENU_TIMEOUT_MS}, an hour; choose a shorter time");
        return Err(rejected(422, "boot_settings_invalid", detail).at("menu_timeout_ms"));
    }
    Ok(())
}

fn not_yet(what: &str, next_step: &str) -> Rejected {
    rejected(422, "not_in_this_version", format!("{what} is not in this version; {next_step}"))
}
