//! New keys, of the appliance and of a device, while machines ask.

use super::*;
use kurrent_core::ledger::Device;
use kurrent_core::time::Wall;
use kurrent_handshake::{FLAG_REKEY, Link, MAX_LINKS, Rekey, SignedRekey, follow};

fn links(script: &str) -> Vec<Link> {
    let octets = hex::decode(set(script, "klinks")).unwrap();
    octets.chunks(Link::LEN).map(|link| Link::from_bytes(link.try_into().unwrap())).collect()
}

impl Bench {
    fn ask(&self, pinned: &[u8; 32]) -> String {
        text(self.plane.challenge(peer(), &form(&format!("mac={MAC}&pinned={}", hex::encode(pinned))), clock::now()))
    }

    fn rotate(&self) -> [u8; 32] {
        self.plane.shared.server_key.rotate().unwrap().public()
    }

    /// Without when it proved its key: that is no decision.
    fn device(&self) -> Device {
        Device { proved_at: None, ..self.plane.shared.ledger.snapshot().device(MAC.parse().unwrap()).unwrap().clone() }
    }

    fn proved_at(&self) -> Option<Wall> {
        self.plane.shared.ledger.snapshot().device(MAC.parse().unwrap()).unwrap().proved_at
    }

    async fn order(&self, signed: bool) {
        let until = Some(clock::now().wall + Duration::from_secs(600));
        self.change(Change::Rekey { mac: MAC.parse().unwrap(), until, signed }).await;
    }
}

#[tokio::test]
async fn a_machine_is_told_the_way_from_the_key_that_it_has_pinned_and_no_more() {
    let bench = Bench::bound(true, &key()).await;
    let mut keys = vec![bench.plane.shared.server_key.now().public()];
    assert_eq!(set(&bench.ask(&keys[0]), "klinks"), "");
    (0..3).for_each(|_| keys.push(bench.rotate()));
    for (at, pinned) in keys.iter().enumerate() {
        let script = bench.ask(pinned);
        assert_eq!(links(&script).len(), 3 - at);
        assert_eq!(follow(pinned, &links(&script)), Ok(keys[3]));
        read_challenge(&script, MAC).unwrap();
    }
    for unknown in ["", "&pinned=", "&pinned=xyz", &format!("&pinned={}", "ab".repeat(32))] {
        let script = text(bench.plane.challenge(peer(), &form(&format!("mac={MAC}{unknown}")), clock::now()));
        assert_eq!(set(&script, "klinks"), "", "{unknown}");
        read_challenge(&script, MAC).unwrap();
    }
    (0..MAX_LINKS).for_each(|_| _ = bench.rotate());
    assert_eq!(links(&bench.ask(&keys[3])).len(), MAX_LINKS);
    assert_eq!(set(&bench.ask(&keys[2]), "klinks"), "", "so long ago is forgotten");
}

#[tokio::test]
async fn an_answer_on_the_way_while_the_server_key_changes_is_asked_again_and_never_audited_as_wrong() {
    for enforcement in [true, false] {
        let device = key();
        let bench = Bench::bound(enforcement, &device).await;
        let now = clock::now();
        let (challenge, server) = bench.challenge(MAC, now).unwrap();
        bench.rotate();
        let before = bench.audited();
        let script = text(bench.boot_vars(&answer_form(challenge, server, &device).0, now).await);
        assert_eq!((set(&script, "kagain"), script.contains("kernel --name")), ("1", false), "{script}");
        assert_eq!(bench.audited(), before);
        let (challenge, server) = bench.challenge(MAC, now).unwrap();
        assert!(text(bench.boot_vars(&answer_form(challenge, server, &device).0, now).await).contains("kernel --name"));
    }
}

