//! Machines with the existing Kurrent firmware and its scripts: P-256, parameters in the URL, variables under their old names.

use super::verify::Claim;
use super::*;
use kurrent_core::boot::Evidence;

/// The names that those scripts read, all of them and no other.
const NAMES: [&str; 10] =
    ["hostname", "os", "os-version", "os-tag", "base-nqn", "storager-ip", "hostnqn", "method", "menu-default", "menu-timeout"];

fn golden(name: &str) -> &'static str {
    let text = include_str!("../../../../tests/golden/handshake/p256.txt");
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap()
}

fn names(script: &str) -> Vec<&str> {
    let set = script.lines().filter_map(|l| l.strip_prefix("set ")?.split(' ').next());
    set.filter(|name| !["kstate", "kwait", "kreason", "krenew"].contains(name)).collect()
}

#[test]
fn an_answer_made_by_another_library_verifies_in_both_spellings_and_for_nobody_else() {
    let (nonce, mac): ([u8; 32], MacAddr) = (verify::octets(golden("nonce")).unwrap(), golden("mac").parse().unwrap());
    let key = DeviceKey::of_report(golden("public_key")).unwrap();
    let check = |nonce, mac: MacAddr, signature: &str, worker: Option<&str>, expected| {
        let challenge = Challenge { nonce, mac: mac.0, server_boot_key: [0; 32], flags: 0, expected: [0; 16] };
        let worker: Option<WorkerId> = worker.map(|w| w.parse().unwrap());
        let claim = Claim { signature, boot_key: "", uuid: "" };
        assert_eq!(verify::evidence(&key, &claim, None, &challenge, worker.as_ref()), expected, "{signature} {worker:?}");
    };
    let (sig, hostname) = (golden("sig"), Some(golden("hostname")));
    assert!(sig.contains('+'));
    check(nonce, mac, sig, hostname, Evidence::Genuine);
    check(nonce, mac, &sig.replace('+', " "), hostname, Evidence::Genuine);
    check([1; 32], mac, sig, hostname, Evidence::Wrong);
    check(nonce, OTHER.parse().unwrap(), sig, hostname, Evidence::Wrong);
    check(nonce, mac, sig, Some("w10"), Evidence::Wrong);
    check(nonce, mac, sig, None, Evidence::Wrong);
    check(nonce, mac, "", hostname, Evidence::Nothing);
}

#[tokio::test]
async fn a_p256_machine_gets_every_variable_and_no_secret_once() {
    use base64::Engine as _;
    use p256::ecdsa::signature::Signer as _;
    let device = p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let bench = Bench::new(true);
    bench.open_window().await;
    let report = format!("mac={MAC}&public_key={}", hex::encode(device.verifying_key().to_sec1_point(false).as_bytes()));
    assert_eq!(set(&text(bench.report_from(MAC, &report).await), "kstate"), "pooled");
    bench.worker("w1").await;
    bench.bind(MAC, "w1").await;
    let now = clock::now();
    let (challenge, _) = bench.challenge(MAC, now).unwrap();
    let nonce = hex::encode(challenge.nonce);
    let signature: p256::ecdsa::Signature = device.sign(format!("{nonce}{MAC}w1").as_bytes());
    let sig = base64::engine::general_purpose::STANDARD.encode(signature.to_der());
    let good = format!("mac={MAC}&nonce={nonce}&sig={}", sig.replace('+', "%20"));
    let script = text(bench.boot_vars(&good, now).await);
    assert_eq!(names(&script), NAMES, "{script}");
    assert_eq!((set(&script, "hostname"), set(&script, "menu-default"), set(&script, "menu-timeout")), ("w1", "010101010101", "0"));
    let secrets = std::fs::read_to_string(bench.folder.path().join("state/secrets/credentials.yml")).unwrap();
    for secret in secrets.lines().filter_map(|l| l.split("DHHC-1:").nth(1)) {
        assert!(!script.contains(secret.trim_matches('"')), "{script}");
    }
    let again = text(bench.boot_vars(&good, now).await);
    assert!(set(&again, "kreason").contains("nonce_unknown") && names(&again).is_empty(), "{again}");
}

