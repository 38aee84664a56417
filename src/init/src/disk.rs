//! The appliance's own disk: which one it is, its partitions, their growth.

use crate::chain;
use kurrent_core::init::disk::{Choice, SECTOR_BYTES, choose, loader_partition};
use kurrent_core::init::grow::{self, Growth, Tables};
use kurrent_sys::block::{self, Disk, OpenDisk};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

const SYSFS: &str = "/sys";
const DEV: &str = "/dev";
/// systemd's stub leaves the GPT identity of the partition it was loaded from here.
const BOOT_PARTITION: &str = "/sys/firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// USB disks take this long to show themselves. On machines that have USB no disk is taken before: of two that were written
/// with the same image the quicker one must not win.
const USB_PATIENCE: Duration = Duration::from_secs(5);
/// The kernel makes device nodes soon after it has read the table.
const NODES_WITHIN: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the search found.
pub enum Found {
    /// The one disk.
    One(Disk),
    /// Not yet.
    None {
        /// The disks that are there.
        disks: Vec<Disk>,
        /// The ESP that is looked for, when it is known.
        booted: Option<Uuid>,
    },
    /// Several that might be it.
    Several {
        /// Their names.
        names: Vec<String>,
        /// The ESP that was booted, when it is known: then these all carry its identity.
        booted: Option<Uuid>,
    },
}

/// Device nodes of the two partitions.
pub struct Nodes {
    /// The ESP.
    pub esp: String,
    /// The data partition.
    pub data: String,
}

/// Where disks are looked for.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// sysfs.
    pub sysfs: &'a Path,
    /// Device nodes.
    pub dev: &'a Path,
    /// The loader's variable; not there on machines that start without UEFI.
    pub booted: &'a Path,
}

/// The running system's.
pub fn places() -> Places<'static> {
    Places { sysfs: Path::new(SYSFS), dev: Path::new(DEV), booted: Path::new(BOOT_PARTITION) }
}

/// Looks at every disk. `looking_for`: how long it has been looked.
pub fn find(places: Places<'_>, looking_for: Duration) -> Found {
    let disks = block::disks(places.sysfs).unwrap_or_default();
    let esp = |disk: &Disk| {
        let open = OpenDisk::open(&node(places.dev, &disk.name), false).ok()?;
        Some(Tables::read(disk.sectors, |lba, count| open.read(lba, count)).partitions()?.esp.id)
    };
    let readable = disks.iter().filter(|disk| disk.sector_bytes == SECTOR_BYTES);
    let candidates: Vec<(String, Uuid)> = readable.filter_map(|disk| Some((disk.name.clone(), esp(disk)?))).collect();
    let booted = std::fs::read(places.booted).ok().and_then(|variable| loader_partition(&variable));
    let has_usb = || std::fs::read_dir(places.sysfs.join("bus/usb/devices")).is_ok_and(|mut devices| devices.next().is_some());
    match choose(&candidates, booted, looking_for < USB_PATIENCE && has_usb()) {
        Choice::Take(name) => match disks.iter().find(|disk| disk.name == name) {
            Some(disk) => Found::One(disk.clone()),
            None => Found::None { disks, booted },
        },
        Choice::Wait => Found::None { disks, booted },
        Choice::Several(names) => Found::Several { names, booted },
    }
}

fn node(dev: &Path, name: &str) -> std::path::PathBuf {
    // The kernel writes `/` in a device's name as `!` in sysfs (cciss!c0d0).
    dev.join(name.replace('!', "/"))
}

/// Lets table and data partition fit the disk, and waits until the kernel shows them so. Says what it did.
///
/// # Errors
/// A sentence for the screen.
pub fn prepare(disk: &Disk, mut say: impl FnMut(&str)) -> Result<Nodes, String> {
    let path = node(Path::new(DEV), &disk.name);
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
                let node = node(Path::new(DEV), &name);
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

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::init::disk::{DATA_NAME, DATA_TYPE, ESP_NAME, ESP_TYPE};
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    const SECTORS: u64 = 16 * 2048;
    const LATE: Duration = Duration::from_secs(60);

    /// A machine in a folder, whose disks are files.
    struct Machine(std::path::PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("kurrent-init-disk-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("dev")).unwrap();
            fs::create_dir_all(root.join("sys/class/block")).unwrap();
            Self(root)
        }

        /// Plugs in a disk with the image's table, made by the tool that the builder uses.
        fn plug(&self, name: &str, esp: Uuid) {
            let node = self.0.join("dev").join(name);
            File::create(&node).unwrap().set_len(SECTORS * SECTOR_BYTES).unwrap();
            let mut sfdisk = Command::new("sfdisk");
            sfdisk.args(["--quiet", "--no-reread", "--no-tell-kernel"]).arg(&node).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            let mut sfdisk = sfdisk.stdin(Stdio::piped()).spawn().unwrap();
            let script = format!(
                "label: gpt\nunit: sectors\nstart=2048, size=2048, type={ESP_TYPE}, uuid={esp}, name=\"{ESP_NAME}\"\n\
                 start=4096, size=2048, type={DATA_TYPE}, name=\"{DATA_NAME}\"\n"
            );
            sfdisk.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            assert!(sfdisk.wait().unwrap().success());
            let shown = self.0.join("sys/class/block").join(name);
            fs::create_dir_all(shown.join("device")).unwrap();
            fs::write(shown.join("size"), format!("{SECTORS}\n")).unwrap();
        }

        fn booted_from(&self, esp: Uuid) {
            let text = esp.to_string().encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
            fs::write(self.0.join("variable"), [&[6, 0, 0, 0][..], &text].concat()).unwrap();
        }

        /// The disk that is taken, or what is said instead.
        fn found(&self, looking_for: Duration) -> String {
            let (sysfs, dev, booted) = (self.0.join("sys"), self.0.join("dev"), self.0.join("variable"));
            match find(Places { sysfs: &sysfs, dev: &dev, booted: &booted }, looking_for) {
                Found::One(disk) => disk.name,
                Found::None { disks, .. } => format!("none of {}", disks.len()),
                Found::Several { names, .. } => format!("several: {}", names.join(" ")),
            }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stick_that_was_booted_is_waited_for_although_an_old_disk_is_there() {
        let (old, stick) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let machine = Machine::new("stick");
        machine.booted_from(stick);
        machine.plug("sda", old);
        assert_eq!(machine.found(LATE), "none of 1");
        machine.plug("sdb", stick);
        assert_eq!(machine.found(LATE), "sdb");
        machine.plug("sdc", stick);
        assert_eq!(machine.found(LATE), "several: sdb sdc");
    }

    #[test]
    fn without_the_loader_s_word_one_disk_is_taken_and_two_are_not_guessed_about() {
        let machine = Machine::new("silent");
        machine.plug("sda", Uuid::from_u128(1));
        assert_eq!(machine.found(Duration::ZERO), "sda");
        machine.plug("sdb", Uuid::from_u128(2));
        assert_eq!(machine.found(LATE), "several: sda sdb");
    }

    #[test]
    fn with_usb_the_quicker_of_two_disks_does_not_win() {
        let image = Uuid::from_u128(1);
        let machine = Machine::new("usb");
        machine.booted_from(image);
        fs::create_dir_all(machine.0.join("sys/bus/usb/devices/usb1")).unwrap();
        machine.plug("sda", image);
        assert_eq!(machine.found(Duration::from_secs(1)), "none of 1");
        assert_eq!(machine.found(LATE), "sda");
        machine.plug("sdb", image);
        assert_eq!(machine.found(Duration::from_secs(1)), "several: sda sdb");
    }
}
