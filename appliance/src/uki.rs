//! The unified kernel image: systemd's stub with kernel, initramfs and command line as sections of one UEFI program.

use crate::recipe;
use crate::steps::tool;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The optional header's magic number.
const PE32_PLUS: u16 = 0x20b;

/// What goes into it.
pub struct Sources<'a> {
    /// The stub.
    pub stub: &'a Path,
    /// The kernel's command line, one line.
    pub cmdline: &'a Path,
    /// The kernel.
    pub kernel: &'a Path,
    /// The initramfs.
    pub initrd: &'a Path,
    /// The kernel's release.
    pub release: &'a str,
}

/// Adds the sections behind the stub's own; addresses must not overlap, or the firmware loads one over the other.
pub fn build(sources: &Sources<'_>, output: &Path) -> Result<()> {
    let stub = fs::read(sources.stub).with_context(|| format!("reading {}", sources.stub.display()))?;
    let layout = Layout::read(&stub).context("the stub is not a PE program")?;
    let text = |name: &str, text: String| {
        let path = output.with_extension(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display())).map(|()| path)
    };
    let cmdline = fs::read_to_string(sources.cmdline).with_context(|| format!("reading {}", sources.cmdline.display()))?;
    let sections = [
        (".osrel", text("osrel", recipe::os_release())?),
        (".cmdline", text("cmdline", cmdline.trim().to_owned())?),
        (".uname", text("uname", sources.release.to_owned())?),
        (".initrd", sources.initrd.to_owned()),
        (".linux", sources.kernel.to_owned()),
    ];
    let mut command = Command::new("objcopy");
    let mut address = layout.end;
    for (name, path) in &sections {
        let length = fs::metadata(path).with_context(|| format!("reading {}", path.display()))?.len();
        command.arg("--add-section").arg(format!("{name}={}", path.display()));
        command.arg("--change-section-vma").arg(format!("{name}={address:#x}"));
        address = (address + length).next_multiple_of(layout.alignment);
    }
    tool(command.arg(sources.stub).arg(output))?;
    let mut program = fs::read(output).with_context(|| format!("reading {}", output.display()))?;
    // objcopy writes headers of its own, with the time of the build and a checksum over it that firmware does not look at.
    let written = Layout::read(&program).context("objcopy did not write a PE program")?;
    for at in [written.time, written.checksum] {
        program.get_mut(at..at + 4).context("objcopy cut the headers")?.fill(0);
    }
    fs::write(output, program).with_context(|| format!("writing {}", output.display()))
}

/// What the headers say.
struct Layout {
    /// Where the stub's sections end, as objcopy counts: with the image base.
    end: u64,
    alignment: u64,
    /// Where the time of the build lies in the file.
    time: usize,
    /// Where the checksum lies in the file.
    checksum: usize,
}

impl Layout {
    /// PE32+ headers (Microsoft's PE format, "Optional Header" and "Section Table").
    fn read(octets: &[u8]) -> Result<Self> {
        let word = |at: usize| octets.get(at..).and_then(|rest| rest.first_chunk()).map(|four| u32::from_le_bytes(*four));
        let half = |at: usize| octets.get(at..).and_then(|rest| rest.first_chunk()).map(|two| u16::from_le_bytes(*two));
        let read = || {
            let pe = usize::try_from(word(0x3c)?).ok()?;
            let (sections, optional_length) = (usize::from(half(pe + 6)?), usize::from(half(pe + 20)?));
            let optional = pe + 24;
            let base = u64::from(word(optional + 24)?) | u64::from(word(optional + 28)?) << 32;
            let alignment = u64::from(word(optional + 32)?);
            let mut end = 0;
            for section in 0..sections {
                let header = optional + optional_length + 40 * section;
                end = end.max(u64::from(word(header + 8)?) + u64::from(word(header + 12)?));
            }
            let end = base + end.next_multiple_of(alignment.max(1));
            Some((half(optional)?, Self { end, alignment, time: pe + 8, checksum: optional + 64 }))
        };
        match read() {
            Some((PE32_PLUS, layout)) if layout.alignment.is_power_of_two() => Ok(layout),
            _ => bail!("no PE32+ headers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pe_program_is_refused_and_sections_end_behind_the_last() {
        for junk in [&b""[..], b"MZ", &[0xff; 4096], &[0; 4096]] {
            assert!(Layout::read(junk).is_err());
        }
        let mut program = vec![0; 1024];
        let mut put = |at: usize, octets: &[u8]| program[at..at + octets.len()].copy_from_slice(octets);
        put(0x3c, &0x80_u32.to_le_bytes());
        // Two sections; an optional header of 240 octets: PE32+, base 0x1_4000_0000, alignment 0x1000.
        put(0x86, &2_u16.to_le_bytes());
        put(0x94, &240_u16.to_le_bytes());
        put(0x98, &PE32_PLUS.to_le_bytes());
        put(0x98 + 24, &0x1_4000_0000_u64.to_le_bytes());
        put(0x98 + 32, &0x1000_u32.to_le_bytes());
        for (number, (size, address)) in [(0x10_u32, 0x5000_u32), (0x1801, 0x1000)].into_iter().enumerate() {
            let header = 0x98 + 240 + 40 * number;
            put(header + 8, &size.to_le_bytes());
            put(header + 12, &address.to_le_bytes());
        }
        let layout = Layout::read(&program).unwrap();
        assert_eq!((layout.end, layout.alignment), (0x1_4000_6000, 0x1000));
    }
}
