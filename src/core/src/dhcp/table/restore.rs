//! The lease table at the start, from the lease file and the ledger.

use super::Leases;
use crate::config::Dhcp;
use crate::dhcp::lease::{DECLINE_QUARANTINE, FOREVER_SECS, RELEASE_REST, State};
use crate::dhcp::lease_file::{Record, RecordState};
use crate::ledger::Ledger;
use crate::time::Now;
use std::net::Ipv4Addr;
use std::time::Duration;

impl Leases {
    /// What the lease file says, under the ledger. A record's remaining time is cut to the length of a lease of its subnet: a wall
    /// clock that was wrong makes a lease longer or ends it, but an ended one still is its machine's (see the module's rule of
    /// reuse). Records outside all subnets are forgotten. A quarantine that was ended for another one's sake is in the file all
    /// the same: of those that are too many, the oldest end again.
    #[must_use]
    pub fn restore(dhcp: &Dhcp, own: Ipv4Addr, records: &[Record], ledger: &Ledger, now: Now) -> Self {
        let mut leases = Self::new(dhcp, own);
        for (mac, device) in &ledger.devices {
            leases.heed(*mac, Some(device));
        }
        // What a client has is what it was given last: a running lease before one that was given back.
        let mut records: Vec<&Record> = records.iter().collect();
        records.sort_by_key(|r| (r.state == RecordState::Bound, r.until));
        for record in records {
            let Some(subnet) = leases.subnet_of(record.address).and_then(|id| dhcp.subnets().nth(id.index())) else { continue };
            let left = u64::try_from(record.until.as_second().saturating_sub(now.wall.as_second())).unwrap_or(0);
            let (state, most) = match record.state {
                RecordState::Bound if record.is_forever() => (State::Bound, u64::from(FOREVER_SECS)),
                RecordState::Bound => (State::Bound, u64::from(subnet.lease_secs)),
                RecordState::Released => (State::Released, RELEASE_REST.as_secs()),
                RecordState::Declined => (State::Declined, DECLINE_QUARANTINE.as_secs()),
            };
            if leases.pools.iter().any(|pool| pool.can_reserve(record.address)) {
                leases.put(record.address, record.holder, state, now.mono.after(Duration::from_secs(left.min(most))));
            }
        }
        for subnet in 0..leases.pools.len() {
            while let Some(ended) = leases.pools.get(subnet).and_then(|pool| pool.quarantine_to_end().filter(|_| pool.quarantine_is_over()))
            {
                leases.remove(ended);
            }
        }
        leases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::lease::{Change, Quarantine};
    use crate::dhcp::pool::SubnetId;
    use crate::dhcp::testing::{SERVER, World, at, mac};
    use crate::ledger::DeviceState;

    #[test]
    fn of_two_addresses_of_a_machine_the_one_that_it_runs_on_is_told_last() {
        let world = World::default();
        let bound = |last: u8, secs: u64| {
            Record::new(Ipv4Addr::new(10, 77, 0, last), mac(1).into(), RecordState::Bound, Duration::from_secs(secs), at(0))
        };
        let released = |last: u8| Record { state: RecordState::Released, ..bound(last, 3000) };
        let latest =
            |records: &[Record]| Leases::restore(&world.config.dhcp, SERVER, records, &world.ledger, at(1)).holders().pop().unwrap().0;
        for n in 20..120 {
            assert_eq!(latest(&[bound(n, 900), bound(n + 1, 800)]), Ipv4Addr::new(10, 77, 0, n));
            assert_eq!(latest(&[bound(n, 800), bound(n + 1, 900)]), Ipv4Addr::new(10, 77, 0, n + 1));
            assert_eq!(latest(&[bound(n, 900), released(n + 1)]), Ipv4Addr::new(10, 77, 0, n));
        }
    }

    #[test]
    fn a_quarantine_that_was_ended_for_anothers_sake_does_not_come_back_with_a_restart() {
        let mut world = World::with_range(100, 115);
        let address = |n: u8| Ipv4Addr::new(10, 77, 0, 99 + n);
        world.record(mac(1), DeviceState::Bound);
        let mut records = Vec::new();
        for n in 1..=12_u8 {
            world.leases.apply(Change::Bind { holder: mac(n).into(), address: address(n), secs: 3600 }, at(0));
            let instead_of = match world.leases.quarantine(mac(n), SubnetId::LOCAL) {
                Quarantine::Room => None,
                Quarantine::InsteadOf(oldest) => Some(oldest),
                Quarantine::Full => panic!("nothing may end"),
            };
            records.extend(world.leases.apply(Change::Decline { address: address(n), instead_of }, at(n.into())));
        }
        let declined = |leases: &Leases| {
            let mut all: Vec<Ipv4Addr> = leases.given().filter(|(_, l)| l.state == State::Declined).map(|(address, _)| address).collect();
            all.sort();
            all
        };
        let before = declined(&world.leases);
        assert_eq!(before, [address(1), address(10), address(11), address(12)], "a bound device's stays, then the latest");
        assert_eq!(declined(&Leases::restore(&world.config.dhcp, SERVER, &records, &world.ledger, at(13))), before);
    }
}
