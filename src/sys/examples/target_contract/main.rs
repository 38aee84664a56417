//! PID 1 of the virtual machines of `tests/vm/target.rs`, which packs it into initramfs and disks and reads the console: `PASS`
//! with a rule, `FAIL` with the reason, `END` at the end. The kernel command line says what it is (`contract=`):
//!
//! - nothing: target and initiator in one machine, the target contract on a real kernel over loopback;
//! - `serve`: an appliance's place: exports `/dev/vda` and prints the reports that it is sent;
//! - `store`: puts the file `/session` into the firmware, as the firmware program would;
//! - as `/sbin/init` of a disk: the worker's system, which tells what stage-1 left it.

mod parts;

use kurrent_core::id::Nqn;
use kurrent_core::target::plan::Step;
use kurrent_core::target::tree::{Keys, NAMESPACE_ID};
use kurrent_sys::configfs::{Nvmet, contract};
use kurrent_sys::fabrics::{self, BLOCK_DEVICES, CONTROLLERS, Connect, FABRICS_DEVICE};
use kurrent_sys::{kmod, link, sockets};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddrV4;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

const IMAGE: &str = "/image/disk";
const IMAGE_BYTES: u64 = 64 << 20;
const TARGET: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 4420);
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.first().is_some_and(|name| name.ends_with("modprobe")) {
        let rest: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
        std::process::exit(i32::from(kmod::answer_kernel(&rest)));
    }
    std::panic::set_hook(Box::new(|fault| {
        println!("FAIL {fault}");
        off();
    }));
    if arguments.first().is_some_and(|name| name == "/sbin/init") {
        parts::system();
    } else {
        mount("proc", "/proc");
        mount("sysfs", "/sys");
        mount("devtmpfs", "/dev");
        let line = fs::read_to_string("/proc/cmdline").expect("the command line");
        match line.split_ascii_whitespace().find_map(|w| w.strip_prefix("contract=")) {
            Some("serve") => parts::serve(),
            Some("store") => parts::store(),
            _ => {
                prepare();
                run();
            }
        }
    }
    println!("END");
    off();
}

fn off() {
    let _ = std::io::stdout().flush();
    rustix::fs::sync();
    let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
}

fn mount(kind: &str, place: &str) {
    fs::create_dir_all(place).expect("a folder");
    let none: Option<&str> = None;
    nix::mount::mount(Some(kind), place, Some(kind), nix::mount::MsFlags::empty(), none).expect(kind);
}

fn prepare() {
    mount("tmpfs", "/image");
    load_target();
    link::set_up(1, true).expect("loopback");
    let image = File::create(IMAGE).expect("the image");
    image.set_len(IMAGE_BYTES).expect("the image");
    image.write_all_at(b"first", 0).expect("the image");
}

fn load_target() {
    let modules = kmod::ModuleTree::running().expect("modules");
    for module in ["configfs", "nvmet", "nvmet-tcp", "nvme-tcp"] {
        modules.load(module).expect(module);
    }
    mount("configfs", "/sys/kernel/config");
}

fn passed(rule: &str, started: Instant) {
    println!("PASS {rule} ({} ms)", started.elapsed().as_millis());
}

fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn connect(epoch: u8, keys: &Keys) -> Result<u32, fabrics::ConnectError> {
    let (subsystem, host): (Nqn, Nqn) = (contract::subsystem().parse().expect("NQN"), contract::host(epoch).parse().expect("NQN"));
    let to = Connect {
        target: TARGET,
        subsystem: &subsystem,
        host: &host,
        host_id: Uuid::from_u128(u128::from(epoch) + 1),
        host_secret: &keys.host,
        controller_secret: &keys.controller,
    };
    fabrics::connect(Path::new(FABRICS_DEVICE), &to)
}

fn state(number: u32) -> String {
    fabrics::state(Path::new(CONTROLLERS), number)
}

fn connections() -> usize {
    sockets::held(Path::new(sockets::PROC_NET_TCP), TARGET).expect("/proc/net/tcp").len()
}

fn namespace() -> Option<String> {
    let uuid = Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888);
    fabrics::namespace(Path::new(BLOCK_DEVICES), uuid).expect("sysfs").filter(|n| Path::new("/dev").join(n).exists())
}

fn read_disk(name: &str, at: u64) -> std::io::Result<[u8; 5]> {
    let mut octets = [0; 5];
    File::open(Path::new("/dev").join(name))?.read_exact_at(&mut octets, at)?;
    Ok(octets)
}

/// A file descriptor that goes around the page cache: what it reads comes from the target.
fn direct(name: &str) -> File {
    use rustix::fs::{Mode, OFlags};
    File::from(rustix::fs::open(Path::new("/dev").join(name), OFlags::RDWR | OFlags::DIRECT, Mode::empty()).expect("O_DIRECT"))
}

#[repr(align(4096))]
struct Block([u8; 4096]);

