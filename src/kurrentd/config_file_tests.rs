use super::*;
use kurrent_core::config::{Route, default_range};

const HEAD: &str = "apiVersion: kurrent.io/v1\nkind: ApplianceConfiguration\n";

fn faults(body: &str) -> Vec<(u64, String)> {
    check(format!("{HEAD}{body}").as_bytes()).err().unwrap_or_default().into_iter().map(|f| (f.line, f.what)).collect()
}

#[test]
fn the_shipped_example_is_the_defaults() {
    let text = include_str!("../../rootfs/boot/kurrent.yaml");
    assert_eq!(check(text.as_bytes()), Ok(Config::default()));
}

/// Uncommenting every key of the example gives the defaults plus an uplink and what has no default.
#[test]
fn every_commented_key_of_the_example_is_valid_and_shows_its_default() {
    let shown: String = include_str!("../../rootfs/boot/kurrent.yaml")
        .lines()
        .map(|line| match line.trim_start().strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => format!("{}{key}\n", &line[..line.len() - line.trim_start().len()]),
            _ => format!("{line}\n"),
        })
        .collect();
    let shown = shown.replace("mode: dhcp\n", "mode: static\n");
    let mut config = check(shown.as_bytes()).unwrap();
    let Some(Uplink { mode: UplinkMode::Static { address, prefix, gateway, dns }, .. }) = config.uplink.take() else {
        panic!("no static uplink")
    };
    assert_eq!((address, prefix, gateway, dns.len()), (Ipv4Addr::new(192, 0, 2, 10), 24, Some(Ipv4Addr::new(192, 0, 2, 1)), 1));
    assert_eq!(config.dhcp.local.router.take(), Some(Ipv4Addr::new(10, 77, 0, 1)));
    assert_eq!(std::mem::take(&mut config.dhcp.local.dns), [Ipv4Addr::new(10, 77, 0, 1)]);
    assert_eq!(config.dhcp.local.domain.take().as_deref(), Some("lab.example"));
    let relayed = std::mem::take(&mut config.dhcp.relayed);
    assert_eq!(
        relayed.iter().map(|s| (s.address, s.prefix, s.range_start)).collect::<Vec<_>>(),
        [(Ipv4Addr::new(10, 78, 0, 0), 24, Ipv4Addr::new(10, 78, 0, 10))]
    );
    let via = Ipv4Addr::new(10, 77, 0, 254);
    assert_eq!(std::mem::take(&mut config.dhcp.routes), [Route { network: Ipv4Addr::new(10, 78, 0, 0), prefix: 24, via }]);
    assert_eq!(std::mem::take(&mut config.dhcp.relays), [Ipv4Addr::new(192, 0, 2, 1)]);
    assert!(config.ipv6.take().is_some_and(|six| six.address == "fd00:77::1".parse::<std::net::Ipv6Addr>().unwrap()));
    assert_eq!((config.tftp.folder.take(), config.tftp.ports.take()), (Some("/data/tftp".into()), Some((49152, 49407))));
    assert_eq!(std::mem::take(&mut config.tftp.allow), [(Ipv4Addr::new(192, 0, 2, 0), 24)]);
    assert_eq!((config.device_rate.take(), config.api_address.take()), (Some(4_000_000), Some("10.77.0.1".parse().unwrap())));
    assert_eq!(config, Config::default());
}

#[test]
fn the_smallest_file_is_enough() {
    assert_eq!(check(HEAD.as_bytes()), Ok(Config::default()));
    assert_eq!(check(format!("{HEAD}spec:\n  dhcp:\n").as_bytes()), Ok(Config::default()));
}

