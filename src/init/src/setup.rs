//! What is done once, when the disk is there: folders, clock, the operator's file.

use crate::process;
use kurrent_core::init::mounts::DATA;
use kurrent_core::init::{Plan, clock};
use kurrent_core::time::Wall;
use kurrent_sys::clock::now;
use kurrent_sys::{mount, store};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

/// What to do about a bad file.
const AFTER_CORRECTION: &str =
    "Correct the file on the disk's first partition (FAT), then start the appliance again: Ctrl-Alt-Del, or off and on.";
/// Written by the builder: no clock is before it.
const BUILD_EPOCH: &str = "/etc/kurrent-build-epoch";
/// The last time this appliance saw, for machines that forget it.
const LAST_SEEN: &str = "/data/last-seen-time";
/// Folders of the data partition, with their modes: state holds secrets.
const DATA_FOLDERS: [(&str, u32); 3] = [("/data/state", 0o700), ("/data/disks", 0o700), ("/data/log", 0o700)];
/// `kurrentd plan` only reads a file.
const PLAN_WITHIN: Duration = Duration::from_secs(30);

/// Makes the data partition's folders. The image was built by anybody: here everything becomes root's.
pub fn make_folders() -> Result<(), String> {
    for (folder, mode) in DATA_FOLDERS {
        let made = fs::create_dir_all(folder)
            .and_then(|()| chown(folder, Some(0), Some(0)))
            .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(mode)));
        made.map_err(|fault| format!("Making {folder}: {fault}"))?;
    }
    Ok(())
}

/// Sets a clock that cannot be right; what to tell people about it.
pub fn set_clock() -> Option<String> {
    let build = fs::read_to_string(BUILD_EPOCH).ok().and_then(|text| text.trim().parse().ok());
    let build = build.and_then(|secs| Wall::from_second(secs).ok()).unwrap_or(Wall::UNIX_EPOCH);
    let last_seen = fs::read_to_string(LAST_SEEN).ok().and_then(|text| text.trim().parse().ok());
    let clock_says = now().wall;
    let correct = clock::correction(clock_says, build, last_seen)?;
    let set = kurrent_sys::clock::set_wall(correct)
        .map_or_else(|fault| format!("could not be set: {fault}"), |()| format!("set to {correct:.0}"));
    Some(format!("The clock says {clock_says:.0}, which cannot be right: {set}. Is the board's battery empty?"))
}

/// Keeps the time for machines that forget it.
pub fn keep_time() {
    if mount::is_mounted(DATA) {
        // Only a convenience: without it the build date is the floor.
        let _ = store::replace(Path::new(LAST_SEEN), format!("{}\n", now().wall).as_bytes(), 0o600);
    }
}

/// What `kurrentd` makes of the operator's file.
///
/// # Errors
/// What is wrong with it, as sentences for the screen.
pub fn read_plan(file: &str) -> Result<Plan, Vec<String>> {
    let unusable = |why: String| vec![format!("{file} could not be read: {why}")];
    let (code, out, err) = process::run("/usr/bin/kurrentd", &["plan", file], PLAN_WITHIN).map_err(|fault| unusable(fault.to_string()))?;
    if code == Some(0) {
        return Plan::parse(&out).map_err(|fault| unusable(fault.to_string()));
    }
    let mut lines: Vec<String> = err.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(unusable(format!("kurrentd ended with {code:?}")));
    }
    lines.push(AFTER_CORRECTION.to_owned());
    Err(lines)
}
