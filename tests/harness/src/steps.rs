//! Ends a program at its n-th write step: the kernel asks us before every system call that changes a watched folder, and at the
//! chosen one the program gets `SIGKILL` instead.
//!
//! It is the program as it is, without hooks of its own: a seccomp filter hands the calls that write to a listener (Linux 5.5,
//! `Documentation/userspace-api/seccomp_filter.rst`, "Userspace Notification"), which counts those that touch the folders. The
//! count is over all threads. What a killed program had written stays, as the page cache does; this is a crash of the program, not
//! of the power.

use anyhow::{Context, Result, ensure};

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Where the program holds the listener until we have it: far from what it opens itself.
const LISTENER: RawFd = 400;
/// Longest path that is read from the program.
const MAX_PATH_OCTETS: usize = 4096;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e; // linux/audit.h
/// `offsetof(struct seccomp_data, arch)` and `nr`.
const OFFSET_ARCH: u32 = 4;
const OFFSET_NR: u32 = 0;

/// How a call names what it changes.
#[derive(Clone, Copy, Debug)]
enum Names {
    /// An open file in this argument.
    Fd(usize),
    /// A path in this argument.
    Path(usize),
    /// A folder and a path in it in these arguments.
    At(usize, usize),
    /// As [`Names::At`], and only with `O_CREAT` or `O_TRUNC` in this argument.
    Open(usize, usize, usize),
}

/// The calls by which files change.
const CALLS: [(libc::c_long, &str, Names); 24] = [
    (libc::SYS_write, "write", Names::Fd(0)),
    (libc::SYS_pwrite64, "pwrite64", Names::Fd(0)),
    (libc::SYS_writev, "writev", Names::Fd(0)),
    (libc::SYS_pwritev, "pwritev", Names::Fd(0)),
    (libc::SYS_copy_file_range, "copy_file_range", Names::Fd(2)),
    (libc::SYS_ftruncate, "ftruncate", Names::Fd(0)),
    (libc::SYS_fallocate, "fallocate", Names::Fd(0)),
    (libc::SYS_fsync, "fsync", Names::Fd(0)),
    (libc::SYS_fdatasync, "fdatasync", Names::Fd(0)),
    (libc::SYS_sync_file_range, "sync_file_range", Names::Fd(0)),
    (libc::SYS_ioctl, "ioctl", Names::Fd(0)),
    (libc::SYS_fchmod, "fchmod", Names::Fd(0)),
    (libc::SYS_open, "open", Names::Open(0, 0, 1)),
    (libc::SYS_openat, "openat", Names::Open(0, 1, 2)),
    (libc::SYS_rename, "rename", Names::Path(1)),
    (libc::SYS_renameat, "renameat", Names::At(2, 3)),
    (libc::SYS_renameat2, "renameat2", Names::At(2, 3)),
    (libc::SYS_link, "link", Names::Path(1)),
    (libc::SYS_linkat, "linkat", Names::At(2, 3)),
    (libc::SYS_unlink, "unlink", Names::Path(0)),
    (libc::SYS_unlinkat, "unlinkat", Names::At(0, 1)),
    (libc::SYS_mkdir, "mkdir", Names::Path(0)),
    (libc::SYS_mkdirat, "mkdirat", Names::At(0, 1)),
    (libc::SYS_truncate, "truncate", Names::Path(0)),
];

/// The steps a watched program has made, in order (`fdatasync journal.jsonl`).
#[derive(Debug)]
pub struct Watched {
    steps: Arc<Mutex<Vec<String>>>,
    watcher: Option<JoinHandle<Result<()>>>,
}

impl Watched {
    /// How many steps were begun so far; the one that was not let through is the last.
    #[must_use]
    pub fn count(&self) -> usize {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The steps so far.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// After the program has ended: what went wrong with watching.
    ///
    /// # Errors
    /// The kernel's words.
    pub fn finish(mut self) -> Result<Vec<String>> {
        if let Some(watcher) = self.watcher.take() {
            watcher.join().map_err(|_| anyhow::anyhow!("the watching thread panicked"))??;
        }
        Ok(self.list())
    }
}

/// Makes `command` ask before every write; call [`watch`] with its process id as soon as it is started.
pub fn prepare(command: &mut Command) {
    let filter = filter();
    // SAFETY: only system calls on values made before the fork.
    unsafe {
        command.pre_exec(move || install(&filter));
    }
}

/// Watches a program that [`prepare`] prepared: lets every step through but the `last_step`-th (from 1), at which it is killed.
///
/// # Errors
/// The listener can not be taken over.
pub fn watch(pid: u32, folders: &[PathBuf], last_step: Option<usize>) -> Result<Watched> {
    let listener = take_listener(pid)?;
    let steps = Arc::new(Mutex::new(Vec::new()));
    let (seen, folders) = (Arc::clone(&steps), folders.to_vec());
    let watcher = std::thread::spawn(move || serve(&listener, &folders, last_step, &seen));
    Ok(Watched { steps, watcher: Some(watcher) })
}

/// Classic BPF: those calls of this architecture go to the listener, all others through.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: u16::try_from(code).unwrap_or(0), jt: 0, jf: 0, k };
    let equal = |k: u32, jt: u8, jf: u8| libc::sock_filter { code: 0x15, jt, jf, k }; // BPF_JMP | BPF_JEQ | BPF_K
    let load = |offset: u32| statement(0x20, offset); // BPF_LD | BPF_W | BPF_ABS
    let answer = |value: u32| statement(0x06, value); // BPF_RET | BPF_K
    let calls = u8::try_from(CALLS.len()).unwrap_or(u8::MAX);
    let mut program = vec![load(OFFSET_ARCH), equal(AUDIT_ARCH_X86_64, 1, 0), answer(libc::SECCOMP_RET_ALLOW), load(OFFSET_NR)];
    for (at, (call, _, _)) in (0u8..).zip(CALLS.iter()) {
        program.push(equal(u32::try_from(*call).unwrap_or(u32::MAX), calls - at, 0));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program.push(answer(libc::SECCOMP_RET_USER_NOTIF));
    program
}

/// In the new process, before it becomes the program.
fn install(filter: &[libc::sock_filter]) -> std::io::Result<()> {
    let failed = std::io::Error::last_os_error;
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).unwrap_or(0), filter: filter.as_ptr().cast_mut() };
    // SAFETY: prctl with constants; seccomp reads `program`, which outlives the call; dup2 works on descriptors only.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(failed());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let listener = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        let listener = RawFd::try_from(listener).map_err(|_| failed())?;
        // A copy without close-on-exec: it is fetched from the program itself.
        if listener < 0 || libc::dup2(listener, LISTENER) < 0 {
            return Err(failed());
        }
    }
    Ok(())
}

