//! Masters: listing and importing. They are cloned, never booted.

use super::copy::SparseWriter;
use super::make::Part;
use super::{Storage, StorageError, blocking, image, list};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use kurrent_core::gpt::{BLOCK_BYTES, Contents};
use kurrent_core::id::FileName;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::mpsc;

/// A sender that is silent for longer has gone away.
const SILENCE: Duration = Duration::from_secs(60);
/// Pieces in flight between network and disk.
const PIECES: usize = 16;

/// One master image.
#[derive(Clone, Debug, Serialize)]
pub struct Master {
    /// File name.
    pub name: FileName,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Its partitions; empty when it is not usable.
    pub partitions: Vec<MasterPartition>,
    /// Why it can not be cloned, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// One partition of a master.
#[derive(Clone, Debug, Serialize)]
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

enum Piece {
    Octets(Bytes),
    End,
}

impl Storage {
    /// All masters, looked at now, also those that can not be cloned.
    ///
    /// # Errors
    /// `disk_dir`: the folder can not be read.
    pub async fn masters(&self) -> Result<Vec<Master>, StorageError> {
        let storage = self.clone();
        blocking(move || {
            let files = list(&storage.0.disk_dir).map_err(|e| storage.folder_error(&e))?;
            let names =
                files.into_iter().filter_map(|(name, size)| Some((name.parse::<FileName>().ok().filter(FileName::is_master)?, size)));
            Ok(names.map(|(name, size)| storage.look_at(name, size)).collect())
        })
        .await
    }

    fn look_at(&self, name: FileName, size_bytes: u64) -> Master {
        match image::check_master(&self.path(&name)) {
            Ok(image) => Master { name, size_bytes, partitions: partitions(&image.contents), fault: None },
            Err(fault) => Master { name, size_bytes, partitions: Vec::new(), fault: Some(fault.detail) },
        }
    }

    /// Receives a master: streamed to an unfinished file with holes for zero blocks, checked, then given its name. `length` is what
    /// the sender announced, if it did.
    ///
    /// # Errors
    /// `not_a_master`, `master_exists`, `busy`, `disk_full`, `interrupted`, what [`image::check_master`] says. Nothing is left.
    pub async fn import_master<B>(&self, name: FileName, length: Option<u64>, mut body: B) -> Result<Master, StorageError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        if !name.is_master() {
            let what = format!("a master's file name contains _tpl_ (like debian_tpl_13.img); {name} does not");
            return Err(StorageError::new("not_a_master", 422, what));
        }
        if let Some(length) = length {
            image::check_size(length)?;
        }
        let (sender, receiver) = mpsc::channel(PIECES);
        let storage = self.clone();
        let writer = tokio::spawn(blocking(move || storage.receive(name, length, receiver)));
        let fed = feed(&mut body, &sender).await;
        // Without End the writer throws away what it has.
        drop(sender);
        let written = writer.await.unwrap_or_else(|_| Err(StorageError::new("internal", 500, "the import was ended; see the log".into())));
        match (fed, written) {
            (Err(interrupted), Err(e)) if e.code == "interrupted" => Err(interrupted),
            (_, written) => written,
        }
    }

    fn receive(&self, name: FileName, length: Option<u64>, mut pieces: mpsc::Receiver<Piece>) -> Result<Master, StorageError> {
        let claim = self.claim(&name)?;
        let last = self.path(&name);
        if last.exists() {
            let what = format!("there is a master {name} already; choose another name, or delete it first");
            return Err(StorageError::new("master_exists", 409, what));
        }
        let needed = length.unwrap_or(BLOCK_BYTES);
        let (part, file) = Part::create(self.part_path(&name), claim).map_err(|e| self.write_error(needed, &e))?;
        let mut writer = SparseWriter::new(file);
        loop {
            match pieces.blocking_recv() {
                Some(Piece::Octets(octets)) => writer.push(&octets).map_err(|e| self.write_error(needed.max(writer.length()), &e))?,
                Some(Piece::End) => break,
                None => return Err(interrupted("the sender went away")),
            }
        }
        let size_bytes = writer.finish().map_err(|e| self.write_error(needed, &e))?;
        if length.is_some_and(|l| l != size_bytes) {
            return Err(interrupted(&format!("{size_bytes} bytes came, {} were announced", length.unwrap_or_default())));
        }
        let image = image::check_master(part.path())?;
        part.finish(&last).map_err(|e| self.write_error(needed, &e))?;
        Ok(Master { name, size_bytes, partitions: partitions(&image.contents), fault: None })
    }
}

async fn feed<B>(body: &mut B, sender: &mpsc::Sender<Piece>) -> Result<(), StorageError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    loop {
        let frame = tokio::time::timeout(SILENCE, body.frame()).await.map_err(|_| interrupted("nothing came for a minute"))?;
        let piece = match frame {
            None => Piece::End,
            Some(Err(e)) => return Err(interrupted(&e.to_string())),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(octets) => Piece::Octets(octets),
                Err(_trailers) => continue,
            },
        };
        let ended = matches!(piece, Piece::End);
        // The writer ends early when it fails; its own words count then.
        if sender.send(piece).await.is_err() || ended {
            return Ok(());
        }
    }
}

fn interrupted(why: &str) -> StorageError {
    StorageError::new("interrupted", 400, format!("the image did not arrive whole ({why}); send it again"))
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
