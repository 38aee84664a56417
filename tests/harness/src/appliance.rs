//! The appliance as an operator has it: its image on a disk, `kurrent.yaml` on its ESP, its screen, `kurrent`, the API.

use crate::api::Api;
use crate::evidence::Run;
use crate::machine::{self, Attachment, Cpu, Firmware, Machine, Nic, OptionRom, Spec};
use crate::netns::BootNetwork;
use crate::process::Lifetime;
use crate::tools::{self, run};
use anyhow::{Context, Result, bail};
use kurrent_core::id::MacAddr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The appliance's address on the boot network.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Our own address there, when we are on it (namespace networks).
pub const OUR_ADDRESS: &str = "10.77.0.2/24";
/// Port of the API.
pub const API_PORT: u16 = 8443;
/// Port of the boot plane.
pub const BOOT_PORT: u16 = 80;
/// What an appliance needs to serve.
pub const MEMORY_MIB: u32 = 256;
/// The lab's disk: room for the master and a few clones (they share their blocks).
pub const DISK_BYTES: u64 = 4 << 30;
/// Power-on to serving; about 10 s on an idle machine, the rest is for loaded ones.
pub const SERVES_WITHIN: Duration = Duration::from_secs(300);

const BOOT_MAC: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x4b, 0x00, 0x01]);
const UPLINK_MAC: MacAddr = MacAddr([0x52, 0x54, 0x00, 0x4b, 0x00, 0x02]);
/// Letters of a first-run token: 128 bits in base32.
const TOKEN_LETTERS: usize = 26;
/// Hex digits of a SHA-256.
const FINGERPRINT_DIGITS: usize = 64;

/// Which boot network machines are plugged into.
#[derive(Clone, Debug)]
pub enum Network {
    /// No privileges; the appliance has an uplink for the API.
    Multicast(SocketAddrV4),
    /// A bridge in a namespace; the API is reached from inside.
    Bridge(Arc<BootNetwork>),
}

impl Network {
    /// The namespace and its bridge, for tests that meddle with it.
    pub fn bridge(&self) -> Result<&BootNetwork> {
        match self {
            Self::Bridge(bridge) => Ok(bridge),
            Self::Multicast(_) => bail!("this network has no bridge"),
        }
    }

    /// A new place on it.
    pub fn attach(&self) -> Result<Attachment> {
        match self {
            Self::Multicast(group) => Ok(Attachment::Multicast(*group)),
            Self::Bridge(network) => Ok(Attachment::Tap { netns: network.name().to_owned(), interface: network.tap()? }),
        }
    }
}

/// A running appliance.
pub struct Appliance {
    /// The machine.
    pub machine: Machine,
    /// Its API, by a session of an admin.
    pub api: Api,
    /// Power-on to "serving" on its screen.
    pub serving_after: Duration,
    network: Network,
}

/// `target/kurrent.img`, made by `make image`.
pub fn image() -> Result<PathBuf> {
    let image = tools::target_dir().join("kurrent.img");
    if !image.exists() {
        bail!("{} is missing; `make image` builds it", image.display());
    }
    Ok(image)
}

/// The configuration of the lab's appliance. Without a namespace it has an uplink.
pub fn configuration(network: &Network) -> String {
    let uplink = match network {
        Network::Multicast(_) => format!("    uplink:\n      interface: \"{UPLINK_MAC}\"\n      mode: dhcp\n"),
        Network::Bridge(_) => String::new(),
    };
    format!(
        "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\nmetadata:\n  name: kurrent-lab\nspec:\n  networking:\n    boot:\n      \
         interface: \"{BOOT_MAC}\"\n      address: {ADDRESS}/24\n{uplink}"
    )
}

impl Appliance {
    /// Boots a fresh copy of the image with `configuration` on its ESP and waits until it serves.
    pub fn boot(lab: &Run, network: &Network, configuration: &str, lifetime: Lifetime) -> Result<Self> {
        let spec = Self::prepare(lab, network, configuration, lifetime)?;
        Self::start(lab, network, spec)
    }

    /// The disk and the machine, not yet started.
    pub fn prepare(lab: &Run, network: &Network, configuration: &str, lifetime: Lifetime) -> Result<Spec> {
        let disk = lab.scratch().join("appliance.img");
        machine::copy_disk(&image()?, &disk, DISK_BYTES)?;
        write_configuration(lab.scratch(), &disk, configuration)?;
        let mut nics = vec![Nic { mac: BOOT_MAC, attachment: network.attach()?, rom: OptionRom::None }];
        if matches!(network, Network::Multicast(_)) {
            let attachment = Attachment::User(vec![(machine::free_port()?, API_PORT)]);
            nics.push(Nic { mac: UPLINK_MAC, attachment, rom: OptionRom::None });
        }
        Ok(Spec {
            name: "appliance".into(),
            memory_mib: MEMORY_MIB,
            cpu: Cpu::Usual,
            disk: Some(disk),
            firmware: Firmware::Uefi(lab.scratch().join("appliance.vars")),
            firmware_settings: Vec::new(),
            nics,
            uuid: "6b757272-656e-7400-0000-000000000001".into(),
            lifetime,
        })
    }

