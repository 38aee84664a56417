//! A boot network with `kurrentd` and the stock loaders on it, and one machine.

use super::seen::Seen;
use anyhow::{Context, Result, bail, ensure};
use kurrent_core::id::MacAddr;
use kurrent_harness::api::Api;
use kurrent_harness::appliance::{ADDRESS, API_PORT, Network};
use kurrent_harness::capture::Capture;
use kurrent_harness::evidence::Run;
use kurrent_harness::machine::{Firmware, Machine, Nic, OptionRom, Spec};
use kurrent_harness::netns::{BRIDGE, BootNetwork};
use kurrent_harness::process::{Lifetime, Process};
use kurrent_harness::{tools, worker};
use serde_json::Value;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The machine.
pub const MAC: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x77, 0x00, MACHINE]);
/// Its number among the lab's workers.
const MACHINE: u8 = 1;
/// Enough for firmware, iPXE and the script.
const MEMORY_MIB: u32 = 256;
/// A program to its first words.
const SAYS_WITHIN: Duration = Duration::from_secs(90);
/// Power-on to the boot script; 5 to 15 s on an idle machine.
pub const SCRIPT_WITHIN: Duration = Duration::from_secs(240);
/// From what is on the console to what the daemon noted of it.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// A program that runs as long as this, and what it says.
pub struct Program {
    process: Process,
    log: PathBuf,
}

impl Program {
    /// Starts it; its words go into `<name>.log` beside the other evidence.
    pub fn start(run: &Run, name: &str, mut command: Command) -> Result<Self> {
        let log = run.evidence().join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command.stdout(out.try_clone().context("its log")?).stderr(out);
        Ok(Self { process: Process::start(name, command, Lifetime::Ours)?, log })
    }

