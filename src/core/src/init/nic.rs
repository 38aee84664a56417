//! Which NIC is on the boot network and which is the uplink.

use super::plan::Plan;
use crate::config::InterfaceChoice;
use crate::id::MacAddr;
use crate::time::Mono;
use std::collections::BTreeMap;
use std::time::Duration;

/// Before a NIC that refused is tried again: each attempt costs seconds in some drivers and lines in the kernel's log in all.
const REFUSED_WAIT: Duration = Duration::from_secs(10);

/// A NIC as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Kernel index.
    pub index: u32,
    /// Kernel name.
    pub name: String,
    /// Hardware address.
    pub mac: Option<MacAddr>,
    /// A cable with something at the other end.
    pub carrier: bool,
}

/// What was found, and for what was not, why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// On the boot network.
    pub boot: Option<Nic>,
    /// Uplink.
    pub uplink: Option<Nic>,
    /// Sentences for the screen.
    pub faults: Vec<String>,
}

/// Chooses. What was chosen before (`earlier`, by name) stays chosen as long as it is there: a cable pulled out and put
/// back must not swap the networks.
#[must_use]
pub fn choose(plan: &Plan, nics: &[Nic], earlier: &Chosen) -> Chosen {
    let mut chosen = Chosen::default();
    if nics.is_empty() {
        chosen.faults.push("No network card found: Kurrent has no driver for it, or there is none.".to_owned());
        return chosen;
    }
    let still = |nic: &Option<Nic>| nic.as_ref().and_then(|old| nics.iter().find(|nic| nic.name == old.name && nic.mac == old.mac));
    let uplink_choice = plan.uplink.as_ref().map(|uplink| &uplink.interface);

    // Named ones first: "the one with a link" must not take a NIC that is named for the other network.
    let named = |choice: &InterfaceChoice| nics.iter().find(|nic| is_named(choice, nic));
    let mut boot = named(&plan.boot_interface);
    let mut uplink = uplink_choice.and_then(named);
    if plan.boot_interface == InterfaceChoice::Link {
        let free = |nic: &&Nic| uplink.is_none_or(|other| other.index != nic.index);
        boot = still(&earlier.boot).filter(free).or_else(|| with_link(nics, free));
    }
    if uplink_choice == Some(&InterfaceChoice::Link) {
        let free = |nic: &&Nic| boot.is_none_or(|other| other.index != nic.index);
        // Until the boot network has its NIC, the first one with a link is the boot network's.
        let may_choose = boot.is_some();
        uplink = still(&earlier.uplink).filter(free).or_else(|| may_choose.then(|| with_link(nics, free)).flatten());
    }

    let seen = || nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join(", ");
    if boot.is_none() {
        chosen.faults.push(missing("boot network", &plan.boot_interface, &seen()));
    }
    match uplink_choice {
        Some(choice) if uplink.is_none() => chosen.faults.push(missing("uplink", choice, &seen())),
        Some(_) if boot.is_some() && boot.map(|nic| nic.index) == uplink.map(|nic| nic.index) => {
            chosen
                .faults
                .push("kurrent.yaml names the same network card for boot network and uplink: it is the boot network's.".to_owned());
            uplink = None;
        }
        _ => {}
    }
    chosen.boot = boot.cloned();
    chosen.uplink = uplink.cloned();
    chosen
}

/// NICs that cannot be switched on (no firmware file, broken). Each is tried again after a while; none keeps the others waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    by_nic: BTreeMap<u32, Refusal>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    again_at: Mono,
    sentence: String,
}

impl Refusals {
    /// Switches on what is down (index and name) and due; `set_up` does it, or says why not. Whether one came up.
    pub fn switch_on(&mut self, down: &[(u32, &str)], now: Mono, mut set_up: impl FnMut(u32) -> Result<(), String>) -> bool {
        // One that is gone, or up by now, refuses nothing.
        self.by_nic.retain(|index, _| down.iter().any(|(other, _)| other == index));
        let mut came_up = false;
        for (index, name) in down {
            if self.by_nic.get(index).is_some_and(|refusal| now < refusal.again_at) {
                continue;
            }
            match set_up(*index) {
                Ok(()) => {
                    self.by_nic.remove(index);
                    came_up = true;
                }
                Err(why) => {
                    let sentence = format!("Network card {name} cannot be switched on: {why}");
                    self.by_nic.insert(*index, Refusal { again_at: now.after(REFUSED_WAIT), sentence });
                }
            }
        }
        came_up
    }

    /// Sentences for the screen.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.by_nic.values().map(|refusal| refusal.sentence.as_str())
    }
}

fn is_named(choice: &InterfaceChoice, nic: &Nic) -> bool {
    match choice {
        InterfaceChoice::Name(name) => nic.name == *name,
        InterfaceChoice::Mac(mac) => nic.mac == Some(*mac),
        InterfaceChoice::Link => false,
    }
}

fn with_link(nics: &[Nic], free: impl Fn(&&Nic) -> bool) -> Option<&Nic> {
    nics.iter().filter(|nic| nic.carrier).find(free)
}