    /// Starts the machine (again) and waits until it serves.
    pub fn start(lab: &Run, network: &Network, spec: Spec) -> Result<Self> {
        let api_address = match network {
            Network::Multicast(_) => SocketAddrV4::new(Ipv4Addr::LOCALHOST, forwarded_port(&spec)?),
            Network::Bridge(_) => SocketAddrV4::new(ADDRESS, API_PORT),
        };
        let netns = match network {
            Network::Multicast(_) => None,
            Network::Bridge(bridge) => Some(bridge.name().to_owned()),
        };
        let mut machine = Machine::start(lab, spec)?;
        // On the boot network it serves from here on; the API through an uplink follows when that has its address.
        let serving_after = machine.console.wait_for(" serving", SERVES_WITHIN)?.at - machine.started;
        let first_run = machine.console.wait_until("the first-run token or the admins on the screen", SERVES_WITHIN, find_way_in)?;
        // Anywhere: it is drawn before or after the token, as the daemon gets to it.
        let shown = || find_fingerprint(&machine.console.text());
        wait_until("the CA's fingerprint on the screen", SERVES_WITHIN, || Ok(shown().is_some()))?;
        let ca = shown().context("the CA's fingerprint")?;
        let api = Api { address: api_address, token: String::new(), netns, ca: Some(ca) };
        let deadline = Instant::now() + SERVES_WITHIN;
        let api = loop {
            match api.clone().logged_in(first_run.as_deref()) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(200)),
                other => break other,
            }
        };
        let api = api.with_context(|| format!("the appliance does not serve; its screen:\n{}", machine.console.text()))?;
        Ok(Self { machine, api, serving_after, network: network.clone() })
    }

    /// Cuts its power and starts it again on the same disk.
    pub fn cut_power_and_restart(self, lab: &Run) -> Result<Self> {
        let network = self.network.clone();
        let spec = self.machine.cut_power();
        Self::start(lab, &network, spec)
    }

    /// `kurrent` with these arguments, as the operator's shell would run it; its output.
    pub fn kurrent(&self, arguments: &[&str]) -> Result<String> {
        run(self.kurrent_command()?.args(arguments))
    }

    /// `kurrent`, told where the appliance is. The token is in its environment, not in its arguments.
    pub fn kurrent_command(&self) -> Result<Command> {
        let program = program("kurrent")?;
        let mut command = match &self.network {
            Network::Multicast(_) => Command::new(program),
            Network::Bridge(bridge) => bridge.command(program),
        };
        command.env("KURRENT_URL", self.api.url()).env("KURRENT_TOKEN", &self.api.token);
        command.env("KURRENT_CA_FINGERPRINT", self.api.ca.as_deref().unwrap_or_default());
        Ok(command)
    }

    /// Writes audit and device list into the evidence.
    pub fn record(&self, lab: &Run) {
        for (name, path) in
            [("operations", "/v1/operations"), ("devices", "/v1/devices"), ("target", "/v1/target"), ("leases", "/v1/leases")]
        {
            let text = self.api.get(path).map_or_else(|error| format!("{error:#}\n"), |value| format!("{value:#}\n"));
            let _ = fs::write(lab.evidence().join(format!("{name}.json")), text);
        }
    }
}

/// One of the project's own programs, beside this one or in cargo's target folder.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("where am I")?;
    // Test programs are in `deps/`, one below the others.
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("program `{name}` is not built; `make build` does it"))
}

fn forwarded_port(spec: &Spec) -> Result<u16> {
    let forwards = spec.nics.iter().filter_map(|nic| match &nic.attachment {
        Attachment::User(forwards) => forwards.first(),
        Attachment::Multicast(_) | Attachment::Tap { .. } => None,
    });
    forwards.map(|(host, _)| *host).next().context("an appliance without an uplink has no forwarded port")
}

/// The first-run token, or that somebody has used it.
fn find_way_in(text: &str) -> Option<(Option<String>, usize)> {
    let used = || text.find("kurrent login").map(|at| (None, at));
    find_token(text).map(|(token, end)| (Some(token), end)).or_else(used)
}

