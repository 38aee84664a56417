use super::*;
use crate::init::disk::{DATA_SECTORS, ESP_SECTORS, IMAGE_SECTORS, SECTOR_BYTES};
use proptest::prelude::*;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A disk that is mostly zeros.
#[derive(Clone)]
struct Disk {
    sectors: u64,
    written: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    /// The image as the builder makes it, on a disk of this size.
    fn with_image(sectors: u64) -> Self {
        let mut disk = Self { sectors, written: BTreeMap::new() };
        let mut entries = vec![0; 128 * 128];
        let parts = [(ESP_TYPE, ESP_NAME, ALIGNMENT, ESP_SECTORS), (DATA_TYPE, DATA_NAME, ALIGNMENT + ESP_SECTORS, DATA_SECTORS)];
        for (entry, (kind, name, first, length)) in entries.chunks_exact_mut(128).zip(parts) {
            entry[..16].copy_from_slice(&kind.to_bytes_le());
            entry[16..32].copy_from_slice(&[7; 16]);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&(first + length - 1).to_le_bytes());
            for (place, unit) in entry[56..].chunks_exact_mut(2).zip(name.encode_utf16()) {
                place.copy_from_slice(&unit.to_le_bytes());
            }
        }
        let mut mbr = vec![0; 512];
        mbr[446 + 4] = 0xee;
        mbr[510..].copy_from_slice(&[0x55, 0xaa]);
        let mbr = protective_mbr_with_size(&mbr, IMAGE_SECTORS);
        let last = IMAGE_SECTORS - 1;
        let primary = table(entries, 1, last, 2, last - 33);
        let backup = primary.at(last, 1, last - 32);
        disk.write(&Write { lba: 0, octets: mbr });
        for table in [primary, backup] {
            disk.write(&Write { lba: table.header.my_lba, octets: table.header_sector() });
            disk.write(&Write { lba: table.header.entries_lba, octets: table.entries_octets().to_vec() });
        }
        disk
    }

    fn write(&mut self, write: &Write) {
        for (lba, sector) in (write.lba..).zip(write.octets.chunks(512)) {
            if lba < self.sectors {
                self.written.insert(lba, sector.to_vec());
            }
        }
    }

    /// A power cut after `kept` sectors of this write.
    fn write_torn(&mut self, write: &Write, kept: usize) {
        let octets = write.octets.chunks(512).take(kept).flatten().copied().collect();
        self.write(&Write { lba: write.lba, octets });
    }

    fn tables(&self) -> Tables {
        Tables::read(self.sectors, |lba, count| {
            let inside = lba.checked_add(count).is_some_and(|end| end <= self.sectors);
            let sector = |lba| self.written.get(&lba).cloned().unwrap_or_else(|| vec![0; 512]);
            inside.then(|| (lba..lba + count).flat_map(sector).collect())
        })
    }
}

