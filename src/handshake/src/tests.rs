//! Each message is believed only whole, unchanged, and as what it is.

use super::*;
use alloc::vec;
use ed25519_dalek::{Signer, SigningKey};

fn parties() -> (SigningKey, SigningKey, Answer) {
    let (server, device) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
    let challenge = Challenge {
        nonce: [3; 32],
        mac: [0x52, 0x54, 0, 1, 2, 3],
        server_boot_key: boot_public_key(&[4; 32]),
        flags: FLAG_MAY_PIN,
        expected: [8; 16],
    };
    let answer =
        Answer { challenge, uuid: [5; 16], server_key: server.verifying_key().to_bytes(), device_boot_key: boot_public_key(&[6; 32]) };
    (server, device, answer)
}

#[test]
fn both_sides_reach_the_same_session_and_only_they_can_open() {
    let (_, _, answer) = parties();
    let (ours, theirs) = (answer.session(&[4; 32], Side::Appliance).unwrap(), answer.session(&[6; 32], Side::Device).unwrap());
    let stranger = answer.session(&[7; 32], Side::Device).unwrap();
    let blob = ours.seal(b"secret");
    assert_eq!(theirs.open(&blob).unwrap().as_slice(), b"secret");
    assert_eq!(stranger.open(&blob).err(), Some(Untrusted::BadSeal));
    for at in 0..blob.len() {
        let mut changed = blob.clone();
        changed[at] ^= 1;
        assert!(theirs.open(&changed).is_err(), "octet {at} changed");
        assert!(theirs.open(&blob[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_signature_covers_every_field_of_its_message() {
    let (server, device, answer) = parties();
    let (by_server, by_device) = (answer.challenge.sign(&server), answer.sign(&device));
    let (server_key, device_key) = (server.verifying_key().to_bytes(), device.verifying_key().to_bytes());
    assert_eq!(answer.challenge.verify(&server_key, &by_server), Ok(()));
    assert_eq!(answer.verify(&device_key, &by_device), Ok(()));
    let changes: [fn(&mut Answer); 8] = [
        |a| a.challenge.nonce[0] ^= 1,
        |a| a.challenge.mac[5] ^= 1,
        |a| a.challenge.server_boot_key[0] ^= 1,
        |a| a.challenge.flags ^= 1,
        |a| a.challenge.expected[15] ^= 1,
        |a| a.uuid[0] ^= 1,
        |a| a.server_key[0] ^= 1,
        |a| a.device_boot_key[0] ^= 1,
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut other = answer;
        change(&mut other);
        assert_eq!(other.verify(&device_key, &by_device), Err(Untrusted::BadSignature), "field {at}");
        assert_eq!(other.challenge.verify(&server_key, &by_server).is_err(), at < 5, "challenge field {at}");
    }
    assert_eq!(answer.verify(&device_key, &by_server), Err(Untrusted::BadSignature), "one purpose's signature is not another's");
}

#[test]
fn weak_and_low_order_keys_are_refused() {
    assert!(!is_device_key(&[0; 32]));
    let mut identity = [0; 32];
    identity[0] = 1;
    assert!(!is_device_key(&identity));
    let (_, _, mut answer) = parties();
    answer.device_boot_key = [0; 32];
    assert_eq!(answer.session(&[4; 32], Side::Appliance).err(), Some(Untrusted::BadKey));
}

#[test]
fn length_prefixes_keep_neighbouring_fields_apart() {
    assert_ne!(fields(&[b"ab", b"c"]), fields(&[b"a", b"bc"]));
    assert_ne!(fields(&[b"ab"]), fields(&[b"ab", b""]));
}

#[test]
fn a_report_is_believed_only_as_it_was_sent() {
    let proof = report_proof(&[1; 32], "b", "connect", "");
    assert!(report_is_genuine(&[1; 32], "b", "connect", "", &proof));
    assert!(!report_is_genuine(&[2; 32], "b", "connect", "", &proof));
    assert!(!report_is_genuine(&[1; 32], "b", "root", "", &proof));
}

/// What a signer of these purposes could be made to sign: the same fields in another order, moved over a boundary, under another
/// purpose, without lengths, with one more or one less.
#[test]
fn a_signature_over_reordered_shifted_or_repurposed_fields_is_refused() {
    let (server, device, answer) = parties();
    let next = SigningKey::from_bytes(&[9; 32]);
    let challenge = answer.challenge;
    let (server_key, device_key) = (answer.server_key, device.verifying_key().to_bytes());
    let rotation = Rotation { old: server_key, new: next.verifying_key().to_bytes() };
    let rekey = Rekey { nonce: challenge.nonce, mac: challenge.mac, server_key, old: device_key, new: next.verifying_key().to_bytes() };
    let flags = [challenge.flags];
    type Check<'a> = (&'a str, &'a SigningKey, Vec<&'a [u8]>, &'a dyn Fn(&[u8; 64]) -> bool);
    let own = rekey.sign(&device, &next);
    let checks: [Check<'_>; 5] = [
        (
            "challenge",
            &server,
            vec![b"kurrent/challenge/v2", &challenge.nonce, &challenge.mac, &challenge.server_boot_key, &flags, &challenge.expected],
            &|s| challenge.verify(&server_key, s).is_ok(),
        ),
        (
            "answer",
            &device,
            vec![
                b"kurrent/answer/v2",
                &challenge.nonce,
                &challenge.mac,
                &answer.uuid,
                &server_key,
                &answer.device_boot_key,
                &challenge.server_boot_key,
                &flags,
                &challenge.expected,
            ],
            &|s| answer.verify(&device_key, s).is_ok(),
        ),
        ("rotation", &server, vec![b"kurrent/server-rotation/v1", &rotation.old, &rotation.new], &|s| rotation.verify(s).is_ok()),
        ("rekey by the old key", &device, vec![b"kurrent/rekey/v1", &rekey.nonce, &rekey.mac, &server_key, &rekey.old, &rekey.new], &|s| {
            rekey.verify(&SignedRekey { by_old: *s, ..own }).is_ok()
        }),
        ("rekey by the new key", &next, vec![b"kurrent/rekey/v1", &rekey.nonce, &rekey.mac, &server_key, &rekey.old, &rekey.new], &|s| {
            rekey.verify(&SignedRekey { by_new: *s, ..own }).is_ok()
        }),
    ];
    for (name, signer, parts, believed) in &checks {
        let signed = |octets: &[u8]| believed(&signer.sign(octets).to_bytes());
        assert!(signed(&fields(parts)), "{name}: the message itself");
        for one in 0..parts.len() {
            for other in one + 1..parts.len() {
                let mut swapped = parts.clone();
                swapped.swap(one, other);
                assert!(!signed(&fields(&swapped)), "{name}: fields {one} and {other} exchanged");
            }
            let mut less = parts.clone();
            less.remove(one);
            assert!(!signed(&fields(&less)), "{name}: without field {one}");
        }
        for at in 0..parts.len() - 1 {
            // The same octets in a row, the boundary one octet later.
            let (left, right) = (parts[at], parts[at + 1]);
            let moved = [left, &right[..1]].concat();
            let mut shifted = parts.clone();
            (shifted[at], shifted[at + 1]) = (&moved, &right[1..]);
            assert!(!signed(&fields(&shifted)), "{name}: boundary {at} moved");
        }
        let mut more = parts.clone();
        more.push(b"");
        assert!(!signed(&fields(&more)), "{name}: one more field");
        assert!(!signed(&parts.concat()), "{name}: no lengths");
        for (other, _, others, _) in checks.iter().filter(|(other, ..)| other[..5] != name[..5]) {
            let mut repurposed = parts.clone();
            repurposed[0] = others[0];
            assert!(!signed(&fields(&repurposed)), "{name} with the purpose of {other}");
            assert!(!signed(&fields(others)), "{name}: a signature over {other}");
        }
        let mut former = parts.clone();
        let purpose = [&parts[0][..parts[0].len() - 1], b"9"].concat();
        former[0] = &purpose;
        assert!(!signed(&fields(&former)), "{name} of another version");
    }
}

#[test]
fn links_lead_only_from_the_trusted_key_over_unbroken_signatures() {
    let keys: Vec<SigningKey> = (1..=18).map(|n| SigningKey::from_bytes(&[n; 32])).collect();
    let public = |n: usize| keys[n].verifying_key().to_bytes();
    let link =
        |from: usize, to: usize| Link { new: public(to), signature: Rotation { old: public(from), new: public(to) }.sign(&keys[from]) };
    let chain: Vec<Link> = (0..MAX_LINKS).map(|n| link(n, n + 1)).collect();
    assert_eq!(follow(&public(0), &[]), Ok(public(0)));
    assert_eq!(follow(&public(0), &chain), Ok(public(MAX_LINKS)), "the longest");
    assert_eq!(follow(&public(3), &chain[3..5]), Ok(public(5)));
    let longer: Vec<Link> = (0..=MAX_LINKS).map(|n| link(n, n + 1)).collect();
    assert!(follow(&public(0), &longer).is_err(), "too many");
    assert!(follow(&public(1), &chain).is_err(), "it begins before the trusted key");
    assert!(follow(&public(0), &chain[1..]).is_err(), "the first is missing");
    assert!(follow(&public(0), &[chain[0], chain[2]]).is_err(), "one in the middle is missing");
    assert!(follow(&public(0), &[chain[1], chain[0]]).is_err(), "exchanged");
    let by_other = Link { new: public(9), signature: Rotation { old: public(0), new: public(9) }.sign(&keys[9]) };
    assert!(follow(&public(0), &[by_other]).is_err(), "signed by the new key instead of the old one");
    assert!(follow(&public(0), &[link(0, 0)]).is_err(), "no rotation at all");
    for octet in 0..Link::LEN {
        let mut octets = chain[0].to_bytes();
        octets[octet] ^= 1;
        assert!(follow(&public(0), &[Link::from_bytes(&octets)]).is_err(), "octet {octet}");
    }
}

#[test]
fn a_new_device_key_needs_both_signatures_over_every_field() {
    let (server, device, answer) = parties();
    let next = SigningKey::from_bytes(&[9; 32]);
    let rekey = Rekey {
        nonce: answer.challenge.nonce,
        mac: answer.challenge.mac,
        server_key: server.verifying_key().to_bytes(),
        old: device.verifying_key().to_bytes(),
        new: next.verifying_key().to_bytes(),
    };
    let signed = rekey.sign(&device, &next);
    assert_eq!(rekey.verify(&signed), Ok(()));
    assert_eq!(SignedRekey::from_bytes(&signed.to_bytes()), signed);
    for octet in 0..SignedRekey::LEN {
        let mut octets = signed.to_bytes();
        octets[octet] ^= 1;
        assert!(rekey.verify(&SignedRekey::from_bytes(&octets)).is_err(), "octet {octet}");
    }
    let changes: [fn(&mut Rekey); 5] =
        [|r| r.nonce[0] ^= 1, |r| r.mac[0] ^= 1, |r| r.server_key[0] ^= 1, |r| r.old[0] ^= 1, |r| r.new[0] ^= 1];
    for (at, change) in changes.iter().enumerate() {
        let mut other = rekey;
        change(&mut other);
        assert!(other.verify(&signed).is_err(), "field {at}");
    }
    assert!(rekey.verify(&SignedRekey { by_old: signed.by_new, ..signed }).is_err());
    assert!(rekey.verify(&SignedRekey { by_new: signed.by_old, ..signed }).is_err());
    let itself = Rekey { new: rekey.old, ..rekey };
    assert_eq!(itself.verify(&itself.sign(&device, &device)), Err(Untrusted::BadKey), "the old key again");
}

#[test]
fn the_expected_key_is_known_only_to_whom_has_it() {
    let (_, device, answer) = parties();
    let key = device.verifying_key().to_bytes();
    let mut challenge = answer.challenge;
    challenge.expected = expected(&challenge.nonce, &challenge.mac, &key);
    assert!(challenge.expects(&key));
    assert!(!challenge.expects(&[7; 32]));
    let other = Challenge { nonce: [4; 32], ..challenge };
    assert!(!other.expects(&key), "another nonce, another value");
    assert!(!Challenge { expected: EXPECTS_NONE, ..challenge }.expects(&key));
}
