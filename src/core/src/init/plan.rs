//! What PID 1 needs from `kurrent.yaml`, as `key=value` lines: `kurrentd plan` writes them, PID 1, which reads no YAML,
//! reads them. Both sides use this one encoder and this one parser.
//!
//! ```text
//! hostname=kurrent
//! boot.interface=link            # or name:eth0, or mac:52:54:00:12:34:56
//! boot.address=10.77.0.1/24
//! boot.address6=fd00:77::1/64    # absent when there is none
//! boot.route=10.78.0.0/24,10.77.0.254    # a network and its next hop; repeats, absent when there is none
//! api.port=8443
//! uplink.interface=name:eth1     # the uplink lines are absent when there is none
//! uplink.mode=dhcp               # or static, with uplink.address, uplink.gateway, uplink.dns (repeats)
//! ```

use super::line;
use crate::config::{Config, InterfaceChoice, Route, UplinkMode};
use std::net::{Ipv4Addr, Ipv6Addr};

/// PID 1's orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One DNS label.
    pub hostname: String,
    /// Which NIC is on the boot network.
    pub boot_interface: InterfaceChoice,
    /// Own address there.
    pub boot_address: Ipv4Addr,
    /// Prefix length there.
    pub boot_prefix: u8,
    /// Own IPv6 address there, of a prefix of 64 bits.
    pub boot_address6: Option<Ipv6Addr>,
    /// Networks behind routers of the boot network.
    pub boot_routes: Vec<Route>,
    /// For the screen.
    pub api_port: u16,
    /// The other NIC, if there is one.
    pub uplink: Option<UplinkPlan>,
}

/// The uplink's orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkPlan {
    /// Which NIC.
    pub interface: InterfaceChoice,
    /// How it gets its address.
    pub mode: UplinkMode,
}

/// Why lines are not a plan. Only a `kurrentd` of another version can cause it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A key this version does not know, or one that is there twice.
    #[error("unexpected line {0:?} in the plan")]
    Unexpected(String),
    /// A key that has to be there.
    #[error("the plan lacks {0}")]
    Missing(&'static str),
    /// A value that does not read.
    #[error("{key}={value} in the plan is not valid")]
    Invalid {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: String,
    },
}

impl Plan {
    /// What PID 1 has to know of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            hostname: config.name.clone(),
            boot_interface: config.boot_network.interface.clone(),
            boot_address: config.boot_network.address,
            boot_prefix: config.boot_network.prefix,
            boot_address6: config.ipv6.as_ref().map(|ipv6| ipv6.address),
            boot_routes: config.dhcp.routes.clone(),
            api_port: config.api_port,
            uplink: config.uplink.as_ref().map(|uplink| UplinkPlan { interface: uplink.interface.clone(), mode: uplink.mode.clone() }),
        }
    }

    /// The lines.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        line(&mut text, "hostname", &self.hostname);
        line(&mut text, "boot.interface", choice_text(&self.boot_interface));
        line(&mut text, "boot.address", format_args!("{}/{}", self.boot_address, self.boot_prefix));
        if let Some(address) = self.boot_address6 {
            line(&mut text, "boot.address6", format_args!("{address}/64"));
        }
        for Route { network, prefix, via } in &self.boot_routes {
            line(&mut text, "boot.route", format_args!("{network}/{prefix},{via}"));
        }
        line(&mut text, "api.port", self.api_port);
        let Some(uplink) = &self.uplink else { return text };
        line(&mut text, "uplink.interface", choice_text(&uplink.interface));
        match &uplink.mode {
            UplinkMode::Dhcp => line(&mut text, "uplink.mode", "dhcp"),
            UplinkMode::Static { address, prefix, gateway, dns } => {
                line(&mut text, "uplink.mode", "static");
                line(&mut text, "uplink.address", format_args!("{address}/{prefix}"));
                if let Some(gateway) = gateway {
                    line(&mut text, "uplink.gateway", gateway);
                }
                for server in dns {
                    line(&mut text, "uplink.dns", server);
                }
            }
        }
        text
    }

    /// Reads the lines back.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut fields = Fields::read(text)?;
        let hostname = fields.take("hostname")?.ok_or(PlanError::Missing("hostname"))?;
        let boot_interface = fields.required("boot.interface", parse_choice)?;
        let (boot_address, boot_prefix) = fields.required("boot.address", parse_network)?;
        let boot_address6 = fields.optional("boot.address6", |text| text.strip_suffix("/64")?.parse().ok())?;
        let boot_routes = fields.all("boot.route", parse_route)?;
        let api_port = fields.required("api.port", |text| text.parse().ok())?;
        let mode: Option<String> = fields.take("uplink.mode")?;
        let uplink = match mode.as_deref() {
            None => None,
            Some("dhcp") => Some(UplinkPlan { interface: fields.required("uplink.interface", parse_choice)?, mode: UplinkMode::Dhcp }),
            Some("static") => {
                let interface = fields.required("uplink.interface", parse_choice)?;
                let (address, prefix) = fields.required("uplink.address", parse_network)?;
                let gateway = fields.optional("uplink.gateway", |text| text.parse().ok())?;
                let dns = fields.all("uplink.dns", |text| text.parse().ok())?;
                Some(UplinkPlan { interface, mode: UplinkMode::Static { address, prefix, gateway, dns } })
            }
            Some(other) => return Err(PlanError::Invalid { key: "uplink.mode", value: other.to_owned() }),
        };
        fields.finish()?;
        Ok(Self { hostname, boot_interface, boot_address, boot_prefix, boot_address6, boot_routes, api_port, uplink })
    }
}

