//! A worker keeps its address and asks no DHCP server: what its network is like it learns with its credentials.

use super::*;
use kurrent_core::config::Subnet;

impl Bench {
    /// The initrd of a boot, and what the device finds in it.
    pub(super) fn unsealed(&self, boot_id: &str, session: &Session, now: Now) -> (Bytes, Credentials) {
        let Answer::Blob(archive) = self.plane.sealed(boot_id, now) else { panic!("no sealed blob") };
        let at = archive.windows(8).position(|w| w == kurrent_handshake::SEALED_MAGIC).unwrap();
        let sealed = (at..archive.len()).rev().find_map(|end| session.open(&archive[at..end]).ok()).expect("the device can open it");
        (archive, Credentials::parse(&sealed).unwrap())
    }
}

#[tokio::test]
async fn a_worker_learns_prefix_router_and_resolvers_of_its_own_network() {
    let mut config = Config::default();
    let relayed = Subnet {
        address: Ipv4Addr::new(10, 78, 0, 0),
        prefix: 22,
        router: Some(Ipv4Addr::new(10, 78, 0, 1)),
        dns: vec![Ipv4Addr::new(10, 78, 0, 53)],
        ..config.dhcp.local.clone()
    };
    config.dhcp.relayed.push(relayed);
    config.dhcp.local.dns = vec![Ipv4Addr::new(10, 77, 0, 53)];
    let (bench, device) = (Bench::with(config), key());
    bench.open_window().await;
    bench.report(&device).await;
    bench.worker("w1").await;
    bench.bind(MAC, "w1").await;
    for (address, network) in [
        ([10, 77, 0, 200], Some((24, None, [10, 77, 0, 53]))),
        ([10, 78, 3, 9], Some((22, Some(Ipv4Addr::new(10, 78, 0, 1)), [10, 78, 0, 53]))),
        ([192, 0, 2, 9], None),
    ] {
        let now = clock::now();
        let (challenge, server) = bench.challenge(MAC, now).unwrap();
        let (fields, session) = answer_form(challenge, server, &device);
        let peer = Peer { address: Ipv4Addr::from(address).into(), lease: None };
        let script = text(bench.plane.boot_vars(peer, &form(&fields), now).await);
        let Some((prefix, gateway, dns)) = network else {
            assert!(set(&script, "kreason").contains("spec.dhcp.subnets"), "nobody knows how to reach it: {script}");
            continue;
        };
        let boot_id = script.split("kurrent.boot=").nth(1).unwrap().split(' ').next().unwrap();
        let (_, told) = bench.unsealed(boot_id, &session, now);
        assert_eq!((told.address, told.prefix, told.gateway, told.dns), (address.into(), prefix, gateway, vec![dns.into()]));
    }
}
