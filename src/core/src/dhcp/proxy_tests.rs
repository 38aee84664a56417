//! Proxy mode, and port 4011 in both modes.

use super::super::testing::{SERVER, World, mac, packet, request};
use super::super::wire::{decode, encode};
use super::*;
use crate::config::Subnet;
use crate::ledger::DeviceState;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const BIOS: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00000:UNDI:002001"), (93, &[0, 0]), (97, &[0; 17])];
const UEFI: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, 7]), (97, &[0; 17])];
const HTTP: &[(u8, &[u8])] = &[(60, b"HTTPClient:Arch:00016:UNDI:003001"), (93, &[0, 16]), (97, &[0; 17])];
const IPXE: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00007:UNDI:003010"), (93, &[0, 7]), (77, b"iPXE"), (175, &[19, 1, 1])];

fn on_67(world: &World, request: &Request) -> Answer<Destination> {
    decide(request, &View { config: &world.config, ledger: &world.ledger })
}

fn on_4011(world: &World, request: &Request, source: SocketAddrV4) -> Answer<SocketAddrV4> {
    decide_4011(request, source, &View { config: &world.config, ledger: &world.ledger })
}

fn offered(list: &[(u8, &[u8])]) -> Packet {
    let (answer, reason) = on_67(&World::default(), &request(1, mac(1), list));
    assert_eq!(reason, Reason::Offered);
    decode(&encode(&answer.unwrap().0, 1472)).unwrap()
}

fn told(list: &[(u8, &[u8])]) -> Packet {
    let asked = Request { ciaddr: CLIENT, ..request(3, mac(1), list) };
    let (answer, reason) = on_4011(&World::default(), &asked, SocketAddrV4::new(CLIENT, 4011));
    assert_eq!(reason, Reason::Told);
    decode(&encode(&answer.unwrap().0, 1472)).unwrap()
}

/// What every answer of a proxy has and has not.
fn check(answer: &Packet, class: &[u8], file: &str) {
    assert!(answer.yiaddr.is_unspecified() && answer.options.bytes(option::LEASE_TIME).is_none());
    assert!(answer.options.bytes(option::SUBNET_MASK).is_none() && answer.options.bytes(option::ROUTER).is_none());
    assert_eq!(answer.options.bytes(option::VENDOR_CLASS), Some(class));
    assert_eq!(answer.options.address(option::SERVER_ID), Some(SERVER));
    assert_eq!((answer.siaddr, answer.options.bytes(66)), (SERVER, Some(&b"10.77.0.1"[..])));
    assert_eq!((String::from_utf8_lossy(&answer.file).as_ref(), answer.options.bytes(67)), (file, Some(file.as_bytes())));
}

#[test]
fn pxe_2_1_an_offer_names_the_file_and_gives_no_address() {
    check(&offered(BIOS), b"PXEClient", "undionly.kpxe");
    check(&offered(UEFI), b"PXEClient", "snponly.efi");
    check(&offered(HTTP), b"HTTPClient", "http://10.77.0.1/files/snponly.efi");
    check(&offered(IPXE), b"PXEClient", "http://10.77.0.1/boot.ipxe");
    assert_eq!(offered(UEFI).options.bytes(option::CLIENT_MACHINE_ID), Some(&[0; 17][..]));
    assert!(encode(&offered(UEFI), 0).len() >= 300);
}

#[test]
fn booter_4_pxe_e55_a_bios_rom_takes_the_file_at_once_and_port_4011_answers_who_asks_all_the_same() {
    assert_eq!(offered(BIOS).options.bytes(43), Some(&[6, 1, 8, 255][..]));
    check(&told(BIOS), b"PXEClient", "undionly.kpxe");
    assert_eq!(told(BIOS).options.bytes(option::MESSAGE_TYPE), Some(&[5][..]));
}

#[test]
fn edk2_6944_netboot_43_dell_t130_t430_hp_gen9_uefi_gets_no_option_43_and_asks_port_4011() {
    for arch in [7, 9, 11] {
        let offer = offered(&[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, arch])]);
        assert!(offer.options.bytes(43).is_none() && offer.options.bytes(60) == Some(b"PXEClient"));
        // Where EDK2 asks next, and for older ones what it takes when it does not.
        assert!(offer.siaddr == SERVER && !offer.file.is_empty());
    }
    // The answer there makes no PXE 1.0 offer of it either.
    check(&told(UEFI), b"PXEClient", "snponly.efi");
    assert!(told(UEFI).options.bytes(43).is_none());
}

#[test]
fn edk2_8149_port_4011_is_answered_in_server_mode() {
    let world = World::default();
    assert_eq!(world.config.dhcp.mode, crate::config::DhcpMode::Server);
    check(&told(UEFI), b"PXEClient", "snponly.efi");
    check(&told(HTTP), b"HTTPClient", "http://10.77.0.1/files/snponly.efi");
}

