//! A boot network whose script the test writes while the machine runs it: dnsmasq has addresses and files.

use crate::firmware::place::{Program, copy_loaders};
use anyhow::{Context, Result};
use kurrent_core::id::MacAddr;
use kurrent_harness::appliance::{ADDRESS, Network};
use kurrent_harness::capture::Capture;
use kurrent_harness::evidence::Run;
use kurrent_harness::machine::{Machine, Spec};
use kurrent_harness::netns::{BRIDGE, BootNetwork};
use kurrent_harness::process::Lifetime;
use kurrent_harness::{tools, worker};
use std::fs;
use std::sync::Arc;

/// The machine.
pub const MAC: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x77, 0x00, MACHINE]);
const MACHINE: u8 = 1;

/// See above.
pub struct Plane {
    // In this order: first what runs, then where it ran, then the evidence.
    capture: Capture,
    dnsmasq: Program,
    /// Its network.
    pub network: Arc<BootNetwork>,
    /// Its evidence.
    pub run: Run,
    steps: u32,
}

impl Plane {
    /// Addresses, the stock loader, and a script that takes one step after the other.
    pub fn new(test: &str) -> Result<Self> {
        let run = Run::new(&format!("firmware-{test}"))?;
        let network = Arc::new(BootNetwork::new(&format!("{ADDRESS}/24"))?);
        let capture = Capture::start(network.name(), BRIDGE, &run.evidence().join("boot.pcap"))?;
        let files = run.scratch().join("files");
        fs::create_dir(&files).context("make files")?;
        copy_loaders(&files)?;
        let attest = tools::target_dir().join("x86_64-unknown-uefi/firmware/kurrent-attest.efi");
        fs::copy(&attest, files.join("kurrent-attest.efi")).with_context(|| format!("copy {} (`make attest`)", attest.display()))?;
        // A step that is not there yet, or that fails, is tried again.
        let script = format!(
            "#!ipxe\nisset ${{netX/ip}} || dhcp ||\nset step:int32 1\n:next\n\
             chain --autofree tftp://{ADDRESS}/step-${{step}}.ipxe && inc step ||\nsleep 1\ngoto next\n"
        );
        fs::write(files.join("autoexec.ipxe"), script).context("write the script")?;
        let mut command = network.command("dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file="]);
        command.args([&format!("--interface={BRIDGE}"), "--bind-interfaces", "--dhcp-range=10.77.0.100,10.77.0.150,1h", "--no-ping"]);
        command.args(["--log-facility=-", &format!("--dhcp-leasefile={}", run.scratch().join("leases").display())]);
        command.args(["--dhcp-boot=snponly.efi", "--enable-tftp", &format!("--tftp-root={}", files.display())]);
        let mut dnsmasq = Program::start(&run, "dnsmasq", command)?;
        dnsmasq.says("TFTP root is")?;
        Ok(Self { capture, dnsmasq, network, run, steps: 0 })
    }

    /// The machine, from power-on.
    pub fn machine(&self, memory_mib: u32) -> Result<Machine> {
        let spec = worker::spec(&self.run, &Network::Bridge(Arc::clone(&self.network)), MACHINE, Lifetime::Ours)?;
        Machine::start(&self.run, Spec { memory_mib, ..spec })
    }

    /// The next lines that the machine runs.
    pub fn step(&mut self, lines: &str) -> Result<()> {
        self.steps += 1;
        let file = self.run.scratch().join(format!("files/step-{}.ipxe", self.steps));
        let unfinished = file.with_extension("new");
        fs::write(&unfinished, format!("#!ipxe\n{lines}\nexit 0\n")).context("write a step")?;
        fs::rename(&unfinished, &file).context("name a step")
    }

    /// Everything held: no evidence is kept.
    pub fn passed(self, machine: Machine) {
        drop(machine.cut_power());
        let Self { capture, dnsmasq, network, run, .. } = self;
        drop((capture, dnsmasq, network));
        run.passed();
    }
}

/// A line of script that runs the firmware program.
pub fn attest(words: &str) -> String {
    format!("chain --autofree tftp://{ADDRESS}/kurrent-attest.efi {words}")
}

/// Octets as iPXE's `hexraw` and the firmware program's arguments have them.
pub fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}
