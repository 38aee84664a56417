//! Who holds which address: a table in memory, changed only by [`Leases::apply`] and, when the ledger changes, by
//! [`Leases::heed`]. Nothing here walks the table for one packet.
//!
//! ```text
//!   (never used) --offer--> Offered --bind--> Bound --release--> Released
//!        ^                     | hold over      | ^                  |
//!        +---------------------+                | +------ bind ------+     any --decline--> Declined
//! ```
//!
//! Leases go by [`Holder`], and a client has one address in each subnet. An address stays its machine's after the lease has run
//! out, until somebody needs it and no address was never used: first those of strangers, then of pooled devices, the longest
//! unused first; **never one of a bound device**: its Worker may run on an address that nobody renews (stage-1 hands the boot
//! address over to the system). That holds for an address that it declined too: whoever can forge a DECLINE must not free the
//! address of a Worker.
//!
//! A reserved address is offered to its device and to nobody else, inside or outside the dynamic range. Who runs on it when it is
//! reserved keeps it as long as it renews, and gets another one when it starts anew (DISCOVER); a bound device's is free only then.
//! Meanwhile the device has a dynamic address.
//!
//! What strangers (MACs that are not in the ledger) can take is bounded twice: by how many of them get an address in a
//! minute, and by a share of the range that is not for them.

use super::holder::Holder;
use super::pool::SubnetId;
pub use super::table::Leases;
use crate::ledger::{Device, DeviceState};
use crate::time::Mono;
use std::net::Ipv4Addr;
use std::time::Duration;

/// How long an OFFER holds its address: EDK2 collects offers for up to 32 s before it chooses.
pub const OFFER_HOLD: Duration = Duration::from_secs(60);
/// How long a released address rests before it may go to another machine.
pub const RELEASE_REST: Duration = Duration::from_secs(300);
/// How long a declined address is not given out.
pub const DECLINE_QUARANTINE: Duration = Duration::from_secs(600);
/// In this time at most [`crate::config::Dhcp::newcomers_per_minute`] strangers without an address are given or offered one: some racks of
/// new machines switched on at once fit, a flood of random MACs does not.
pub const NEWCOMER_INTERVAL: Duration = Duration::from_secs(60);
/// A lease that does not end, in seconds (RFC 2131 s3.3): what a BOOTP client is given.
pub const FOREVER_SECS: u32 = u32::MAX;
/// Addresses in quarantine of one device of the ledger. Those of a bound one stay its own afterwards, and a forger must not collect
/// them in anybody's name; more than this many neighbours on wrong addresses are for a person to look at.
pub(super) const MAX_DECLINED_OF_DEVICE: usize = 4;

/// What the ledger says of a machine, as far as its address is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Not in the ledger.
    Stranger,
    /// In the ledger, not bound.
    Known,
    /// Bound: its address is never given to another.
    Bound,
}

impl Standing {
    pub(super) const COUNT: usize = 3;

    /// Of a machine with this record.
    #[must_use]
    pub fn of(device: Option<&Device>) -> Self {
        match device.map(|d| d.state) {
            None => Self::Stranger,
            Some(DeviceState::Bound) => Self::Bound,
            Some(DeviceState::Pooled | DeviceState::Revoked) => Self::Known,
        }
    }
}

/// State of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Held for a client that was offered it.
    Offered,
    /// Acknowledged.
    Bound,
    /// Given back.
    Released,
    /// Its client found somebody else using it.
    Declined,
}

/// One address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it, or last did, or declined it.
    pub holder: Holder,
    /// See [`State`].
    pub state: State,
    /// What the ledger says of the machine.
    pub standing: Standing,
    /// When the state runs out.
    pub until: Mono,
}

impl Lease {
    /// Whether its time is up and a machine that only strangers make room for may have it.
    pub(super) fn gives_way(&self, now: Mono, to_reservation: bool) -> bool {
        let of = if to_reservation { Standing::Known } else { Standing::Stranger };
        self.until <= now && (self.state == State::Offered || self.standing <= of)
    }
}

/// The only ways to change the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Holds an address for [`OFFER_HOLD`]; promises nothing and is not written.
    Offer {
        /// For whom.
        holder: Holder,
        /// Which.
        address: Ipv4Addr,
    },
    /// The client chose another server.
    Withdraw {
        /// Whose offer.
        holder: Holder,
        /// In which subnet.
        subnet: SubnetId,
    },
    /// Gives an address; durable before the ACK.
    Bind {
        /// To whom.
        holder: Holder,
        /// Which.
        address: Ipv4Addr,
        /// For how long; [`FOREVER_SECS`].
        secs: u32,
    },
    /// Given back by its holder.
    Release {
        /// Which.
        address: Ipv4Addr,
    },
    /// Found to be somebody else's: declined by its client, or by what a probe heard while it was offered.
    Decline {
        /// Which.
        address: Ipv4Addr,
        /// The quarantine that ends for this one's sake.
        instead_of: Option<Ipv4Addr>,
    },
}

/// What room there is for another address in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarantine {
    /// Enough.
    Room,
    /// This one has to end first.
    InsteadOf(Ipv4Addr),
    /// None, and none that may end.
    Full,
}

/// What an address is to a client that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Its own.
    Own,
    /// Nobody's: it may have it.
    Free,
    /// Another's, or in quarantine.
    Taken,
    /// Not ours to give.
    Outside,
}

/// The address to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which.
    pub address: Ipv4Addr,
    /// The address that is reserved for it, while somebody else still has that.
    pub waits_for: Option<Ipv4Addr>,
}
