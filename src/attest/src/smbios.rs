//! Memory type, speed and size out of SMBIOS type 17, which stock iPXE can not give (DMTF DSP0134 3.7, sections 5.2, 7.18).
//!
//! The table is firmware's, but read as if a stranger wrote it: no length in it is believed beyond the table's end.

/// Where the structure table is and how long it may be, from an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Physical address.
    pub address: u64,
    /// Octets, at most [`MAX_TABLE_BYTES`].
    pub length: usize,
}

/// More than any firmware has; an entry point that names more is cut.
pub const MAX_TABLE_BYTES: usize = 1 << 20;
/// Length of a 64-bit entry point.
pub const ENTRY_POINT_64_BYTES: usize = 0x18;
/// Length of a 32-bit entry point.
pub const ENTRY_POINT_32_BYTES: usize = 0x1f;

const TYPE_MEMORY_DEVICE: u8 = 17;
const TYPE_END: u8 = 127;
const HEADER_BYTES: usize = 4;
const OFFSET_SIZE: usize = 0x0c;
const OFFSET_EXTENDED_SIZE: usize = 0x1c;
const SIZE_UNKNOWN: u16 = 0xffff;
const SIZE_IS_EXTENDED: u16 = 0x7fff;
const SIZE_IN_KIB: u16 = 0x8000;
const OFFSET_TYPE: usize = 0x12;
const OFFSET_SPEED: usize = 0x15;
const OFFSET_EXTENDED_SPEED: usize = 0x54;
const SPEED_IS_EXTENDED: u16 = 0xffff;

/// Reads a 64-bit (`_SM3_`, 5.2.2) or 32-bit (`_SM_`, 5.2.1) entry point.
#[must_use]
pub fn entry_point(octets: &[u8]) -> Option<Table> {
    let (address, length) = if octets.starts_with(b"_SM3_") {
        (u64::from_le_bytes(array(octets, 0x10)?), u32::from_le_bytes(array(octets, 0x0c)?))
    } else if octets.starts_with(b"_SM_") {
        (u64::from(u32::from_le_bytes(array(octets, 0x18)?)), u32::from(u16::from_le_bytes(array(octets, 0x16)?)))
    } else {
        return None;
    };
    let length = usize::try_from(length).ok()?.min(MAX_TABLE_BYTES);
    (address != 0 && length > 0).then_some(Table { address, length })
}

/// The memory that is plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Of the first module: `DDR4`, `unknown`, …
    pub kind: &'static str,
    /// Of the first module, MT/s; 0 when the firmware does not know.
    pub speed: u32,
    /// Of all modules, MiB.
    pub total_mib: u64,
}

/// Reads the table; `None` when it names no module that is plugged in.
#[must_use]
pub fn memory(table: &[u8]) -> Option<Memory> {
    let mut found: Option<Memory> = None;
    let mut rest = table;
    while let Some((formatted, after)) = structure(rest) {
        if formatted.first() == Some(&TYPE_MEMORY_DEVICE)
            && let Some(one) = module(formatted)
        {
            let total_mib = found.map_or(0, |sum| sum.total_mib).saturating_add(one.total_mib);
            found = Some(Memory { total_mib, ..found.unwrap_or(one) });
        }
        rest = after;
    }
    found
}

/// The formatted part of the first structure, and what comes after its strings.
fn structure(table: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[kind, length], _) = table.split_first_chunk::<2>()?;
    let length = usize::from(length);
    if kind == TYPE_END || length < HEADER_BYTES {
        return None;
    }
    let (formatted, strings) = table.split_at_checked(length)?;
    // Strings end with an empty one: two zero octets in a row.
    let end = strings.windows(2).position(|pair| pair == [0, 0])?;
    Some((formatted, strings.get(end + 2..)?))
}

fn module(formatted: &[u8]) -> Option<Memory> {
    let total_mib = match u16::from_le_bytes(array(formatted, OFFSET_SIZE)?) {
        0 => return None,
        SIZE_UNKNOWN => 0,
        SIZE_IS_EXTENDED => array(formatted, OFFSET_EXTENDED_SIZE).map_or(0, |size| u64::from(u32::from_le_bytes(size) & 0x7fff_ffff)),
        size if size & SIZE_IN_KIB != 0 => u64::from(size & !SIZE_IN_KIB) / 1024,
        size => u64::from(size),
    };
    let kind = kind_name(*formatted.get(OFFSET_TYPE)?);
    // Before SMBIOS 2.3 there is no speed; it is zero when unknown.
    let speed = match array(formatted, OFFSET_SPEED).map(u16::from_le_bytes) {
        Some(SPEED_IS_EXTENDED) => array(formatted, OFFSET_EXTENDED_SPEED).map_or(0, u32::from_le_bytes),
        Some(speed) => u32::from(speed),
        None => 0,
    };
    Some(Memory { kind, speed, total_mib })
}

