//! What the first octets of a disk image say about its partition table (UEFI Specification 2.10, section 5.3).
//!
//! Every disk and master is *4K-native*: the exported namespace has 4096-byte blocks, so a table written for 512-byte
//! sectors is where no firmware and no kernel looks for it. `EFI PART` at octet 4096 is accepted, at 512 it is refused, neither
//! is blank. This module decides on octets that are handed in; it never opens anything.

use std::fmt;

/// How many octets of an image's start [`inspect`] wants: protective MBR, header and 128 entries at 4096-byte blocks.
pub const HEAD_BYTES: usize = 6 * 4096;
/// The only block size that is served.
pub const BLOCK_BYTES: u64 = 4096;
const SIGNATURE: &[u8; 8] = b"EFI PART";
/// UEFI 2.10 table 5.5: the header is 92 octets and may be padded to the block.
const HEADER_MIN: usize = 92;
const ENTRY_MIN: usize = 128;
/// The specification asks for room for 128; more are not read.
const ENTRIES_MAX: usize = 128;

/// Discoverable Partitions Specification: root of x86-64.
pub const TYPE_ROOT_X86_64: Guid = Guid(0x4f68_bce3_e8cd_4db1_96e7_fbca_f984_b709);
/// Linux file system data.
pub const TYPE_LINUX: Guid = Guid(0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4);
/// EFI system partition.
pub const TYPE_ESP: Guid = Guid(0xc12a_7328_f81f_11d2_ba4b_00a0_c93e_c93b);

/// A GUID in text order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u128);

impl Guid {
    /// From the mixed-endian form on disk.
    fn from_disk(octets: &[u8; 16]) -> Self {
        Self(uuid::Uuid::from_bytes_le(*octets).as_u128())
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).fmt(f)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One used entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Counted from 1, as in `/dev/nvme0n1p1`.
    pub number: u32,
    /// What it is for.
    pub kind: Guid,
    /// Its own identity.
    pub id: Guid,
    /// First 4096-byte block.
    pub first_block: u64,
    /// Last 4096-byte block, inclusive.
    pub last_block: u64,
    /// Its name; control characters are replaced.
    pub label: String,
}

/// A 4K-native table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The disk's own identity.
    pub disk_id: Guid,
    /// Last block that partitions may use.
    pub last_usable_block: u64,
    /// Where the backup header is.
    pub backup_block: u64,
    /// Used entries in order of number; empty when the entries could not be believed.
    pub partitions: Vec<Partition>,
    /// Set when a checksum or a field is wrong: fit to be exported (its worker may be repairing it), not to be a master.
    pub damage: Option<&'static str>,
}

/// What an image holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// No table at all: right only for an empty disk.
    Blank,
    /// A table for 4096-byte blocks.
    Table(Table),
}

/// Why an image is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the partition table is for 512-byte sectors, but disks are served with 4096-byte blocks; write it again with 4096-byte sectors")]
pub struct SectorSize512;

/// Looks at the first [`HEAD_BYTES`] of an image (fewer when it is shorter).
///
/// # Errors
/// [`SectorSize512`] when the table is where only 512-byte sectors would have it.
pub fn inspect(head: &[u8]) -> Result<Contents, SectorSize512> {
    if let Some(header) = head.get(4096..).filter(|h| h.starts_with(SIGNATURE)) {
        return Ok(Contents::Table(table(head, header)));
    }
    if head.get(512..).is_some_and(|h| h.starts_with(SIGNATURE)) {
        return Err(SectorSize512);
    }
    Ok(Contents::Blank)
}