fn missing(network: &str, choice: &InterfaceChoice, seen: &str) -> String {
    match choice {
        InterfaceChoice::Name(name) => format!("No network card {name} for the {network}; there are: {seen}."),
        InterfaceChoice::Mac(mac) => format!("No network card with address {mac} for the {network}; there are: {seen}."),
        InterfaceChoice::Link => format!("No network card with a link for the {network}: is the cable in? There are: {seen}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UplinkMode;
    use crate::init::plan::UplinkPlan;
    use InterfaceChoice::{Link, Mac, Name};

    fn nic(index: u32, carrier: bool) -> Nic {
        let last = u8::try_from(index).unwrap();
        Nic { index, name: format!("eth{}", index - 1), mac: Some(MacAddr([0x52, 0x54, 0, 0, 0, last])), carrier }
    }

    fn plan(boot: InterfaceChoice, uplink: Option<InterfaceChoice>) -> Plan {
        Plan {
            hostname: "kurrent".to_owned(),
            boot_interface: boot,
            boot_address: [10, 77, 0, 1].into(),
            boot_prefix: 24,
            boot_address6: None,
            boot_routes: Vec::new(),
            api_port: 8443,
            uplink: uplink.map(|interface| UplinkPlan { interface, mode: UplinkMode::Dhcp }),
        }
    }

    fn check(plan: &Plan, nics: &[Nic], boot: Option<u32>, uplink: Option<u32>, fault: &str) {
        let chosen = choose(plan, nics, &Chosen::default());
        let index = |nic: &Option<Nic>| nic.as_ref().map(|nic| nic.index);
        assert_eq!((index(&chosen.boot), index(&chosen.uplink)), (boot, uplink), "{chosen:?}");
        let faults = chosen.faults.join(" ");
        assert!(if fault.is_empty() { faults.is_empty() } else { faults.contains(fault) }, "{faults}");
    }

    #[test]
    fn nics_are_chosen_by_name_by_mac_and_by_link() {
        let two = [nic(1, true), nic(2, true)];
        let mac = |last| Mac(MacAddr([0x52, 0x54, 0, 0, 0, last]));
        check(&plan(Link, None), &two, Some(1), None, "");
        check(&plan(Name("eth1".into()), None), &two, Some(2), None, "");
        check(&plan(mac(2), Some(mac(1))), &two, Some(2), Some(1), "");
        check(&plan(Link, Some(Name("eth0".into()))), &two, Some(2), Some(1), "");
        check(&plan(Link, Some(Link)), &two, Some(1), Some(2), "");
        check(&plan(Name("eth1".into()), Some(Link)), &two, Some(2), Some(1), "");
        check(&plan(Link, None), &[nic(1, false), nic(2, true)], Some(2), None, "");
    }

    #[test]
    fn a_nic_that_refuses_is_named_and_keeps_no_other_waiting() {
        let mut refusals = Refusals::default();
        let mut asked = Vec::new();
        let mut switch = |refusals: &mut Refusals, down: &[(u32, &str)], secs, works: bool| {
            asked.clear();
            let came_up = refusals.switch_on(down, Mono(Duration::from_secs(secs)), |index| {
                asked.push(index);
                if works || index != 2 { Ok(()) } else { Err("no firmware".to_owned()) }
            });
            let faults = refusals.faults().collect::<Vec<_>>().join(" ");
            (asked.clone(), came_up, faults)
        };
        let said = "Network card eth0 cannot be switched on: no firmware".to_owned();
        let both = [(2, "eth0"), (3, "eth1")];
        assert_eq!(switch(&mut refusals, &both, 0, false), (vec![2, 3], true, said.clone()));
        assert_eq!(switch(&mut refusals, &both[..1], 1, false), (vec![], false, said.clone()), "not at every look");
        assert_eq!(switch(&mut refusals, &both, 2, false), (vec![3], true, said.clone()), "another one is not made to wait");
        assert_eq!(switch(&mut refusals, &both[..1], 10, false), (vec![2], false, said));
        assert_eq!(switch(&mut refusals, &both[..1], 20, true), (vec![2], true, String::new()), "it may work later");
        switch(&mut refusals, &both[..1], 30, false);
        assert_eq!(switch(&mut refusals, &[], 31, false), (vec![], false, String::new()), "one that is gone is forgotten");
    }

    #[test]
    fn what_is_missing_is_said() {
        let one = [nic(1, false)];
        check(&plan(Link, None), &[], None, None, "No network card found");
        check(&plan(Link, None), &one, None, None, "is the cable in? There are: eth0.");
        check(&plan(Name("eth7".into()), None), &one, None, None, "No network card eth7 for the boot network; there are: eth0.");
        check(&plan(Name("eth0".into()), Some(Link)), &one, Some(1), None, "for the uplink");
        check(&plan(Name("eth0".into()), Some(Name("eth0".into()))), &one, Some(1), None, "the same network card");
        check(&plan(Link, Some(Link)), &[nic(1, false), nic(2, false)], None, None, "for the uplink");
    }

    #[test]
    fn a_choice_by_link_stays_when_the_cable_moves() {
        let by_link = plan(Link, Some(Link));
        let before = choose(&by_link, &[nic(1, true), nic(2, true)], &Chosen::default());
        let pulled = choose(&by_link, &[nic(1, false), nic(2, true)], &before);
        assert_eq!(pulled.boot.map(|nic| nic.index), Some(1));
        assert_eq!(pulled.uplink.map(|nic| nic.index), Some(2));
        // A NIC that is gone gives its place to another.
        let gone = choose(&plan(Link, None), &[nic(2, true)], &before);
        assert_eq!(gone.boot.map(|nic| nic.index), Some(2));
    }
}
