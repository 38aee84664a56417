//! The kernel's target and stage-1 on real kernels, without appliance and loaders: a few seconds each, booted directly.

use anyhow::{Context, Result, bail, ensure};
use kurrent_core::id::MacAddr;
use kurrent_core::stage1::Credentials;
use kurrent_core::target::Secret;
use kurrent_handshake::{Session, VARIABLE_GUID, VARIABLE_SESSION, VARIABLE_SESSION_MASK, report_is_genuine};
use kurrent_harness::evidence::Run;
use kurrent_harness::machine::Cpu;
use kurrent_harness::master;
use kurrent_harness::process::{Lifetime, Process};
use kurrent_harness::tools;
use kurrent_harness::wire::free_group;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// About 15 s on an idle machine.
const CONTRACT_WITHIN: Duration = Duration::from_secs(360);
/// Power-on to the worker's system; about 10 s on an idle machine.
const SYSTEM_WITHIN: Duration = Duration::from_secs(360);
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// The parts of the module tree that these machines need; depmod sees to the rest.
const MODULES: [&str; 12] = [
    "drivers/nvme",
    "drivers/net/virtio_net.ko.xz",
    "drivers/net/net_failover.ko.xz",
    "net/core/failover.ko.xz",
    "drivers/block/virtio_blk.ko.xz",
    "fs/configfs",
    "fs/efivarfs",
    "fs/ext4",
    "fs/jbd2",
    "fs/mbcache.ko.xz",
    "crypto",
    "lib",
];
const MODULES_MORE: [&str; 2] = ["fs/xfs", "arch/x86/crypto"];
const DISK_BYTES: u64 = 80 << 20;
const REPORT_KEY: [u8; 32] = [9; 32];
const BOOT_ID: &str = "0011223344556677";
const WORKER_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x77, 1, 1]);

/// What the machines are made of.
struct Parts {
    kernel: PathBuf,
    release: String,
    modules: PathBuf,
    contract: PathBuf,
    stage1: PathBuf,
}

fn parts() -> Result<Parts> {
    let deps =
        std::env::var_os("KURRENT_DEPS_DIR").map_or_else(|| tools::target_dir().join("deps"), PathBuf::from).join("linux-image-amd64");
    let kernels = fs::read_dir(deps.join("boot")).context("the kernel is missing: run `make deps`")?;
    let kernel =
        kernels.flatten().map(|e| e.path()).find(|p| p.to_string_lossy().contains("/vmlinuz-")).context("no kernel: run `make deps`")?;
    let release = kernel.to_string_lossy().rsplit_once("/vmlinuz-").map(|(_, r)| r.to_owned()).context("a kernel's name")?;
    // As the image builds stage-1, and in the same place: after `make image` only the contract is left to build.
    let built = |arguments: &[&str]| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--release", "--locked", "--quiet", "--target", TRIPLE, "--target-dir"])
            .arg(tools::target_dir())
            .args(arguments);
        tools::run(
            cargo.current_dir(tools::source_dir()).env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static"),
        )
    };
    built(&["-p", "kurrent-stage1"])?;
    built(&["-p", "kurrent-sys", "--features", "fake", "--example", "target_contract"])?;
    let programs = tools::target_dir().join(TRIPLE).join("release");
    Ok(Parts {
        modules: deps.join("usr/lib/modules").join(&release),
        kernel,
        release,
        contract: programs.join("examples/target_contract"),
        stage1: programs.join("kurrent-stage1"),
    })
}

