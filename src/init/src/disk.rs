//! The appliance's own disk: which one it is, its partitions, their growth.

use crate::chain;
use kurrent_core::init::disk::SECTOR_BYTES;
use kurrent_core::init::grow::{self, Growth, Partitions, Tables};
use kurrent_sys::block::{self, Disk, OpenDisk};
use std::path::Path;
use std::time::{Duration, Instant};

const SYSFS: &str = "/sys";
/// systemd's stub leaves the GPT identity of the partition it was loaded from here.
const BOOT_PARTITION: &str = "/sys/firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Attributes in front of a variable's value.
const EFIVAR_ATTRIBUTES: usize = 4;
/// The kernel makes device nodes soon after it has read the table.
const NODES_WITHIN: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the search found.
pub enum Found {
    /// The one disk.
    One(Disk),
    /// None yet; the disks that are there.
    None(Vec<Disk>),
    /// Several that might be it.
    Several(Vec<String>),
}

/// Device nodes of the two partitions.
pub struct Nodes {
    /// The ESP.
    pub esp: String,
    /// The data partition.
    pub data: String,
}

/// The GPT identity of the ESP that this system was loaded from, in lower case.
fn boot_partition() -> Option<String> {
    let octets = std::fs::read(BOOT_PARTITION).ok()?;
    let units =
        octets.get(EFIVAR_ATTRIBUTES..)?.chunks_exact(2).map(|pair| pair.iter().rev().fold(0, |unit, octet| unit << 8 | u16::from(*octet)));
    let text = String::from_utf16(&units.take_while(|unit| *unit != 0).collect::<Vec<_>>()).ok()?;
    Some(text.trim_matches(['{', '}']).to_ascii_lowercase())
}

/// Looks at every disk. Of several with the image's partitions only the one that this system was loaded from counts.
pub fn find() -> Found {
    let disks = block::disks(Path::new(SYSFS)).unwrap_or_default();
    let ours = |disk: &Disk| {
        let open = OpenDisk::open(&node(&disk.name), false).ok()?;
        Tables::read(disk.sectors, |lba, count| open.read(lba, count)).partitions()
    };
    let mut candidates: Vec<(Disk, Partitions)> =
        disks.iter().filter(|disk| disk.sector_bytes == SECTOR_BYTES).filter_map(|disk| Some((disk.clone(), ours(disk)?))).collect();
    if candidates.len() > 1
        && let Some(booted) = boot_partition()
    {
        candidates.retain(|(_, partitions)| partitions.esp.id.to_string() == booted);
    }
    match candidates.len() {
        0 => Found::None(disks),
        1 => candidates.pop().map_or(Found::None(disks), |(disk, _)| Found::One(disk)),
        _ => Found::Several(candidates.into_iter().map(|(disk, _)| disk.name).collect()),
    }
}

fn node(name: &str) -> std::path::PathBuf {
    // The kernel writes `/` in a device's name as `!` in sysfs (cciss!c0d0).
    Path::new("/dev").join(name.replace('!', "/"))
}

/// Lets table and data partition fit the disk, and waits until the kernel shows them so. Says what it did.
///
/// # Errors
/// A sentence for the screen.
pub fn prepare(disk: &Disk, mut say: impl FnMut(&str)) -> Result<Nodes, String> {
    let path = node(&disk.name);
    let read = |open: &OpenDisk| Tables::read(disk.sectors, |lba, count| open.read(lba, count));
    let open = OpenDisk::open(&path, false).map_err(|fault| chain(&fault))?;
    let before = read(&open);
    match grow::plan(disk.sectors, &before) {
        Growth::Fine => {}
        // A table that somebody changed by hand: it is served as it is.
        Growth::NotOurs => say("the partition table is not as the image made it: it stays as it is"),
        Growth::TooSmall { needed } => {
            let megabytes = |sectors: u64| (sectors * SECTOR_BYTES).div_ceil(1_000_000);
            return Err(format!(
                "Disk {} is too small: it has {} MB, the image needs {} MB. Write the image to a larger disk.",
                disk.name,
                disk.sectors * SECTOR_BYTES / 1_000_000,
                megabytes(needed)
            ));
        }
        Growth::Writes(writes) => {
            say(&format!("growing the data partition to the size of disk {}", disk.name));
            let writable = OpenDisk::open(&path, true).map_err(|fault| chain(&fault))?;
            for write in &writes {
                writable.write(write.lba, &write.octets).map_err(|fault| format!("Growing the data partition: {}", chain(&fault)))?;
            }
        }
    }
    let partitions = read(&open).partitions().ok_or("The partition table is damaged.")?;
    let wanted = [(partitions.esp_number, &partitions.esp), (partitions.data_number, &partitions.data)];
    let shown = || {
        let nodes: Vec<String> = wanted
            .iter()
            .filter_map(|(number, entry)| {
                let (name, sectors) = block::partition(Path::new(SYSFS), &disk.name, *number)?;
                let node = node(&name);
                (sectors == entry.last - entry.first + 1 && node.exists()).then(|| node.to_string_lossy().into_owned())
            })
            .collect();
        <[String; 2]>::try_from(nodes).ok().map(|[esp, data]| Nodes { esp, data })
    };
    let started = Instant::now();
    let mut reread = Ok(());
    while started.elapsed() < NODES_WITHIN {
        if let Some(nodes) = shown() {
            return Ok(nodes);
        }
        reread = open.reread_partitions();
        std::thread::sleep(LOOK_AGAIN);
    }
    let why = reread.err().map_or_else(String::new, |fault| format!(" ({})", chain(&fault)));
    Err(format!("The kernel does not show the partitions of disk {} as they are{why}. Start the appliance again.", disk.name))
}