fn take_listener(pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).context("a process id")?;
    let own = |fd: libc::c_long| -> Result<OwnedFd> {
        ensure!(fd >= 0, std::io::Error::last_os_error());
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd)?) })
    };
    // SAFETY: system calls on numbers.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).context("open the process")?;
    // SAFETY: as above.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), LISTENER, 0) }).context("take the listener")
}

fn serve(listener: &OwnedFd, folders: &[PathBuf], last_step: Option<usize>, steps: &Mutex<Vec<String>>) -> Result<()> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    loop {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other.context("wait for a call")?,
        };
        let events = fds[0].revents().unwrap_or(PollFlags::empty());
        if !events.contains(PollFlags::POLLIN) {
            // The last thread under the filter is gone.
            return Ok(());
        }
        // SAFETY: the kernel requires zeroes and fills it in.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: `call` has the layout that this request fills.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut call) } != 0 {
            // The thread was killed meanwhile (ENOENT), or we were interrupted.
            continue;
        }
        if let Some(step) = touched(&call, folders) {
            let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
            if last_step.is_some_and(|last| steps.len() >= last) {
                continue;
            }
            steps.push(step);
            if last_step == Some(steps.len()) {
                // SAFETY: a signal to a process that waits for our answer.
                unsafe { libc::kill(libc::pid_t::try_from(call.pid).unwrap_or(0), libc::SIGKILL) };
                continue;
            }
        }
        let continue_flag = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1);
        let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags: continue_flag };
        // SAFETY: `answer` has the layout that this request reads. It fails when the thread is gone, which is fine.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut answer) };
    }
}

/// What the call does to a watched folder, if anything: `fdatasync journal.jsonl`.
fn touched(call: &libc::seccomp_notif, folders: &[PathBuf]) -> Option<String> {
    let (_, name, names) = CALLS.iter().find(|(nr, _, _)| i64::from(call.data.nr) == *nr)?;
    let argument = |at: usize| call.data.args.get(at).copied().unwrap_or(0);
    let path = match *names {
        Names::Fd(fd) => open_file(call.pid, argument(fd))?,
        Names::Path(at) => text(call.pid, argument(at))?,
        Names::At(folder, at) => in_folder(call.pid, argument(folder), argument(at))?,
        Names::Open(folder, at, flags) => {
            let flags = argument(flags);
            let writes = u64::try_from(libc::O_CREAT | libc::O_TRUNC).unwrap_or(0);
            if flags & writes == 0 {
                return None;
            }
            if folder == at { text(call.pid, argument(at))? } else { in_folder(call.pid, argument(folder), argument(at))? }
        }
    };
    let inside = folders.iter().find_map(|f| Some((f.file_name()?, path.strip_prefix(f).ok()?)))?;
    Some(format!("{name} {}/{}", inside.0.to_string_lossy(), inside.1.display()))
}

fn open_file(pid: u32, fd: u64) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/fd/{}", fd as u32)).ok()
}

fn in_folder(pid: u32, folder: u64, at: u64) -> Option<PathBuf> {
    let path = text(pid, at)?;
    // AT_FDCWD is negative; the programs we watch name absolute paths then.
    if path.is_absolute() { Some(path) } else { open_file(pid, folder).map(|f| f.join(path)) }
}

fn text(pid: u32, address: u64) -> Option<PathBuf> {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut octets = vec![0; MAX_PATH_OCTETS];
    // Up to the end of the page may be all that there is.
    let read = memory.read_at(&mut octets, address).ok().or_else(|| {
        let left = MAX_PATH_OCTETS - usize::try_from(address).ok()? % MAX_PATH_OCTETS;
        memory.read_at(octets.get_mut(..left)?, address).ok()
    })?;
    let end = octets.get(..read)?.iter().position(|o| *o == 0)?;
    let text = CString::new(octets.get(..end)?).ok()?.into_string().ok()?;
    Some(Path::new(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_ends_before_its_chosen_step() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("kurrent-steps-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("out");
        let script = format!("echo a >{0}; echo b >>{0}; echo c >>{0}", path.display());
        // open a, write a, open b, write b, open c, write c
        for (last, expected) in
            [(Some(1), None), (Some(2), Some("")), (Some(4), Some("a\n")), (Some(6), Some("a\nb\n")), (None, Some("a\nb\nc\n"))]
        {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(&script);
            prepare(&mut command);
            let mut child = command.spawn()?;
            let watched = watch(child.id(), std::slice::from_ref(&folder), last)?;
            let status = child.wait()?;
            let steps = watched.finish()?;
            assert_eq!(status.success(), last.is_none(), "{steps:?}");
            assert_eq!(steps.len(), last.unwrap_or(6), "{steps:?}");
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), expected, "{steps:?}");
            let _ = std::fs::remove_file(&path);
        }
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
