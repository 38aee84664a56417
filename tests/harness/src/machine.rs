//! A QEMU machine: UEFI firmware with variables of its own, or a BIOS; virtio NICs, serial console, monitor.

use crate::console::Console;
use crate::evidence::Run;
use crate::process::{Lifetime, Process};
use crate::qmp::Qmp;
use crate::tools;
use anyhow::{Context, Result, bail};
use kurrent_core::id::MacAddr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long QEMU may take to open its sockets.
const START_WITHIN: Duration = Duration::from_secs(60);
/// Enough of a frame for DHCP and HTTP heads; NVMe data would fill the disk.
const CAPTURE_OCTETS: u32 = 2048;
/// Debian's UEFI firmware: code, empty variables, package.
const OVMF: [&str; 3] = ["/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", "ovmf"];
/// The same for arm64.
const AAVMF: [&str; 3] = ["/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd", "qemu-efi-aarch64"];

/// Where a NIC is plugged in.
#[derive(Clone, Debug)]
pub enum Attachment {
    /// A multicast group on loopback: any number of machines, no privileges.
    Multicast(SocketAddrV4),
    /// A tap device that exists already, in network namespace `netns`.
    Tap {
        /// Namespace QEMU is started in.
        netns: String,
        /// Name of the tap device there.
        interface: String,
    },
    /// QEMU's user network with forwarded TCP ports on 127.0.0.1: (host, guest).
    User(Vec<(u16, u16)>),
}

/// What a machine starts with.
#[derive(Clone, Debug)]
pub enum Firmware {
    /// OVMF with the variables in this file; made from the empty ones when missing.
    Uefi(PathBuf),
    /// An arm64 machine with AAVMF, its variables as above.
    UefiArm64(PathBuf),
    /// SeaBIOS.
    Bios,
}

/// Which PC, to its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// All that TCG has, but for what is slow or broken there.
    Usual,
    /// The same without SSE 4.2: a PC from before 2008.
    Old,
}

impl Cpu {
    /// For `-cpu`. Without cx16 off, QEMU 7.2's TCG crashes 6.12 kernels now and then (double fault, invalid opcode at boot). Others
    /// are off because guests that have them are slower: TCG copies single octets where `rep movsb` is said to be fast (`erms`),
    /// and takes some hundred instructions for one of AES or of GCM's hash (`aes`, `pclmulqdq`).
    #[must_use]
    pub fn flags(self) -> &'static str {
        match self {
            Self::Usual => "max,-cx16,-erms,-aes,-pclmulqdq",
            Self::Old => "max,-cx16,-erms,-aes,-pclmulqdq,-sse4.2",
        }
    }
}

/// What boots from a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionRom {
    /// The firmware's own driver and its own PXE.
    None,
    /// The iPXE that QEMU brings (package `ipxe-qemu`, of 2019): the only network boot that SeaBIOS has.
    Ipxe,
}

/// One NIC.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Its address.
    pub mac: MacAddr,
    /// See [`Attachment`].
    pub attachment: Attachment,
    /// See [`OptionRom`].
    pub rom: OptionRom,
}

/// What a machine is made of.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Short name, unique within its run: names the console and captures.
    pub name: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// See [`Cpu`]; x86-64 only.
    pub cpu: Cpu,
    /// Boot disk, raw.
    pub disk: Option<PathBuf>,
    /// See [`Firmware`].
    pub firmware: Firmware,
    /// Names and texts that the firmware reads (`-fw_cfg`), such as OVMF's `opt/org.tianocore/IPv4PXESupport`.
    pub firmware_settings: Vec<(String, String)>,
    /// In order.
    pub nics: Vec<Nic>,
    /// SMBIOS UUID.
    pub uuid: String,
    /// See [`Lifetime`].
    pub lifetime: Lifetime,
}

impl Spec {
    /// The tap device of its first NIC, when it has one.
    pub fn tap(&self) -> Result<&str> {
        match self.nics.first().map(|nic| &nic.attachment) {
            Some(Attachment::Tap { interface, .. }) => Ok(interface),
            Some(Attachment::Multicast(_) | Attachment::User(_)) | None => bail!("{} is on no tap device", self.name),
        }
    }
}

/// A running machine.
pub struct Machine {
    /// Its serial console.
    pub console: Console,
    /// Its monitor.
    pub qmp: Qmp,
    /// When QEMU was started: power-on.
    pub started: Instant,
    process: Process,
    spec: Spec,
    captures: Vec<PathBuf>,
}