#[test]
fn every_fault_has_its_line_and_says_what_to_do() {
    let table: &[(&str, u64, &str)] = &[
        ("spec:\n  dchp:\n    mode: off\n", 4, "did you mean 'dhcp'?"),
        ("spec:\n  dhcp:\n    Range:\n      start: 1\n", 5, "did you mean 'range'?"),
        ("spec:\n  zzzzzzzzzz: 1\n", 4, "valid here: networking, dhcp"),
        ("spec:\n  http:\n    bootPort: eighty\n", 5, "'eighty' is not valid for spec.http.bootPort; write a TCP port"),
        ("spec:\n  http:\n    bootPort: 65536\n", 5, "1 to 65535"),
        ("spec:\n  http:\n    bootPort: 8443\n", 5, "the same"),
        ("spec:\n  http:\n    bootPort: [1, 2]\n", 5, "bootPort"),
        ("spec:\n  http:\n    bootPort:\n      a: b\n", 6, "wrong"),
        ("spec:\n  http: 80\n", 4, "http"),
        ("spec:\n  networking:\n    boot:\n      address: 10.77.0.1\n", 6, "like 10.77.0.1/24"),
        ("spec:\n  networking:\n    boot:\n      address: 10.77.0.0/24\n", 6, "own address"),
        ("spec:\n  networking:\n    boot:\n      address: 10.77.0.1/31\n", 6, "8 to 30"),
        ("spec:\n  networking:\n    boot:\n      address: 127.0.0.1/8\n", 6, "own address"),
        ("spec:\n  networking:\n    boot:\n      interface: eth0/1\n", 6, "a NIC's name"),
        ("spec:\n  networking:\n    boot:\n      interface: 01:00:5e:00:00:01\n", 6, "a NIC's name"),
        ("spec:\n  networking:\n    uplink:\n      mode: dhcp\n", 0, "no interface"),
        ("spec:\n  networking:\n    uplink:\n      interface: eth1\n      mode: static\n", 6, "needs spec.networking.uplink.address"),
        ("spec:\n  networking:\n    uplink:\n      interface: eth1\n      address: 192.0.2.1/24\n", 7, "mode is dhcp"),
        ("spec:\n  networking:\n    uplink:\n      interface: eth1\n      mode: static\n      address: 10.77.0.9/16\n", 8, "overlaps"),
        ("spec:\n  networking:\n    boot:\n      interface: eth1\n    uplink:\n      interface: eth1\n", 8, "same NIC"),
        (
            "spec:\n  dhcp:\n    range:\n      start: 10.78.0.5\n      end: 10.77.0.9\n",
            6,
            "outside the network 10.77.0.1/24; choose from 10.77.0.1 to 10.77.0.254",
        ),
        ("spec:\n  dhcp:\n    range:\n      start: 10.77.0.9\n      end: 10.77.0.5\n", 7, "swap"),
        ("spec:\n  dhcp:\n    range:\n      start: 10.77.0.1\n      end: 10.77.0.5\n", 6, "own address"),
        ("spec:\n  dhcp:\n    range:\n      start: 10.77.0.9\n", 6, "no end"),
        ("spec:\n  dhcp:\n    router: 192.0.2.1\n", 5, "outside"),
        ("spec:\n  dhcp:\n    leaseSecs: 5\n", 5, "60 to 2592000"),
        ("spec:\n  dhcp:\n    dns: [10.0.0.300]\n", 5, "10.0.0.300"),
        ("spec:\n  dhcp:\n    relays: [relay.example]\n", 5, "relays"),
        ("spec:\n  dhcp:\n    dns: 10.0.0.3\n", 5, "dns"),
        ("spec:\n  dhcp:\n    domain: -x\n", 5, "domain"),
        ("spec:\n  dhcp:\n    mode: relay\n", 5, "server, proxy or off"),
        ("spec:\n  dhcp:\n    subnets:\n      - router: 10.78.0.1\n", 6, "has no 'network'"),
        ("spec:\n  dhcp:\n    subnets:\n      - network: 10.78.0.0/24\n", 6, "has no router"),
        ("spec:\n  dhcp:\n    subnets:\n      - network: 10.78.0.5/24\n", 6, "like 10.78.0.0/24"),
        ("spec:\n  dhcp:\n    subnets:\n      - {network: 10.0.0.0/8, router: 10.0.0.1}\n", 6, "overlaps"),
        ("spec:\n  dhcp:\n    subnets:\n      - {network: 10.78.0.0/24, router: 10.79.0.1}\n", 6, "outside"),
        (
            "spec:\n  dhcp:\n    subnets:\n      - {network: 10.78.0.0/24, router: 10.78.0.1, via: 10.78.0.1}\n",
            6,
            "not a router of the boot network",
        ),
        (
            "spec:\n  dhcp:\n    subnets:\n      - {network: 10.78.0.0/24, router: 10.78.0.1, via: 10.77.0.1}\n",
            6,
            "not a router of the boot network",
        ),
        (
            "spec:\n  dhcp:\n    subnets:\n      - {network: 10.78.0.0/24, router: 10.78.0.1, via: r1}\n",
            6,
            "'r1' is not valid for spec.dhcp.subnets.via",
        ),
        ("spec:\n  dhcp:\n    via: 10.77.0.254\n", 5, "via"),
        ("spec:\n  dhcp:\n    leaseKey: uuid\n", 5, "mac or clientId"),
        ("spec:\n  dhcp:\n    bootp: maybe\n", 5, "known, on or off"),
        ("spec:\n  dhcp:\n    newcomersPerMinute: 0\n", 5, "1 to 65536"),
        ("spec:\n  dhcp6:\n    mode: managed\n", 5, "address6"),
        ("spec:\n  networking:\n    boot:\n      address6: fd00:77::1/48\n", 6, "64"),
        ("spec:\n  tftp:\n    ports: {first: 5000, last: 4000}\n", 5, "swap"),
        ("spec:\n  tftp:\n    ports: {first: 5000}\n", 5, "first and last"),
        ("spec:\n  tftp:\n    allow: [192.0.2.0]\n", 5, "like 192.0.2.0/24"),
        ("spec:\n  http:\n    deviceRate: 1\n", 5, "65536 or more"),
        ("spec:\n  security:\n    enforcement: maybe\n", 5, "on or off"),
        ("spec:\n  security:\n    confinement: maybe\n", 5, "on or off"),
        ("spec:\n  boot:\n    kernel: disk\n", 5, "not in this version"),
        ("spec:\n  boot:\n    kernel: mine\n", 5, "write appliance"),
        ("spec:\n  boot:\n    debugShell: on\n", 5, "not in this version"),
        ("spec:\n  boot:\n    debugShell: true\n", 5, "not in this version"),
        ("spec:\n  boot:\n    debugShell: maybe\n", 5, "write off"),
        ("spec:\n  agent:\n    nqnBase: iqn.2026-11.x\n", 5, "a base like"),
        ("spec:\n  agent:\n    backend: iscsi\n", 5, "nvmet"),
        ("spec:\n  controlPlane:\n    url: http://192.0.2.1\n", 5, "local"),
        ("spec:\n  stateDir: state\n", 4, "absolute"),
        ("spec:\n  stateDir: /a\n  stateDir: /b\n", 5, "twice"),
        ("metadata:\n  name: Not_A_Label\n", 4, "DNS label"),
        ("spec:\n\tdhcp:\n", 4, ""),
        ("spec: [\n", 0, ""),
        ("---\na: b\n", 4, "second document"),
    ];
    for (body, line, what) in table {
        let found = faults(body);
        assert!(!found.is_empty(), "accepted: {body}");
        assert!(
            found.iter().any(|(l, w)| (*line == 0 || l == line) && w.contains(what)),
            "{body}\nexpected line {line} {what:?}, found {found:?}"
        );
    }
}