#[tokio::test]
async fn who_proves_its_key_is_noted_and_a_report_or_a_wrong_answer_is_no_proof() {
    let device = key();
    let bench = Bench::bound(true, &device).await;
    bench.report(&device).await;
    let now = clock::now();
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    bench.boot_vars(&answer_form(challenge, server, &SigningKey::from_bytes(&[9; 32])).0, now).await;
    assert_eq!((bench.device().last_seen.is_some(), bench.proved_at()), (true, None));
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let boots = text(bench.boot_vars(&answer_form(challenge, server, &device).0, now).await);
    assert!(bench.proved_at() == Some(now.wall) && boots.contains("kernel --name"), "{boots}");
    // The server's key may have changed meanwhile.
    let later = clock::now();
    let (challenge, server) = bench.challenge(MAC, later).unwrap();
    bench.boot_vars(&answer_form(challenge, server, &device).0, later).await;
    assert_eq!(bench.proved_at(), Some(later.wall));
}

/// A device that answers, and sends `rekey` besides.
fn with_rekey(challenge: Challenge, server: [u8; 32], device: &SigningKey, rekey: &SignedRekey) -> String {
    format!("{}&rekey={}", answer_form(challenge, server, device).0, hex::encode(rekey.to_bytes()))
}

fn rekey(challenge: &Challenge, server_key: [u8; 32], old: &SigningKey, new: &SigningKey) -> SignedRekey {
    let (old_key, new_key) = (old.verifying_key().to_bytes(), new.verifying_key().to_bytes());
    Rekey { nonce: challenge.nonce, mac: challenge.mac, server_key, old: old_key, new: new_key }.sign(old, new)
}

#[tokio::test]
async fn a_signed_rekey_replaces_the_key_once_with_a_new_epoch_and_the_machine_is_asked_again() {
    let (old, new) = (key(), SigningKey::from_bytes(&[3; 32]));
    let bench = Bench::bound(true, &old).await;
    let now = clock::now();
    assert_eq!(bench.challenge(MAC, now).unwrap().0.flags & FLAG_REKEY, 0);
    bench.order(true).await;
    let before = bench.device();
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    assert_ne!(challenge.flags & FLAG_REKEY, 0);
    assert!(challenge.expects(old.verifying_key().as_bytes()));
    let sent = with_rekey(challenge, server, &old, &rekey(&challenge, server, &old, &new));
    assert!(text(bench.boot_vars(&format!("{sent}&format=json"), now).await).contains("w1"), "looking at it changes nothing");
    assert_eq!(bench.device(), before);
    let script = text(bench.boot_vars(&sent, now).await);
    assert_eq!((set(&script, "kagain"), script.contains("kernel --name")), ("1", false), "{script}");
    let after = bench.device();
    assert_eq!(after.public_key, Some(format!("ed25519:{}", hex::encode(new.verifying_key().as_bytes()))));
    assert!(after.epoch > before.epoch && after.rekey_until.is_none() && !after.rekey_signed);
    assert!(bench.was_audited("key-replace", "key_stored"));

    let replayed = text(bench.boot_vars(&sent, now).await);
    assert!(set(&replayed, "kreason").contains("nonce_unknown"), "{replayed}");
    assert_eq!(bench.device(), after);
    // The old key is worth nothing any more, its report changes nothing, and the challenge names the new one.
    let script = bench.report(&old).await;
    assert!(set(&script, "kreason").contains("key_mismatch") && set(&script, "kstate") == "bound", "{script}");
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    assert!(challenge.expects(new.verifying_key().as_bytes()) && challenge.flags & FLAG_REKEY == 0);
    let by_old = text(bench.boot_vars(&answer_form(challenge, server, &old).0, now).await);
    assert!(set(&by_old, "kreason").contains("verify_failed"), "{by_old}");
    bench.plane.shared.credentials.ensure(&[("w1".parse().unwrap(), after.epoch, MAC.parse().unwrap())]).unwrap();
    assert!(text(bench.boot_vars(&answer_form(challenge, server, &new).0, now).await).contains("kernel --name"));
}

