//! The lease file: durable before the ACK, by group commit.
//!
//! A thread of its own appends all records that are waiting, syncs once, and tells the DHCP task. After a failed write
//! the file's end is unknown, so the next commit writes a whole new file beside it and renames. The same happens when
//! the file has grown to several times what it says (compaction). Text form: `kurrent_core::dhcp::lease_file`.

use kurrent_core::dhcp::lease_file::{self, HEADER, Record, Unreadable};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Records that may wait for the disk; beyond that, requests are dropped and clients ask again.
const QUEUE: usize = 4096;
/// The file is rewritten when it has more lines than this over twice its live records.
const SPARE_LINES: usize = 4096;
/// A lease file is never larger: some twenty full ranges of 65,536 leases of about 100 octets, rewritten when half of it is old.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Readable by everybody: who has which address is seen on the wire anyway.
const FILE_MODE: u32 = 0o644;

/// Why the lease file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LeaseFileError {
    /// The file system says no.
    #[error("lease file {0}")]
    Io(PathBuf, #[source] io::Error),
    /// Its contents cannot be believed: no address is given out until a person has looked.
    #[error("lease file {0}")]
    Unreadable(PathBuf, #[source] Unreadable),
}

/// What was waiting for a record, and whether it is durable now.
pub struct Committed<T> {
    /// In the order of submission.
    pub waiting: Vec<(Record, T)>,
    /// The fault, when nothing of it is durable.
    pub result: Result<(), String>,
}

struct Job<T> {
    record: Record,
    waiting: T,
}

/// The way to the writer thread. Dropping it waits for what was submitted.
pub struct LeaseWriter<T> {
    jobs: Option<mpsc::Sender<Job<T>>>,
    committed: mpsc::Receiver<Committed<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T> LeaseWriter<T> {
    /// Whether the disk keeps up. Asked before anything is decided: what cannot be written must not change the table.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.capacity() > 0)
    }

    /// Submits a record; `waiting` comes back when it is durable or failed. After [`Self::has_room`] by the same owner
    /// it always fits; if not, `waiting` is dropped and nothing is promised.
    pub fn submit(&self, record: Record, waiting: T) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.try_send(Job { record, waiting });
        }
    }

    /// The next finished batch; `None` when the writer has ended. Cancel-safe.
    pub async fn committed(&mut self) -> Option<Committed<T>> {
        self.committed.recv().await
    }
}

impl<T> Drop for LeaseWriter<T> {
    fn drop(&mut self) {
        self.jobs = None;
        self.committed.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The records that a lease file holds, latest word per address, without changing it. A missing file holds none.
///
/// # Errors
/// [`LeaseFileError`].
pub fn read(path: &Path) -> Result<Vec<Record>, LeaseFileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(LeaseFileError::Io(path.to_owned(), e)),
    };
    Ok(load(path, file)?.0.into_values().collect())
}

/// Opens the lease file, or makes it; starts the writer.
///
/// # Errors
/// [`LeaseFileError`]; an unreadable file is left as it is.
pub fn open<T: Send + 'static>(path: &Path) -> Result<(Vec<Record>, LeaseWriter<T>), LeaseFileError> {
    let fault = |e| LeaseFileError::Io(path.to_owned(), e);
    let (mut log, records) = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => (Log::new(path), Vec::new()),
        Err(e) => return Err(fault(e)),
        Ok(file) => {
            let (live, good_bytes, whole_bytes, lines) = load(path, file)?;
            if good_bytes < whole_bytes {
                tracing::warn!(file = %path.display(), octets = whole_bytes - good_bytes, "the end of the lease file was cut off: it was never acknowledged");
            }
            let records = live.values().copied().collect();
            let file = if good_bytes == 0 { None } else { Some(append_at(path, good_bytes).map_err(fault)?) };
            (Log { path: path.to_owned(), file, lines, live }, records)
        }
    };
    // A first commit of nothing: a folder that cannot be written is found now, not at the first lease.
    log.commit([].iter()).map_err(fault)?;
    let (jobs, queue) = mpsc::channel(QUEUE);
    let (report, committed) = mpsc::channel(QUEUE);
    let thread = std::thread::Builder::new().name("leases".into()).spawn(move || write_all(log, queue, &report)).map_err(fault)?;
    Ok((records, LeaseWriter { jobs: Some(jobs), committed, thread: Some(thread) }))
}

fn write_all<T>(mut log: Log, mut queue: mpsc::Receiver<Job<T>>, report: &mpsc::Sender<Committed<T>>) {
    let mut batch = Vec::new();
    while queue.blocking_recv_many(&mut batch, QUEUE) > 0 {
        let waiting: Vec<(Record, T)> = batch.drain(..).map(|job: Job<T>| (job.record, job.waiting)).collect();
        let result = log.commit(waiting.iter().map(|(record, _)| record)).map_err(|e| format!("lease file {}: {e}", log.path.display()));
        // Nobody waits any more when the DHCP task has ended: what was submitted is still written.
        let _ = report.blocking_send(Committed { waiting, result });
    }
}

/// The latest record of each address.
type Live = BTreeMap<Ipv4Addr, Record>;

struct Log {
    path: PathBuf,
    /// Open for appending; `None` when the file is missing or its end is unknown.
    file: Option<File>,
    lines: usize,
    live: Live,
}

