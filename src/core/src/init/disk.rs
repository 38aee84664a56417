//! The image's partition table: what the builder writes and PID 1 looks for; and which disk of several is the one.

use uuid::{Uuid, uuid};

/// Octets of a sector of the image: disks with 512-byte sectors (native or emulated).
pub const SECTOR_BYTES: u64 = 512;
/// Sectors of 1 MiB, to which partitions are aligned.
pub const ALIGNMENT: u64 = 2048;
/// GPT type of the EFI system partition (UEFI 2.10, section 5.3.3).
pub const ESP_TYPE: Uuid = uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
/// GPT type of Kurrent's data partition: our own, so that no other system mounts it by itself.
pub const DATA_TYPE: Uuid = uuid!("7d9b4c6a-35f1-4a0e-9c58-2e6f0b1d8a73");
/// GPT name of the ESP; with [`DATA_TYPE`] beside it this tells our ESP from others.
pub const ESP_NAME: &str = "kurrent-esp";
/// GPT name of the data partition.
pub const DATA_NAME: &str = "kurrent-data";
/// Size of the ESP: loader, kernel and stage-1, with room for a second set.
pub const ESP_SECTORS: u64 = 256 * ALIGNMENT;
/// Size of the data partition in the image, before it grows.
pub const DATA_SECTORS: u64 = 256 * ALIGNMENT;
/// Sectors of one copy of the partition entries: 128 entries of 128 octets.
pub const ENTRIES_SECTORS: u64 = 32;
/// Size of the image: both partitions, 1 MiB before them and 1 MiB after them for the second table.
pub const IMAGE_SECTORS: u64 = ALIGNMENT + ESP_SECTORS + DATA_SECTORS + ALIGNMENT;

/// Octets of attributes in front of a variable's value in efivarfs.
const EFIVAR_ATTRIBUTES: usize = 4;

/// The identity of the partition that this system was loaded from, as systemd's stub leaves it in `LoaderDevicePartUUID`: a
/// GUID in UTF-16, here as efivarfs gives it.
#[must_use]
pub fn loader_partition(variable: &[u8]) -> Option<Uuid> {
    let units = variable.get(EFIVAR_ATTRIBUTES..)?.chunks_exact(2);
    let units = units.map(|pair| pair.iter().rev().fold(0, |unit, octet| unit << 8 | u16::from(*octet)));
    let text = String::from_utf16(&units.take_while(|unit| *unit != 0).collect::<Vec<_>>()).ok()?;
    Uuid::try_parse(text.trim()).ok()
}

/// Which disk is the appliance's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one.
    Take(String),
    /// It is not there yet, or another that might be it may still come.
    Wait,
    /// These, and nothing tells which: a person has to.
    Several(Vec<String>),
}

/// Chooses among disks with the image's partitions, each with the identity of its ESP. When it is known which ESP was `booted`,
/// only that one's disk counts, however long it takes to come: a USB stick is slower than the old disk inside the machine.
/// `more_may_come`: disks are still being found.
#[must_use]
pub fn choose(candidates: &[(String, Uuid)], booted: Option<Uuid>, more_may_come: bool) -> Choice {
    let fits = |esp: Uuid| booted.is_none_or(|booted| booted == esp);
    let names: Vec<&String> = candidates.iter().filter(|(_, esp)| fits(*esp)).map(|(name, _)| name).collect();
    match names.as_slice() {
        // Alone for now, but all images are written with the same identities: a second one would make it a guess.
        [] => Choice::Wait,
        [_] if more_may_come => Choice::Wait,
        [one] => Choice::Take((*one).clone()),
        _ => Choice::Several(names.into_iter().cloned().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_disk_that_was_booted_is_taken_and_a_guess_is_never_made() {
        let (image, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let disks = |disks: &[(&str, Uuid)]| disks.iter().map(|(name, esp)| ((*name).to_owned(), *esp)).collect::<Vec<_>>();
        let take = |name: &str| Choice::Take(name.to_owned());
        let several = || Choice::Several(vec!["sda".to_owned(), "sdb".to_owned()]);
        let (old, both) = (disks(&[("sda", other)]), disks(&[("sda", other), ("sdb", image)]));
        let twins = disks(&[("sda", image), ("sdb", image)]);
        let check = |candidates: &[(String, Uuid)], booted, more_may_come, expected: Choice| {
            assert_eq!(choose(candidates, booted, more_may_come), expected, "{candidates:?} {booted:?} {more_may_come}");
        };
        // The stick was booted and is still being found: the old disk is not taken in its place.
        check(&old, Some(image), true, Choice::Wait);
        check(&old, Some(image), false, Choice::Wait);
        check(&both, Some(image), false, take("sdb"));
        check(&both, Some(other), false, take("sda"));
        check(&twins, Some(image), false, several());
        check(&twins, Some(image), true, several());
        check(&twins[..1], Some(image), true, Choice::Wait);
        check(&twins[..1], Some(image), false, take("sda"));
        check(&twins, Some(other), false, Choice::Wait);
        // Firmware that tells nothing.
        check(&old, None, true, Choice::Wait);
        check(&old, None, false, take("sda"));
        check(&both, None, false, several());
        for booted in [None, Some(image)] {
            check(&[], booted, false, Choice::Wait);
        }
    }

    #[test]
    fn the_loader_s_partition_is_read_in_every_spelling_and_nonsense_is_none() {
        let variable = |text: &str| [6, 0, 0, 0].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect::<Vec<u8>>();
        let id = uuid!("2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a11");
        for text in
            ["2F1C5A80-6F0D-4F5E-9A37-5D0C6B1E4A11\0", "2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a11", "{2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a11}\0x"]
        {
            assert_eq!(loader_partition(&variable(text)), Some(id), "{text}");
        }
        for text in ["", "\0", "2f1c5a80", "\u{fffd}"] {
            assert_eq!(loader_partition(&variable(text)), None, "{text}");
        }
        assert_eq!(loader_partition(&[6, 0, 0]), None);
        assert_eq!(loader_partition(&[6, 0, 0, 0, 0, 0xd8, 1]), None, "half a surrogate pair");
    }
}
