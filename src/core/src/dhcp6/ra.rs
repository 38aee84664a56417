//! Router advertisements (RFC 4861 s4.2, s6.2): the prefix is on the link, and where addresses come from. We are nobody's
//! router: the router lifetime is 0 in every one (RFC 4861 s4.2).
//!
//! Firmware needs them also when DHCPv6 gives the addresses: without one EDK2 and iPXE neither ask DHCPv6 nor know that our
//! address is on their link.

use crate::config::{Dhcpv6Mode, Ipv6};
use crate::id::MacAddr;
use crate::time::Mono;
use std::net::Ipv6Addr;
use std::time::Duration;

/// ICMPv6 type of a router solicitation.
pub const SOLICITATION: u8 = 133;
/// ICMPv6 type of a router advertisement.
pub const ADVERTISEMENT: u8 = 134;
/// Hop limit of both: what was routed has less (RFC 4861 s6.1).
pub const HOP_LIMIT: u8 = 255;
/// All routers on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// All nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const OPTION_SOURCE_LINK_LAYER: u8 = 1;
const OPTION_PREFIX: u8 = 3;
const FLAG_MANAGED: u8 = 0x80;
const FLAG_OTHER: u8 = 0x40;
const FLAG_ON_LINK: u8 = 0x80;
const FLAG_AUTONOMOUS: u8 = 0x40;
/// `MAX_INITIAL_RTR_ADVERTISEMENTS` and `MAX_INITIAL_RTR_ADVERT_INTERVAL` (RFC 4861 s10).
const INITIAL: u8 = 3;
const INITIAL_SECS: u64 = 16;
/// `MaxRtrAdvInterval`'s default is 600 s and the shortest a third of it (RFC 4861 s6.2.1).
const SHORTEST_SECS: u64 = 200;
const SPREAD_SECS: u64 = 400;
/// `MIN_DELAY_BETWEEN_RAS`.
const LEAST_APART: Duration = Duration::from_secs(3);
/// Duplicate address detection of our link-local address takes a second (RFC 4862 s5.1).
const RETRY: Duration = Duration::from_secs(1);
/// `MAX_RA_DELAY_TIME`.
const ANSWER_WITHIN_MILLIS: u64 = 500;

/// The octets of an advertisement, without the checksum, which the kernel fills in. `mac` is our NIC's.
///
/// Addresses are made by hosts themselves (flag A) only where DHCPv6 gives none.
#[must_use]
pub fn encode(ipv6: &Ipv6, mac: Option<MacAddr>) -> Vec<u8> {
    let (flags, autonomous) = match ipv6.dhcp {
        Dhcpv6Mode::Off => (0, FLAG_AUTONOMOUS),
        Dhcpv6Mode::Stateless => (FLAG_OTHER, FLAG_AUTONOMOUS),
        Dhcpv6Mode::Managed => (FLAG_MANAGED | FLAG_OTHER, 0),
    };
    // Hop limit 0 and timers 0: unspecified by us. Router lifetime 0: not a default router.
    let mut octets = vec![ADVERTISEMENT, 0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if let Some(mac) = mac {
        octets.extend([OPTION_SOURCE_LINK_LAYER, 1]);
        octets.extend(mac.0);
    }
    octets.extend([OPTION_PREFIX, 4, 64, FLAG_ON_LINK | autonomous]);
    let [preferred, valid] = [ipv6.lease_secs, ipv6.lease_secs.saturating_mul(2)];
    octets.extend(valid.to_be_bytes());
    octets.extend(preferred.to_be_bytes());
    octets.extend([0; 4]);
    octets.extend(crate::origin::network(ipv6.address).octets());
    octets
}

/// A router solicitation: who sent it, as far as it says. `None`: not one that may be heard (RFC 4861 s6.1.1).
#[must_use]
pub fn solicitation(octets: &[u8], hop_limit: u8, source: Ipv6Addr) -> Option<Solicitor> {
    let (head, mut options) = octets.split_first_chunk::<8>()?;
    if head[0] != SOLICITATION || head[1] != 0 || hop_limit != HOP_LIMIT {
        return None;
    }
    let mut link_layer = None;
    while !options.is_empty() {
        let (kind, len) = (options.first()?, usize::from(*options.get(1)?) * 8);
        let option = options.get(..len).filter(|option| !option.is_empty())?;
        if *kind == OPTION_SOURCE_LINK_LAYER {
            link_layer = option.get(2..8).and_then(|mac| mac.try_into().ok()).map(MacAddr);
        }
        options = options.get(len..)?;
    }
    // A host without an address has nobody to answer at its link-layer address.
    (!source.is_unspecified() || link_layer.is_none()).then_some(Solicitor { source, link_layer })
}

/// Who solicits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitor {
    /// Its address; unspecified when it has none yet.
    pub source: Ipv6Addr,
    /// Its own word for its MAC.
    pub link_layer: Option<MacAddr>,
}

/// When the next advertisement goes out. All of them go to all nodes, so a thousand machines that ask at once get one, and
/// nobody can make us send more than one in three seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    next: Mono,
    last: Option<Mono>,
    sent: u8,
}

impl Schedule {
    /// The first at once.
    #[must_use]
    pub fn start(now: Mono) -> Self {
        Self { next: now, last: None, sent: 0 }
    }

    /// When to send.
    #[must_use]
    pub fn next(&self) -> Mono {
        self.next
    }

