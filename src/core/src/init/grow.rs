//! Growing the data partition to the disk, as an ordered list of writes.
//!
//! Law: after any number of whole or torn writes from the front of the list (a power cut), the disk still has a valid table
//! with our partitions in it, and planning again leads to the same end. The order that gives this:
//!
//! 1. the second table, at the disk's new end (the first one is untouched and valid);
//! 2. the new entries a second time, into the gap before the first partition;
//! 3. the first header, pointing at that copy: one sector, all or nothing;
//! 4. the entries at their usual place, which nothing points at now;
//! 5. the first header, pointing there: one sector again; 6. the protective MBR's size.
//!
//! UEFI 2.10, section 5.3.

use super::disk::{ALIGNMENT, DATA_NAME, DATA_TYPE, ENTRIES_SECTORS, ESP_NAME, ESP_TYPE};
use crate::init::gpt::{Entry, Header, Table, protective_mbr_with_size};

/// Where the entries of the first table lie.
const ENTRIES_LBA: u64 = 2;
/// Where their copy lies for a moment: right behind them.
const SCRATCH_LBA: u64 = ENTRIES_LBA + ENTRIES_SECTORS;

/// Whole sectors to write, then to flush, before the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// First sector.
    pub lba: u64,
    /// Whole sectors.
    pub octets: Vec<u8>,
}

/// What a disk's tables say, as far as they are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Sector 0.
    pub mbr: Vec<u8>,
    /// The table whose header is in sector 1.
    pub primary: Option<Table>,
    /// The table whose header is in the disk's last sector.
    pub backup: Option<Table>,
}

impl Tables {
    /// Reads both tables; `read` gives whole sectors, or nothing beyond the disk's end.
    pub fn read(disk_sectors: u64, read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Self {
        let table = |lba: u64| {
            let header = Header::parse(&read(lba, 1)?, lba)?;
            Table::parse(header, &read(header.entries_lba, ENTRIES_SECTORS)?)
        };
        let backup = disk_sectors.checked_sub(1).filter(|last| *last > 1).and_then(table);
        Self { mbr: read(0, 1).unwrap_or_default(), primary: table(1), backup }
    }

    /// The table to believe: the first one when it is valid, because growing writes the second one before it.
    #[must_use]
    pub fn table(&self) -> Option<&Table> {
        self.primary.as_ref().or(self.backup.as_ref())
    }

    /// Our two partitions, if this disk holds the image.
    #[must_use]
    pub fn partitions(&self) -> Option<Partitions> {
        let table = self.table()?;
        let find = |kind, name: &str| table.entries().find(|(_, entry)| entry.kind == kind && entry.name == name);
        let ((esp_number, esp), (data_number, data)) = (find(ESP_TYPE, ESP_NAME)?, find(DATA_TYPE, DATA_NAME)?);
        Some(Partitions { esp_number, esp, data_number, data })
    }
}

/// The image's partitions on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// Number of the ESP, from 1.
    pub esp_number: u32,
    /// The ESP.
    pub esp: Entry,
    /// Number of the data partition.
    pub data_number: u32,
    /// The data partition.
    pub data: Entry,
}

/// What to do with a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Tables and partition fit the disk.
    Fine,
    /// The disk ends before the image does: nothing may be written.
    TooSmall {
        /// Sectors that the image needs.
        needed: u64,
    },
    /// No partition of ours, or a table of a shape that the builder never makes.
    NotOurs,
    /// To be written in this order.
    Writes(Vec<Write>),
}

/// Plans.
#[must_use]
pub fn plan(disk_sectors: u64, tables: &Tables) -> Growth {
    let (Some(table), Some(partitions)) = (tables.table(), tables.partitions()) else { return Growth::NotOurs };
    let end_of_image = partitions.data.last.max(partitions.esp.last).saturating_add(1);
    let needed = end_of_image.saturating_add(ENTRIES_SECTORS + 1);
    if disk_sectors < needed {
        return Growth::TooSmall { needed };
    }
    let others = table.entries().filter(|(number, _)| *number != partitions.data_number);
    let last_on_disk = others.map(|(_, entry)| entry.last).max().unwrap_or(0) < partitions.data.first;
    if table.header.first_usable < SCRATCH_LBA + ENTRIES_SECTORS || !last_on_disk {
        return Growth::NotOurs;
    }
    let last_lba = disk_sectors - 1;
    let last_usable = last_lba - ENTRIES_SECTORS - 1;
    let aligned_end = (last_usable + 1) / ALIGNMENT * ALIGNMENT;
    let data_last = aligned_end.saturating_sub(1).max(partitions.data.last);

    let mut grown = table.clone();
    grown.header.last_usable = last_usable;
    grown.resize(partitions.data_number, data_last);
    let primary = grown.at(1, last_lba, ENTRIES_LBA);
    let backup = grown.at(last_lba, 1, last_lba - ENTRIES_SECTORS);
    let mbr = protective_mbr_with_size(&tables.mbr, disk_sectors);
    if tables.primary.as_ref() == Some(&primary) && tables.backup.as_ref() == Some(&backup) && mbr == tables.mbr {
        return Growth::Fine;
    }

    let header = |table: &Table| Write { lba: table.header.my_lba, octets: table.header_sector() };
    let entries = |table: &Table| Write { lba: table.header.entries_lba, octets: table.entries_octets().to_vec() };
    let mut writes = Vec::new();
    if tables.primary.is_none() {
        // A power cut of another kind (a torn sector): first the table as it was, from the second one.
        let restored = table.at(1, last_lba, ENTRIES_LBA);
        writes.extend([entries(&restored), header(&restored)]);
    }
    let through_the_gap = grown.at(1, last_lba, SCRATCH_LBA);
    writes.extend([entries(&backup), header(&backup), entries(&through_the_gap), header(&through_the_gap)]);
    writes.extend([entries(&primary), header(&primary), Write { lba: 0, octets: mbr }]);
    Growth::Writes(writes)
}

#[cfg(test)]
#[path = "grow_tests.rs"]
mod tests;
