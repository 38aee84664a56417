//! Masters: listing, importing, removing. They are cloned, never booted.

use super::catalog::Master;
use super::copy::SparseWriter;
use super::jobs::{Kind, Made, Running};
use super::local::{LocalNode, Part};
use super::{Storage, StorageError, blocking, image, not_found};
use crate::ledger::expect::Expectation;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use kurrent_core::gpt::BLOCK_BYTES;
use kurrent_core::id::FileName;
use kurrent_core::ledger::Change;
use kurrent_sys::store;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A sender that is silent for longer has gone away.
const SILENCE: Duration = Duration::from_secs(60);
/// Room that is kept ahead for a sender that did not say how much comes.
const PROMISE_BYTES: u64 = 16 << 20;
/// Pieces in flight between network and disk.
const PIECES: usize = 16;

enum Piece {
    Octets(Bytes),
    End,
}

impl Storage {
    /// All masters that are there now, also those that can not be cloned.
    ///
    /// # Errors
    /// `disk_dir`: the folder can not be read.
    pub async fn masters(&self) -> Result<Vec<Master>, StorageError> {
        let local = self.0.local.clone();
        blocking(move || local.catalog.masters().map_err(|e| local.folder_error(&e))).await
    }

    /// One master.
    ///
    /// # Errors
    /// `master_not_found`, `disk_dir`.
    pub async fn master(&self, name: &FileName) -> Result<Master, StorageError> {
        let (local, name) = (self.0.local.clone(), name.clone());
        blocking(move || {
            let found = local.catalog.find(&name).map_err(|e| local.folder_error(&e))?;
            found.ok_or_else(|| not_found("master_not_found", format!("there is no master {name}; see the list of masters")))
        })
        .await
    }

    /// Removes a master's tags, then its file. Disks that were cloned from it do not need it.
    ///
    /// # Errors
    /// `master_not_found`, `busy` while it is being cloned or imported, `file_not_removed`.
    pub async fn delete_master(&self, name: &FileName, actor: &str, expected: Vec<Expectation>) -> Result<(), StorageError> {
        let held = self.0.local.claims.write(name.as_str())?;
        self.master(name).await?;
        self.0.ledger.submit_if(Change::ForgetMaster { name: name.clone() }, actor, expected).await?;
        let (local, name) = (self.0.local.clone(), name.clone());
        blocking(move || {
            let _held = held;
            let failed = |e: std::io::Error| StorageError::new("file_not_removed", 500, format!("{name} could not be removed: {e}"));
            store::remove(&local.path(&name)).map_err(failed)
        })
        .await
    }

    /// Receives a master: streamed to an unfinished file with holes for zero blocks, checked, then given its name. `length` is what
    /// the sender announced, if it did. It is a job as well, so that others see how far it is, and can stop it.
    ///
    /// # Errors
    /// `not_a_master`, `master_exists`, `busy`, `disk_full`, `interrupted`, `cancelled`, what [`image::check_master`] says. Nothing
    /// is left.
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
        let job = Arc::new(self.0.jobs.start(Kind::Import, format!("receiving {name}"), None, length.unwrap_or_default())?);
        let (sender, receiver) = mpsc::channel(PIECES);
        let (local, received, receiving) = (self.0.local.clone(), name.clone(), Arc::clone(&job));
        let writer = tokio::spawn(blocking(move || receive(&local, received, length, receiver, &receiving)));
        let fed = tokio::select! {
            fed = feed(&mut body, &sender) => fed,
            () = job.cancelled() => Ok(()),
        };
        // Without End the writer throws away what it has.
        drop(sender);
        let written = writer.await.unwrap_or_else(|_| Err(StorageError::new("internal", 500, "the import was ended; see the log".into())));
        let imported = match (fed, written) {
            (Err(interrupted), Err(e)) if e.code == "interrupted" => Err(interrupted),
            (_, written) => written.map_err(|e| job.explain(e)),
        };
        job.finish(imported.clone().map(|()| Made::Master(name.clone())));
        imported?;
        self.master(&name).await
    }
}

fn receive(
    local: &LocalNode,
    name: FileName,
    length: Option<u64>,
    mut pieces: mpsc::Receiver<Piece>,
    job: &Running,
) -> Result<(), StorageError> {
    let claim = local.claims.write(name.as_str())?;
    let last = local.path(&name);
    if last.exists() {
        let what = format!("there is a master {name} already; choose another name, or delete it first");
        return Err(StorageError::new("master_exists", 409, what));
    }
    let needed = length.unwrap_or(BLOCK_BYTES);
    let mut room = local.promise(length.unwrap_or_default())?;
    let (part, file) = Part::create(local.part_path(&name), claim).map_err(|e| local.write_error(needed, &e))?;
    let kept = file.try_clone().map_err(|e| local.folder_error(&e))?;
    let (mut writer, mut hash) = (SparseWriter::new(file), Sha256::new());
    job.begin()?;
    loop {
        match pieces.blocking_recv() {
            Some(Piece::Octets(octets)) => {
                hash.update(&octets);
                let bytes = u64::try_from(octets.len()).unwrap_or(u64::MAX);
                if room.left() < bytes {
                    room = local.promise(bytes.max(PROMISE_BYTES)).or_else(|_| local.promise(bytes))?;
                }
                writer.push(&octets).map_err(|e| local.write_error(needed.max(writer.length()), &e))?;
                // Of zeros nothing was taken: what was promised for them is free again.
                room.taken(bytes);
                job.add(bytes).map_err(|e| job.explain(local.folder_error(&e)))?;
            }
            Some(Piece::End) => break,
            None => return Err(interrupted("the sender went away")),
        }
    }
    let size_bytes = writer.finish().map_err(|e| local.write_error(needed, &e))?;
    if length.is_some_and(|l| l != size_bytes) {
        return Err(interrupted(&format!("{size_bytes} bytes came, {} were announced", length.unwrap_or_default())));
    }
    image::check_master(part.path())?;
    job.commit()?;
    let _held = part.finish(&last).map_err(|e| local.write_error(needed, &e))?;
    local.catalog.learn(&name, &kept, hex::encode(hash.finalize()));
    Ok(())
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
