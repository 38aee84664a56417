//! The log on the data partition: PID 1's own lines, what services print, the kernel's messages. Rotated by size; before the
//! partition is mounted, kept in memory. Never waits for the disk: see `writer.rs`.

use crate::writer::{Job, Writer};
use std::path::Path;
use std::time::Duration;

/// A file is rotated at this size.
const FILE_OCTETS: u64 = 4 << 20;
/// What is kept until there is a file.
const EARLY_OCTETS: usize = 256 << 10;
/// A service that writes endless lines must not fill the memory.
const LINE_CHARS: usize = 2000;
/// For what is still to be written at the end; a disk that needs longer does not answer.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// The log.
pub struct Log {
    state: State,
    /// Lines that found no room since the last one that did.
    lost: u64,
    limit: u64,
    close_within: Duration,
}

enum State {
    Early(Vec<u8>),
    Open(Writer),
    Closed,
}

impl Log {
    /// Nothing on a disk yet.
    pub fn new() -> Self {
        Self { state: State::Early(Vec::new()), lost: 0, limit: FILE_OCTETS, close_within: CLOSE_WITHIN }
    }

    /// From now on into this folder, beginning with what was kept.
    pub fn open(&mut self, folder: &Path) -> std::io::Result<()> {
        let writer = Writer::start(folder, self.limit)?;
        if let State::Early(early) = &mut self.state {
            writer.put(Job::Log(std::mem::take(early)));
        }
        self.state = State::Open(writer);
        Ok(())
    }

    /// One line; `source` is who says it.
    pub fn line(&mut self, source: &str, text: &str) {
        let text: String = text.chars().take(LINE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let wall = kurrent_sys::clock::now().wall;
        let mut line = format!("{wall:.3} {source}: {text}\n");
        if self.lost > 0 {
            line = format!("{wall:.3} init: {} lines are missing here: the disk did not take them\n{line}", self.lost);
        }
        let kept = match &mut self.state {
            State::Early(early) => {
                let room = early.len() + line.len() <= EARLY_OCTETS;
                if room {
                    early.extend(line.as_bytes());
                }
                room
            }
            State::Open(writer) => writer.put(Job::Log(line.into_bytes())),
            State::Closed => false,
        };
        self.lost = if kept { 0 } else { self.lost.saturating_add(1) };
    }

    /// Lets the time be kept, by the thread that may wait for the disk.
    pub fn keep_time(&self) {
        if let State::Open(writer) = &self.state {
            // Only a convenience: without room for it the time is kept later.
            writer.put(Job::KeepTime);
        }
    }

    /// Lets go of the file, so that its file system can be unmounted; whether everything could be written.
    pub fn close(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(writer) => writer.close(self.close_within),
            State::Early(_) | State::Closed => true,
        }
    }
}

/// A record of `/dev/kmsg` (`priority,sequence,microseconds,flags;text`, then lines that begin with a blank): its text with the
/// time since power-on, when it is not for debugging only.
pub fn kernel_message(record: &str) -> Option<String> {
    const DEBUG: u32 = 7;
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let millis = fields.nth(1)?.parse::<u64>().ok()? / 1000;
    (priority % 8 < DEBUG).then(|| format!("[{}.{:03}] {}", millis / 1000, millis % 1000, text.lines().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read as _;
    use std::time::Instant;

    #[test]
    fn a_disk_that_stalls_costs_lines_and_keeps_nobody_waiting() {
        let folder = std::env::temp_dir().join(format!("kurrent-init-stall-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // Whoever writes to a full pipe hangs, as on a disk that does not answer, until somebody reads.
        let pipe = folder.join("kurrent.log");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut disk = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        let mut log = Log { close_within: Duration::from_millis(20), ..Log::new() };
        log.open(&folder).unwrap();
        let started = Instant::now();
        let long = "x".repeat(LINE_CHARS);
        while log.lost < 100 {
            log.line("kurrentd", &long);
            assert!(started.elapsed() < Duration::from_secs(30), "the queue has an end");
        }
        let lost = log.lost;
        // It answers again: what is missing is said where it is missing.
        let mut taken = String::new();
        let mut piece = vec![0; 1 << 16];
        while !taken.contains(" lines are missing here") {
            let length = disk.read(&mut piece).unwrap();
            taken.push_str(&String::from_utf8_lossy(&piece[..length]));
            log.line("kurrentd", "again");
            assert!(started.elapsed() < Duration::from_secs(60), "{}", taken.len());
        }
        let said = taken.split(" init: ").nth(1).unwrap();
        let number: u64 = said.split(' ').next().unwrap().parse().unwrap();
        assert!(number >= lost, "{number} {lost}");
        // And stalls for good: the end comes all the same.
        for _ in 0..3000 {
            log.line("kurrentd", &long);
        }
        assert!(!log.close());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn early_lines_come_first_and_the_log_is_rotated_and_bounded() {
        let folder = std::env::temp_dir().join(format!("kurrent-init-log-{}", std::process::id()));
        let mut log = Log { limit: 1000, ..Log::new() };
        log.line("init", "early\u{1b}[2J line");
        log.open(&folder).unwrap();
        assert!(log.close());
        let text = fs::read_to_string(folder.join("kurrent.log")).unwrap();
        assert!(text.ends_with(" init: early [2J line\n"), "{text:?}");
        log.line("init", "nobody reads this any more");
        let mut log = Log { limit: 1000, ..Log::new() };
        log.open(&folder).unwrap();
        for number in 0..1000 {
            log.line("kurrentd", &format!("line {number}"));
        }
        assert!(log.close());
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()).collect();
        files.sort_by_key(fs::DirEntry::file_name);
        assert_eq!(files.len(), 5);
        assert!(files.iter().all(|file| file.metadata().unwrap().len() < 1100));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn kernel_records_are_read_and_debugging_ones_left_out() {
        assert_eq!(kernel_message("6,1,12345678,-;nvmet: creating\n SUBSYSTEM=x\n").as_deref(), Some("[12.345] nvmet: creating"));
        assert_eq!(kernel_message("7,1,2,-;chatter"), None);
        assert_eq!(kernel_message("30,1,2,-;info of a daemon").as_deref(), Some("[0.000] info of a daemon"));
        assert_eq!(kernel_message("nonsense"), None);
    }
}