fn array<const N: usize>(octets: &[u8], at: usize) -> Option<[u8; N]> {
    octets.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(octets: &[u8], at: usize) -> u32 {
    array(octets, at).map_or(0, u32::from_le_bytes)
}

fn u64_at(octets: &[u8], at: usize) -> u64 {
    array(octets, at).map_or(0, u64::from_le_bytes)
}

fn guid_at(octets: &[u8], at: usize) -> Guid {
    array(octets, at).map_or(Guid(0), |a| Guid::from_disk(&a))
}

fn table(head: &[u8], header: &[u8]) -> Table {
    let mut table = Table {
        disk_id: guid_at(header, 56),
        last_usable_block: u64_at(header, 48),
        backup_block: u64_at(header, 32),
        partitions: Vec::new(),
        damage: None,
    };
    match entries(head, header) {
        Ok(partitions) => table.partitions = partitions,
        Err(damage) => table.damage = Some(damage),
    }
    table
}

fn entries(head: &[u8], header: &[u8]) -> Result<Vec<Partition>, &'static str> {
    let size = usize::try_from(u32_at(header, 12)).unwrap_or(0);
    let mut summed = header.get(..size).filter(|_| (HEADER_MIN..=4096).contains(&size)).ok_or("the header's length is wrong")?.to_vec();
    if let Some(field) = summed.get_mut(16..20) {
        field.fill(0);
    }
    if crc32fast::hash(&summed) != u32_at(header, 16) {
        return Err("the header's checksum is wrong");
    }
    let (count, entry_bytes) = (usize::try_from(u32_at(header, 80)).unwrap_or(0), usize::try_from(u32_at(header, 84)).unwrap_or(0));
    let start = u64_at(header, 72).checked_mul(BLOCK_BYTES).and_then(|b| usize::try_from(b).ok()).ok_or("the entries are out of reach")?;
    if entry_bytes < ENTRY_MIN || count > ENTRIES_MAX {
        return Err("the entries have a size or number that is not served (at most 128)");
    }
    let length = entry_bytes.checked_mul(count).ok_or("the entries are out of reach")?;
    let octets = start.checked_add(length).and_then(|end| head.get(start..end)).ok_or("the entries are not where they should be")?;
    if crc32fast::hash(octets) != u32_at(header, 88) {
        return Err("the entries' checksum is wrong");
    }
    let used = octets.chunks_exact(entry_bytes).zip(1u32..).filter(|(e, _)| guid_at(e, 0) != Guid(0));
    Ok(used
        .map(|(entry, number)| Partition {
            number,
            kind: guid_at(entry, 0),
            id: guid_at(entry, 16),
            first_block: u64_at(entry, 32),
            last_block: u64_at(entry, 40),
            label: label(entry.get(56..128).unwrap_or_default()),
        })
        .collect())
}

fn label(utf16: &[u8]) -> String {
    let units = utf16.chunks_exact(2).map(|c| u16::from_le_bytes([c.first().copied().unwrap_or(0), c.get(1).copied().unwrap_or(0)]));
    let text = char::decode_utf16(units.take_while(|u| *u != 0)).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
    text.map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The partition that holds the root file system: by type for x86-64; else by the label `root` or `rootfs` in any case; else
/// the only one of the general Linux type. Several that fit equally: none, because a guess boots the wrong system.
#[must_use]
pub fn find_root(partitions: &[Partition]) -> Option<&Partition> {
    fn only<'a>(mut found: impl Iterator<Item = &'a Partition>) -> Option<Option<&'a Partition>> {
        let first = found.next()?;
        Some(found.next().is_none().then_some(first))
    }
    let labelled = |p: &&Partition| matches!(p.label.to_ascii_lowercase().as_str(), "root" | "rootfs");
    only(partitions.iter().filter(|p| p.kind == TYPE_ROOT_X86_64))
        .or_else(|| only(partitions.iter().filter(labelled)))
        .or_else(|| only(partitions.iter().filter(|p| p.kind == TYPE_LINUX)))
        .flatten()
}

