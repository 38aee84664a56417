//! OVMF that boots over IPv6 only.

use super::place::Place;
use super::uefi::NO_PXE4;
use anyhow::{Result, ensure};
use kurrent_harness::netns::BRIDGE;

const SPEC: &str = "  networking:\n    boot:\n      address6: fd00:77::1/64\n  dhcp6:\n    mode: managed\n    routerAdvertisements: on\n";

#[test]
fn ovmf_pxe_over_ipv6_gets_the_loader_over_ipv6_and_then_the_script() -> Result<()> {
    let mut place =
        Place::prepared("six", SPEC, |network| network.ip(&["addr", "add", "fd00:77::1/64", "dev", BRIDGE, "nodad"]).map(drop))?;
    place.daemon.says("DHCPv6: serving")?;
    let mut machine = place.uefi(&place.network, &[NO_PXE4])?;
    let seen = place.reaches_script(&mut machine)?;
    let (by_ipv4, by_ipv6) = seen.read_requests("snponly.efi");
    ensure!(by_ipv4 == 0 && by_ipv6 > 0, "read requests for the loader: {by_ipv4} by IPv4, {by_ipv6} by IPv6");
    seen.address()?;
    place.passed(machine);
    Ok(())
}
