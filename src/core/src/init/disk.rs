//! The image's partition table: what the builder writes and PID 1 looks for.

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