    /// Somebody solicits: soon, but not sooner than allowed (RFC 4861 s6.2.6). `random` spreads routers that hear it together.
    pub fn solicited(&mut self, now: Mono, random: u8) {
        let delay = Duration::from_millis(u64::from(random) * ANSWER_WITHIN_MILLIS / 255);
        let allowed = self.last.map_or(now, |last| last.after(LEAST_APART));
        self.next = self.next.min(now.after(delay).max(allowed));
    }

    /// Whether the next one is not due anyway by when a solicitation would be answered: otherwise nobody has to find out who
    /// solicits, so a flood of solicitations costs one look in three seconds.
    #[must_use]
    pub fn is_far(&self, now: Mono) -> bool {
        let allowed = self.last.map_or(now, |last| last.after(LEAST_APART)).max(now);
        self.next > allowed.after(Duration::from_millis(ANSWER_WITHIN_MILLIS))
    }

    /// It could not be sent: the NIC's own address is still looked for on the link, or the link is down.
    pub fn failed(&mut self, now: Mono) {
        self.next = now.after(RETRY);
    }

    /// One was sent. `random` spreads the next (RFC 4861 s6.2.4).
    pub fn sent(&mut self, now: Mono, random: u8) {
        self.sent = self.sent.saturating_add(1);
        let secs = if self.sent < INITIAL { INITIAL_SECS } else { SHORTEST_SECS + u64::from(random) * SPREAD_SECS / 255 };
        self.last = Some(now);
        self.next = now.after(Duration::from_secs(secs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv6(dhcp: Dhcpv6Mode) -> Ipv6 {
        Ipv6 { address: "fd00:77::1".parse().unwrap(), dhcp, lease_secs: 3600, router_advertisements: true }
    }

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    #[test]
    fn never_a_default_router_and_the_flags_say_where_addresses_come_from() {
        for (mode, flags, prefix_flags) in
            [(Dhcpv6Mode::Off, 0, 0xc0), (Dhcpv6Mode::Stateless, 0x40, 0xc0), (Dhcpv6Mode::Managed, 0xc0, 0x80)]
        {
            let octets = encode(&ipv6(mode), Some(MacAddr([2, 0, 0, 0, 0, 1])));
            let mut expected = vec![134, 0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1];
            expected.extend([3, 4, 64, prefix_flags, 0, 0, 0x1c, 0x20, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
            expected.extend([0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(octets, expected);
        }
    }

    #[test]
    fn only_solicitations_of_this_link_are_heard() {
        let source: Ipv6Addr = "fe80::9".parse().unwrap();
        let plain = [133, 0, 0, 0, 0, 0, 0, 0];
        let named = [&plain[..], &[1, 1, 2, 0, 0, 0, 0, 9]].concat();
        let heard = |octets: &[u8], hops, source| solicitation(octets, hops, source);
        assert_eq!(heard(&plain, 255, source), Some(Solicitor { source, link_layer: None }));
        assert_eq!(heard(&named, 255, source).unwrap().link_layer, Some(MacAddr([2, 0, 0, 0, 0, 9])));
        assert!(heard(&plain, 255, Ipv6Addr::UNSPECIFIED).is_some());
        assert_eq!(heard(&named, 255, Ipv6Addr::UNSPECIFIED), None);
        assert_eq!(heard(&plain, 64, source), None, "routed");
        assert_eq!(heard(&plain[..7], 255, source), None);
        assert_eq!(heard(&[134, 0, 0, 0, 0, 0, 0, 0], 255, source), None);
        assert_eq!(heard(&[133, 1, 0, 0, 0, 0, 0, 0], 255, source), None);
        assert_eq!(heard(&[&plain[..], &[1, 0]].concat(), 255, source), None, "an option without length");
        assert_eq!(heard(&[&plain[..], &[1, 2, 0, 0, 0, 0, 0, 0]].concat(), 255, source), None, "an option that is cut");
    }

    #[test]
    fn three_soon_then_every_few_minutes() {
        let mut schedule = Schedule::start(at(5));
        schedule.failed(at(5));
        assert_eq!(schedule.next(), at(1005), "what could not be sent counts for nothing");
        let mut gaps = vec![];
        for random in [0, 0, 0, 255] {
            let now = schedule.next();
            schedule.sent(now, random);
            gaps.push(schedule.next().since(now).as_secs());
        }
        assert_eq!(gaps, [16, 16, 200, 600]);
    }

    proptest! {
        #[test]
        fn random_octets_are_survived(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = solicitation(&[&[133, 0][..], &octets].concat(), 255, Ipv6Addr::LOCALHOST);
        }

        /// However many ask: an answer within half a second of the first, or three seconds after the last one.
        #[test]
        fn solicitations_are_answered_soon_and_never_more_often_than_every_three_seconds(steps in proptest::collection::vec((0_u64..2000, any::<u8>()), 1..200)) {
            let mut schedule = Schedule::start(at(0));
            let (mut now, mut last) = (at(0), None);
            for (pause, random) in steps {
                let until = now.after(Duration::from_millis(pause));
                while schedule.next() <= until {
                    let sent = schedule.next();
                    prop_assert!(last.is_none_or(|last| sent.since(last) >= LEAST_APART));
                    schedule.sent(sent, random);
                    last = Some(sent);
                }
                now = until;
                if schedule.is_far(now) {
                    schedule.solicited(now, random);
                }
                prop_assert!(!schedule.is_far(now), "the second one costs nothing");
                let due = last.map_or(now, |last: Mono| last.after(LEAST_APART)).max(now.after(Duration::from_millis(500)));
                prop_assert!(schedule.next() <= due);
            }
        }
    }
}