fn choice_text(choice: &InterfaceChoice) -> String {
    match choice {
        InterfaceChoice::Name(name) => format!("name:{name}"),
        InterfaceChoice::Mac(mac) => format!("mac:{mac}"),
        InterfaceChoice::Link => "link".to_owned(),
    }
}

fn parse_choice(text: &str) -> Option<InterfaceChoice> {
    match text.split_once(':') {
        None if text == "link" => Some(InterfaceChoice::Link),
        Some(("name", name)) if !name.is_empty() => Some(InterfaceChoice::Name(name.to_owned())),
        Some(("mac", mac)) => mac.parse().ok().map(InterfaceChoice::Mac),
        _ => None,
    }
}

fn parse_network(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    Some((address.parse().ok()?, prefix.parse().ok().filter(|prefix| *prefix <= 32)?))
}

fn parse_route(text: &str) -> Option<Route> {
    let (network, via) = text.split_once(',')?;
    let (network, prefix) = parse_network(network)?;
    Some(Route { network, prefix, via: via.parse().ok()? })
}

/// The lines not yet taken.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn read(text: &str) -> Result<Self, PlanError> {
        let split = |line: &str| match line.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(PlanError::Unexpected(line.to_owned())),
        };
        text.lines().filter(|line| !line.is_empty()).map(split).collect::<Result<_, _>>().map(Self)
    }

    fn take(&mut self, key: &str) -> Result<Option<String>, PlanError> {
        let Some(at) = self.0.iter().position(|(name, _)| name == key) else { return Ok(None) };
        let (_, value) = self.0.remove(at);
        match self.0.iter().find(|(name, _)| name == key) {
            None => Ok(Some(value)),
            Some((name, again)) => Err(PlanError::Unexpected(format!("{name}={again}"))),
        }
    }

    fn optional<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, PlanError> {
        let Some(value) = self.take(key)? else { return Ok(None) };
        read(&value).map(Some).ok_or(PlanError::Invalid { key, value })
    }

    fn required<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Option<T>) -> Result<T, PlanError> {
        self.optional(key, read)?.ok_or(PlanError::Missing(key))
    }

    fn all<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, PlanError> {
        let (mine, others) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| name == key);
        self.0 = others;
        let mine: Vec<(String, String)> = mine;
        mine.into_iter().map(|(_, value)| read(&value).ok_or(PlanError::Invalid { key, value })).collect()
    }

    fn finish(self) -> Result<(), PlanError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((key, value)) => Err(PlanError::Unexpected(format!("{key}={value}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(uplink: Option<UplinkPlan>) -> Plan {
        Plan {
            hostname: "kurrent".to_owned(),
            boot_interface: InterfaceChoice::Link,
            boot_address: Ipv4Addr::new(10, 77, 0, 1),
            boot_prefix: 24,
            boot_address6: None,
            boot_routes: Vec::new(),
            api_port: 8443,
            uplink,
        }
    }

    #[test]
    fn every_plan_reads_back_as_it_was() {
        let mac = "52:54:00:12:34:56".parse().unwrap();
        let full = UplinkMode::Static {
            address: Ipv4Addr::new(192, 0, 2, 9),
            prefix: 25,
            gateway: Some(Ipv4Addr::new(192, 0, 2, 1)),
            dns: vec![Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 3)],
        };
        let bare = UplinkMode::Static { address: Ipv4Addr::new(192, 0, 2, 9), prefix: 25, gateway: None, dns: vec![] };
        let mut plans = vec![plan(None), Plan { boot_address6: Some("fd00:77::1".parse().unwrap()), ..plan(None) }];
        let route = |net: u8| Route { network: Ipv4Addr::new(10, net, 0, 0), prefix: 16, via: Ipv4Addr::new(10, 77, 0, 254) };
        plans.push(Plan { boot_routes: vec![route(78), route(79)], ..plan(None) });
        for mode in [UplinkMode::Dhcp, full, bare] {
            for interface in [InterfaceChoice::Link, InterfaceChoice::Mac(mac), InterfaceChoice::Name("enp1s0:1".to_owned())] {
                plans.push(plan(Some(UplinkPlan { interface, mode: mode.clone() })));
            }
        }
        for plan in plans {
            assert_eq!(Plan::parse(&plan.encode()).as_ref(), Ok(&plan), "{}", plan.encode());
        }
    }

    #[test]
    fn lines_that_are_no_plan_are_refused_by_name() {
        let good = plan(None).encode();
        let check = |text: String, expected: &str| assert_eq!(Plan::parse(&text).unwrap_err().to_string(), expected);
        check(good.replace("hostname=kurrent\n", ""), "the plan lacks hostname");
        check(good.replace("/24", "/33"), "boot.address=10.77.0.1/33 in the plan is not valid");
        check(format!("{good}boot.address6=fd00:77::1/48\n"), "boot.address6=fd00:77::1/48 in the plan is not valid");
        check(format!("{good}boot.route=10.78.0.0/24\n"), "boot.route=10.78.0.0/24 in the plan is not valid");
        check(format!("{good}boot.route=10.78.0.0/33,10.77.0.254\n"), "boot.route=10.78.0.0/33,10.77.0.254 in the plan is not valid");
        check(good.replace("=link", "=mac:1"), "boot.interface=mac:1 in the plan is not valid");
        check(format!("{good}api.port=1\n"), "unexpected line \"api.port=1\" in the plan");
        check(format!("{good}colour=red\n"), "unexpected line \"colour=red\" in the plan");
        check(format!("{good}nonsense\n"), "unexpected line \"nonsense\" in the plan");
        check(format!("{good}uplink.mode=maybe\n"), "uplink.mode=maybe in the plan is not valid");
        check(format!("{good}uplink.mode=dhcp\n"), "the plan lacks uplink.interface");
    }
}