/// Any header of this shape: only its own entries' checksum has to be right, which `resize` sees to.
fn table(entries: Vec<u8>, my_lba: u64, alternate: u64, entries_lba: u64, last_usable: u64) -> Table {
    let mut sector = vec![0; 512];
    sector[..8].copy_from_slice(b"EFI PART");
    sector[8..12].copy_from_slice(&0x0001_0000_u32.to_le_bytes());
    sector[12..16].copy_from_slice(&92_u32.to_le_bytes());
    sector[24..32].copy_from_slice(&my_lba.to_le_bytes());
    sector[32..40].copy_from_slice(&alternate.to_le_bytes());
    sector[40..48].copy_from_slice(&ALIGNMENT.to_le_bytes());
    sector[48..56].copy_from_slice(&last_usable.to_le_bytes());
    sector[56..72].copy_from_slice(&Uuid::from_u128(5).to_bytes_le());
    sector[72..80].copy_from_slice(&entries_lba.to_le_bytes());
    sector[80..84].copy_from_slice(&128_u32.to_le_bytes());
    sector[84..88].copy_from_slice(&128_u32.to_le_bytes());
    sector[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
    let crc = crc32fast::hash(&sector[..92]);
    sector[16..20].copy_from_slice(&crc.to_le_bytes());
    Table::parse(Header::parse(&sector, my_lba).unwrap(), &entries).unwrap()
}

fn writes(disk: &Disk) -> Vec<Write> {
    match plan(disk.sectors, &disk.tables()) {
        Growth::Writes(writes) => writes,
        other => panic!("{other:?}"),
    }
}

fn grown(mut disk: Disk) -> Disk {
    for write in writes(&disk) {
        disk.write(&write);
    }
    disk
}

/// Seven gibibytes and some sectors that are no multiple of anything.
const BIGGER: u64 = 7 * 1024 * 2048 + 77;

#[test]
fn the_data_partition_grows_to_the_end_of_the_disk_and_then_nothing_is_left_to_do() {
    let disk = grown(Disk::with_image(BIGGER));
    assert_eq!(plan(disk.sectors, &disk.tables()), Growth::Fine);
    let partitions = disk.tables().partitions().unwrap();
    assert_eq!((partitions.data.last + 1) % ALIGNMENT, 0);
    assert!(disk.sectors - partitions.data.last < ALIGNMENT + 34 + 1);
    assert_eq!((partitions.data.first, partitions.esp.last + 1), (ALIGNMENT + ESP_SECTORS, ALIGNMENT + ESP_SECTORS));
    let header = disk.tables().primary.unwrap().header;
    assert_eq!((header.entries_lba, header.alternate_lba, header.last_usable), (2, BIGGER - 1, BIGGER - 34));
}

#[test]
fn a_disk_of_the_image_s_size_is_left_alone() {
    let disk = Disk::with_image(IMAGE_SECTORS);
    assert_eq!(plan(disk.sectors, &disk.tables()), Growth::Fine);
}

#[test]
fn a_disk_smaller_than_the_image_is_not_written_to() {
    let needed = IMAGE_SECTORS - ALIGNMENT + 33;
    for sectors in [needed - 1, ALIGNMENT + ESP_SECTORS, 4096] {
        let disk = Disk::with_image(sectors);
        assert_eq!(plan(disk.sectors, &disk.tables()), Growth::TooSmall { needed }, "{sectors}");
    }
    let disk = Disk::with_image(needed);
    assert_eq!(plan(disk.sectors, &grown(disk.clone()).tables()), Growth::Fine, "just large enough");
}

#[test]
fn a_disk_that_became_larger_later_grows_again() {
    let mut disk = grown(Disk::with_image(BIGGER));
    disk.sectors *= 2;
    let disk = grown(disk);
    assert_eq!(plan(disk.sectors, &disk.tables()), Growth::Fine);
    assert!(disk.tables().partitions().unwrap().data.last > BIGGER);
}

#[test]
fn a_lost_first_table_comes_back_from_the_second() {
    let mut disk = grown(Disk::with_image(BIGGER));
    let whole = disk.tables();
    for lost in [1, 2] {
        disk.written.insert(lost, vec![0xff; 512]);
        assert!(disk.tables().primary.is_none());
        disk = grown(disk);
        assert_eq!(disk.tables(), whole);
    }
}

#[test]
fn foreign_and_empty_disks_are_not_ours() {
    assert_eq!(plan(BIGGER, &Tables::default()), Growth::NotOurs);
    let mut foreign = Disk::with_image(BIGGER);
    let mut tables = foreign.tables();
    let entries = tables.primary.take().unwrap().entries_octets().to_vec();
    // A partition behind ours: nothing of the builder's.
    let mut entries = entries;
    entries.copy_within(128..256, 256);
    let behind = (IMAGE_SECTORS + ALIGNMENT).to_le_bytes();
    entries[256 + 32..256 + 40].copy_from_slice(&behind);
    entries[256 + 40..256 + 48].copy_from_slice(&behind);
    tables.primary = Some(table(entries, 1, BIGGER - 1, 2, BIGGER - 34));
    assert_eq!(plan(BIGGER, &tables), Growth::NotOurs);
    // The scratch copy needs the gap.
    foreign.sectors = 0;
    assert_eq!(foreign.tables().partitions(), None);
}

#[test]
fn after_every_power_cut_the_next_start_comes_to_the_same_end() {
    let fresh = Disk::with_image(BIGGER);
    let end = grown(fresh.clone()).tables();
    let list = writes(&fresh);
    for (cut, torn_write) in list.iter().enumerate() {
        for kept in 0..=torn_write.octets.len() / 512 {
            let mut disk = fresh.clone();
            for write in &list[..cut] {
                disk.write(write);
            }
            disk.write_torn(torn_write, kept);
            let after = disk.tables();
            assert!(after.primary.is_some(), "write {cut}, {kept} sectors: the first table is always valid");
            let partitions = after.partitions().expect("our partitions are still there");
            assert_eq!(partitions.data.first, ALIGNMENT + ESP_SECTORS);
            if plan(disk.sectors, &after) != Growth::Fine {
                assert_eq!(grown(disk).tables(), end, "write {cut}, {kept} sectors");
            }
        }
    }
}

proptest! {
    /// Several power cuts in a row, each in the middle of what the start before it planned.
    #[test]
    fn any_chain_of_power_cuts_ends_well(sectors in IMAGE_SECTORS..IMAGE_SECTORS * 40, cuts in prop::collection::vec((0usize..9, 0usize..33), 0..8)) {
        let fresh = Disk::with_image(sectors);
        let mut disk = fresh.clone();
        for (cut, kept) in cuts {
            let Growth::Writes(list) = plan(disk.sectors, &disk.tables()) else { break };
            for (at, write) in list.iter().enumerate().take(cut + 1) {
                if at == cut { disk.write_torn(write, kept) } else { disk.write(write) }
            }
            prop_assert!(disk.tables().partitions().is_some());
        }
        if let Growth::Writes(list) = plan(disk.sectors, &disk.tables()) {
            for write in list { disk.write(&write); }
        }
        prop_assert_eq!(plan(disk.sectors, &disk.tables()), Growth::Fine);
    }

    /// Damaged tables are read as damaged, without a panic.
    #[test]
    fn random_octets_are_no_table(sector in prop::collection::vec(any::<u8>(), 0..600), entries in prop::collection::vec(any::<u8>(), 0..600)) {
        let tables = Tables::read(SECTOR_BYTES, |lba, _| Some(if lba < 2 { sector.clone() } else { entries.clone() }));
        prop_assert_eq!(tables.partitions(), None);
    }
}
