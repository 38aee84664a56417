//! Capabilities (`capabilities(7)`): the list of those that stay, each with its reason. All others go, out of the bounding set too.

use super::{Part, State};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_ambient_set, capability_is_in_bounding_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
};

/// A capability, and its name.
pub(super) type Kept = (CapabilitySet, &'static str);

/// What stays in the daemon. Listeners are bound again whenever a NIC comes back, so what binds them stays for good.
pub(super) const DAEMON: [Kept; 4] = [
    // Ports 67, 69, 80, 547.
    (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
    // Packet sockets: DHCP to machines without an address, ARP probes; ICMPv6 for router advertisements.
    (CapabilitySet::NET_RAW, "net_raw"),
    // The kernel's neighbour table, routes, and socket buffers larger than net.core.rmem_max.
    (CapabilitySet::NET_ADMIN, "net_admin"),
    // Masters that somebody copied into the disk folder under a name and mode of his own; the target opens disks with our rights.
    // Being root it would own all that matters anyway: Landlock is what keeps it in its folders.
    (CapabilitySet::DAC_OVERRIDE, "dac_override"),
];

/// What stays in `kurrentd uplink`.
pub(super) const UPLINK: [Kept; 3] = [
    // Port 68, again whenever it starts.
    (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
    // DHCP without an address.
    (CapabilitySet::NET_RAW, "net_raw"),
    // The address and the default route.
    (CapabilitySet::NET_ADMIN, "net_admin"),
];

/// Gives up all others.
pub(super) fn give_up(keep: &[Kept]) -> Part {
    const NAME: &str = "capabilities";
    match reduce(keep.iter().fold(CapabilitySet::empty(), |all, (one, _)| all | *one)) {
        Ok((kept, whole)) => {
            let names: Vec<&str> = keep.iter().filter(|(c, _)| kept.contains(*c)).map(|(_, name)| *name).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Part {
                name: NAME,
                state: State::On,
                detail: format!("kept: {names}{}", if whole { "" } else { "; the bounding set stays as it was" }),
            }
        }
        Err(error) => Part { name: NAME, state: State::Missing, detail: format!("they can not be given up: {error}") },
    }
}

/// What is kept, and whether the bounding set could be reduced. Where it can not (kurrentd was started without `CAP_SETPCAP`),
/// `NO_NEW_PRIVS` does what it is for: nothing outside of the permitted set comes back by a program's file.
fn reduce(keep: CapabilitySet) -> Result<(CapabilitySet, bool), Errno> {
    let now = capabilities(None)?;
    let mut whole = true;
    for one in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        // A kernel does not know numbers above its last one.
        if keep.contains(one) || !capability_is_in_bounding_set(one).unwrap_or(false) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::PERM) => whole = false,
            Err(error) => return Err(error),
        }
    }
    for one in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        // Those that are kept stay ambient when they were: a restart in place of a kurrentd that is not root has them from there.
        if !keep.contains(one) && capability_is_in_ambient_set(one).unwrap_or(false) {
            configure_capability_in_ambient_set(one, false)?;
        }
    }
    let kept = now.permitted & keep;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: now.inheritable & kept })?;
    Ok((kept, whole))
}
