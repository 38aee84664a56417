//! The data partition and the disk image.

use crate::steps::tool;
use anyhow::{Context as _, Result, bail};
use kurrent_core::init::disk::{
    ALIGNMENT, DATA_NAME, DATA_SECTORS, DATA_TYPE, ESP_NAME, ESP_SECTORS, ESP_TYPE, IMAGE_SECTORS, SECTOR_BYTES,
};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Fixed identities: images of the same sources are the same octets. A disk keeps them: two such disks in one machine can not be told
/// apart, and then nothing is served (decision 0002).
const DISK_ID: &str = "2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a10";
const ESP_ID: &str = "2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a11";
const DATA_ID: &str = "2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a12";
const DATA_FS_ID: &str = "2f1c5a80-6f0d-4f5e-9a37-5d0c6b1e4a13";

/// Folders of the data partition.
const DATA_FOLDERS: [&str; 3] = ["state", "disks", "log"];

/// Copies are made in pieces of this size; pieces of zeros become holes.
const PIECE: usize = 1 << 16;

/// An empty file of this size without octets on the disk.
pub fn create_sparse(path: &Path, length: u64) -> Result<File> {
    let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
    file.set_len(length).with_context(|| format!("writing {}", path.display()))?;
    Ok(file)
}

/// A btrfs file system with the folders that the daemon expects.
pub fn build_data(output: &Path) -> Result<()> {
    let root = output.with_extension("root");
    for folder in DATA_FOLDERS {
        fs::create_dir_all(root.join(folder)).with_context(|| format!("making {}", root.display()))?;
    }
    let partial = output.with_extension("partial");
    create_sparse(&partial, DATA_SECTORS * SECTOR_BYTES)?;
    let mut command = Command::new("mkfs.btrfs");
    command.args(["-q", "-f", "-L", DATA_NAME, "-U", DATA_FS_ID, "--rootdir"]).arg(&root).arg(&partial);
    tool(command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))?;
    fs::rename(&partial, output).with_context(|| format!("writing {}", output.display()))
}

/// Both partitions behind a partition table.
pub fn build_image(esp: &Path, data: &Path, output: &Path) -> Result<()> {
    let partial = output.with_extension("partial");
    let mut image = create_sparse(&partial, IMAGE_SECTORS * SECTOR_BYTES)?;
    let (esp_start, data_start) = (ALIGNMENT, ALIGNMENT + ESP_SECTORS);
    // Space between the table and the first partition stays unused: a growing table needs it (kurrent_core::init::grow).
    let script = format!(
        "label: gpt\nlabel-id: {DISK_ID}\nunit: sectors\nfirst-lba: {ALIGNMENT}\n\
         start={esp_start}, size={ESP_SECTORS}, type={ESP_TYPE}, uuid={ESP_ID}, name=\"{ESP_NAME}\"\n\
         start={data_start}, size={DATA_SECTORS}, type={DATA_TYPE}, uuid={DATA_ID}, name=\"{DATA_NAME}\"\n"
    );
    let mut sfdisk = Command::new("sfdisk")
        .args(["--quiet", "--no-reread", "--no-tell-kernel", "--wipe=never"])
        .arg(&partial)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .spawn()
        .context("running sfdisk: is it installed? `make deps` does it")?;
    sfdisk.stdin.take().context("talking to sfdisk")?.write_all(script.as_bytes()).context("talking to sfdisk")?;
    if !sfdisk.wait().context("waiting for sfdisk")?.success() {
        bail!("sfdisk refused the partition table:\n{script}");
    }
    copy_sparse(esp, &mut image, esp_start * SECTOR_BYTES)?;
    copy_sparse(data, &mut image, data_start * SECTOR_BYTES)?;
    fs::rename(&partial, output).with_context(|| format!("writing {}", output.display()))
}

fn copy_sparse(from: &Path, to: &mut File, mut offset: u64) -> Result<()> {
    let mut source = File::open(from).with_context(|| format!("reading {}", from.display()))?;
    let mut piece = vec![0; PIECE];
    loop {
        let length = source.read(&mut piece).with_context(|| format!("reading {}", from.display()))?;
        let Some(octets) = piece.get(..length).filter(|octets| !octets.is_empty()) else { return Ok(()) };
        if octets.iter().any(|octet| *octet != 0) {
            to.seek(SeekFrom::Start(offset)).and_then(|_| to.write_all(octets)).context("writing the image")?;
        }
        offset += u64::try_from(length).unwrap_or(0);
    }
}

/// For flashing: `zstdcat kurrent.img.zst | dd of=/dev/DISK`.
pub fn compress(image: &Path, output: &Path) -> Result<()> {
    tool(Command::new("zstd").args(["-q", "-f", "-T0", "-10", "-o"]).arg(output).arg(image))
}