#[test]
fn netboot_38_ipxe_finds_file_and_server_in_the_offer_and_asks_no_further() {
    let offer = offered(IPXE);
    // dhcp_has_pxeopts() of iPXE: next server and option 67.
    assert!(!offer.siaddr.is_unspecified() && offer.options.bytes(67).is_some());
}

#[test]
fn a_raspberry_pi_gets_its_menu_entry_from_a_proxy_too() {
    let pi = MacAddr([0xb8, 0x27, 0xeb, 1, 2, 3]);
    let (answer, _) = on_67(&World::default(), &request(1, pi, BIOS));
    let (offer, _) = answer.unwrap();
    assert!(offer.options.bytes(43).unwrap().ends_with(b"Raspberry Pi Boot\xff") && offer.yiaddr.is_unspecified());
    assert_eq!(offer.options.bytes(60), Some(&b"PXEClient"[..]));
}

#[test]
fn raspberrypi_firmware_1265_the_hint_says_that_the_rom_of_a_pi_3_asks_the_server_of_its_address() {
    let (raspberry, other) = (MacAddr([0xb8, 0x27, 0xeb, 0x2f, 0xaa, 0xeb]), mac(1));
    let said = hint(&[raspberry], SERVER);
    assert!(said.contains("\"Raspberry Pi Boot\"") && said.contains("10.77.0.1") && !said.contains("undionly"), "{said}");
    let said = hint(&[other], SERVER);
    assert!(said.contains("undionly.kpxe") && !said.contains("Raspberry"), "{said}");
    assert_eq!(said, hint(&[mac(2), mac(3)], SERVER), "which and how many is no news");
    let said = hint(&[raspberry, other], SERVER);
    assert!(said.contains("undionly.kpxe") && said.contains("Raspberry"), "{said}");
}

#[test]
fn who_does_not_boot_from_the_network_never_hears_of_a_proxy() {
    let world = World::default();
    for kind in [1, 3, 4, 7, 8] {
        for list in [&[][..], &[(60, &b"udhcp 1.36.1"[..])], &[(60, b"MSFT 5.0")], &[(60, b"dhcpcd-9.4.1:Linux")]] {
            let asked = Request { ciaddr: CLIENT, ..request(kind, mac(1), list) };
            assert_eq!(on_67(&world, &asked).0, None);
            assert_eq!(on_4011(&world, &asked, SocketAddrV4::new(CLIENT, 68)).0, None);
        }
    }
}

#[test]
fn a_proxy_never_refuses_and_never_acknowledges_on_port_67() {
    let world = World::default();
    for kind in [3, 4, 7, 8] {
        for server in [SERVER, Ipv4Addr::new(10, 77, 0, 2)] {
            let list = [(60, &b"PXEClient"[..]), (93, &[0, 7]), (50, &[192, 0, 2, 1]), (54, &server.octets()[..])];
            assert_eq!(on_67(&world, &request(kind, mac(1), &list)), (None, Reason::OtherServer));
        }
    }
}

#[test]
fn a_revoked_device_is_met_with_silence_on_both_ports_and_strangers_when_told_so() {
    let mut world = World::default();
    world.record(mac(1), DeviceState::Revoked);
    let source = SocketAddrV4::new(CLIENT, 4011);
    for list in [BIOS, UEFI, HTTP, IPXE, &[]] {
        assert_eq!(on_67(&world, &request(1, mac(1), list)), (None, Reason::Revoked));
        assert_eq!(on_4011(&world, &request(3, mac(1), list), source), (None, Reason::Revoked));
    }
    world.config.dhcp.unknown_devices = false;
    assert_eq!(on_67(&world, &request(1, mac(2), UEFI)), (None, Reason::UnknownDevice));
    assert_eq!(on_4011(&world, &request(3, mac(2), UEFI), source), (None, Reason::UnknownDevice));
}

#[test]
fn an_architecture_without_loader_is_told_nothing_unless_the_device_has_a_loader_of_its_own() {
    let mut world = World::default();
    let ia32: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00006:UNDI:003016"), (93, &[0, 6])];
    assert_eq!(on_67(&world, &request(1, mac(1), ia32)), (None, Reason::NoLoader));
    world.record(mac(1), DeviceState::Pooled);
    let device = std::sync::Arc::make_mut(world.ledger.devices.get_mut(&mac(1)).unwrap());
    device.loader = Some("ipxe-amd64.efi".into());
    assert_eq!(on_67(&world, &request(1, mac(1), ia32)).1, Reason::Offered);
}

