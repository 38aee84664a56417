//! What is known of the master images in the folder: their partition tables and digests, looked at once for each content.
//!
//! The files are the truth; what is remembered of one holds only while its length, time and inode are the same. Digests are
//! computed in the background and kept over restarts in a cache file, which may be lost or damaged without harm.

use super::{StorageError, image, list};
use kurrent_core::gpt::{BLOCK_BYTES, Contents};
use kurrent_core::id::FileName;
use kurrent_core::time::Wall;
use kurrent_sys::store;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

const CACHE_FILE: &str = ".masters.cache.json";
const CACHE_VERSION: u32 = 1;
const CACHE_MAX_BYTES: u64 = 2 << 20;
/// Digests that are kept; a few hundred octets each.
const CACHE_ENTRIES: usize = 4096;
const CHUNK: usize = 1 << 20;

/// One master image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Master {
    /// File name.
    pub name: FileName,
    /// Length in bytes.
    pub size_bytes: u64,
    /// When its content was last written.
    pub modified_at: Wall,
    /// Sector size that its partition table is for; absent when it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sector_bytes: Option<u64>,
    /// Its partitions; empty when it is not usable.
    pub partitions: Vec<MasterPartition>,
    /// SHA-256 of its content, 64 hex digits; absent until it is computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Stable code of why it can not be cloned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault_code: Option<&'static str>,
    /// Why it can not be cloned, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// One partition of a master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MasterPartition {
    /// Counted from 1.
    pub number: u32,
    /// Type GUID.
    pub kind: String,
    /// Name.
    pub label: String,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// Tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stamp {
    size_bytes: u64,
    modified_nanos: i64,
    inode: u64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let nanos = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        Self { size_bytes: metadata.len(), modified_nanos: nanos, inode: metadata.ino() }
    }

    fn modified_at(self) -> Wall {
        Wall::from_nanosecond(self.modified_nanos.into()).unwrap_or(Wall::UNIX_EPOCH)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheFile {
    version: u32,
    digests: Vec<Cached>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cached {
    name: FileName,
    stamp: Stamp,
    sha256: String,
}

#[derive(Default)]
struct Known {
    looks: BTreeMap<FileName, (Stamp, Result<image::Image, StorageError>)>,
    digests: BTreeMap<FileName, (Stamp, String)>,
}

/// See the module.
pub(super) struct Catalog {
    disk_dir: PathBuf,
    known: Mutex<Known>,
}

impl Catalog {
    /// With what an earlier run has computed.
    pub(super) fn open(disk_dir: PathBuf) -> Self {
        let read = store::read(&disk_dir.join(CACHE_FILE), CACHE_MAX_BYTES).ok().flatten();
        let cache = read.and_then(|octets| serde_json::from_slice::<CacheFile>(&octets).ok()).filter(|c| c.version == CACHE_VERSION);
        let digests = cache.map(|c| c.digests).unwrap_or_default().into_iter().map(|c| (c.name, (c.stamp, c.sha256))).collect();
        Self { disk_dir, known: Mutex::new(Known { looks: BTreeMap::new(), digests }) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All masters that are there now; only new content is looked at. What is gone is forgotten.
    pub(super) fn masters(&self) -> io::Result<Vec<Master>> {
        let files = list(&self.disk_dir)?;
        let is_master = |(name, m): (String, Metadata)| Some((name.parse::<FileName>().ok().filter(FileName::is_master)?, Stamp::of(&m)));
        let files: BTreeMap<FileName, Stamp> = files.into_iter().filter_map(is_master).collect();
        {
            let mut known = self.known();
            // One that came after the folder was listed is looked at again before it is forgotten.
            let is_now = |name: &FileName, stamp: &Stamp| {
                let now = || std::fs::symlink_metadata(self.disk_dir.join(name.as_str())).map(|m| Stamp::of(&m));
                files.get(name) == Some(stamp) || now().is_ok_and(|now| now == *stamp)
            };
            known.looks.retain(|name, (stamp, _)| is_now(name, stamp));
            known.digests.retain(|name, (stamp, _)| is_now(name, stamp));
        }
        Ok(files.into_iter().map(|(name, stamp)| self.master(name, stamp)).collect())
    }

    /// One master.
    pub(super) fn find(&self, name: &FileName) -> io::Result<Option<Master>> {
        match std::fs::symlink_metadata(self.disk_dir.join(name.as_str())) {
            Ok(metadata) if metadata.is_file() && name.is_master() => Ok(Some(self.master(name.clone(), Stamp::of(&metadata)))),
            Ok(_) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn master(&self, name: FileName, stamp: Stamp) -> Master {
        let known = self.known().looks.get(&name).filter(|(s, _)| *s == stamp).map(|(_, look)| look.clone());
        let look = known.unwrap_or_else(|| {
            let look = image::check_master(&self.disk_dir.join(name.as_str()));
            self.known().looks.insert(name.clone(), (stamp, look.clone()));
            look
        });
        let sha256 = self.known().digests.get(&name).filter(|(s, _)| *s == stamp).map(|(_, digest)| digest.clone());
        let sector_bytes = match &look {
            Ok(_) => Some(BLOCK_BYTES),
            Err(e) if e.code == "sector_size" => Some(512),
            Err(_) => None,
        };
        Master {
            name,
            size_bytes: stamp.size_bytes,
            modified_at: stamp.modified_at(),
            sector_bytes,
            partitions: look.as_ref().map(|i| partitions(&i.contents)).unwrap_or_default(),
            sha256,
            fault_code: look.as_ref().err().map(|e| e.code),
            fault: look.err().map(|e| e.detail),
        }
    }

    /// The digest of an open master, when it is known.
    pub(super) fn digest(&self, name: &FileName, file: &File) -> Option<String> {
        let stamp = Stamp::of(&file.metadata().ok()?);
        self.known().digests.get(name).filter(|(s, _)| *s == stamp).map(|(_, digest)| digest.clone())
    }

    /// Keeps a digest that somebody computed of this file as it is now.
    pub(super) fn learn(&self, name: &FileName, file: &File, sha256: String) {
        match file.metadata() {
            Ok(metadata) => self.keep(name, Stamp::of(&metadata), sha256),
            Err(error) => tracing::warn!(%name, %error, "storage: a digest is not kept"),
        }
    }

    fn keep(&self, name: &FileName, stamp: Stamp, sha256: String) {
        let digests: Vec<Cached> = {
            let mut known = self.known();
            known.digests.insert(name.clone(), (stamp, sha256));
            let cached = |(name, (stamp, sha256)): (&FileName, &(Stamp, String))| Cached {
                name: name.clone(),
                stamp: *stamp,
                sha256: sha256.clone(),
            };
            known.digests.iter().map(cached).take(CACHE_ENTRIES).collect()
        };
        let text = serde_json::to_vec(&CacheFile { version: CACHE_VERSION, digests }).unwrap_or_default();
        if let Err(error) = store::replace(&self.disk_dir.join(CACHE_FILE), &text, 0o600) {
            tracing::warn!(%error, "storage: digests of masters are computed again after a restart");
        }
    }

    /// Usable masters whose digest is not known, with the time they were written.
    pub(super) fn undigested(&self) -> io::Result<Vec<(FileName, Wall)>> {
        let missing = self.masters()?.into_iter().filter(|m| m.fault.is_none() && m.sha256.is_none());
        Ok(missing.map(|m| (m.name, m.modified_at)).collect())
    }

    /// Computes the digest of one master, piece by piece as long as `go_on` says so.
    pub(super) fn compute(&self, name: &FileName, go_on: &dyn Fn() -> bool) -> io::Result<()> {
        let mut file = File::open(self.disk_dir.join(name.as_str()))?;
        let stamp = Stamp::of(&file.metadata()?);
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        loop {
            if !go_on() {
                return Ok(());
            }
            let read = file.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            hash.update(chunk.get(..read).unwrap_or_default());
        }
        // Changed meanwhile: what was read is no content that ever was.
        if Stamp::of(&file.metadata()?) == stamp {
            self.keep(name, stamp, hex::encode(hash.finalize()));
        }
        Ok(())
    }
}

fn partitions(contents: &Contents) -> Vec<MasterPartition> {
    let Contents::Table(table) = contents else { return Vec::new() };
    let blocks = |p: &kurrent_core::gpt::Partition| p.last_block.saturating_sub(p.first_block).saturating_add(1);
    let view = |p: &kurrent_core::gpt::Partition| MasterPartition {
        number: p.number,
        kind: p.kind.to_string(),
        label: p.label.clone(),
        size_bytes: blocks(p).saturating_mul(BLOCK_BYTES),
    };
    table.partitions.iter().map(view).collect()
}