#[tokio::test]
async fn k21_without_a_disk_that_boots_the_variables_say_reboot_and_our_script_waits() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    let worker: WorkerId = "w1".parse().unwrap();
    let ask = async |json: bool| {
        let (challenge, server) = bench.challenge(MAC, clock::now()).unwrap();
        let fields = answer_form(challenge, server, &device).0;
        text(bench.boot_vars(&if json { format!("{fields}&format=json") } else { fields }, clock::now()).await)
    };
    let boot = |menu_default: Option<&str>| kurrent_core::ledger::BootSettings {
        menu_default: menu_default.map(str::to_owned),
        menu_timeout_ms: Some(3000),
        ..Default::default()
    };
    let set_boot = |entry| Change::SetBoot { worker: worker.clone(), boot: boot(entry) };
    bench.change(set_boot(Some("010101010101"))).await;
    let script = ask(false).await;
    assert_eq!((names(&script), set(&script, "menu-timeout")), (NAMES.to_vec(), "3000"));
    assert!(script.contains("kernel --name"));
    bench.change(set_boot(Some("reboot"))).await;
    for _ in 0..2 {
        let script = ask(false).await;
        assert_eq!(names(&script), ["menu-default", "menu-timeout"], "{script}");
        assert_eq!(set(&script, "menu-default"), "reboot");
        assert!(set(&script, "kreason").starts_with("no system disk") && !set(&script, "kwait").is_empty(), "{script}");
        let seen: serde_json::Value = serde_json::from_str(&ask(true).await).unwrap();
        assert_eq!((seen["menu-default"].as_str(), seen["code"].as_str()), (Some("reboot"), Some("no_disk")));
        // The same when nothing is chosen because there is nothing.
        let tag = OsTag::from_random([1; 6]);
        bench.change(set_boot(None)).await;
        if bench.plane.shared.ledger.snapshot().workers.get(&worker).is_some_and(|w| !w.disks.is_empty()) {
            bench.change(Change::RemoveDisk { worker: worker.clone(), os_tag: tag }).await;
        }
    }
}

#[tokio::test]
async fn the_existing_firmwares_p256_answers_verify_in_both_spellings() {
    use base64::Engine as _;
    use p256::ecdsa::signature::Signer as _;
    let device = p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let point = hex::encode(device.verifying_key().to_sec1_point(false).as_bytes());
    let key = DeviceKey::of_report(&point).unwrap();
    assert_eq!(DeviceKey::of_ledger(&key.text()), Some(key.clone()));
    assert_eq!(DeviceKey::of_ledger(&key.text().replace("p256:", "ed25519:")), None);
    let challenges = Challenges::new(entropy::random, clock::now());
    let (mac, worker): (MacAddr, WorkerId) = (MAC.parse().unwrap(), "w1".parse().unwrap());
    let mut with_plus = 0;
    for _ in 0..20 {
        let parties = Parties { mac, server_key: &[3; 32], device_key: None };
        let sent = challenges.issue(parties, 0, entropy::random(), entropy::random, clock::now());
        let outstanding = challenges.find(parties, [], &sent.nonce, entropy::random, clock::now()).ok().unwrap();
        let signature: p256::ecdsa::Signature = device.sign(format!("{}{mac}w1", hex::encode(sent.nonce)).as_bytes());
        let sig = base64::engine::general_purpose::STANDARD.encode(signature.to_der());
        with_plus += usize::from(sig.contains('+'));
        let other: WorkerId = "w2".parse().unwrap();
        let of = |signature: &str, worker| {
            verify::evidence(&key, &Claim { signature, boot_key: "", uuid: "" }, None, &outstanding.challenge, Some(worker))
        };
        assert_eq!(of(&sig, &worker), Evidence::Genuine);
        assert_eq!(of(&sig.replace('+', " "), &worker), Evidence::Genuine);
        assert_eq!(of(&sig, &other), Evidence::Wrong);
        assert_eq!(of("not base64!", &worker), Evidence::Nothing);
    }
    assert!(with_plus > 0, "no signature had a plus sign");
}
