//! The connections that are open. When there is no place for another one, the one that has got nowhere for longest gives way: sixteen
//! addresses that hold connections and ask nothing, or take nothing, must not shut the boot plane for the machines.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Who got on within this time is left alone: a machine that loads its kernel, also one whose speed is capped.
const GETS_ON_WITHIN: Duration = Duration::from_secs(3);

/// How a connection gets on.
pub struct Progress {
    /// Octets that the kernel took so far.
    pub moved: AtomicU64,
    /// When it last got on, in milliseconds of [`Open::began`]: a whole head came, or the peer took octets.
    last: AtomicU64,
    began: Instant,
    gives_way: Notify,
}

impl Progress {
    /// It got on now.
    pub fn mark(&self) {
        self.last.store(millis(self.began.elapsed()), Ordering::Relaxed);
    }

    /// The peer took octets.
    pub fn took(&self, octets: usize) {
        self.moved.fetch_add(u64::try_from(octets).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.mark();
    }

    /// Waits until it has to give way.
    pub async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

/// See the module.
pub struct Open {
    began: Instant,
    all: Mutex<(u64, HashMap<u64, Arc<Progress>>)>,
}

impl Default for Open {
    fn default() -> Self {
        Self { began: Instant::now(), all: Mutex::default() }
    }
}

impl Open {
    /// A connection has come; it is forgotten when the answer is dropped.
    pub fn enter(self: &Arc<Self>) -> Entered {
        let progress = Progress {
            moved: AtomicU64::new(0),
            last: AtomicU64::new(millis(self.began.elapsed())),
            began: self.began,
            gives_way: Notify::new(),
        };
        let progress = Arc::new(progress);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, Arc::clone(&progress));
        Entered { open: Arc::clone(self), number, progress }
    }

    /// Tells the connection that got nowhere for longest to end; whether there is one.
    pub fn one_gives_way(&self) -> bool {
        let before = millis(self.began.elapsed().saturating_sub(GETS_ON_WITHIN));
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let last = |progress: &Progress| progress.last.load(Ordering::Relaxed);
        let longest = all.1.iter().filter(|(_, progress)| last(progress) < before).min_by_key(|(_, progress)| last(progress));
        let Some(number) = longest.map(|(number, _)| *number) else { return false };
        // Out of the list at once: it must not be told twice while it ends.
        if let Some(progress) = all.1.remove(&number) {
            progress.gives_way.notify_one();
        }
        true
    }
}

/// An open connection.
pub struct Entered {
    open: Arc<Open>,
    number: u64,
    /// How it gets on.
    pub progress: Arc<Progress>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.open.all.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&self.number);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