/// An initramfs: a program as init and modprobe, the modules, and some files.
fn initramfs(run: &Run, parts: &Parts, name: &str, init: &Path, files: &[(&str, &[u8])]) -> Result<PathBuf> {
    let root = run.scratch().join(format!("{name}-root"));
    let tree = root.join("lib/modules").join(&parts.release);
    for folder in ["dev", "proc", "sys", "sbin", "lib/modules"] {
        fs::create_dir_all(root.join(folder)).context("a folder")?;
    }
    for list in ["modules.builtin", "modules.order", "modules.builtin.modinfo"] {
        copy(&parts.modules.join(list), &tree.join(list))?;
    }
    for below in MODULES.iter().chain(&MODULES_MORE) {
        copy(&parts.modules.join("kernel").join(below), &tree.join("kernel").join(below))?;
    }
    tools::run(Command::new("/usr/sbin/depmod").arg("-b").arg(&root).arg(&parts.release))?;
    copy(init, &root.join("init"))?;
    std::os::unix::fs::symlink("/init", root.join("sbin/modprobe")).context("modprobe")?;
    for (name, octets) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().context("a folder")?).context("a folder")?;
        fs::write(path, octets).context("a file")?;
    }
    let archive = run.scratch().join(format!("{name}.cpio"));
    let pack = format!("cd {} && find . | cpio -o -H newc --quiet > {}", tools::quoted(&root), tools::quoted(&archive));
    tools::run(Command::new("sh").args(["-c", &pack]))?;
    Ok(archive)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a folder")?).context("a folder")?;
    tools::run(Command::new("cp").arg("-r").arg(from).arg(to)).map(drop)
}

/// A machine booted directly into a kernel, its console in a file.
struct Machine {
    name: String,
    console: PathBuf,
    process: Process,
}

fn boot(run: &Run, parts: &Parts, name: &str, initramfs: &Path, line: &str, more: &[String]) -> Result<Machine> {
    let console = run.evidence().join(format!("{name}.console"));
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-nodefaults",
        "-machine",
        "q35",
        "-accel",
        "tcg",
        "-cpu",
        Cpu::Usual.flags(),
        "-m",
        "384",
        "-display",
        "none",
        "-no-reboot",
    ]);
    qemu.arg("-serial").arg(format!("file:{}", console.display())).arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(initramfs);
    qemu.args(["-append", &format!("console=ttyS0 panic=-1 loglevel=5 {line}")]).args(more);
    let log = fs::File::create(run.evidence().join(format!("{name}.qemu"))).context("QEMU's log")?;
    qemu.stdin(Stdio::null()).stdout(log.try_clone().context("QEMU's log")?).stderr(log);
    Ok(Machine { name: name.to_owned(), console, process: Process::start(name, qemu, Lifetime::Ours)? })
}