#[test]
fn through_a_relay_the_offer_goes_to_it_with_the_broadcast_flag_and_option_82_last() {
    let mut world = World::default();
    let relay = Ipv4Addr::new(10, 78, 0, 1);
    let mut asked = packet(1, mac(1), UEFI);
    asked.options.push(option::RELAY_AGENT, &[1, 2, 9, 9]);
    asked.giaddr = relay;
    let asked = msg::request(&asked).unwrap();
    assert_eq!(on_67(&world, &asked), (None, Reason::OtherNetwork), "not one of ours");
    let local = world.config.dhcp.local.clone();
    world.config.dhcp.relayed = vec![Subnet { address: Ipv4Addr::new(10, 78, 0, 0), prefix: 24, ..local }];
    let (answer, reason) = on_67(&world, &asked);
    let (offer, to) = answer.unwrap();
    assert_eq!((reason, to, offer.giaddr, offer.flags), (Reason::Offered, Destination::Relay(relay), relay, FLAG_BROADCAST));
    assert_eq!(decode(&encode(&offer, 548)).unwrap().options.iter().last(), Some((82, &[1, 2, 9, 9][..])));
    // Its machines ask port 4011 by themselves, through a router.
    let there = SocketAddrV4::new(Ipv4Addr::new(10, 78, 0, 77), 68);
    assert_eq!(on_4011(&world, &request(3, mac(1), UEFI), there).0.unwrap().1, there);
}

#[test]
fn port_4011_answers_where_the_request_came_from_and_nobody_elsewhere() {
    let world = World::default();
    let asked = |ciaddr| Request { ciaddr, ..request(3, mac(1), UEFI) };
    let to = |ciaddr, source| on_4011(&world, &asked(ciaddr), source).0.map(|(packet, to)| (packet.ciaddr, to));
    let nowhere = Ipv4Addr::UNSPECIFIED;
    for port in [68, 4011, 5555] {
        let source = SocketAddrV4::new(CLIENT, port);
        assert_eq!(to(CLIENT, source), Some((CLIENT, source)));
        assert_eq!(to(nowhere, source), Some((nowhere, source)), "ciaddr left out");
        assert_eq!(to(CLIENT, SocketAddrV4::new(nowhere, port)), Some((CLIENT, source)), "no source yet");
    }
    let outside = Ipv4Addr::new(192, 0, 2, 9);
    assert_eq!(to(CLIENT, SocketAddrV4::new(outside, 68)), None);
    assert_eq!(to(outside, SocketAddrV4::new(nowhere, 68)), None);
    assert_eq!(to(nowhere, SocketAddrV4::new(nowhere, 68)), None);
    assert_eq!(to(CLIENT, SocketAddrV4::new(SERVER, 4011)), None, "our own address: a loop");
}

#[test]
fn port_4011_takes_request_and_inform_for_us_and_says_the_boot_item_again() {
    let world = World::default();
    let source = SocketAddrV4::new(CLIENT, 68);
    let ask = |kind, more: &[(u8, &[u8])]| on_4011(&world, &request(kind, mac(1), &[UEFI, more].concat()), source);
    for kind in [3, 8] {
        assert_eq!(ask(kind, &[]).1, Reason::Told);
        assert_eq!(ask(kind, &[(54, &SERVER.octets())]).1, Reason::Told);
        assert_eq!(ask(kind, &[(54, &[10, 77, 0, 2])]).1, Reason::OtherServer);
    }
    for kind in [1, 4, 7] {
        assert_eq!(ask(kind, &[]), (None, Reason::OtherServer));
    }
    let (packet, _) = ask(3, &[(43, &[71, 4, 0, 17, 0, 0, 255])]).0.unwrap();
    assert_eq!(packet.options.bytes(43), Some(&[71, 4, 0, 17, 0, 0, 255][..]));
}

#[test]
fn nothing_follows_the_end_of_option_43_whoever_asks_for_which_item() {
    let world = World::default();
    let source = SocketAddrV4::new(CLIENT, 68);
    let item: (u8, &[u8]) = (43, &[71, 4, 0, 17, 0, 0, 255]);
    let raspberry = MacAddr([0xb8, 0x27, 0xeb, 0, 0, 1]);
    let bios: &[(u8, &[u8])] = &[(60, b"PXEClient:Arch:00000:UNDI:002001"), (93, &[0, 0])];
    let clients = [(raspberry, bios), (mac(1), UEFI), (mac(1), bios)];
    for (who, options) in clients {
        let (packet, _) = on_4011(&world, &request(3, who, &[options, &[item]].concat()), source).0.unwrap();
        let list = packet.options.bytes(43).unwrap();
        let mut rest = list;
        while let [code, len, tail @ ..] = rest
            && *code != 255
        {
            rest = &tail[usize::from(*len)..];
        }
        assert_eq!(rest, [255], "{list:?}");
    }
}