#[tokio::test]
async fn a_new_key_that_is_not_signed_by_both_is_refused_and_uses_nothing_up() {
    let (old, new, thief) = (key(), SigningKey::from_bytes(&[3; 32]), SigningKey::from_bytes(&[9; 32]));
    let bench = Bench::bound(true, &old).await;
    bench.order(true).await;
    let (before, now) = (bench.device(), clock::now());
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    let good = rekey(&challenge, server, &old, &new);
    let other_nonce = rekey(&bench.challenge(MAC, now).unwrap().0, server, &old, &new);
    let other_server = rekey(&challenge, [8; 32], &old, &new);
    let mine = rekey(&challenge, server, &thief, &thief);
    for bad in [
        SignedRekey { by_old: mine.by_old, ..good },
        SignedRekey { by_new: mine.by_new, ..good },
        SignedRekey { new: thief.verifying_key().to_bytes(), ..good },
        SignedRekey { new: thief.verifying_key().to_bytes(), by_old: good.by_old, by_new: mine.by_new },
        SignedRekey { new: [0; 32], ..good },
        rekey(&challenge, server, &old, &old),
        other_nonce,
        other_server,
        mine,
    ] {
        let script = text(bench.boot_vars(&with_rekey(challenge, server, &old, &bad), now).await);
        assert!(set(&script, "kreason").contains("rekey_failed") && !script.contains("kernel --name"), "{script}");
    }
    let cut = with_rekey(challenge, server, &old, &good);
    let script = text(bench.boot_vars(&cut[..cut.len() - 2], now).await);
    assert!(set(&script, "kreason").contains("rekey_failed"), "{script}");
    assert!(bench.was_audited("boot-vars", "rekey_failed"));
    // A new key that its thief signs with, under an answer that is not the device's.
    let script = text(bench.boot_vars(&with_rekey(challenge, server, &thief, &good), now).await);
    assert!(set(&script, "kreason").contains("verify_failed"), "{script}");
    assert_eq!(bench.device(), before);
    assert_eq!(set(&text(bench.boot_vars(&with_rekey(challenge, server, &old, &good), now).await), "kagain"), "1");
}

#[tokio::test]
async fn an_order_that_ended_or_was_never_given_leaves_the_old_key_which_boots() {
    let (old, new) = (key(), SigningKey::from_bytes(&[3; 32]));
    let bench = Bench::bound(true, &old).await;
    let now = clock::now();
    let unasked = bench.challenge(MAC, now).unwrap();
    bench.order(true).await;
    let asked = bench.challenge(MAC, now).unwrap();
    bench.change(Change::Rekey { mac: MAC.parse().unwrap(), until: None, signed: true }).await;
    let before = bench.device();
    for (challenge, server) in [unasked, asked] {
        let sent = with_rekey(challenge, server, &old, &rekey(&challenge, server, &old, &new));
        assert!(text(bench.boot_vars(&sent, now).await).contains("kernel --name"));
    }
    assert_eq!(bench.device(), before);
    // One that could not store a new key.
    bench.order(true).await;
    let (challenge, server) = bench.challenge(MAC, now).unwrap();
    assert!(text(bench.boot_vars(&answer_form(challenge, server, &old).0, now).await).contains("kernel --name"));
    assert!(bench.device().owes_new_key(clock::now().wall), "the order stands");
}

/// Whoever reports under this MAC while the machine itself is to make a new key.
#[tokio::test]
async fn under_a_signed_order_no_report_brings_a_key() {
    let bench = Bench::bound(true, &key()).await;
    bench.order(true).await;
    let before = bench.device().public_key;
    let script = bench.report(&SigningKey::from_bytes(&[9; 32])).await;
    assert!(set(&script, "kreason").contains("key_mismatch"), "{script}");
    assert_eq!(bench.device().public_key, before);
    bench.order(false).await;
    bench.report(&SigningKey::from_bytes(&[9; 32])).await;
    assert_ne!(bench.device().public_key, before, "a replaced mainboard");
}
