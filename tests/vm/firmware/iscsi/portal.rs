//! An iSCSI target of another project (tgt, from Debian), which takes nobody without CHAP and proves itself by CHAP.

use super::plane::Plane;
use crate::firmware::place::Program;
use anyhow::{Context, Result, bail};
use kurrent_handshake::Chap;
use kurrent_harness::appliance::ADDRESS;
use kurrent_harness::netns::BootNetwork;
use kurrent_harness::tools;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "iqn.2026-11.lab.kurrent:atlas.system";
const FIRST_PORT: u16 = 3260;
/// iPXE's numbers of disks begin here.
const FIRST_DRIVE: u16 = 0x80;
/// From its start until it takes orders.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A running target with one disk.
pub struct Portal {
    _program: Program,
    network: Arc<BootNetwork>,
    scratch: PathBuf,
    number: u16,
}

impl Portal {
    /// Serves `disk` to who knows the login.
    pub fn start(plane: &Plane, number: u16, disk: &Path, chap: &Chap<'_>) -> Result<Self> {
        let (network, scratch) = (Arc::clone(&plane.network), plane.run.scratch().to_owned());
        let mut command = tool(&network, &scratch, number, "tgtd");
        command.args(["--foreground", "--iscsi", &format!("portal={ADDRESS}:{}", FIRST_PORT + number)]);
        let program = Program::start(&plane.run, &format!("tgtd-{number}"), command)?;
        let portal = Self { _program: program, network, scratch, number };
        let deadline = Instant::now() + ANSWERS_WITHIN;
        while let Err(error) = portal.order("sys", "show", &[]) {
            if Instant::now() > deadline {
                return Err(error.context("tgtd takes no orders"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        portal.order("target", "new", &["--tid", "1", "--targetname", NAME])?;
        let disk = disk.to_str().context("the disk's path")?;
        portal.order("logicalunit", "new", &["--tid", "1", "--lun", "1", "--backing-store", disk])?;
        for (user, secret, direction) in [(chap.user, chap.secret, None), (chap.mutual_user, chap.mutual_secret, Some("--outgoing"))] {
            portal.order("account", "new", &["--user", user, "--password", secret])?;
            portal.order("account", "bind", &[&["--tid", "1", "--user", user], direction.as_slice()].concat())?;
        }
        portal.order("target", "bind", &["--tid", "1", "--initiator-address", "ALL"])?;
        Ok(portal)
    }

    /// How iPXE names its disk (RFC 4173).
    pub fn uri(&self) -> String {
        format!("iscsi:{ADDRESS}::{}:1:{NAME}", FIRST_PORT + self.number)
    }

    /// The number of its disk in iPXE.
    pub fn drive(&self) -> String {
        format!("{:#x}", FIRST_DRIVE + self.number)
    }

    /// How many are logged in.
    pub fn sessions(&self) -> Result<usize> {
        let shown = self.order("target", "show", &[])?;
        if !shown.contains(NAME) {
            bail!("the target is not there: {shown}");
        }
        Ok(shown.lines().filter(|line| line.trim_start().starts_with("I_T nexus:")).count())
    }

    fn order(&self, mode: &str, operation: &str, more: &[&str]) -> Result<String> {
        let mut command = tool(&self.network, &self.scratch, self.number, "tgtadm");
        tools::run(command.args(["--lld", "iscsi", "--mode", mode, "--op", operation]).args(more))
    }
}

/// A program of tgt, unpacked by `make deps`. Its socket is in the run's folder, and so is its working folder: paths of sockets are
/// limited to 107 octets.
fn tool(network: &BootNetwork, scratch: &Path, number: u16, name: &str) -> Command {
    let unpacked = tools::target_dir().join("deps/unpacked/usr");
    let mut command = network.command(unpacked.join("sbin").join(name));
    command.current_dir(scratch).env("TGT_IPC_SOCKET", "tgtd").env("LD_LIBRARY_PATH", unpacked.join("lib/x86_64-linux-gnu"));
    command.args(["--control-port", &number.to_string()]);
    command
}
