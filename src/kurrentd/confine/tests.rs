use super::system_calls::HOSTILE;
use super::{Files, Part, Program, State, apply, fault_of, held};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

/// Names the folder that a confined child may write in.
const FOLDER: &str = "KURRENT_CONFINED_FOLDER";
const NO_SUCH_CALL: Option<i32> = Some(libc::ENOSYS);

/// Runs `act` in a process of its own, confined to one folder: this test calls itself.
fn confined(test: &str, act: impl FnOnce(&Path)) -> Output {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = Path::new(&folder);
        apply(Program::Daemon, &Files { read: Vec::new(), write: vec![folder.join("own")], ports: vec![0] });
        act(folder);
        std::process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("own")).unwrap();
    std::fs::write(folder.path().join("other"), "secret").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let path = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    child.args(["--exact", &path, "--nocapture", "--test-threads=1"]).env(FOLDER, folder.path());
    child.output().unwrap()
}

fn held_to_the_end(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_on(name: &str) -> bool {
    held().iter().any(|part| part.name == name && matches!(part.state, State::On | State::Partly))
}

#[test]
fn files_of_others_are_neither_read_nor_written_and_its_own_are() {
    let output = confined("files_of_others_are_neither_read_nor_written_and_its_own_are", |folder| {
        std::fs::write(folder.join("own/a"), "a").unwrap();
        std::fs::rename(folder.join("own/a"), folder.join("own/b")).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("own/b")).unwrap(), "a");
        // Where static programs, as the appliance's are, have their entropy from.
        for device in ["/dev/random", "/dev/urandom"] {
            std::fs::File::open(device).unwrap();
        }
        if is_on("files") {
            for path in [&folder.join("other"), Path::new("/etc/passwd")] {
                assert_eq!(std::fs::read(path).unwrap_err().kind(), ErrorKind::PermissionDenied, "{}", path.display());
            }
            assert_eq!(std::fs::write(folder.join("new"), "").unwrap_err().kind(), ErrorKind::PermissionDenied);
            assert_eq!(std::fs::rename(folder.join("other"), folder.join("own/c")).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    });
    held_to_the_end(&output);
}

#[test]
fn no_program_is_started_and_threads_are() {
    let output = confined("no_program_is_started_and_threads_are", |_| {
        assert!(is_on("system_calls"));
        let child = Command::new("/bin/true").spawn().unwrap_err();
        assert_eq!(child.raw_os_error(), NO_SUCH_CALL, "{child}");
        // The way of a restart in place is open for this program only.
        if is_on("files") {
            use std::os::unix::process::CommandExt;
            assert_eq!(Command::new("/bin/true").exec().kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    });
    held_to_the_end(&output);
}

#[test]
fn only_sockets_of_the_networks_are_made() {
    let output = confined("only_sockets_of_the_networks_are_made", |_| {
        use socket2::{Domain, Socket, Type};
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK] {
            let made = Socket::new(Domain::from(family), Type::DGRAM, None);
            assert_ne!(made.err().and_then(|e| e.raw_os_error()), NO_SUCH_CALL, "{family}");
        }
        for family in [libc::AF_UNIX, libc::AF_ALG, libc::AF_VSOCK, libc::AF_BLUETOOTH] {
            let made = Socket::new(Domain::from(family), Type::DGRAM, None);
            assert_eq!(made.err().and_then(|e| e.raw_os_error()), NO_SUCH_CALL, "{family}");
        }
        // It reaches nobody else; a pair of datagrams would send to whatever name it is told.
        Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        for kind in [Type::DGRAM, Type::SEQPACKET] {
            let made = Socket::pair(Domain::UNIX, kind, None);
            assert_eq!(made.err().and_then(|e| e.raw_os_error()), NO_SUCH_CALL, "{kind:?}");
        }
    });
    held_to_the_end(&output);
}

#[test]
fn nothing_is_held_back_for_later() {
    let output = confined("nothing_is_held_back_for_later", |_| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
        assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".into(), "2".into()));
        let kept = super::capabilities::DAEMON.iter().fold(0, |all, (one, _)| all | one.bits());
        for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&value(set), 16).unwrap() & !kept, 0, "{set}");
        }
        assert!(rustix::process::getrlimit(rustix::process::Resource::Core).maximum == Some(0));
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), rustix::process::DumpableBehavior::NotDumpable);
        // Again, as after so many restarts in place that Landlock takes no further layer (16).
        for _ in 0..20 {
            let part = Files::default().confine();
            assert!(!is_on("files") || part.state == held()[3].state, "{part:?}");
        }
        assert_eq!(super::system_calls::confine().state, State::On);
        assert_eq!(super::capabilities::give_up(&super::capabilities::DAEMON).state, State::On);
    });
    held_to_the_end(&output);
}

#[test]
fn what_no_daemon_does_ends_the_process() {
    let output = confined("what_no_daemon_does_ends_the_process", |_| {
        // SAFETY: `PTRACE_TRACEME` of a process that nobody waits for with it.
        unsafe { libc::syscall(libc::SYS_ptrace, 0, 0, 0, 0) };
    });
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
    assert!(HOSTILE.contains(&libc::SYS_ptrace));
}

#[test]
fn what_does_not_hold_is_a_fault_on_the_appliance_only() {
    let part = |name, state| Part { name, state, detail: "why".into() };
    let parts = [part("files", State::Missing), part("capabilities", State::On)];
    assert!(fault_of(&parts, true).unwrap().contains("files (why)"));
    assert_eq!(fault_of(&parts, false), None);
    assert_eq!(fault_of(&[part("files", State::On), part("privileges", State::Off)], true), None);
}
