//! NICs: which is which, their addresses, and what the screen says about them.

use crate::chain;
use kurrent_core::config::UplinkMode;
use kurrent_core::init::nic::{Chosen, Nic, Refusals, choose};
use kurrent_core::init::plan::Plan;
use kurrent_core::init::screen::NetworkLine;
use kurrent_core::init::status;
use kurrent_core::init::supervise::Service;
use kurrent_core::time::Mono;
use kurrent_sys::clock::now;
use kurrent_sys::link::{self, Address, LinkError};
use kurrent_sys::route;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Kernel index of the loopback interface.
const LOOPBACK: u32 = 1;
/// Where `kurrentd uplink` keeps its lease.
const UPLINK_LEASE: &str = "/run/kurrent/uplink.lease";

/// Prefix length of the boot network's IPv6 address.
const PREFIX6: u8 = 64;

/// A NIC that has just been set up needs some seconds to find its link: no fault before that.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// The state of the networks.
#[derive(Default)]
pub struct Network {
    chosen: Chosen,
    refusals: Refusals,
    /// When a NIC was set up last.
    set_up_at: Option<Mono>,
    addresses: Vec<Address>,
    /// The default route as it was set last.
    route: Option<(u32, Ipv4Addr)>,
    /// Sentences for the screen.
    pub faults: Vec<String>,
}

impl Network {
    /// Looks at the NICs and does what is missing. To be called again and again: NICs and cables come and go.
    pub fn update(&mut self, plan: &Plan, mut say: impl FnMut(&str)) {
        let before = self.chosen.clone();
        self.faults.clear();
        // Each step for itself: what fails on one NIC must not keep the other network from serving.
        let steps = [
            link::set_up(LOOPBACK, true),
            self.look(plan),
            self.hear_routers(),
            self.address_boot(plan),
            self.address_boot6(plan),
            self.address_uplink(plan),
            self.routes(plan),
        ];
        let addresses = link::addresses().map(|addresses| self.addresses = addresses);
        for fault in steps.into_iter().chain([addresses]).filter_map(Result::err) {
            self.faults.push(format!("Network: {}", chain(&fault)));
        }
        self.faults.extend(self.refusals.faults().map(str::to_owned));
        for (network, old, new) in [("boot network", &before.boot, &self.chosen.boot), ("uplink", &before.uplink, &self.chosen.uplink)] {
            let name = |nic: &Option<Nic>| nic.as_ref().map(|nic| nic.name.clone());
            if name(old) != name(new) {
                say(&format!("{network}: {}", name(new).as_deref().unwrap_or("no network card")));
            }
        }
        let settling = self.set_up_at.is_some_and(|at| now().mono.since(at) < LINK_PATIENCE);
        if !settling {
            self.faults.extend(self.chosen.faults.iter().cloned());
        }
    }

    /// Switches every NIC on, because a NIC shows its link only then, and chooses.
    fn look(&mut self, plan: &Plan) -> Result<(), LinkError> {
        let links = link::links()?;
        let down: Vec<(u32, &str)> = links.iter().filter(|link| !link.up).map(|link| (link.index, link.name.as_str())).collect();
        let at = now().mono;
        if self.refusals.switch_on(&down, at, |index| link::set_up(index, true).map_err(|fault| chain(&fault))) {
            self.set_up_at = Some(at);
        }
        let nic = |link: &link::Link| Nic { index: link.index, name: link.name.clone(), mac: link.mac, carrier: link.carrier };
        let nics: Vec<Nic> = links.iter().map(nic).collect();
        self.chosen = choose(plan, &nics, &self.chosen);
        Ok(())
    }

    /// On the boot network the appliance is the router: a machine there gives it neither addresses nor routes. NICs begin so
    /// (`harden`); the uplink is heard from the next advertisement on.
    fn hear_routers(&self) -> Result<(), LinkError> {
        for (nic, heard) in [(&self.chosen.boot, false), (&self.chosen.uplink, true)] {
            nic.as_ref().map_or(Ok(()), |nic| link::hear_routers(&nic.name, heard))?;
        }
        Ok(())
    }

    fn address_boot(&mut self, plan: &Plan) -> Result<(), LinkError> {
        let Some(boot) = &self.chosen.boot else { return Ok(()) };
        self.ensure_address(boot.index, plan.boot_address, plan.boot_prefix).map(|_| ())
    }

    fn address_boot6(&mut self, plan: &Plan) -> Result<(), LinkError> {
        let (Some(boot), Some(address)) = (&self.chosen.boot, plan.boot_address6) else { return Ok(()) };
        if link::addresses6()?.iter().any(|a| a.index == boot.index && a.address == address) {
            return Ok(());
        }
        link::add_address6(boot.index, address, PREFIX6)
    }