/// The first-run token that a screen has shown, if it has.
pub fn shown_token(screen: &str) -> Option<String> {
    find_token(screen).map(|(token, _)| token)
}

/// The first-run token as the screen shows it: a word of 26 base32 letters on a line that says "token".
fn find_token(text: &str) -> Option<(String, usize)> {
    let is_token = |word: &&str| word.len() == TOKEN_LETTERS && word.chars().all(|c| matches!(c, 'A'..='Z' | '2'..='7' | 'a'..='z'));
    // Only whole lines: half a token must not be taken for one.
    let whole = text.get(..text.rfind('\n')?)?;
    let line = whole.lines().find(|line| line.to_ascii_lowercase().contains("token") && line.split_whitespace().any(|w| is_token(&w)))?;
    let token = line.split_whitespace().find(is_token)?;
    Some((token.to_owned(), text.find(token)? + token.len()))
}

/// The CA's fingerprint as the screen shows it: 64 hex digits on a line of its own.
fn find_fingerprint(text: &str) -> Option<String> {
    let is_fingerprint = |word: &&str| word.len() == FINGERPRINT_DIGITS && word.bytes().all(|b| b.is_ascii_hexdigit());
    let whole = text.get(..text.rfind('\n')?)?;
    let line = whole.lines().find(|line| line.contains("CA SHA-256"))?;
    let fingerprint = line.split_whitespace().find(is_fingerprint)?;
    Some(fingerprint.to_owned())
}

/// Puts `kurrent.yaml` onto the ESP of a raw image, without mounting it.
pub fn write_configuration(scratch: &Path, disk: &Path, text: &str) -> Result<()> {
    let file = scratch.join("kurrent.yaml");
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    let start = esp_offset(disk)?;
    let mut copy = Command::new("mcopy");
    copy.env("MTOOLS_SKIP_CHECK", "1").arg("-o").arg("-i").arg(format!("{}@@{start}", disk.display())).arg(&file).arg("::kurrent.yaml");
    run(&mut copy).map(drop)
}

/// Copies a file out of the ESP of a raw image.
pub fn read_from_esp(disk: &Path, name: &str, to: &Path) -> Result<()> {
    let start = esp_offset(disk)?;
    let mut copy = Command::new("mcopy");
    copy.env("MTOOLS_SKIP_CHECK", "1").args(["-n", "-o", "-i"]).arg(format!("{}@@{start}", disk.display()));
    run(copy.arg(format!("::{name}")).arg(to)).map(drop)
}

/// Byte offset and length of the partition of this name.
pub fn partition(disk: &Path, name: &str) -> Result<(u64, u64)> {
    let table = gpt::GptConfig::new().writable(false).open(disk).with_context(|| format!("read the partitions of {}", disk.display()))?;
    let partition = table.partitions().values().find(|p| p.name == name).with_context(|| format!("no partition {name}"))?;
    let block = gpt::disk::LogicalBlockSize::Lb512;
    Ok((partition.bytes_start(block).context("start of a partition")?, partition.bytes_len(block).context("length of a partition")?))
}

/// Byte offset of the ESP.
fn esp_offset(disk: &Path) -> Result<u64> {
    let table = gpt::GptConfig::new().writable(false).open(disk).with_context(|| format!("read the partitions of {}", disk.display()))?;
    let esp = table.partitions().values().find(|p| p.part_type_guid == gpt::partition_types::EFI).context("the image has no ESP")?;
    esp.bytes_start(gpt::disk::LogicalBlockSize::Lb512).context("start of the ESP")
}

/// Waits until `condition` holds, asking again and again.
pub fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + within;
    loop {
        let outcome = condition();
        if matches!(outcome, Ok(true)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("not within {} s: {what} ({outcome:?})", within.as_secs());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_read_from_a_whole_line_only() {
        assert_eq!(find_token("first-run token  ABCDEFGHIJKLMNOPQRSTUVWXYZ"), None);
        let found = find_token("API token below\n first-run token  ABCDEFGHIJKLMNOPQRSTUVWXY2 \nnext");
        assert_eq!(found.map(|(token, _)| token), Some("ABCDEFGHIJKLMNOPQRSTUVWXY2".to_owned()));
    }

    #[test]
    fn the_fingerprint_is_read_from_a_whole_line_only() {
        let digits = "0123456789abcdef".repeat(4);
        assert_eq!(find_fingerprint(&format!("CA SHA-256     {digits}")), None);
        let found = find_fingerprint(&format!("other {digits}0\nCA SHA-256     {digits} \nnext"));
        assert_eq!(found, Some(digits));
    }
}