#[test]
fn all_faults_of_meaning_are_told_at_once() {
    let found = faults("spec:\n  http:\n    bootPort: x\n  dhcp:\n    leaseSecs: x\n");
    assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [7, 5]);
}

#[test]
fn head_is_required() {
    for text in ["", "kind: ApplianceConfiguration\n", "apiVersion: kurrent.io/v2\nkind: ApplianceConfiguration\n", "- a\n", "\0", "a"] {
        assert!(check(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn switches_take_the_words_people_write() {
    for (word, on) in [("on", true), ("off", false), ("true", true), ("False", false), ("\"on\"", true), ("yes", true), ("no", false)] {
        let config = check(format!("{HEAD}spec:\n  security:\n    enforcement: {word}\n").as_bytes()).unwrap();
        assert_eq!(config.enforcement, on, "{word}");
    }
}

#[test]
fn the_default_range_is_the_half_without_the_own_address() {
    for (address, prefix, first, last) in [
        ([10, 77, 0, 1], 24, [10, 77, 0, 128], [10, 77, 0, 254]),
        ([10, 77, 0, 200], 24, [10, 77, 0, 1], [10, 77, 0, 127]),
        ([10, 77, 0, 1], 30, [10, 77, 0, 2], [10, 77, 0, 2]),
        ([10, 77, 0, 2], 30, [10, 77, 0, 1], [10, 77, 0, 1]),
        ([10, 0, 0, 1], 8, [10, 128, 0, 0], [10, 255, 255, 254]),
    ] {
        assert_eq!(default_range(address.into(), prefix), (first.into(), last.into()), "{address:?}/{prefix}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_at_all_panics(octets in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = check(&octets);
    }

    #[test]
    fn the_default_range_is_inside_and_never_holds_the_own_address(address: u32, prefix in 8u8..=30) {
        let address = Ipv4Addr::from(address);
        let (first, last) = host_range(address, prefix);
        proptest::prop_assume!((first..=last).contains(&address));
        let (start, end) = default_range(address, prefix);
        proptest::prop_assert!(first <= start && start <= end && end <= last && !(start..=end).contains(&address));
    }
}