impl Machine {
    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).replace('\r', "")
    }

    /// Waits until a line holds `pattern`; the whole console until then.
    fn wait_for(&mut self, pattern: &str, within: Duration) -> Result<String> {
        self.wait_for_times(pattern, 1, within)
    }

    fn wait_for_times(&mut self, pattern: &str, times: usize, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        loop {
            let ended = self.process.ended().is_some();
            let text = self.text();
            if text.lines().any(|l| l.starts_with("FAIL") || l.contains("Kernel panic")) {
                bail!("{}: {text}", self.name);
            }
            if text.matches(pattern).count() >= times {
                return Ok(text);
            }
            ensure!(!ended && Instant::now() < deadline, "{}: no {pattern:?} (ended: {ended}): {text}", self.name);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for a restart, which -no-reboot makes the end of QEMU.
    fn wait_for_restart(&mut self) -> Result<()> {
        let deadline = Instant::now() + SYSTEM_WITHIN;
        while self.process.ended().is_none() {
            ensure!(Instant::now() < deadline, "{} does not start again: {}", self.name, self.text());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

#[test]
fn the_kernels_target_holds_the_contract() -> Result<()> {
    let (run, parts) = (Run::new("contract")?, parts()?);
    let archive = initramfs(&run, &parts, "contract", &parts.contract, &[])?;
    let text = boot(&run, &parts, "contract", &archive, "", &[])?.wait_for("\nEND", CONTRACT_WITHIN)?;
    let passed: Vec<&str> = text.lines().filter(|l| l.starts_with("PASS")).collect();
    println!("{}", passed.join("\n"));
    ensure!(passed.len() == 10, "{passed:?}");
    run.passed();
    Ok(())
}

/// What a disk has as its init.
#[derive(Clone, Copy)]
enum Init {
    Program,
    Missing,
    /// A link that leads nowhere.
    Broken,
}

/// A 4K-native disk whose one partition is a root with our program as its init, and a module folder of a kernel of its own.
fn worker_disk(run: &Run, parts: &Parts, name: &str, init: Init) -> Result<PathBuf> {
    let root = run.scratch().join(format!("{name}-root"));
    for folder in ["dev", "proc", "sys", "run", "etc", "sbin", "usr/lib/modules/1.0-own"] {
        fs::create_dir_all(root.join(folder)).context("a folder")?;
    }
    std::os::unix::fs::symlink("usr/lib", root.join("lib")).context("lib")?;
    fs::write(root.join("etc/hostname"), "master\n").context("hostname")?;
    fs::write(root.join("usr/lib/modules/1.0-own/kept"), "").context("a module")?;
    match init {
        Init::Program => copy(&parts.contract, &root.join("sbin/init"))?,
        Init::Missing => {}
        Init::Broken => std::os::unix::fs::symlink("/nowhere", root.join("sbin/init")).context("init")?,
    }
    let disk = run.scratch().join(name);
    master::write_gpt(&disk, DISK_BYTES)?;
    let mut format = Command::new("/usr/sbin/mke2fs");
    format.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", &format!("offset={},nodiscard", master::ROOT_OFFSET), "-d"]);
    let kib = (DISK_BYTES - master::ROOT_OFFSET - master::TAIL_BYTES) / 1024;
    tools::run(format.arg(&root).arg(&disk).arg(format!("{kib}k")))?;
    Ok(disk)
}

fn credentials() -> Credentials {
    let secret = |octet: u8| Secret::from_random(&Zeroizing::new([octet; 32]));
    let name = |text: &str| text.parse().expect("an NQN");
    Credentials {
        worker: "w1".parse().expect("a name"),
        mac: WORKER_MAC,
        address: [10, 77, 0, 101].into(),
        prefix: 24,
        gateway: None,
        dns: vec![[10, 77, 0, 1].into()],
        server: SocketAddrV4::new([10, 77, 0, 1].into(), 80),
        boot_id: BOOT_ID.into(),
        report_key: Zeroizing::new(REPORT_KEY),
        target: SocketAddrV4::new([10, 77, 0, 1].into(), 4420),
        // As `kurrent_sys::configfs::contract` has them for epoch 1.
        subsystem: name("nqn.2026-11.contract:w1.debian.000102abcdef"),
        host: name("nqn.2026-11.contract:host.w1.e1"),
        host_id: uuid::Uuid::from_u128(5),
        host_secret: secret(1),
        controller_secret: secret(!1),
        namespace: uuid::Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888),
    }
}

/// UEFI with variables in `store`.
fn firmware(store: &Path) -> Result<Vec<String>> {
    let folder = Path::new("/usr/share/OVMF");
    if !store.exists() {
        fs::copy(folder.join("OVMF_VARS_4M.fd"), store).context("firmware: package `ovmf`, installed by `make deps`")?;
    }
    let drive = |unit: u8, path: &Path, only: &str| format!("if=pflash,format=raw,unit={unit}{only},file={}", path.display());
    let code = drive(0, &folder.join("OVMF_CODE_4M.fd"), ",readonly=on");
    Ok(vec!["-drive".into(), code, "-drive".into(), drive(1, store, "")])
}

fn nic(group: SocketAddrV4, mac: MacAddr) -> Vec<String> {
    vec![
        "-netdev".into(),
        format!("socket,id=n,mcast={group},localaddr=127.0.0.1"),
        "-device".into(),
        format!("virtio-net-pci,netdev=n,mac={mac},romfile="),
    ]
}

/// Puts a session into a fresh firmware store, as the firmware program hands it on.
fn store_session(run: &Run, parts: &Parts, session: &Session, store: &Path) -> Result<()> {
    let mask = [0x5a; 32];
    let name = |variable: &str| format!("variables/{variable}-{VARIABLE_GUID}");
    let (handed, names) = (session.to_handed(&mask), [name(VARIABLE_SESSION), name(VARIABLE_SESSION_MASK)]);
    let files = [(names[0].as_str(), handed.as_slice()), (names[1].as_str(), mask.as_slice())];
    let machine = format!("store-{}", store.file_name().unwrap_or_default().display());
    let archive = initramfs(run, parts, &machine, &parts.contract, &files)?;
    boot(run, parts, &machine, &archive, "contract=store", &firmware(store)?)?.wait_for("\nEND", SYSTEM_WITHIN).map(drop)
}

fn session() -> Result<Session> {
    Session::from_bytes(&[7; Session::LEN]).context("a session")
}

/// An appliance's place that exports `disk`.
fn serve(run: &Run, parts: &Parts, name: &str, disk: &Path, group: SocketAddrV4) -> Result<Machine> {
    let archive = initramfs(run, parts, name, &parts.contract, &[])?;
    let mut more = nic(group, MacAddr([0x52, 0x54, 0, 0x77, 1, 0]));
    more.extend(["-drive".into(), format!("if=none,id=d,format=raw,file={}", disk.display()), "-device".into()]);
    more.push("virtio-blk-pci,drive=d,logical_block_size=4096,physical_block_size=4096".into());
    let mut server = boot(run, parts, name, &archive, "contract=serve", &more)?;
    server.wait_for("SERVING", SYSTEM_WITHIN)?;
    Ok(server)
}

/// A worker whose firmware has the session in `store`.
fn worker(run: &Run, parts: &Parts, name: &str, store: &Path, group: SocketAddrV4) -> Result<Machine> {
    let sealed = session()?.seal(credentials().encode().as_bytes());
    let archive = initramfs(run, parts, name, &parts.stage1, &[("kurrent/sealed", &sealed)])?;
    let mut more = firmware(store)?;
    more.extend(nic(group, WORKER_MAC));
    boot(run, parts, name, &archive, &format!("kurrent.boot={BOOT_ID} BOOTIF=01-52-54-00-77-01-01"), &more)
}

/// Fields of the reports that a server was sent.
fn reports(console: &str) -> Vec<BTreeMap<&str, &str>> {
    let forms = console.lines().filter_map(|l| l.strip_prefix("REPORT "));
    forms.map(|form| form.split('&').filter_map(|f| f.split_once('=')).collect()).collect()
}

fn is_genuine(report: &BTreeMap<&str, &str>, step: &str, detail: &str) -> bool {
    let mut proof = [0; 32];
    let proven = hex::decode_to_slice(report.get("proof").copied().unwrap_or_default(), &mut proof);
    proven.is_ok() && report_is_genuine(&REPORT_KEY, BOOT_ID, step, detail, &proof)
}

#[test]
fn stage1_unseals_connects_and_starts_the_disks_own_init() -> Result<()> {
    let (run, parts) = (Run::new("stage1")?, parts()?);
    let disk = worker_disk(&run, &parts, "disk", Init::Program)?;
    let store = run.scratch().join("vars");
    store_session(&run, &parts, &session()?, &store)?;
    let group = free_group()?;
    let mut server = serve(&run, &parts, "serve", &disk, group)?;
    let started = Instant::now();
    let text = worker(&run, &parts, "worker", &store, group)?.wait_for("\nEND", SYSTEM_WITHIN)?;
    println!("power-on to the system's end: {} ms", started.elapsed().as_millis());
    let told: BTreeMap<&str, &str> = text.lines().filter_map(|l| l.strip_prefix("TOLD ")?.split_once('=')).collect();
    let expected = [
        ("hostname", "w1"),
        ("etc-hostname", "w1"),
        ("modules", "there"),
        ("other-modules", "there"),
        ("sealed", "gone"),
        ("masks", "0"),
        ("secrets-mode", "400 400"),
        ("addresses", "127.0.0.1 10.77.0.101"),
        ("ifstate", "eth0=eth0"),
        ("networkd", "[Match]|MACAddress=52:54:00:77:01:01||[Link]|Unmanaged=yes"),
    ];
    for (what, value) in expected {
        ensure!(told.get(what) == Some(&value), "{what}: {told:#?}");
    }
    ensure!(told.get("root").is_some_and(|r| r.starts_with("/dev/nvme0n1p1 / ext4 rw")), "{told:#?}");
    ensure!(!text.contains("DHHC"), "no secret on the console");

    let told = server.wait_for("step=root", SYSTEM_WITHIN)?;
    let mut steps = vec![];
    for report in reports(&told) {
        let step = report.get("step").copied().unwrap_or_default();
        ensure!(is_genuine(&report, step, ""), "{report:?}");
        steps.push(step);
    }
    ensure!(steps == ["booted", "connect", "root"], "{steps:?}");
    run.passed();
    Ok(())
}

#[test]
fn a_root_that_can_not_be_started_is_let_go_before_another_try_and_reported() -> Result<()> {
    let (run, parts) = (Run::new("unstarted")?, parts()?);
    let group = free_group()?;

    // Found before anything is given up: unmounted, connected and mounted again.
    let store = run.scratch().join("no-init-vars");
    store_session(&run, &parts, &session()?, &store)?;
    let disk = worker_disk(&run, &parts, "no-init", Init::Missing)?;
    let server = serve(&run, &parts, "serve-no-init", &disk, group)?;
    let text = worker(&run, &parts, "no-init", &store, group)?.wait_for_times("the root has no init", 2, SYSTEM_WITHIN)?;
    ensure!(text.matches("kurrent: root is /dev/nvme").count() == 2, "{text}");
    ensure!(!text.contains("EXT4-fs error") && !text.contains("I/O error") && !text.contains("unmounted"), "{text}");
    drop(server);

    // Found when the secrets are wiped already.
    let store = run.scratch().join("bad-init-vars");
    store_session(&run, &parts, &session()?, &store)?;
    let disk = worker_disk(&run, &parts, "bad-init", Init::Broken)?;
    let mut server = serve(&run, &parts, "serve-bad-init", &disk, group)?;
    let mut machine = worker(&run, &parts, "bad-init", &store, group)?;
    let text = machine.wait_for("/sbin/init can not be started", SYSTEM_WITHIN)?;
    ensure!(!text.contains("DHHC"), "no secret on the console");
    let told = server.wait_for("step=failed", SYSTEM_WITHIN)?;
    let failed = reports(&told).into_iter().find(|r| r.get("step") == Some(&"failed")).context("a report")?;
    ensure!(is_genuine(&failed, "failed", "/sbin/init can not be started"), "{failed:?}");
    machine.wait_for_restart()?;
    run.passed();
    Ok(())
}

#[test]
fn a_machine_without_its_session_or_with_another_blob_says_so_and_starts_again() -> Result<()> {
    let (run, parts) = (Run::new("unsealed")?, parts()?);
    let sealed = Session::from_bytes(&[8; Session::LEN]).context("a session")?.seal(credentials().encode().as_bytes());
    let archive = initramfs(&run, &parts, "worker", &parts.stage1, &[("kurrent/sealed", &sealed)])?;
    let store = run.scratch().join("vars");
    let mut machine = boot(&run, &parts, "missing", &archive, "", &firmware(&store)?)?;
    machine.wait_for("the firmware has no session key of this boot", SYSTEM_WITHIN)?;
    drop(machine);
    store_session(&run, &parts, &Session::from_bytes(&[7; Session::LEN]).context("a session")?, &store)?;
    let mut machine = boot(&run, &parts, "another", &archive, "", &firmware(&store)?)?;
    machine.wait_for("not for this boot of this machine", SYSTEM_WITHIN)?;
    machine.wait_for_restart()?;
    run.passed();
    Ok(())
}
