//! Keeps [`Conflicts`], the lease table and what people are told together. On the boot network only: ARP ends at a router.

use super::probe::{Heard, Probe};
use crate::listen::quiet::Quiet;
use crate::shared::Shared;
use kurrent_core::config::Subnet;
use kurrent_core::dhcp::conflict::{Conflicts, Finding, Owner};
use kurrent_core::dhcp::lease::{Leases, State};
use kurrent_core::id::MacAddr;
use kurrent_core::time::{Mono, Now};
use kurrent_sys::arp::Claimed;
use kurrent_sys::link::Link;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The part of [`crate::shared::Faults`].
const FAULT: &str = "dhcp-conflicts";

/// What is shown of conflicts is not older.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The watch over the boot network's addresses.
pub struct Watch {
    probe: Probe,
    conflicts: Conflicts,
    subnet: Subnet,
    quiet: Quiet,
    told: Mono,
}

/// [`Probe::heard`]; never where nothing is looked for. Cancel-safe.
pub async fn heard(watch: &mut Option<Watch>) -> Heard {
    match watch {
        Some(watch) => watch.probe.heard().await,
        None => std::future::pending().await,
    }
}

impl Watch {
    /// Nothing when it is switched off. It is no reason to give no addresses when it can not be done.
    pub fn open(shared: &Shared, link: &Link) -> Option<Self> {
        let config = &shared.config;
        if !config.dhcp.conflict_probe {
            return None;
        }
        match Probe::open(link.index, &config.boot_network) {
            Ok(probe) => {
                let subnet = config.dhcp.local.clone();
                Some(Self { probe, conflicts: Conflicts::new(&subnet), subnet, quiet: Quiet::default(), told: Mono::default() })
            }
            Err(error) => {
                tracing::warn!(%error, "DHCP: addresses are given out without asking by ARP whether somebody uses them");
                None
            }
        }
    }

    /// An address was offered: asked for, unless it was already, or its machine may run on it.
    pub fn offered(&mut self, address: Ipv4Addr, table: &Leases, now: Mono) {
        let fresh = table.lease(address).is_some_and(|lease| lease.state == State::Offered);
        if fresh && self.subnet.contains(address) && self.conflicts.ask_with_offer(address, now) {
            self.probe.ask(address);
        }
    }

    /// Does what follows from what was heard.
    pub fn heed(&mut self, heard: Heard, table: &mut Leases, shared: &Shared, now: Now) {
        match heard {
            Heard::Claims(claims) => {
                let mut news = false;
                for claim in claims {
                    news |= self.claimed(claim, table, now);
                }
                if news {
                    self.tell(table, shared, now.mono);
                }
            }
            Heard::AskNext => {
                let over = self.conflicts.expire(|address| Owner::of(address, table), now.mono);
                over.iter().for_each(|address| table.stop_avoiding(*address));
                let own = self.subnet.address;
                if let Some(address) = self.conflicts.ask_next(&self.subnet, |a| table.lease(a).is_none() && a != own, now.mono) {
                    self.probe.ask(address);
                }
                self.probe.again(self.conflicts.sweeps());
                // Who was heard again is seen then, too.
                if !over.is_empty() || now.mono.since(self.told) >= TELL_EVERY {
                    self.tell(table, shared, now.mono);
                }
            }
        }
    }

    /// Whether people have to be told.
    fn claimed(&mut self, claim: Claimed, table: &mut Leases, now: Now) -> bool {
        let (address, mac) = (claim.address, MacAddr(claim.mac));
        let owner = Owner::of(address, table);
        // Fixed addresses beside the range are everybody's own business, and these two are never given out.
        let ours = address == self.subnet.address || Some(address) == self.subnet.router;
        if ours || owner == Owner::Nobody && !(self.subnet.range_start..=self.subnet.range_end).contains(&address) {
            return false;
        }
        let finding = self.conflicts.claimed(address, mac, owner, now);
        let (class, what) = match &finding {
            Finding::Nothing => return false,
            Finding::Avoid if table.avoid(address, mac) => {
                ("avoid", "a machine uses an address that nobody gave it: not given out meanwhile")
            }
            Finding::Avoid => (
                "kept",
                "a machine uses one of the last free addresses, which are kept for the ledger's devices: it may be given out all the same",
            ),
            Finding::UsedByAnother(_) => ("used", "a machine uses an address that was given to another one"),
            Finding::ReservedForAnother(_) => {
                ("reserved", "a machine uses an address that is reserved for another one, which is given it all the same")
            }
            Finding::TooMany => {
                ("many", "more machines use addresses that nobody gave them than a quarter of spec.dhcp.range; some may be given out")
            }
            Finding::AnswersForAll(freed) => {
                freed.iter().for_each(|address| table.stop_avoiding(*address));
                ("all", "a machine answers ARP for everything (proxy ARP): what it says of addresses counts for nothing")
            }
        };
        if let Some(more) = self.quiet.admit(class, now.mono) {
            tracing::warn!(%address, %mac, more, "DHCP: {what}");
        }
        finding != Finding::TooMany
    }

    /// The fault has no addresses in it: strangers must not change it all the time, as each change is logged.
    fn tell(&mut self, table: &Leases, shared: &Shared, now: Mono) {
        let all: Vec<_> = self.conflicts.list().copied().collect();
        let runs = |address| table.lease(address).is_some_and(|l| l.state == State::Bound && l.until > now);
        let must_be_free = |address| runs(address) || matches!(Owner::of(address, table), Owner::Reserved(_));
        if all.iter().any(|conflict| conflict.given_to.is_some() && must_be_free(conflict.address)) {
            let what = "an address that was given to one machine, or is reserved for it, is used by another one: see `kurrent dhcp status` and give the other one an address of its own outside spec.dhcp.range";
            shared.faults.set(FAULT, what);
        } else {
            shared.faults.clear(FAULT);
        }
        shared.dhcp.set_conflicts(all);
        self.told = now;
    }
}