/// Whether an image of `size_bytes` holds all that its table speaks of.
#[must_use]
pub fn is_whole(table: &Table, size_bytes: u64) -> bool {
    let blocks = size_bytes / BLOCK_BYTES;
    table.partitions.iter().all(|p| p.first_block <= p.last_block && p.last_block < blocks) && table.last_usable_block < blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(kind: Guid, label: &str) -> Vec<u8> {
        let mut entry = vec![0; 128];
        entry[..16].copy_from_slice(&uuid::Uuid::from_u128(kind.0).to_bytes_le());
        entry[16] = 7;
        entry[32..40].copy_from_slice(&256u64.to_le_bytes());
        entry[40..48].copy_from_slice(&511u64.to_le_bytes());
        for (at, unit) in label.encode_utf16().enumerate() {
            entry[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
        }
        entry
    }

    fn image(block: usize, parts: &[Vec<u8>]) -> Vec<u8> {
        let mut image = vec![0; 2 * block + 128 * 128];
        for (at, part) in parts.iter().enumerate() {
            image[2 * block + at * 128..2 * block + (at + 1) * 128].copy_from_slice(part);
        }
        let sum = crc32fast::hash(&image[2 * block..]);
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(SIGNATURE);
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        header[48..56].copy_from_slice(&1000u64.to_le_bytes());
        header[72..80].copy_from_slice(&2u64.to_le_bytes());
        header[80..84].copy_from_slice(&128u32.to_le_bytes());
        header[84..88].copy_from_slice(&128u32.to_le_bytes());
        header[88..92].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        image[block..block + 92].copy_from_slice(&header);
        image
    }

    #[test]
    fn a_4k_native_table_is_accepted_and_listed() {
        let Ok(Contents::Table(table)) = inspect(&image(4096, &[entry(TYPE_ESP, "esp"), entry(TYPE_ROOT_X86_64, "sys\u{7}")])) else {
            panic!()
        };
        assert_eq!(table.damage, None);
        assert_eq!(table.partitions.iter().map(|p| (p.number, p.label.as_str())).collect::<Vec<_>>(), [(1, "esp"), (2, "sys?")]);
        assert_eq!(find_root(&table.partitions).map(|p| p.number), Some(2));
        assert!(is_whole(&table, 1001 * 4096));
        assert!(!is_whole(&table, 1000 * 4096));
    }

    #[test]
    fn a_table_for_512_byte_sectors_is_refused_and_nothing_at_all_is_blank() {
        assert_eq!(inspect(&image(512, &[])), Err(SectorSize512));
        for blank in [&[][..], &[0; 512], &[0; HEAD_BYTES]] {
            assert_eq!(inspect(blank), Ok(Contents::Blank));
        }
    }

    #[test]
    fn a_damaged_table_is_told_from_a_whole_one() {
        let whole = image(4096, &[entry(TYPE_LINUX, "root")]);
        for at in [4096 + 40, 4096 + 89, 8192 + 3] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let Ok(Contents::Table(table)) = inspect(&damaged) else { panic!() };
            assert!(table.damage.is_some() && table.partitions.is_empty(), "octet {at}");
        }
    }

    #[test]
    fn root_is_found_by_type_then_label_then_the_only_linux_partition_and_never_guessed() {
        let part = |number, kind, label: &str| Partition { number, kind, id: Guid(1), first_block: 6, last_block: 7, label: label.into() };
        let cases: [(&[Partition], Option<u32>); 6] = [
            (&[part(1, TYPE_LINUX, "Root"), part(2, TYPE_ROOT_X86_64, "")], Some(2)),
            (&[part(1, TYPE_LINUX, "home"), part(2, TYPE_LINUX, "Root")], Some(2)),
            (&[part(1, TYPE_ESP, ""), part(2, TYPE_LINUX, "")], Some(2)),
            (&[part(1, TYPE_LINUX, ""), part(2, TYPE_LINUX, "")], None),
            (&[part(1, TYPE_ROOT_X86_64, ""), part(2, TYPE_ROOT_X86_64, ""), part(3, TYPE_LINUX, "root")], None),
            (&[part(1, TYPE_ESP, "")], None),
        ];
        for (at, (partitions, expected)) in cases.iter().enumerate() {
            assert_eq!(find_root(partitions).map(|p| p.number), *expected, "case {at}");
        }
    }

    proptest! {
        #[test]
        fn no_octets_make_it_panic(mut head in proptest::collection::vec(any::<u8>(), 0..9000), sign in any::<bool>()) {
            if sign && head.len() > 4104 {
                head[4096..4104].copy_from_slice(SIGNATURE);
            }
            let _ = inspect(&head);
        }
    }
}