impl Machine {
    /// Starts QEMU and waits until its console and monitor are open; the firmware begins then.
    pub fn start(run: &Run, spec: Spec) -> Result<Self> {
        match &spec.firmware {
            Firmware::Uefi(variables) => prepare_uefi(variables, OVMF)?,
            Firmware::UefiArm64(variables) => prepare_uefi(variables, AAVMF)?,
            Firmware::Bios => {}
        }
        let stderr_path = run.evidence().join(format!("{}.qemu", spec.name));
        let append = |path: &Path| File::options().create(true).append(true).open(path).with_context(|| format!("open {}", path.display()));
        let stderr = append(&stderr_path)?;
        let console_path = run.evidence().join(format!("{}.console", spec.name));
        append(&console_path)?;
        let mut output = File::open(&console_path).context("open the console's file")?;
        output.seek(SeekFrom::End(0)).context("skip what an earlier start wrote")?;
        let keyboard = keyboard(run.scratch(), &spec.name)?;
        let captures = captures(run, &spec);
        let mut command = command(run, &spec, &captures);
        command.current_dir(run.scratch()).stdin(std::process::Stdio::null());
        command.stdout(stderr.try_clone().context("QEMU's log")?).stderr(stderr);
        let _ = fs::remove_file(run.scratch().join(format!("{}.qmp", spec.name)));
        let started = Instant::now();
        let mut process = Process::start(&spec.name, command, spec.lifetime)?;
        let scratch = File::open(run.scratch()).context("open the run's folder")?;
        // Through the open folder: socket paths are limited to 107 octets, source trees are not.
        let path = format!("/proc/self/fd/{}/{}.qmp", scratch.as_raw_fd(), spec.name);
        let deadline = Instant::now() + START_WITHIN;
        let monitor = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) if process.ended().is_none() && Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => {
                    let said = fs::read_to_string(&stderr_path).unwrap_or_default();
                    bail!("{}: QEMU did not open its monitor ({error}): {}", spec.name, said.trim());
                }
            }
        };
        let pid = process.pid().unwrap_or_default();
        let console = Console::new(&spec.name, output, keyboard, move || is_running(pid));
        Ok(Self { console, qmp: Qmp::new(monitor)?, started, process, spec, captures })
    }

    /// What it is made of.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What its first NIC has seen since this start.
    pub fn capture(&self) -> &Path {
        self.captures.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Whether QEMU runs.
    pub fn runs(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Power cut: `SIGKILL`, nothing is flushed.
    pub fn cut_power(mut self) -> Spec {
        self.process.kill();
        self.spec.clone()
    }

    /// The reset button.
    pub fn reset(&mut self) -> Result<()> {
        self.console.skip_to_end();
        self.qmp.execute("system_reset").map(drop)
    }

    /// The power button; waits until the machine is off.
    pub fn power_off(mut self, within: Duration) -> Result<Spec> {
        self.qmp.execute("system_powerdown")?;
        let deadline = Instant::now() + within;
        while self.runs() {
            if Instant::now() > deadline {
                bail!("{}: still on {} s after its power button; console: {}", self.spec.name, within.as_secs(), self.console.unread());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(self.spec.clone())
    }

    /// Resident memory of QEMU in KiB: guest memory touched, plus QEMU's own.
    pub fn resident_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?.trim().parse().ok()
    }

    /// Leaves QEMU running (only with [`Lifetime::MayStay`]).
    pub fn leave_running(self) {
        self.process.leave_running();
    }
}

/// The two ends of QEMU's `pipe` console: a FIFO that is typed into, and nothing to write to, because the log has it all.
/// (Its `file` console can not be typed into from the command line; its sockets and pipes make a machine wait for a reader.)
fn keyboard(dir: &Path, name: &str) -> Result<File> {
    let (input, output) = (dir.join(format!("{name}.in")), dir.join(format!("{name}.out")));
    if !input.exists() {
        nix::unistd::mkfifo(&input, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).context("make the keyboard's FIFO")?;
        std::os::unix::fs::symlink("/dev/null", &output).context("make the console's sink")?;
    }
    File::options().read(true).write(true).open(&input).with_context(|| format!("open {}", input.display()))
}

/// Whether process `pid` is there and not yet a zombie (whose parent has not asked).
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The firmware is there, and so are its variables.
fn prepare_uefi(variables: &Path, [code, empty, package]: [&str; 3]) -> Result<()> {
    for file in [code, empty] {
        if !Path::new(file).exists() {
            bail!("{file} is missing: package `{package}`, installed by `make deps`");
        }
    }
    if !variables.exists() {
        fs::copy(empty, variables).with_context(|| format!("make {}", variables.display()))?;
    }
    Ok(())
}

/// A comma inside a QEMU option value is written twice.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// A file for each NIC and each start: QEMU begins its captures anew, and an earlier start is evidence, too.
fn captures(run: &Run, spec: &Spec) -> Vec<PathBuf> {
    let name = |start: u32, nic: usize| run.evidence().join(format!("{}-start{start}-net{nic}.pcap", spec.name));
    let start = (1..).find(|start| !name(*start, 0).exists()).unwrap_or_default();
    (0..spec.nics.len()).map(|nic| name(start, nic)).collect()
}

fn command(run: &Run, spec: &Spec, captures: &[PathBuf]) -> Command {
    let netns = spec.nics.iter().find_map(|nic| match &nic.attachment {
        Attachment::Tap { netns, .. } => Some(netns.clone()),
        Attachment::Multicast(_) | Attachment::User(_) => None,
    });
    let qemu = match &spec.firmware {
        Firmware::Uefi(_) | Firmware::Bios => "qemu-system-x86_64",
        Firmware::UefiArm64(_) => "qemu-system-aarch64",
    };
    let mut command = match netns {
        Some(netns) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &netns, qemu]);
            command
        }
        None => Command::new(qemu),
    };
    command.args(["-nodefaults", "-accel", "tcg", "-display", "none", "-m", &spec.memory_mib.to_string(), "-uuid", &spec.uuid]);
    command.args(["-smbios", &format!("type=1,manufacturer=Kurrent lab,product=QEMU,serial={}", spec.name)]);
    let pc = ["-cpu", spec.cpu.flags(), "-device", "VGA", "-machine"];
    let stores = |[code, ..]: [&str; 3], variables: &Path| {
        [format!("if=pflash,format=raw,unit=0,readonly=on,file={code}"), format!("if=pflash,format=raw,unit=1,file={}", value(variables))]
            .map(|store| ["-drive".to_owned(), store])
    };
    match &spec.firmware {
        Firmware::Uefi(variables) => {
            command.args(pc).arg("q35").args(stores(OVMF, variables).as_flattened());
        }
        // The oldest core that UEFI distributions still start on.
        Firmware::UefiArm64(variables) => {
            command.args(["-cpu", "cortex-a57", "-machine", "virt"]).args(stores(AAVMF, variables).as_flattened());
        }
        // SeaBIOS, QEMU's own choice; told that nobody looks at a screen, it shows it on the serial console.
        Firmware::Bios => {
            command.args(pc).arg("q35,graphics=off");
        }
    }
    for (name, text) in &spec.firmware_settings {
        command.args(["-fw_cfg", &format!("name={name},string={text}")]);
    }
    // OVMF offers its RNG protocol only with this device.
    command.args(["-device", "virtio-rng-pci"]);
    let output = value(&run.evidence().join(format!("{}.console", spec.name)));
    let name = &spec.name;
    command.args(["-chardev", &format!("socket,id=qmp,path={name}.qmp,server=on,wait=off"), "-mon", "chardev=qmp,mode=control"]);
    command.args(["-chardev", &format!("pipe,id=console,path={name},logfile={output},logappend=on")]);
    command.args(["-serial", "chardev:console"]);
    if let Some(disk) = &spec.disk {
        command.args(["-drive", &format!("if=none,id=disk,format=raw,file={}", value(disk))]);
        command.args(["-device", "virtio-blk-pci,drive=disk,bootindex=0"]);
    }
    for (index, (nic, capture)) in spec.nics.iter().zip(captures).enumerate() {
        let netdev = match &nic.attachment {
            Attachment::Multicast(group) => format!("socket,id=net{index},mcast={group},localaddr={}", Ipv4Addr::LOCALHOST),
            Attachment::Tap { interface, .. } => {
                // Without vnet_hdr=off, QEMU 7.2 writes captures with a header of its own in front of each frame.
                format!("tap,id=net{index},ifname={interface},script=no,downscript=no,vnet_hdr=off")
            }
            Attachment::User(forwards) => {
                let ports: String = forwards.iter().map(|(host, guest)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}")).collect();
                format!("user,id=net{index}{ports}")
            }
        };
        let boot = if spec.disk.is_none() && index == 0 { ",bootindex=0" } else { "" };
        command.args(["-netdev", &netdev]);
        let rom = match nic.rom {
            OptionRom::None => ",romfile=",
            OptionRom::Ipxe => "",
        };
        command.args(["-device", &format!("virtio-net-pci,netdev=net{index},mac={}{rom}{boot}", nic.mac)]);
        if !matches!(nic.attachment, Attachment::User(_)) {
            let pcap = value(capture);
            command.args(["-object", &format!("filter-dump,id=dump{index},netdev=net{index},file={pcap},maxlen={CAPTURE_OCTETS}")]);
        }
    }
    command
}

/// A free TCP port on 127.0.0.1, for a forward.
pub fn free_port() -> Result<u16> {
    let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(socket.local_addr().context("read the port")?.port())
}

/// Copies a raw image with its holes and makes it at least `bytes` long.
pub fn copy_disk(from: &Path, to: &Path, bytes: u64) -> Result<()> {
    tools::run(Command::new("cp").arg("--sparse=always").arg("--reflink=auto").arg(from).arg(to))?;
    let file = File::options().write(true).open(to).with_context(|| format!("open {}", to.display()))?;
    let length = file.metadata().with_context(|| format!("size of {}", to.display()))?.len();
    file.set_len(length.max(bytes)).with_context(|| format!("grow {}", to.display()))
}
