//! The thread that writes to the data partition while the appliance runs: the log, and the time for machines that forget it.
//!
//! A disk that stalls holds everybody who writes to it. PID 1 must go on (reap, restart, answer the power button), so it only
//! puts into a bounded queue; what finds no room there is lost.

use crate::setup;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

/// Older files that are kept: `kurrent.log.1` is the youngest of them.
const OLDER_FILES: u32 = 4;
/// Lines that wait: some seconds of a talkative service. Each has a bounded length (`log.rs`).
const QUEUE: usize = 1024;

/// Something to write.
pub enum Job {
    /// Octets of the log.
    Log(Vec<u8>),
    /// The time.
    KeepTime,
}

/// The writing thread.
pub struct Writer {
    jobs: SyncSender<Job>,
    /// Nothing is ever sent: its other end is dropped when the thread has closed the file.
    ended: Receiver<()>,
}

impl Writer {
    /// Opens the log in this folder; a file is rotated when it has `limit` octets.
    pub fn start(folder: &Path, limit: u64) -> std::io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join("kurrent.log");
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut log = LogFile { path, file, length, limit };
        let (jobs, to_do) = mpsc::sync_channel(QUEUE);
        let (end, ended) = mpsc::channel();
        thread::Builder::new().name("writer".to_owned()).spawn(move || {
            for job in to_do {
                match job {
                    Job::Log(octets) => log.write(&octets),
                    Job::KeepTime => setup::keep_time(),
                }
            }
            let _ = log.file.sync_all();
            drop(log);
            drop::<mpsc::Sender<()>>(end);
        })?;
        Ok(Self { jobs, ended })
    }

    /// Whether there was room for it.
    pub fn put(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    /// Lets everything be written and the file closed, so that its file system can be unmounted; whether that was done in time.
    pub fn close(self, within: Duration) -> bool {
        drop(self.jobs);
        self.ended.recv_timeout(within) == Err(RecvTimeoutError::Disconnected)
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    length: u64,
    limit: u64,
}

impl LogFile {
    fn write(&mut self, octets: &[u8]) {
        // A full disk costs log lines, nothing else.
        if self.file.write_all(octets).is_ok() {
            self.length += u64::try_from(octets.len()).unwrap_or(0);
        }
        if self.length >= self.limit {
            rotate(&self.path);
            if let Ok(fresh) = OpenOptions::new().append(true).create(true).open(&self.path) {
                (self.file, self.length) = (fresh, 0);
            }
        }
    }
}

fn rotate(path: &Path) {
    let older = |number: u32| PathBuf::from(format!("{}.{number}", path.display()));
    for number in (1..OLDER_FILES).rev() {
        let _ = fs::rename(older(number), older(number + 1));
    }
    let _ = fs::rename(path, older(1));
}