/// DSP0134 table 78.
const fn kind_name(kind: u8) -> &'static str {
    match kind {
        0x03 => "DRAM",
        0x07 => "RAM",
        0x0f => "SDRAM",
        0x12 => "DDR",
        0x13 => "DDR2",
        0x14 => "DDR2-FB-DIMM",
        0x18 => "DDR3",
        0x1a => "DDR4",
        0x1b => "LPDDR",
        0x1c => "LPDDR2",
        0x1d => "LPDDR3",
        0x1e => "LPDDR4",
        0x20 => "HBM",
        0x21 => "HBM2",
        0x22 => "DDR5",
        0x23 => "LPDDR5",
        0x24 => "HBM3",
        _ => "unknown",
    }
}

fn array<const N: usize>(octets: &[u8], at: usize) -> Option<[u8; N]> {
    octets.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn device(size: u16, kind: u8, speed: u16, extended: u32) -> Vec<u8> {
        let mut out = vec![0u8; 0x5c];
        out[0] = TYPE_MEMORY_DEVICE;
        out[1] = 0x5c;
        out[OFFSET_SIZE..][..2].copy_from_slice(&size.to_le_bytes());
        out[OFFSET_TYPE] = kind;
        out[OFFSET_SPEED..][..2].copy_from_slice(&speed.to_le_bytes());
        out[OFFSET_EXTENDED_SPEED..][..4].copy_from_slice(&extended.to_le_bytes());
        out.extend_from_slice(b"DIMM 0\0Some maker\0\0");
        out
    }

    fn table(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![1, 4, 0, 0, b'x', 0, 0]; // a type 1 with one string
        out.extend_from_slice(&[2, 5, 0, 0, 9, 0, 0]); // a type 2 without strings
        parts.iter().for_each(|p| out.extend_from_slice(p));
        out.extend_from_slice(&[TYPE_END, 4, 0, 0, 0, 0]);
        out
    }

    #[test]
    fn the_first_module_that_is_plugged_in_counts() {
        let found = memory(&table(&[device(0, 0x1a, 3200, 0), device(16384, 0x22, 4800, 0), device(1, 0x18, 1, 0)]));
        assert_eq!(found, Some(Memory { kind: "DDR5", speed: 4800, total_mib: 16385 }));
        assert_eq!(memory(&table(&[device(0, 0x1a, 3200, 0)])), None);
    }

    #[test]
    fn a_speed_too_big_for_its_field_is_read_from_the_extended_one() {
        assert_eq!(memory(&table(&[device(1, 0x23, 0xffff, 70_000)])), Some(Memory { kind: "LPDDR5", speed: 70_000, total_mib: 1 }));
    }

    #[test]
    fn sizes_in_kib_extended_and_unknown_are_summed_in_mib() {
        let mut big = device(SIZE_IS_EXTENDED, 0x1a, 0, 0);
        big[OFFSET_EXTENDED_SIZE..][..4].copy_from_slice(&65_536u32.to_le_bytes());
        let all = [big, device(SIZE_IN_KIB | 2048, 0x1a, 0, 0), device(SIZE_UNKNOWN, 0x1a, 0, 0)];
        assert_eq!(memory(&table(&all)).map(|m| m.total_mib), Some(65_538));
    }

    #[test]
    fn cut_or_damaged_tables_never_reach_beyond_their_end() {
        let whole = table(&[device(0, 1, 0, 0), device(1, 0x1a, 3200, 0)]);
        for at in 0..whole.len() {
            let _ = memory(&whole[..at]);
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let _ = memory(&damaged);
            }
        }
    }

    #[test]
    fn both_entry_points_are_read_and_others_refused() {
        let mut three = [0u8; ENTRY_POINT_64_BYTES];
        three[..5].copy_from_slice(b"_SM3_");
        three[0x0c..0x10].copy_from_slice(&0x1234u32.to_le_bytes());
        three[0x10..0x18].copy_from_slice(&0x7fff_0000u64.to_le_bytes());
        assert_eq!(entry_point(&three), Some(Table { address: 0x7fff_0000, length: 0x1234 }));
        three[0x0c..0x10].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(entry_point(&three).map(|t| t.length), Some(MAX_TABLE_BYTES));
        let mut two = [0u8; ENTRY_POINT_32_BYTES];
        two[..4].copy_from_slice(b"_SM_");
        two[0x16..0x18].copy_from_slice(&0x200u16.to_le_bytes());
        two[0x18..0x1c].copy_from_slice(&0xe_0000u32.to_le_bytes());
        assert_eq!(entry_point(&two), Some(Table { address: 0xe_0000, length: 0x200 }));
        for at in 0..two.len() {
            assert_eq!(entry_point(&two[..at]).is_some(), at >= 0x1c, "cut at {at}");
        }
        assert_eq!(entry_point(&[0; ENTRY_POINT_32_BYTES]), None);
    }
}
