//! Whose an address is: on the link the kernel's neighbours say, whatever the address looks like and whoever gives addresses.

use crate::ipv6;
use crate::net::{Client, DEADLINE, Net, SILENCE, revoke, wait_for};
use anyhow::{Context, Result, ensure};

const MAC: &str = "52:54:00:00:06:01";
const OTHER: &str = "52:54:00:00:06:02";
/// DUID-UUID: it says nothing of the NIC.
const DUID: [u8; 18] = [0, 4, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

fn fetches(client: &Client, url: &str) -> Result<bool> {
    Ok(client.output("curl", &["-g", "-s", "-f", "-m", "3", "-o", "/dev/null", url])?.status.success())
}

#[test]
fn a_revoked_machine_with_an_address_of_its_own_choice_hears_nothing_in_any_mode() -> Result<()> {
    for mode in ["server", "proxy", "off"] {
        let net = Net::new(&format!("holders-{mode}"))?;
        net.configure(&format!("  dhcp:\n    mode: {mode}\n"))?;
        let mut daemon = net.start()?;
        let api = net.up(&mut daemon)?.context("the daemon ended")?;
        daemon.wait_for_log("boot plane is served")?;
        daemon.wait_for_log("TFTP: serving")?;
        let client = net.client(MAC)?;
        client.address("10.77.0.20/24")?;
        let urls = ["tftp://10.77.0.1/snponly.efi", "tftp://10.77.0.1/autoexec.ipxe", "http://10.77.0.1/boot.ipxe"];
        for url in urls {
            wait_for(&format!("{mode}: served, {url}"), || fetches(&client, url).unwrap_or(false))?;
        }
        revoke(&api, MAC)?;
        for url in urls {
            ensure!(!fetches(&client, url)?, "{mode}: revoked, and got {url}");
        }
        net.passed();
    }
    Ok(())
}

/// A host of IPv6 gives itself what address it likes, those that tell another machine's MAC, too.
#[test]
fn an_address_that_tells_another_machine_is_no_proof_of_being_it() -> Result<()> {
    let net = Net::new("holders-six")?;
    net.ip(&["addr", "add", "fd00:77::1/64", "dev", "boot", "nodad"])?;
    net.configure("  networking:\n    boot:\n      address6: fd00:77::1/64\n  dhcp6:\n    mode: managed\n")?;
    let daemon = net.serve()?;
    daemon.wait_for_log("DHCPv6: serving")?;
    for part in ["TFTP: serving", "boot plane is served"] {
        wait_for(part, || daemon.log().lines().any(|line| line.contains(part) && line.contains("fd00:77::1")))?;
    }
    let api = net.api()?;
    let client = ipv6::client(&net, MAC)?;
    // Given to 52:54:00:00:06:02, and what that machine makes of its MAC itself.
    client.ip(&["addr", "flush", "dev", "eth0", "scope", "link"])?;
    for foreign in ["fd00:77::6b75:5254:0:602/64", "fe80::5054:ff:fe00:602/64"] {
        client.ip(&["addr", "add", foreign, "dev", "eth0", "nodad"])?;
    }
    let report = ["-g", "-s", "-m", "5", "-d", "mac=52:54:00:00:06:02", "http://[fd00:77::1]/devices/report"];
    let said = String::from_utf8_lossy(&client.output("curl", &report)?.stdout).into_owned();
    ensure!(said.contains("mac_mismatch") || said.contains("no lease"), "it spoke for {OTHER}: {said}");
    let ia = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let solicit = ipv6::message(1, &[(1, &DUID), (3, &ia)]);
    let answer = ipv6::ask(&client, solicit.clone(), DEADLINE)?.unwrap_or_default();
    let own = [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0x6b, 0x75, 0x52, 0x54, 0, 0, 6, 1];
    ensure!(answer.windows(16).any(|address| address == own), "the first message is answered, with its own address: {answer:?}");
    revoke(&api, MAC)?;
    let urls = ["tftp://[fd00:77::1]/snponly.efi", "http://[fd00:77::1]/boot.ipxe"];
    for url in urls {
        ensure!(!fetches(&client, url)?, "revoked, and got {url} from another's address");
    }
    ensure!(ipv6::ask(&client, solicit, SILENCE)?.is_none(), "revoked, and got an ADVERTISE from another's address");
    net.passed();
    Ok(())
}
