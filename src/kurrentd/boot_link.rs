//! The NIC of the boot network: which it is, and what serves there only as long as it is that one. A socket that is bound to a NIC
//! hears nothing any more when that NIC was taken out and put in again, and the kernel says nothing of it.

use crate::shared::SharedRef;
use anyhow::{Context, anyhow, bail};
use kurrent_core::config::{Config, InterfaceChoice};
use kurrent_sys::link::Link;
use std::future::Future;
use std::net::Ipv6Addr;
use std::time::Duration;

/// How often is looked whether the NIC is still there and has its address.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Serves on the NIC that `find` finds, until that is another one or has lost its address. Cancel-safe if `serve` is.
///
/// # Errors
/// What `find` and `serve` say.
pub async fn serve<S, R>(shared: SharedRef, find: impl Fn(&Config) -> anyhow::Result<Link> + Send, serve: S) -> anyhow::Result<()>
where
    S: FnOnce(SharedRef, String) -> R + Send,
    R: Future<Output = anyhow::Result<()>> + Send,
{
    let link = find(&shared.config)?;
    tokio::select! {
        ended = serve(shared.clone(), link.name.clone()) => ended,
        why = gone(&shared.config, &link, &find) => Err(why),
    }
}

/// Waits until the NIC is not the one it was; why.
async fn gone(config: &Config, link: &Link, find: &(impl Fn(&Config) -> anyhow::Result<Link> + Send)) -> anyhow::Error {
    let mut missed = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        match find(config) {
            Ok(now) if now.index == link.index => missed = false,
            Ok(now) => {
                return anyhow!("the boot network's NIC {} was put in anew as {}; what serves there begins anew", link.name, now.name);
            }
            // An address that is being replaced is missing for a moment.
            Err(_) if !missed => missed = true,
            Err(error) => return error,
        }
    }
}

/// The NIC that has the boot network's address; whoever set the address (PID 1, or the host's administrator) chose it.
///
/// # Errors
/// None has it, or another one than the configuration says.
pub fn find(config: &Config) -> anyhow::Result<Link> {
    let network = &config.boot_network;
    let address = network.address;
    let found = kurrent_sys::link::addresses()?.into_iter().find(|a| a.address == address);
    let Some(found) = found else {
        bail!(
            "no NIC has the boot network's address {address}; give it one (ip address add {address}/{} dev NIC), or correct spec.networking.boot",
            network.prefix
        );
    };
    let links = kurrent_sys::link::links()?;
    let link = links.into_iter().find(|l| l.index == found.index).with_context(|| format!("{address} is not on an Ethernet NIC"))?;
    let right = match &network.interface {
        InterfaceChoice::Name(name) => *name == link.name,
        InterfaceChoice::Mac(mac) => link.mac == Some(*mac),
        InterfaceChoice::Link => true,
    };
    if !right {
        bail!(
            "the boot network's address {address} is on {}, not on the NIC of spec.networking.boot.interface; move one of them",
            link.name
        );
    }
    Ok(link)
}

/// [`find`], which must have the IPv6 address, too: what we name in offers and prefixes must be there.
///
/// # Errors
/// As [`find`], or the IPv6 address is not there.
pub fn find6(config: &Config, address: Ipv6Addr) -> anyhow::Result<Link> {
    let link = find(config)?;
    if !kurrent_sys::link::addresses6()?.iter().any(|a| a.index == link.index && a.address == address) {
        let interface = link.name;
        bail!(
            "{interface} has not the boot network's address {address}, or another machine has it; give it one (ip address add {address}/64 dev {interface} nodad), or correct spec.networking.boot.address6"
        );
    }
    Ok(link)
}
