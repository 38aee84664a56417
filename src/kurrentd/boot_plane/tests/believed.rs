//! What is not believed although it looks right: signatures that say too little, and claims from nobody's address.

use super::*;

/// An observer on the wire has the victim's nonce and signature, which say nothing about the boot key.
#[tokio::test]
async fn a_p256_answer_is_never_sealed_to_a_boot_key_that_it_does_not_sign() {
    use base64::Engine as _;
    use p256::ecdsa::signature::Signer as _;
    let victim = p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let point = hex::encode(victim.verifying_key().to_sec1_point(false).as_bytes());
    for enforcement in [true, false] {
        let bench = Bench::new(enforcement);
        let (mac, public_key) = (MAC.parse().unwrap(), DeviceKey::of_report(&point).map(|key| key.text()));
        bench
            .change(Change::Register {
                mac,
                public_key,
                keyless_allowed: true,
                note: String::new(),
                labels: std::collections::BTreeMap::new(),
                address: None,
            })
            .await;
        bench.worker("w1").await;
        bench.bind(MAC, "w1").await;
        let now = clock::now();
        let (challenge, _) = bench.challenge(MAC, now).unwrap();
        let signature: p256::ecdsa::Signature = victim.sign(format!("{}{mac}w1", hex::encode(challenge.nonce)).as_bytes());
        let sig = base64::engine::general_purpose::STANDARD.encode(signature.to_der());
        let seen = format!("mac={mac}&nonce={}&sig={}", hex::encode(challenge.nonce), sig.replace('+', "%2B"));
        let attack = format!("{seen}&boot_key={}", hex::encode(boot_public_key(&DEVICE_SECRET)));
        // People are shown that it verifies; that gives nothing away.
        assert!(text(bench.boot_vars(&format!("{attack}&format=json"), now).await).contains("w1"));
        for (fields, code) in [(&attack, "no_channel"), (&attack, if enforcement { "nonce_unknown" } else { "no_channel" })] {
            let script = text(bench.boot_vars(fields, now).await);
            assert!(set(&script, "kreason").contains(code), "{script}");
            assert!(!script.contains("kernel --name") && !script.contains("sealed"), "{script}");
            assert!(bench.was_audited("boot-vars", code));
        }
        assert!(!bench.was_audited("boot-vars", "ok"));
    }
}

/// Whatever a host with an address of its own choice says: it changes nothing.
#[tokio::test]
async fn reports_from_an_address_without_a_lease_admit_refresh_and_plant_nothing() {
    let (bench, device) = (Bench::new(true), key());
    bench.open_window().await;
    bench.report(&device).await;
    let keyless: MacAddr = OTHER.parse().unwrap();
    bench
        .change(Change::Register {
            mac: keyless,
            public_key: None,
            keyless_allowed: false,
            note: String::new(),
            labels: std::collections::BTreeMap::new(),
            address: None,
        })
        .await;
    bench
        .change(Change::Rekey { mac: MAC.parse().unwrap(), until: Some(clock::now().wall + Duration::from_secs(600)), signed: false })
        .await;
    let before = bench.plane.shared.ledger.snapshot();
    let forger = SigningKey::from_bytes(&[9; 32]);
    let static_address = Peer { address: Ipv4Addr::LOCALHOST.into(), lease: None };
    for mac in [MAC, OTHER, "52:54:00:00:00:03"] {
        let script =
            text(bench.plane.report(static_address, &form(&report_form(mac, &forger).replace("QEMU", "forged")), clock::now()).await);
        assert!(set(&script, "kreason").contains("no lease for this address"), "{script}");
        assert_eq!(set(&script, "krenew"), "1", "a machine whose lease was lost asks for it again");
        let script = text(bench.report_from("52:54:00:00:00:04", &report_form(mac, &forger)).await);
        assert!(set(&script, "kreason").contains("mac_mismatch"), "{script}");
    }
    // The kernel knows whose static address it is, and it speaks for itself: that is no lease.
    let neighbour = Peer { address: ADDRESS.into(), lease: Some(OTHER.parse().unwrap()) };
    let script = text(bench.plane.report(neighbour, &form(&report_form(OTHER, &forger)), clock::now()).await);
    assert!(set(&script, "kreason").contains("no lease for this address"), "{script}");
    let after = bench.plane.shared.ledger.snapshot();
    assert_eq!((after.generation, &after.devices), (before.generation, &before.devices));
    assert!(bench.plane.shared.ledger.knocking().list().is_empty());
    assert!(bench.was_audited("report", "no_lease"));
}

#[tokio::test]
async fn without_our_dhcp_nobody_has_a_lease_and_reports_are_taken() {
    let mut config = Config::default();
    config.dhcp.mode = kurrent_core::config::DhcpMode::Off;
    let bench = Bench::with(config);
    bench.open_window().await;
    assert_eq!(set(&text(bench.plane.report(peer(), &form(&report_form(MAC, &key())), clock::now()).await), "kstate"), "pooled");
}
