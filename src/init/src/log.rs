//! The log on the data partition: PID 1's own lines, what services print, the kernel's messages. Rotated by size; before the
//! partition is mounted, kept in memory.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A file is rotated at this size.
const FILE_OCTETS: u64 = 4 << 20;
/// Older files that are kept: `kurrent.log.1` is the youngest of them.
const OLDER_FILES: u32 = 4;
/// What is kept until there is a file.
const EARLY_OCTETS: usize = 256 << 10;
/// A service that writes endless lines must not fill the memory.
const LINE_CHARS: usize = 2000;

/// The log.
pub struct Log {
    file: Option<(PathBuf, File, u64)>,
    early: Vec<u8>,
    limit: u64,
}

impl Log {
    /// Nothing on a disk yet.
    pub fn new() -> Self {
        Self { file: None, early: Vec::new(), limit: FILE_OCTETS }
    }

    /// From now on into this folder, beginning with what was kept.
    pub fn open(&mut self, folder: &Path) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let path = folder.join("kurrent.log");
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let length = file.metadata()?.len();
        self.file = Some((path, file, length));
        let early = std::mem::take(&mut self.early);
        self.write(&early);
        Ok(())
    }

    /// One line; `source` is who says it.
    pub fn line(&mut self, source: &str, text: &str) {
        let text: String = text.chars().take(LINE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let wall = kurrent_sys::clock::now().wall;
        self.write(format!("{wall:.3} {source}: {text}\n").as_bytes());
    }

    fn write(&mut self, octets: &[u8]) {
        let Some((path, file, length)) = &mut self.file else {
            if self.early.len() + octets.len() <= EARLY_OCTETS {
                self.early.extend(octets);
            }
            return;
        };
        // A full disk costs log lines, nothing else.
        if file.write_all(octets).is_ok() {
            *length += u64::try_from(octets.len()).unwrap_or(0);
        }
        if *length >= self.limit {
            rotate(path);
            if let Ok(fresh) = OpenOptions::new().append(true).create(true).open(&*path) {
                (*file, *length) = (fresh, 0);
            }
        }
    }

    /// Lets go of the file, so that its file system can be unmounted.
    pub fn close(&mut self) {
        if let Some((_, file, _)) = self.file.take() {
            let _ = file.sync_all();
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

    #[test]
    fn early_lines_come_first_and_the_log_is_rotated_and_bounded() {
        let folder = std::env::temp_dir().join(format!("kurrent-init-log-{}", std::process::id()));
        let mut log = Log { limit: 1000, ..Log::new() };
        log.line("init", "early\u{1b}[2J line");
        log.open(&folder).unwrap();
        let text = fs::read_to_string(folder.join("kurrent.log")).unwrap();
        assert!(text.ends_with(" init: early [2J line\n"), "{text:?}");
        for number in 0..1000 {
            log.line("kurrentd", &format!("line {number}"));
        }
        log.close();
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