    /// What it has said.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until it has said this.
    pub fn says(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + SAYS_WITHIN;
        while !self.log().contains(text) {
            if self.process.ended().is_some() || Instant::now() > deadline {
                bail!("{} does not say {text:?}, but: {}", self.process.name(), self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// See above.
pub struct Place {
    // In this order: first what runs, then where it ran, then the evidence.
    _capture: Capture,
    /// The daemon.
    pub daemon: Program,
    /// Its network.
    pub network: Arc<BootNetwork>,
    /// Its evidence.
    pub run: Run,
}

impl Place {
    /// The daemon serves; `spec` are further lines of its configuration.
    pub fn new(test: &str, spec: &str) -> Result<Self> {
        Self::prepared(test, spec, |_| Ok(()))
    }

    /// As [`Self::new`], after `prepare` had its way with the daemon's network.
    pub fn prepared(test: &str, spec: &str, prepare: impl FnOnce(&BootNetwork) -> Result<()>) -> Result<Self> {
        let run = Run::new(&format!("firmware-{test}"))?;
        let network = Arc::new(BootNetwork::new(&format!("{ADDRESS}/24"))?);
        prepare(&network)?;
        let capture = Capture::start(network.name(), BRIDGE, &run.evidence().join("boot.pcap"))?;
        let dir = run.scratch();
        for folder in ["state", "disks", "files"] {
            fs::create_dir(dir.join(folder)).with_context(|| format!("make {folder}"))?;
        }
        copy_loaders(&dir.join("files"))?;
        for (target, name) in [("x86_64", "kurrent-attest.efi"), ("aarch64", "kurrent-attest-arm64.efi")] {
            let attest = tools::target_dir().join(format!("{target}-unknown-uefi/firmware/kurrent-attest.efi"));
            fs::copy(&attest, dir.join("files").join(name)).with_context(|| format!("copy {} (`make attest`)", attest.display()))?;
        }
        let (config, shown) = (dir.join("kurrent.yaml"), dir.display());
        let text = format!(
            "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata:\n  name: firmware\nspec:\n  stateDir: {shown}/state\n  \
             filesDir: {shown}/files\n  agent:\n    diskDir: {shown}/disks\n{spec}"
        );
        fs::write(&config, text).context("write kurrent.yaml")?;
        let daemon = serve(&run, &network, "kurrentd")?;
        Ok(Self { _capture: capture, daemon, network, run })
    }

    /// The daemon ends; after `prepare` had its way with its folder another one serves, whose log has this name.
    pub fn another_daemon(self, name: &str, prepare: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let Self { _capture, daemon, network, run } = self;
        drop(daemon);
        prepare(run.scratch())?;
        let daemon = serve(&run, &network, name)?;
        Ok(Self { _capture, daemon, network, run })
    }

    /// The API, from inside; it begins to answer beside DHCP and TFTP, not before them.
    pub fn api(&self) -> Result<Api> {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, API_PORT);
        let state = self.run.scratch().join("state");
        let deadline = Instant::now() + SAYS_WITHIN;
        loop {
            let api = Api { address, token: String::new(), netns: Some(self.network.name().to_owned()), ca: None };
            match api.logged_in_at(&state, &state.join("lab-session")) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                outcome => return outcome,
            }
        }
    }

    /// A machine on `network` with OVMF and its own PXE; `settings` are names and texts for the firmware.
    pub fn uefi(&self, network: &Arc<BootNetwork>, settings: &[(&str, &str)]) -> Result<Machine> {
        let firmware_settings = settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        self.start(network, OptionRom::None, |spec| Spec { firmware_settings, ..spec })
    }

    /// A machine on `network` with OVMF and the iPXE of its NIC's option ROM.
    pub fn uefi_with_rom(&self, network: &Arc<BootNetwork>) -> Result<Machine> {
        self.start(network, OptionRom::Ipxe, |spec| spec)
    }

    /// An arm64 machine on `network`.
    pub fn arm64(&self, network: &Arc<BootNetwork>) -> Result<Machine> {
        let variables = self.run.scratch().join("arm64.vars");
        self.start(network, OptionRom::None, |spec| Spec { firmware: Firmware::UefiArm64(variables), ..spec })
    }

    /// A machine on `network` with SeaBIOS and the iPXE of its NIC's option ROM.
    pub fn bios(&self, network: &Arc<BootNetwork>) -> Result<Machine> {
        self.start(network, OptionRom::Ipxe, |spec| Spec { firmware: Firmware::Bios, ..spec })
    }

    fn start(&self, network: &Arc<BootNetwork>, rom: OptionRom, change: impl FnOnce(Spec) -> Spec) -> Result<Machine> {
        let spec = worker::spec(&self.run, &Network::Bridge(Arc::clone(network)), MACHINE, Lifetime::Ours)?;
        let nics = spec.nics.into_iter().map(|nic| Nic { rom, ..nic }).collect();
        Machine::start(&self.run, change(Spec { memory_mib: MEMORY_MIB, nics, ..spec }))
    }

    /// Waits until the machine runs the boot script and the daemon says so, too; what has been on its wire.
    pub fn reaches_script(&self, machine: &mut Machine) -> Result<Seen> {
        machine.console.wait_for(&format!("this machine is {MAC}"), SCRIPT_WITHIN)?;
        let path = format!("/v1/devices/{MAC}/timeline");
        self.api()?.wait_for("step \"script\"", &path, NOTED_WITHIN, |boot| {
            let marks = boot.get("marks")?.as_array()?;
            marks.iter().any(|mark| mark.get("step").and_then(Value::as_str) == Some("script")).then_some(())
        })?;
        let seen = Seen::by(machine)?;
        ensure!(seen.asked(b"GET /boot.ipxe HTTP/1.1\r\n") > 0, "a script, but not ours");
        Ok(seen)
    }

    /// Everything held: no evidence is kept.
    pub fn passed(self, machine: Machine) {
        drop(machine.cut_power());
        let Self { _capture: capture, daemon, network, run } = self;
        drop((capture, daemon, network));
        run.passed();
    }
}

/// `kurrentd` with the configuration in the run's folder.
fn serve(run: &Run, network: &BootNetwork, name: &str) -> Result<Program> {
    let dir = run.scratch();
    let mut command = network.command(env!("CARGO_BIN_EXE_kurrentd"));
    command.arg("run").arg("--config").arg(dir.join("kurrent.yaml")).arg("--status").arg(dir.join("status")).env("KURRENT_LOG", "debug");
    let mut daemon = Program::start(run, name, command)?;
    for what in ["DHCP: serving", "TFTP: serving"] {
        daemon.says(what)?;
    }
    Ok(daemon)
}

/// The stock loaders, from where the image recipe takes them.
pub fn copy_loaders(to: &Path) -> Result<()> {
    let from = tools::target_dir().join("deps/ipxe/usr/lib/ipxe");
    let entries = fs::read_dir(&from).with_context(|| format!("read {} (`make deps` fetches it)", from.display()))?;
    for entry in entries {
        let path = entry.context("the stock loaders")?.path();
        let is_loader = path.extension().is_some_and(|kind| kind == "efi" || kind == "kpxe");
        if let (true, Some(name)) = (is_loader, path.file_name()) {
            fs::copy(&path, to.join(name)).with_context(|| format!("copy {}", path.display()))?;
        }
    }
    Ok(())
}
