//! Who is recognised as what, and what it is given.

use super::super::testing::{World, at, mac, packet, request};
use super::super::wire::{decode, encode};
use super::*;

const PLANE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 80);
const SOMEBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PI: MacAddr = MacAddr([0xdc, 0xa6, 0x32, 1, 2, 3]);
/// Option 55 of the ROM and EEPROM of a Raspberry Pi.
const PI_WANTS: &[u8] = &[43, 60, 67, 128, 129, 130, 131, 132, 133, 134, 135, 66, 1, 3];

type List<'a> = &'a [(u8, &'a [u8])];

fn options(list: List<'_>) -> Options {
    let mut options = Options::default();
    for (code, value) in list {
        options.push(*code, value);
    }
    options
}

fn check(list: List<'_>, expected: BootFile) {
    assert_eq!(boot_file(&identify(&options(list), Some(SOMEBODY)), None, PLANE), expected, "{list:?}");
}

fn tftp(name: &str) -> BootFile {
    BootFile::Tftp(name.to_owned())
}

/// The OFFER that this DISCOVER gets from the server, as the wire has it.
fn offer(list: List<'_>, mac: MacAddr) -> Vec<u8> {
    let (reply, _) = World::default().decide(&request(1, mac, list), at(0)).reply.unwrap();
    encode(&reply, 1472)
}

#[test]
fn loader_follows_the_architecture_list() {
    check(&[(60, b"PXEClient:Arch:00000:UNDI:002001"), (93, &[0, 0])], tftp("undionly.kpxe"));
    check(&[(60, b"PXEClient"), (93, &[0, 7])], tftp("snponly.efi"));
    check(&[(60, b"PXEClient"), (93, &[0, 9])], tftp("snponly.efi"));
    check(&[(60, b"PXEClient"), (93, &[0, 11])], tftp("ipxe-arm64.efi"));
    check(&[(60, b"PXEClient"), (93, &[0, 6, 0, 7])], tftp("snponly.efi"));
    check(&[(60, b"PXEClient"), (93, &[0, 27])], tftp("ipxe-riscv64.efi"));
    check(&[(60, b"PXEClient"), (93, &[0, 39])], tftp("ipxe-loong64.efi"));
}

#[test]
fn an_architecture_without_loader_is_offered_nothing_and_named() {
    for number in [6, 10, 25, 37] {
        let list: List<'_> = &[(60, b"PXEClient"), (93, &[0, number])];
        check(list, BootFile::Nothing);
        let named = identify(&options(list), Some(SOMEBODY)).without_loader().unwrap();
        assert!(named.starts_with(NO_LOADER) && named.contains(&number.to_string()), "{named}");
    }
    assert_eq!(identify(&options(&[(60, b"PXEClient"), (93, &[0, 6, 0, 7])]), Some(SOMEBODY)).without_loader(), None);
    assert_eq!(Client::Ipxe.without_loader().or(Client::System.without_loader()).or(Client::RaspberryPi.without_loader()), None);
}

#[test]
fn missing_architecture_is_read_from_the_vendor_class_then_taken_as_x64() {
    check(&[(60, b"PXEClient:Arch:00011:UNDI:003016")], tftp("ipxe-arm64.efi"));
    check(&[(60, b"PXEClient:Arch:000")], tftp("snponly.efi"));
    check(&[(60, "PXEClient:Arch:0000é".as_bytes())], tftp("snponly.efi"));
    check(&[(60, b"PXEClient"), (93, &[])], tftp("snponly.efi"));
}

#[test]
fn ipxe_1527_first_discover_of_ipxe_says_pxeclient_and_is_recognised_by_class_and_by_features() {
    let script = BootFile::Url("http://10.77.0.1/boot.ipxe".into());
    check(&[(60, b"PXEClient:Arch:00007"), (93, &[0, 7]), (77, b"iPXE")], script.clone());
    check(&[(60, b"PXEClient"), (77, b"\x04iPXE")], script.clone());
    check(&[(60, b"PXEClient"), (77, b"\x01x\x04iPXE")], script.clone());
    check(&[(60, b"PXEClient"), (175, &[19, 1, 1])], script);
}

#[test]
fn ipxe_908_922_203_no_ipxe_that_speaks_http_is_ever_offered_a_loader() {
    for arch in [0, 7, 9, 11, 16] {
        for features in [None, Some(&[19, 1, 1][..]), Some(&[177, 5, 1, 0x80, 0x86, 0x10, 0, 19, 1, 1, 33, 1, 1][..])] {
            let arch = [0, arch];
            let mut list: Vec<(u8, &[u8])> = vec![(60, b"PXEClient:Arch:00007:UNDI:003010"), (93, &arch), (77, b"iPXE")];
            list.extend(features.map(|f| (175, f)));
            let client = identify(&options(&list), Some(SOMEBODY));
            // Not even when the device has a loader of its own.
            assert_eq!(boot_file(&client, Some("ipxe-amd64.efi"), PLANE), BootFile::Url("http://10.77.0.1/boot.ipxe".into()));
        }
    }
}

#[test]
fn ipxe_without_http_and_gpxe_are_chained_once_into_ours() {
    check(&[(60, b"PXEClient"), (77, b"iPXE"), (93, &[0, 0]), (175, &[18, 1, 1])], tftp("undionly.kpxe"));
    check(&[(60, b"PXEClient"), (77, b"gPXE"), (93, &[0, 0]), (175, &[19, 1, 1])], tftp("undionly.kpxe"));
    // What they are chained into says iPXE and HTTP: no second time.
    check(&[(60, b"PXEClient"), (77, b"iPXE"), (93, &[0, 0]), (175, &[19, 1, 1])], BootFile::Url("http://10.77.0.1/boot.ipxe".into()));
}

#[test]
fn xcat_core_7743_smee_210_http_boot_gets_a_url_with_the_echo_and_an_address_in_it() {
    let list: List<'_> = &[(60, b"HTTPClient:Arch:00016:UNDI:003001"), (93, &[0, 16])];
    check(list, BootFile::HttpBoot("http://10.77.0.1/files/snponly.efi".into()));
    check(&[(93, &[0, 19])], BootFile::HttpBoot("http://10.77.0.1/files/ipxe-arm64.efi".into()));
    check(&[(60, b"HTTPClient"), (93, &[0, 15])], BootFile::Nothing);
    let offer = decode(&offer(list, SOMEBODY)).unwrap();
    assert_eq!(offer.options.bytes(option::VENDOR_CLASS), Some(CLASS_HTTP));
    assert_eq!(offer.options.bytes(option::BOOT_FILE_NAME), Some(&b"http://10.77.0.1/files/snponly.efi"[..]));
}

#[test]
fn edk2_8149_fog_docs_188_a_full_offer_to_firmware_has_no_option_60_so_it_is_no_binl_offer() {
    for arch in [0, 7, 9, 11] {
        let offer = decode(&offer(&[(60, b"PXEClient:Arch:00007:UNDI:003016"), (93, &[0, arch])], SOMEBODY)).unwrap();
        assert!(offer.options.bytes(option::VENDOR_CLASS).is_none() && offer.options.bytes(option::VENDOR_SPECIFIC).is_none());
        assert!(!offer.yiaddr.is_unspecified() && !offer.file.is_empty());
    }
}

#[test]
fn openwrt_14660_technitium_1719_siaddr_sname_file_66_and_67_agree() {
    let all: [List<'_>; 4] = [
        &[(60, b"PXEClient"), (93, &[0, 0])],
        &[(60, b"PXEClient"), (93, &[0, 7])],
        &[(60, b"HTTPClient"), (93, &[0, 16])],
        &[(60, b"PXEClient"), (77, b"iPXE")],
    ];
    for list in all {
        let offer = decode(&offer(list, SOMEBODY)).unwrap();
        assert_eq!(offer.siaddr, *PLANE.ip());
        assert_eq!((&offer.sname[..], offer.options.bytes(66)), (&b"10.77.0.1"[..], Some(&b"10.77.0.1"[..])));
        assert_eq!(Some(&offer.file[..]), offer.options.bytes(67));
    }
}

#[test]
fn netboot_xyz_1198_the_name_in_option_67_is_followed_by_a_nul_that_is_not_part_of_it() {
    let octets = offer(&[(60, b"PXEClient"), (93, &[0, 0])], SOMEBODY);
    let name = b"\x43\x0dundionly.kpxe";
    let place = octets.windows(name.len()).position(|w| w == name).unwrap();
    assert_eq!(octets[place + name.len()], option::PAD);
    assert_eq!(decode(&octets).unwrap().options.bytes(67), Some(&name[2..]));
    // EDK2 writes a NUL there: no option is lost by that.
    let mut written = octets.clone();
    written[place + name.len()] = 0;
    assert_eq!(decode(&written), decode(&octets));
}

#[test]
fn raspberrypi_firmware_801_1265_its_rom_finds_the_menu_entry_that_it_looks_for_and_the_server() {
    let all: [List<'_>; 2] = [
        &[(55, PI_WANTS), (93, &[0, 0]), (94, &[1, 2, 1]), (60, b"PXEClient:Arch:00000:UNDI:002001")],
        // rpi-eeprom 82: the REQUEST has no option 60.
        &[(55, PI_WANTS), (93, &[0, 0])],
    ];
    for list in all {
        let octets = offer(list, PI);
        let offer = decode(&octets).unwrap();
        assert_eq!(offer.options.bytes(60), Some(&b"PXEClient"[..]));
        assert_eq!(offer.options.bytes(43).map(<[u8]>::len), Some(32), "the vendor's own example has 32 octets");
        assert!(offer.options.bytes(43).unwrap().windows(17).any(|w| w == b"Raspberry Pi Boot"));
        assert_eq!((offer.siaddr, offer.options.bytes(66)), (*PLANE.ip(), Some(&b"10.77.0.1"[..])));
        // It ignores a file name, and a PAD between options (rpi-eeprom 82): there is neither.
        assert!(offer.file.is_empty() && offer.options.bytes(67).is_none());
    }
    // Nobody else is told of that menu: an Intel ROM would show it.
    assert!(decode(&offer(all[0], SOMEBODY)).unwrap().options.bytes(43).is_none());
}

/// iPXE waits seconds for a proxy's offer after a server's, unless it is told that there is none. A proxy must not say so.
#[test]
fn barclamp_provisioner_2_ipxe_is_told_by_the_server_that_there_is_no_proxy() {
    let told = |list: List<'_>| decode(&offer(list, SOMEBODY)).unwrap().options.bytes(option::IPXE_ENCAPSULATED).map(<[u8]>::to_vec);
    assert_eq!(told(&[(60, b"PXEClient"), (77, b"iPXE"), (93, &[0, 7])]), Some(vec![176, 1, 1]));
    assert_eq!(told(&[(60, b"PXEClient"), (93, &[0, 0]), (175, &[18, 1, 1])]), Some(vec![176, 1, 1]), "an option ROM");
    assert_eq!(told(&[(60, b"PXEClient"), (93, &[0, 7])]), None);
    let world = World::default();
    let view = super::super::proxy::View { config: &world.config, ledger: &world.ledger };
    let (answer, _) = super::super::proxy::decide(&request(1, SOMEBODY, &[(60, b"PXEClient"), (77, b"iPXE"), (93, &[0, 7])]), &view);
    assert!(answer.unwrap().0.options.bytes(option::IPXE_ENCAPSULATED).is_none());
}

#[test]
fn a_raspberry_pi_is_known_by_its_machine_id_and_one_that_runs_uefi_or_a_system_is_no_rom() {
    let id = b"\0RPi4\x14\x31\xc0\x00\x03\x02\x01\x32\x01\x02\x03\x04";
    assert_eq!(identify(&options(&[(60, b"PXEClient"), (93, &[0, 0]), (97, id)]), Some(SOMEBODY)), Client::RaspberryPi);
    assert_eq!(identify(&options(&[(60, b"PXEClient"), (93, &[0, 41])]), Some(PI)), Client::RaspberryPi);
    assert_eq!(identify(&options(&[(60, b"PXEClient"), (93, &[0, 11])]), Some(PI)), Client::Firmware(vec![Arch::from(11)]));
    assert_eq!(identify(&options(&[(55, &[1, 3, 6, 43])]), Some(PI)), Client::System);
    assert_eq!(identify(&options(&[(60, b"dhcpcd-9.4.1"), (55, PI_WANTS)]), Some(PI)), Client::System);
    assert_eq!(identify(&options(&[(60, b"PXEClient"), (93, &[0, 0]), (77, b"iPXE")]), Some(PI)), Client::Ipxe);
}

#[test]
fn operating_system_is_offered_nothing() {
    check(&[(60, b"udhcp 1.36.1")], BootFile::Nothing);
    check(&[(60, b"MSFT 5.0")], BootFile::Nothing);
    check(&[], BootFile::Nothing);
}

#[test]
fn device_override_names_a_loader_of_the_table_and_comes_as_the_clients_kind_takes_it() {
    let firmware = Client::Firmware(vec![Arch::X64]);
    assert_eq!(boot_file(&firmware, Some("ipxe-amd64.efi"), PLANE), tftp("ipxe-amd64.efi"));
    assert_eq!(boot_file(&firmware, Some("../etc/passwd"), PLANE), tftp("snponly.efi"));
    // Of another architecture, also where there is none of its own: the operator's choice.
    assert_eq!(boot_file(&Client::Firmware(vec![Arch::from(6)]), Some("ipxe-amd64.efi"), PLANE), tftp("ipxe-amd64.efi"));
    let http = Client::Http(vec![Arch::from(16)]);
    assert_eq!(boot_file(&http, Some("ipxe-amd64.efi"), PLANE), BootFile::HttpBoot("http://10.77.0.1/files/ipxe-amd64.efi".into()));
    let plane = SocketAddrV4::new(*PLANE.ip(), 8000);
    assert_eq!(boot_file(&Client::Ipxe, Some("ipxe-amd64.efi"), plane), BootFile::Url("http://10.77.0.1:8000/boot.ipxe".into()));
}

#[test]
fn boot_item_is_read_from_option_43_and_from_nothing_else() {
    let item = |value: &[u8]| boot_item(&options(&[(43, value)]));
    assert_eq!(item(&[71, 4, 0, 0, 0, 0, 255]), Some([0; 4]));
    assert_eq!(item(&[0, 6, 1, 8, 71, 4, 0, 17, 0, 0]), Some([0, 17, 0, 0]));
    for damaged in [&[][..], &[71], &[71, 4], &[71, 4, 0, 0], &[71, 2, 0, 0], &[255, 71, 4, 0, 0, 0, 0]] {
        assert_eq!(item(damaged), None, "{damaged:?}");
    }
}

#[test]
fn damaged_lists_are_survived() {
    for bytes in [&[][..], &[5], &[5, 9, 1], &[0, 0, 255], &[255]] {
        assert_eq!(suboption(bytes, IPXE_FEATURE_HTTP), None);
        assert!(!has_user_class(&options(&[(77, bytes)]), USER_CLASS_IPXE));
    }
    let _ = identify(&packet(1, mac(1), &[(97, &[0]), (175, &[]), (77, &[255])]).options, Some(PI));
}
