//! Boot script text: the only place that puts a value into a script.
//!
//! Values are either checked names whose alphabet holds nothing that iPXE reads as syntax, numbers, hex of octets, or
//! free text that went through [`line`]. A hostname or a reason can therefore never begin a line, a command, an option
//! or a setting's expansion. The templates are the files of `ipxe/`; golden texts are in `tests/golden/ipxe`.

use crate::boot::{BootId, Grant, Standing, Wait};
use crate::id::MacAddr;
use kurrent_handshake::{Challenge, Link};
use std::fmt::Write as _;
use std::net::SocketAddrV4;

const AUTOEXEC: &str = include_str!("../../../ipxe/autoexec.ipxe");
const BOOT: &str = include_str!("../../../ipxe/boot.ipxe");
const BOOT_NVME: &str = include_str!("../../../ipxe/boot-nvme.ipxe");
/// Longest free text in a script: one line of an 80-column console, wrapped once.
const MAX_LINE: usize = 150;
const HEAD: &str = "#!ipxe\n";

/// `autoexec.ipxe`, which iPXE fetches by TFTP as soon as it runs.
#[must_use]
pub fn autoexec(boot_plane: SocketAddrV4) -> String {
    fill(AUTOEXEC, &[("server", &boot_plane.to_string())])
}

/// `boot.ipxe`, the same for every machine.
#[must_use]
pub fn boot_script(boot_plane: SocketAddrV4) -> String {
    fill(BOOT, &[("server", &boot_plane.to_string())])
}

/// What a machine that does not boot (yet) is told: where it stands, how long to wait, why.
#[must_use]
pub fn wait_script(standing: Standing, wait: &Wait, renew_lease: bool) -> String {
    let mut script = String::from(HEAD);
    let _ = writeln!(script, "set kstate {}", standing.word());
    let _ = writeln!(script, "set kwait {}", wait.secs);
    let _ = writeln!(script, "set kreason {}", line(&wait.reason));
    if renew_lease {
        script.push_str("set krenew 1\n");
    }
    script
}

/// [`wait_script`] of a machine that shall ask for another challenge at once.
#[must_use]
pub fn again_script(standing: Standing, wait: &Wait) -> String {
    wait_script(standing, wait, false) + "set kagain 1\n"
}

/// [`wait_script`] with boot variables before it: for scripts of people's own, which go by these.
#[must_use]
pub fn wait_with_variables(variables: &[(&str, String)], standing: Standing, wait: &Wait) -> String {
    let wait = wait_script(standing, wait, false);
    let rest = wait.strip_prefix(HEAD).unwrap_or(&wait);
    format!("{HEAD}{}{rest}", settings(variables))
}

/// `set` lines of variables that are names, numbers and addresses by their types.
fn settings(variables: &[(&str, String)]) -> String {
    variables.iter().map(|(name, value)| format!("set {name} {value}\n")).collect()
}

/// The challenge as script variables, with the rotations since the key that the machine has pinned. All of it is public.
#[must_use]
pub fn challenge_script(challenge: &Challenge, server_key: &[u8; 32], signature: &[u8; 64], links: &[Link]) -> String {
    let mut script = format!(
        "#!ipxe\nset knonce {}\nset kserver {}\nset kserverboot {}\nset kflags {}\nset kexpected {}\nset ksig {}\n",
        hex::encode(challenge.nonce),
        hex::encode(server_key),
        hex::encode(challenge.server_boot_key),
        challenge.flags,
        hex::encode(challenge.expected),
        hex::encode(signature)
    );
    if !links.is_empty() {
        let links: String = links.iter().map(|link| hex::encode(link.to_bytes())).collect();
        let _ = writeln!(script, "set klinks {links}");
    }
    script
}

/// What a verified machine is told: the boot variables, then kernel, initrds and boot.
#[must_use]
pub fn grant_script(grant: &Grant, mac: MacAddr, boot_id: BootId, boot_plane: SocketAddrV4) -> String {
    fill(
        BOOT_NVME,
        &[
            ("variables", settings(&grant.variables()).trim_end_matches('\n')),
            ("server", &boot_plane.to_string()),
            ("boot_id", &boot_id.to_string()),
            ("mac", &mac.to_string().replace(':', "-")),
        ],
    )
}

/// Replaces every `{{name}}`. Values are inserted once and never looked at again.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + 256);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else { break };
        out.push_str(before);
        let value = values.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        debug_assert!(value.is_some(), "template names {name}, which nobody gives");
        out.push_str(value.unwrap_or_default());
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Free text as one harmless line: printable ASCII without `$` (expansion), `#` (comment), `|`, `&` (operators) and `\`
/// (continuation); no leading `-` (option); cut to [`MAX_LINE`].
fn line(text: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || " .,:;/()'+=@!?_-".contains(c);
    let cleaned: String = text.chars().take(MAX_LINE).map(|c| if harmless(c) { c } else { '_' }).collect();
    let words: Vec<&str> = cleaned.split_ascii_whitespace().map(|w| w.trim_start_matches('-')).filter(|w| !w.is_empty()).collect();
    words.join(" ")
}

#[cfg(test)]
#[path = "ipxe_tests.rs"]
mod tests;