fn run() {
    let nvmet = Nvmet::real();
    let image = Path::new(IMAGE);

    let started = Instant::now();
    contract::check(&nvmet, image);
    passed("the kernel's tree holds the contract", started);

    contract::reach(&nvmet, &contract::desired(Some(1), image));
    let started = Instant::now();
    let wrong = |host: u8, controller: u8| Keys { host: contract::keys(host).host, controller: contract::keys(controller).controller };
    for (what, epoch, keys) in [
        ("a wrong host key", 1, wrong(3, 1)),
        ("a wrong controller key", 1, wrong(1, 3)),
        ("a host of another epoch", 3, contract::keys(1)),
    ] {
        let refused = connect(epoch, &keys).expect_err(what);
        println!("{what}: {refused}");
    }
    passed("a wrong key and a stranger are refused", started);

    let started = Instant::now();
    let controller = connect(1, &contract::keys(1)).expect("the right keys");
    passed("the right keys connect, authenticated both ways", started);
    until("the namespace", || namespace().is_some());
    let disk = namespace().expect("the namespace");
    assert_eq!(&read_disk(&disk, 0).expect("the disk reads"), b"first");
    let block = fs::read_to_string(format!("/sys/class/block/{disk}/queue/logical_block_size")).expect("sysfs");
    assert_eq!(block.trim(), "4096", "block size");
    let serial = fs::read_to_string(format!("/sys/class/nvme/nvme{controller}/serial")).expect("sysfs");
    assert_eq!(serial.trim(), "000102abcdef");
    assert!(connections() >= 2, "nvmet's connections are listed: one admin queue and I/O queues");
    passed("the disk is there with its identifiers and 4096-byte blocks", started);

    let started = Instant::now();
    let (steps, _) = contract::reach(&nvmet, &contract::desired(Some(1), image));
    assert_eq!((steps, state(controller).as_str()), (vec![], "live"));
    passed("a second look touches nothing", started);

    let started = Instant::now();
    let size = |disk: &str| fs::read_to_string(format!("/sys/class/block/{disk}/size")).expect("sysfs").trim().parse::<u64>().ok();
    let grown = 2 * IMAGE_BYTES;
    File::options().write(true).open(image).and_then(|f| f.set_len(grown)).expect("the image grows");
    assert_eq!(size(&disk), Some(IMAGE_BYTES / 512), "nobody has told the kernel yet");
    assert!(nvmet.revalidate(&contract::subsystem(), NAMESPACE_ID).expect("the kernel looks at the size again"));
    until("the larger disk", || size(&disk) == Some(grown / 512));
    let mut block = Block([0; 4096]);
    block.0[..5].copy_from_slice(b"grown");
    direct(&disk).write_all_at(&block.0, grown - 4096).expect("the new room can be written");
    assert_eq!((&read_disk(&disk, 0).expect("the disk reads"), state(controller).as_str()), (b"first", "live"));
    passed("a disk that grows is larger for who is connected, who is not cut", started);

    let open = direct(&disk);
    let started = Instant::now();
    contract::reach(&nvmet, &contract::desired(Some(2), image));
    until("the old connections are gone", || connections() == 0);
    passed("a new epoch cuts the live controller", started);
    block.0[..5].copy_from_slice(b"stale");
    assert!(open.write_all_at(&block.0, 4096).is_err(), "the fenced host can not write");
    drop(open);
    until("the fenced controller gives up", || !matches!(state(controller).as_str(), "live" | "connecting" | "resetting"));
    assert!(connect(1, &contract::keys(1)).is_err(), "old credentials are refused");
    let mut octets = [0; 5];
    File::open(image).expect("the image").read_exact_at(&mut octets, 4096).expect("the image");
    assert_ne!(&octets, b"stale");
    passed("old credentials stay out and nothing of the old epoch is written", started);

    until("the old disk is gone", || namespace().is_none());
    let controller = connect(2, &contract::keys(2)).expect("the new epoch");
    until("the namespace", || namespace().is_some());
    let disk = namespace().expect("the namespace");
    let open = direct(&disk);
    let started = Instant::now();
    // The appliance goes away and comes back: its tree is empty in between.
    contract::reach(&nvmet, &contract::desired(None, image));
    nvmet.run(&Step::RemovePort).expect("the port goes");
    until("the worker notices", || state(controller) != "live");
    contract::reach(&nvmet, &contract::desired(Some(2), image));
    block.0[..5].copy_from_slice(b"after");
    open.write_all_at(&block.0, 8192).expect("the write waits for the target and then succeeds");
    assert_eq!(state(controller), "live");
    assert_eq!(namespace().as_deref(), Some(disk.as_str()), "the same disk");
    passed("exported again with the same identifiers, a waiting worker goes on", started);

    let started = Instant::now();
    contract::reach(&nvmet, &contract::desired(None, image));
    until("nobody is connected", || connections() == 0);
    passed("a revoked device is cut", started);
}
