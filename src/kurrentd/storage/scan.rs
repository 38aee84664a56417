//! The background scanner of the disk folder: notices masters that come and go, looks at their tables, computes their digests at
//! low priority. Nothing waits for it: whoever asks for masters looks at the folder itself.

use super::{Inner, Storage};
use inotify::{Inotify, WatchMask};
use kurrent_core::id::FileName;
use kurrent_core::time::Wall;
use kurrent_sys::clock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often the folder is looked at although nothing was heard: the kernel tells nothing of what happens on a network share.
const SWEEP: Duration = Duration::from_secs(60);
/// How long the thread is deaf at most, to end soon after the storage is gone.
const TURN_MILLIS: u16 = 1000;
/// A file that was written so recently may be written again.
const REST_SECS: i64 = 3;
/// Lowest CPU priority.
const NICE: i32 = 19;

impl Storage {
    /// Starts the scanner; it ends with the last handle of this storage.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn watch_masters(&self) -> io::Result<()> {
        let inner = Arc::downgrade(&self.0);
        std::thread::Builder::new().name("masters".into()).spawn(move || scan(&inner)).map(|_| ())
    }
}

fn scan(storage: &Weak<Inner>) {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::warn!(%error, "storage: digests are computed at the usual priority");
    }
    let mut ears = storage.upgrade().and_then(|inner| {
        listen(&inner).inspect_err(|error| tracing::warn!(%error, "storage: the disk folder is looked at every minute only")).ok()
    });
    let mut known = BTreeSet::new();
    let mut looked: Option<Instant> = None;
    let mut pending = false;
    loop {
        let heard = hear(ears.as_mut());
        let Some(inner) = storage.upgrade() else { return };
        let due = heard || looked.is_none_or(|at| at.elapsed() >= SWEEP);
        if due {
            looked = Some(Instant::now());
            notice(&inner, &mut known);
        }
        if due || pending {
            pending = digest(&inner, storage);
        }
    }
}

fn listen(inner: &Inner) -> io::Result<Inotify> {
    let ears = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM | WatchMask::DELETE | WatchMask::ONLYDIR;
    ears.watches().add(&inner.local.disk_dir, mask)?;
    Ok(ears)
}

/// Waits for a turn or a sound.
fn hear(ears: Option<&mut Inotify>) -> bool {
    let Some(ears) = ears else {
        std::thread::sleep(Duration::from_secs(1));
        return false;
    };
    let mut polled = [PollFd::new(ears.as_fd(), PollFlags::POLLIN)];
    if poll(&mut polled, PollTimeout::from(TURN_MILLIS)).unwrap_or(0) == 0 {
        return false;
    }
    let mut events = [0; 4096];
    ears.read_events(&mut events).is_ok_and(|mut all| all.next().is_some())
}

fn notice(inner: &Inner, known: &mut BTreeSet<FileName>) {
    let masters = match inner.local.catalog.masters() {
        Ok(masters) => masters,
        Err(error) => return tracing::warn!(%error, "storage: the disk folder can not be read"),
    };
    for master in masters.iter().filter(|m| !known.contains(&m.name)) {
        match &master.fault {
            None => tracing::info!(name = %master.name, size = master.size_bytes, "storage: there is a master"),
            Some(fault) => tracing::warn!(name = %master.name, fault, "storage: there is a master that can not be cloned"),
        }
    }
    let now: BTreeSet<FileName> = masters.into_iter().map(|m| m.name).collect();
    for name in known.difference(&now) {
        tracing::info!(%name, "storage: a master is gone");
    }
    *known = now;
}

/// Computes one missing digest; whether more are to come. A file that was just written is left to rest first.
fn digest(inner: &Arc<Inner>, storage: &Weak<Inner>) -> bool {
    let rested = Wall::from_second(clock::now().wall.as_second().saturating_sub(REST_SECS)).unwrap_or(Wall::UNIX_EPOCH);
    let catalog = &inner.local.catalog;
    let missing = catalog.undigested().unwrap_or_default();
    let Some((name, _)) = missing.iter().find(|(_, modified_at)| *modified_at < rested) else { return !missing.is_empty() };
    let path = inner.local.path(name);
    // Only this thread still holds the storage: everybody else has gone.
    let go_on = || Arc::strong_count(inner) > 1 && path.exists();
    match catalog.compute(name, &go_on) {
        Ok(()) => storage.strong_count() > 1,
        Err(error) => {
            tracing::warn!(%name, %error, "storage: the digest of a master can not be computed; it is tried again later");
            false
        }
    }
}
