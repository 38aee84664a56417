//! What an operator types: every order goes through the real `kurrent` program.

use crate::appliance::Appliance;
use anyhow::{Context, Result};
use kurrent_core::id::MacAddr;
use std::path::Path;

/// Minutes the window stays open; closed by hand before that where it matters.
const WINDOW_MINUTES: &str = "15";

/// `kurrent` at one appliance.
pub struct Operator<'a>(pub &'a Appliance);

impl Operator<'_> {
    /// Opens the registration window.
    pub fn open_window(&self) -> Result<()> {
        self.0.kurrent(&["window", "open", "--minutes", WINDOW_MINUTES]).context("open the registration window").map(drop)
    }

    /// Closes it.
    pub fn close_window(&self) -> Result<()> {
        self.0.kurrent(&["window", "close"]).context("close the registration window").map(drop)
    }

    /// Sends a master image.
    pub fn import_master(&self, name: &str, image: &Path) -> Result<()> {
        let image = image.to_str().context("the path of the master is not UTF-8")?;
        self.0.kurrent(&["master", "import", image, "--name", name]).context("import the master").map(drop)
    }

    /// Creates a Worker.
    pub fn create_worker(&self, worker: &str) -> Result<()> {
        self.0.kurrent(&["worker", "create", worker]).with_context(|| format!("create Worker {worker}")).map(drop)
    }

    /// Clones the lab's master to a system disk of the Worker; returns when it is there.
    pub fn clone_disk(&self, worker: &str) -> Result<()> {
        let arguments = ["disk", "create", worker, "--os", "debian", "--os-version", "12", "--master", crate::master::MASTER_NAME];
        self.0.kurrent(&arguments).with_context(|| format!("clone a disk for {worker}")).map(drop)
    }

    /// Binds a device to a Worker.
    pub fn bind(&self, mac: MacAddr, worker: &str) -> Result<()> {
        self.0.kurrent(&["device", "bind", &mac.to_string(), worker]).with_context(|| format!("bind {mac} to {worker}")).map(drop)
    }

    /// Binds a device to a Worker in the place of whichever has it; returns when that one is cut off.
    pub fn rebind(&self, mac: MacAddr, worker: &str) -> Result<()> {
        let arguments = ["device", "bind", &mac.to_string(), worker, "--force"];
        self.0.kurrent(&arguments).with_context(|| format!("bind {mac} to {worker} by force")).map(drop)
    }

    /// Revokes a device.
    pub fn revoke(&self, mac: MacAddr) -> Result<()> {
        self.0.kurrent(&["device", "revoke", &mac.to_string()]).with_context(|| format!("revoke {mac}")).map(drop)
    }
}