impl Log {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, lines: 0, live: Live::default() }
    }

    /// All or nothing, and durable.
    fn commit<'a>(&mut self, records: impl Iterator<Item = &'a Record> + Clone) -> io::Result<()> {
        if self.lines > 2 * self.live.len() + SPARE_LINES {
            self.file = None;
        }
        let lines: String = records.clone().map(Record::line).collect();
        let count = records.clone().count();
        match self.file.take() {
            Some(mut file) => {
                file.write_all(lines.as_bytes())?;
                file.sync_data()?;
                self.file = Some(file);
                self.lines += count;
            }
            None => {
                let live: String = self.live.values().map(Record::line).collect();
                self.file = Some(replace(&self.path, format!("{HEADER}\n{live}{lines}").as_bytes())?);
                self.lines = self.live.len() + count;
            }
        }
        self.live.extend(records.map(|record| (record.address, *record)));
        Ok(())
    }
}

/// Live records, good octets, all octets, lines.
fn load(path: &Path, file: File) -> Result<(Live, u64, u64, usize), LeaseFileError> {
    let fault = |e| LeaseFileError::Io(path.to_owned(), e);
    let mut octets = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut octets).map_err(fault)?;
    let len = u64::try_from(octets.len()).unwrap_or(u64::MAX);
    if len > MAX_FILE_BYTES {
        return Err(fault(io::Error::new(io::ErrorKind::FileTooLarge, "far larger than any lease file; restore it from a copy")));
    }
    let contents = lease_file::parse(&octets).map_err(|e| LeaseFileError::Unreadable(path.to_owned(), e))?;
    let lines = contents.records.len();
    let live = contents.records.into_iter().map(|record| (record.address, record)).collect();
    Ok((live, u64::try_from(contents.good_bytes).unwrap_or(len), len, lines))
}

fn append_at(path: &Path, good_bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new().append(true).open(path)?;
    file.set_len(good_bytes)?;
    file.sync_all()?;
    Ok(file)
}

fn replace(path: &Path, octets: &[u8]) -> io::Result<File> {
    kurrent_sys::store::replace(path, octets, FILE_MODE).map_err(io::Error::other)?;
    OpenOptions::new().append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::dhcp::lease_file::RecordState;
    use kurrent_core::id::MacAddr;

    fn record(address: u8, mac: u8) -> Record {
        let until = "2026-11-30T02:15:00Z".parse().unwrap();
        Record {
            address: Ipv4Addr::new(10, 77, 0, address),
            holder: MacAddr([2, 0, 0, 0, 0, mac]).into(),
            state: RecordState::Bound,
            until,
        }
    }

    async fn write(path: &Path, records: &[Record]) -> Vec<Committed<usize>> {
        let (_, mut writer) = open::<usize>(path).unwrap();
        for (index, record) in records.iter().enumerate() {
            assert!(writer.has_room());
            writer.submit(*record, index);
        }
        let mut all = Vec::new();
        while all.iter().map(|c: &Committed<usize>| c.waiting.len()).sum::<usize>() < records.len() {
            all.push(writer.committed().await.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn what_was_committed_is_there_after_a_restart_and_the_last_word_on_an_address_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        let done = write(&path, &[record(1, 1), record(2, 2), record(3, 1), record(1, 4)]).await;
        assert!(done.iter().all(|c| c.result.is_ok()));
        assert_eq!(read(&path).unwrap(), [record(1, 4), record(2, 2), record(3, 1)]);
        let (records, _writer) = open::<()>(&path).unwrap();
        assert_eq!(records, [record(1, 4), record(2, 2), record(3, 1)]);
    }

    #[tokio::test]
    async fn a_file_cut_anywhere_opens_with_all_whole_lines_and_takes_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        write(&path, &[record(1, 1), record(2, 2)]).await;
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let before = read(&path).unwrap().len();
            write(&path, &[record(9, 9)]).await;
            assert_eq!(read(&path).unwrap().len(), before + 1, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_spoilt_file_is_refused_with_its_name_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        std::fs::write(&path, format!("{HEADER}\nnonsense\n{}", record(1, 1).line())).unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = format!("{:#}", anyhow::Error::from(open::<()>(&path).err().unwrap()));
        assert!(error.contains("leases: line 2: "), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[tokio::test]
    async fn after_a_failed_write_nothing_is_acknowledged_and_the_next_commit_writes_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/leases");
        std::fs::create_dir(folder.path().join("state")).unwrap();
        let mut log = Log::new(&path);
        log.commit([record(1, 1)].iter()).unwrap();
        // A file that takes nothing, as a full disk does.
        log.file = Some(OpenOptions::new().append(true).open("/dev/full").unwrap());
        assert!(log.commit([record(2, 2)].iter()).is_err());
        assert_eq!(read(&path).unwrap(), [record(1, 1)]);
        log.commit([record(3, 3)].iter()).unwrap();
        assert_eq!(read(&path).unwrap(), [record(1, 1), record(3, 3)]);
    }

    #[tokio::test]
    async fn the_file_does_not_grow_with_the_number_of_renewals() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        let mut log = Log::new(&path);
        log.commit([].iter()).unwrap();
        for _ in 0..8 {
            log.commit(vec![record(1, 1); SPARE_LINES / 2].iter()).unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 2 * SPARE_LINES, "{lines}");
    }
}
