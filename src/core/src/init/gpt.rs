//! GUID partition tables, octets to types and back: what growing needs. UEFI 2.10, section 5.3.

use super::disk::{ENTRIES_SECTORS, SECTOR_BYTES};
use uuid::Uuid;

const SIGNATURE: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;
/// Octets of a header that its checksum covers.
const HEADER_OCTETS: u32 = 92;
const ENTRIES: u32 = 128;
const ENTRY_OCTETS: u32 = 128;
/// `ENTRIES_SECTORS` in octets: all entries of a table.
const ALL_ENTRIES: usize = 128 * 128;
/// Type of the one partition that a protective MBR shows, and where its record and the size in it lie.
const MBR_PROTECTIVE: u8 = 0xee;
const MBR_RECORD: usize = 446;
const MBR_SIZE: usize = MBR_RECORD + 12;

/// A header. Tables of another shape than 128 entries of 128 octets are not read: nothing of ours makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sector it lies in.
    pub my_lba: u64,
    /// Where the other header lies.
    pub alternate_lba: u64,
    /// First sector that partitions may use.
    pub first_usable: u64,
    /// Last sector that partitions may use.
    pub last_usable: u64,
    /// The disk's identity.
    pub disk: Uuid,
    /// Where its entries lie.
    pub entries_lba: u64,
    entries_crc: u32,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is for.
    pub kind: Uuid,
    /// Its identity.
    pub id: Uuid,
    /// First sector.
    pub first: u64,
    /// Last sector.
    pub last: u64,
    /// Its name.
    pub name: String,
}

/// A header with its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The header.
    pub header: Header,
    entries: Vec<u8>,
}

fn u32_at(octets: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*octets.get(at..)?.first_chunk()?))
}

fn u64_at(octets: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*octets.get(at..)?.first_chunk()?))
}

fn guid_at(octets: &[u8], at: usize) -> Option<Uuid> {
    Some(Uuid::from_bytes_le(*octets.get(at..)?.first_chunk()?))
}

fn put(octets: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = octets.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

impl Header {
    /// Reads a header sector that should lie at `lba`; nothing when it is damaged or of another shape.
    #[must_use]
    pub fn parse(sector: &[u8], lba: u64) -> Option<Self> {
        let mut covered = sector.get(..usize::try_from(HEADER_OCTETS).ok()?)?.to_vec();
        let crc = u32_at(&covered, 16)?;
        put(&mut covered, 16, &[0; 4]);
        let shape = [u32_at(sector, 8)?, u32_at(sector, 12)?, u32_at(sector, 80)?, u32_at(sector, 84)?];
        let header = Self {
            my_lba: u64_at(sector, 24)?,
            alternate_lba: u64_at(sector, 32)?,
            first_usable: u64_at(sector, 40)?,
            last_usable: u64_at(sector, 48)?,
            disk: guid_at(sector, 56)?,
            entries_lba: u64_at(sector, 72)?,
            entries_crc: u32_at(sector, 88)?,
        };
        let fine = sector.starts_with(SIGNATURE)
            && crc32fast::hash(&covered) == crc
            && shape == [REVISION, HEADER_OCTETS, ENTRIES, ENTRY_OCTETS]
            && header.my_lba == lba
            && header.entries_lba >= 2;
        fine.then_some(header)
    }
}

impl Table {
    /// Joins a header with its entries; nothing when they do not belong together.
    #[must_use]
    pub fn parse(header: Header, entries: &[u8]) -> Option<Self> {
        let entries = entries.get(..ALL_ENTRIES)?;
        (crc32fast::hash(entries) == header.entries_crc).then(|| Self { header, entries: entries.to_vec() })
    }

    /// The partitions with their numbers, from 1.
    pub fn entries(&self) -> impl Iterator<Item = (u32, Entry)> {
        (1..).zip(self.entries.chunks_exact(128)).filter_map(|(number, octets)| {
            let kind = guid_at(octets, 0)?;
            let name: Vec<u16> = octets.get(56..)?.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
            let name = name.split(|unit| *unit == 0).next().unwrap_or_default();
            let entry = Entry {
                kind,
                id: guid_at(octets, 16)?,
                first: u64_at(octets, 32)?,
                last: u64_at(octets, 40)?,
                name: String::from_utf16_lossy(name),
            };
            // Sectors that run backwards, or to the end of the world, are no partition.
            let sane = entry.first <= entry.last && entry.last < u64::MAX / SECTOR_BYTES;
            (!kind.is_nil() && sane).then_some((number, entry))
        })
    }

    /// Moves the end of a partition.
    pub fn resize(&mut self, number: u32, last: u64) {
        let Some(at) = number.checked_sub(1).and_then(|index| usize::try_from(index).ok()) else { return };
        put(&mut self.entries, at * 128 + 40, &last.to_le_bytes());
        self.header.entries_crc = crc32fast::hash(&self.entries);
    }

    /// The same partitions as the table whose header lies at `my_lba`.
    #[must_use]
    pub fn at(&self, my_lba: u64, alternate_lba: u64, entries_lba: u64) -> Self {
        Self { header: Header { my_lba, alternate_lba, entries_lba, ..self.header }, entries: self.entries.clone() }
    }

    /// The header as a sector.
    #[must_use]
    pub fn header_sector(&self) -> Vec<u8> {
        let header = &self.header;
        let mut sector = vec![0; usize::try_from(SECTOR_BYTES).unwrap_or(512)];
        put(&mut sector, 0, SIGNATURE);
        put(&mut sector, 8, &REVISION.to_le_bytes());
        put(&mut sector, 12, &HEADER_OCTETS.to_le_bytes());
        put(&mut sector, 24, &header.my_lba.to_le_bytes());
        put(&mut sector, 32, &header.alternate_lba.to_le_bytes());
        put(&mut sector, 40, &header.first_usable.to_le_bytes());
        put(&mut sector, 48, &header.last_usable.to_le_bytes());
        put(&mut sector, 56, &header.disk.to_bytes_le());
        put(&mut sector, 72, &header.entries_lba.to_le_bytes());
        put(&mut sector, 80, &ENTRIES.to_le_bytes());
        put(&mut sector, 84, &ENTRY_OCTETS.to_le_bytes());
        put(&mut sector, 88, &header.entries_crc.to_le_bytes());
        let crc = crc32fast::hash(sector.get(..92).unwrap_or_default());
        put(&mut sector, 16, &crc.to_le_bytes());
        sector
    }

    /// The entries as sectors.
    #[must_use]
    pub fn entries_octets(&self) -> &[u8] {
        debug_assert_eq!(u64::try_from(self.entries.len()), Ok(ENTRIES_SECTORS * SECTOR_BYTES));
        &self.entries
    }
}

/// The protective MBR with the disk's size in it (as much of it as 32 bits hold); anything else in the sector stays.
#[must_use]
pub fn protective_mbr_with_size(sector: &[u8], disk_sectors: u64) -> Vec<u8> {
    let mut sector = sector.to_vec();
    if sector.get(MBR_RECORD + 4) == Some(&MBR_PROTECTIVE) {
        let size = u32::try_from(disk_sectors.saturating_sub(1)).unwrap_or(u32::MAX);
        put(&mut sector, MBR_SIZE, &size.to_le_bytes());
    }
    sector
}
