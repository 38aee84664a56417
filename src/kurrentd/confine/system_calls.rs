//! Seccomp: two lists. What no daemon ever does ends the process, with a line in the kernel's log. Of all the rest only what is
//! listed is done; anything else is answered as by a kernel that does not have it (`ENOSYS`).
//!
//! Why an allow-list can be had: its families are those that the C library and Rust's own use on any Linux, not what one run
//! happened to call; and `ENOSYS` is what both are written to live with, as on an older kernel (`clone3`, whose flags no filter can
//! read, falls back to `clone`). So a new library that tries something new goes on, and a new kernel's calls are closed before
//! anybody has heard of them.

use super::{Part, part};
use libc::c_long;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};
use std::collections::BTreeMap;

/// Nobody calls these by mistake: other processes' memory, the kernel's code, name spaces, mounts, clocks, keys, and the two
/// interfaces around which filters do not reach (`io_uring`) or most holes were found (`bpf`, `userfaultfd`, `perf`).
pub(super) const HOSTILE: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
];

/// What is done, by family.
const ALLOWED: &[&[c_long]] = &[
    // octets of open files
    &[libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv],
    &[libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_sendfile, libc::SYS_splice, libc::SYS_copy_file_range],
    &[libc::SYS_lseek, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs, libc::SYS_sync_file_range, libc::SYS_ftruncate],
    &[libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_close, libc::SYS_close_range, libc::SYS_dup],
    &[libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock],
    // files by name
    &[libc::SYS_openat, libc::SYS_openat2, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs],
    &[libc::SYS_getdents64, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_mkdirat, libc::SYS_unlinkat],
    &[libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_fchmod, libc::SYS_fchmodat],
    &[libc::SYS_truncate, libc::SYS_utimensat, libc::SYS_umask, libc::SYS_getcwd],
    &[libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch],
    // waiting
    &[libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll, libc::SYS_pselect6],
    &[libc::SYS_eventfd2, libc::SYS_pipe2, libc::SYS_signalfd4, libc::SYS_timerfd_create, libc::SYS_timerfd_settime],
    &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday],
    // sockets; which kinds may be made is in `conditions`
    &[libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect],
    &[libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg],
    &[libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_shutdown, libc::SYS_setsockopt, libc::SYS_getsockopt],
    // memory
    &[libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise, libc::SYS_brk, libc::SYS_membarrier],
    &[libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock],
    // threads; which `clone` may be called is in `conditions`
    &[libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq],
    &[libc::SYS_set_tid_address, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_gettid, libc::SYS_getpid, libc::SYS_getppid],
    &[libc::SYS_tgkill, libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler],
    // CPU time for others first: the scanner of masters
    &[libc::SYS_getpriority, libc::SYS_setpriority],
    &[libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait, libc::SYS_sigaltstack],
    &[libc::SYS_restart_syscall],
    // itself
    &[libc::SYS_getrandom, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid],
    &[libc::SYS_prlimit64, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_getrusage],
    // A restart in place, and the same confinement again: none of these can loosen it. Landlock says which program may be run.
    &[libc::SYS_execve, libc::SYS_prctl, libc::SYS_capget, libc::SYS_capset, libc::SYS_seccomp],
    &[libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self],
];

/// Older names of the same, which newer platforms never had.
#[cfg(target_arch = "x86_64")]
const ALLOWED_BEFORE: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_create,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BEFORE: &[c_long] = &[];

/// Calls that are done only with certain arguments.
fn conditions() -> Result<Vec<(c_long, Vec<SeccompRule>)>, Error> {
    let first =
        |operator, value: i32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, u64::try_from(value).unwrap_or(u64::MAX));
    // No AF_ALG, AF_VSOCK, Bluetooth, …: code of the kernel that nobody here needs. No AF_UNIX: other programs of the host are
    // reached by its names, some of which are no files. A pair of streams has no name and can send to none (one of datagrams can);
    // it wakes our own threads.
    let mut sockets = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET] {
        sockets.push(SeccompRule::new(vec![first(SeccompCmpOp::Eq, family)?])?);
    }
    // Threads, no processes: nothing here starts a program, so nobody who breaks in does.
    let thread = u64::try_from(libc::CLONE_THREAD).unwrap_or(u64::MAX);
    let threads = SeccompRule::new(vec![first(SeccompCmpOp::MaskedEq(thread), libc::CLONE_THREAD)?])?;
    // Not what types into the terminal that kurrentd was started from.
    let second = |value: u64| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value);
    let no_typing = SeccompRule::new(vec![second(libc::TIOCSTI)?, second(TIOCLINUX)?])?;
    let stream = SeccompCmpOp::MaskedEq(SOCK_TYPE_MASK);
    let stream = SeccompCondition::new(1, SeccompCmpArgLen::Dword, stream, u64::try_from(libc::SOCK_STREAM).unwrap_or(u64::MAX))?;
    let pairs = SeccompRule::new(vec![first(SeccompCmpOp::Eq, libc::AF_UNIX)?, stream])?;
    Ok(vec![
        (libc::SYS_socket, sockets),
        (libc::SYS_socketpair, vec![pairs]),
        (libc::SYS_clone, vec![threads]),
        (libc::SYS_ioctl, vec![no_typing]),
    ])
}

/// What of a socket's type is no flag: `linux/net.h`.
const SOCK_TYPE_MASK: u64 = 0xf;

/// `ioctl_console(2)`: pastes, too.
const TIOCLINUX: u64 = 0x541c;

/// Closes them, for all threads.
pub(super) fn confine() -> Part {
    part("system_calls", "only those that it makes are open (seccomp)", install())
}

fn install() -> Result<(), Error> {
    for program in [allow_list()?, deny_list()?] {
        apply_filter_all_threads(&program)?;
    }
    Ok(())
}

fn allow_list() -> Result<BpfProgram, Error> {
    let plain = ALLOWED.iter().copied().flatten().chain(ALLOWED_BEFORE).map(|call| (*call, Vec::new()));
    let no_such_call = SeccompAction::Errno(u32::try_from(libc::ENOSYS).unwrap_or_default());
    compile(plain.chain(conditions()?).collect(), no_such_call, SeccompAction::Allow)
}

fn deny_list() -> Result<BpfProgram, Error> {
    let calls = HOSTILE.iter().map(|call| (*call, Vec::new())).collect();
    compile(calls, SeccompAction::Allow, SeccompAction::KillProcess)
}

fn compile(rules: BTreeMap<c_long, Vec<SeccompRule>>, others: SeccompAction, listed: SeccompAction) -> Result<BpfProgram, Error> {
    Ok(SeccompFilter::new(rules, others, listed, std::env::consts::ARCH.try_into()?)?.try_into()?)
}