    fn address_uplink(&mut self, plan: &Plan) -> Result<(), LinkError> {
        let (Some(uplink), Some(orders)) = (&self.chosen.uplink, &plan.uplink) else { return Ok(()) };
        let UplinkMode::Static { address, prefix, gateway, dns } = &orders.mode else { return Ok(()) };
        let index = uplink.index;
        let added = self.ensure_address(index, *address, *prefix)?;
        if let Some(gateway) = *gateway
            && (added || self.route != Some((index, gateway)))
        {
            // Remembered only when it worked: a NIC that is not up yet takes no route.
            self.route = None;
            route::set_default(index, gateway)?;
            self.route = Some((index, gateway));
        }
        let resolvers: String = dns.iter().map(|server| format!("nameserver {server}\n")).collect();
        // Only for people who look; the appliance's own programs use addresses.
        let _ = std::fs::write("/etc/resolv.conf", resolvers);
        Ok(())
    }

    /// Sets the boot network's routes that are not there: the kernel takes them away with a NIC, and when one goes down.
    fn routes(&self, plan: &Plan) -> Result<(), LinkError> {
        let Some(boot) = self.chosen.boot.as_ref().filter(|_| !plan.boot_routes.is_empty()) else { return Ok(()) };
        let there = route::list()?;
        plan.boot_routes
            .iter()
            .filter(|wanted| !there.contains(&(**wanted, boot.index)))
            .try_for_each(|wanted| route::set(boot.index, *wanted))
    }

    /// Whether the address had to be added.
    fn ensure_address(&self, index: u32, address: Ipv4Addr, prefix: u8) -> Result<bool, LinkError> {
        let wanted = Address { index, address, prefix };
        if self.addresses.contains(&wanted) {
            return Ok(false);
        }
        link::add_address(index, address, prefix).map(|()| true)
    }

    /// What has to run for the networks as they are now.
    pub fn services(&self, plan: &Plan, configuration: &str) -> Vec<Service> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut services = Vec::new();
        if let (Some(uplink), Some(orders)) = (&self.chosen.uplink, &plan.uplink)
            && orders.mode == UplinkMode::Dhcp
        {
            let command = words(&["/usr/bin/kurrentd", "uplink", "--interface", &uplink.name, "--lease-file", UPLINK_LEASE]);
            services.push(Service { name: "uplink", command });
        }
        if self.chosen.boot.is_some() {
            services.push(Service { name: status::WRITER, command: words(&["/usr/bin/kurrentd", "run", "--config", configuration]) });
        }
        services
    }

    /// Boot network and uplink for the screen.
    pub fn lines(&self, plan: &Plan) -> [Option<NetworkLine>; 2] {
        let line = |nic: &Nic, waiting: &str| {
            let own = self.addresses.iter().find(|address| address.index == nic.index);
            NetworkLine {
                nic: nic.name.clone(),
                address: own.map_or_else(|| waiting.to_owned(), |own| format!("{}/{}", own.address, own.prefix)),
                mac: nic.mac.map_or_else(String::new, |mac| mac.to_string()),
                link: nic.carrier,
            }
        };
        let waiting = match plan.uplink.as_ref().map(|uplink| &uplink.mode) {
            Some(UplinkMode::Dhcp) => "waiting for DHCP",
            Some(UplinkMode::Static { .. }) | None => "no address",
        };
        [self.chosen.boot.as_ref().map(|nic| line(nic, "no address")), self.chosen.uplink.as_ref().map(|nic| line(nic, waiting))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kurrent_core::config::InterfaceChoice;
    use kurrent_core::init::UplinkPlan;

    #[test]
    fn only_the_daemon_s_end_takes_the_status_off_the_screen() {
        let plan = Plan {
            hostname: "kurrent".to_owned(),
            boot_interface: InterfaceChoice::Link,
            boot_address: [10, 77, 0, 1].into(),
            boot_prefix: 24,
            boot_address6: None,
            boot_routes: Vec::new(),
            api_port: 8443,
            uplink: Some(UplinkPlan { interface: InterfaceChoice::Link, mode: UplinkMode::Dhcp }),
        };
        let nic = |index: u32| Some(Nic { index, name: format!("eth{index}"), mac: None, carrier: true });
        let chosen = Chosen { boot: nic(0), uplink: nic(1), faults: Vec::new() };
        let services = Network { chosen, ..Network::default() }.services(&plan, "/boot/kurrent.yaml");
        // `kurrentd uplink` is the same program, and ends whenever its cable is pulled.
        let daemon = |service: &Service| service.command.get(1).is_some_and(|word| word == "run");
        assert_eq!(services.len(), 2);
        assert!(services.iter().all(|service| daemon(service) == (service.name == status::WRITER)), "{services:?}");
    }
}
