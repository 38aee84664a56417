//! The other machines: who serves, who stores the session, who is the worker's system.

use crate::{load_target, mount};
use kurrent_sys::configfs::{Nvmet, contract};
use kurrent_sys::{kmod, link};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DISK: &str = "/dev/vda";
/// Attributes of what is stored: kept over a restart, because another run of the machine uses it. The session itself is volatile
/// in real life.
const STORED: [u8; 4] = [7, 0, 0, 0];

/// Exports the disk for epoch 1 and answers reports, for ever.
pub fn serve() {
    kmod::ModuleTree::running().expect("modules").coldplug(Path::new("/sys"));
    load_target();
    let nic = link::links().expect("NICs").into_iter().next().expect("a NIC");
    link::set_up(nic.index, true).expect("the NIC");
    link::add_address(nic.index, SERVER, 24).expect("the address");
    let mut desired = contract::desired(Some(1), Path::new(DISK));
    desired.port = Some(kurrent_core::target::tree::Port { address: SERVER, service: 4420 });
    contract::reach(&Nvmet::real(), &desired);
    let listener = TcpListener::bind((SERVER, 80)).expect("port 80");
    println!("SERVING");
    for stream in listener.incoming() {
        report(stream.expect("a connection"));
    }
}

fn report(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).expect("a head") > 2 {
        length = line.trim().strip_prefix("Content-Length: ").and_then(|n| n.parse().ok()).unwrap_or(length);
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    println!("REPORT {}", String::from_utf8_lossy(&body));
    stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").expect("an answer");
}

/// Writes the variables that lie in `/variables`.
pub fn store() {
    kmod::ModuleTree::running().expect("modules").load("efivarfs").expect("efivarfs");
    mount("efivarfs", "/sys/firmware/efi/efivars");
    for variable in fs::read_dir("/variables").expect("variables").flatten() {
        let octets = fs::read(variable.path()).expect("a variable");
        let place = Path::new("/sys/firmware/efi/efivars").join(variable.file_name());
        fs::write(place, [STORED.as_slice(), &octets].concat()).expect("the firmware takes it");
    }
    println!("STORED");
}

fn tell(what: &str, text: &str) {
    println!("TOLD {what}={}", text.trim().replace('\n', "|"));
}

/// Prints what a worker's system finds.
pub fn system() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|e| format!("({e})"));
    tell("hostname", &read("/proc/sys/kernel/hostname"));
    tell("etc-hostname", &read("/etc/hostname"));
    tell("cmdline", &read("/proc/cmdline"));
    let release = read("/proc/sys/kernel/osrelease");
    let modules = Path::new("/usr/lib/modules").join(release.trim());
    tell("modules", if modules.join("modules.dep").exists() { "there" } else { "missing" });
    tell("other-modules", if Path::new("/usr/lib/modules/1.0-own/kept").exists() { "there" } else { "missing" });
    tell("networkd", &read("/run/systemd/network/00-kurrent-boot.network"));
    tell("ifstate", &read("/run/network/ifstate"));
    let mounts = read("/proc/mounts");
    tell("root", mounts.lines().rfind(|l| l.split(' ').nth(1) == Some("/")).unwrap_or("none"));
    tell("sealed", if Path::new("/kurrent/sealed").exists() { "there" } else { "gone" });
    mount("efivarfs", "/sys/firmware/efi/efivars");
    let names = fs::read_dir("/sys/firmware/efi/efivars").expect("efivarfs");
    let ours = names.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("KurrentSessionMask")).count();
    tell("masks", &ours.to_string());
    let secret = |name| fs::metadata(Path::new("/sys/class/nvme/nvme0").join(name)).expect("sysfs").permissions().mode() & 0o777;
    tell("secrets-mode", &format!("{:o} {:o}", secret("dhchap_secret"), secret("dhchap_ctrl_secret")));
    let addresses: Vec<String> = link::addresses().expect("addresses").iter().map(|a| a.address.to_string()).collect();
    tell("addresses", &addresses.join(" "));
    kmod::ModuleTree::open(&modules).and_then(|m| m.load("xfs")).expect("the system loads a module of the running kernel");
    fs::write("/written", "by the system").expect("the root can be written");
}
