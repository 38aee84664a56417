//! A login is opened once, whole, for the session it is sealed for; else nothing of it is left anywhere.

use super::*;

const CHAP: Chap<'_> = Chap {
    user: "iqn.2026-11.x:host.atlas.e7",
    secret: "iLqf8ZqHzv2xYw4N",
    mutual_user: "iqn.2026-11.x:atlas",
    mutual_secret: "R5tPq0aJm7sKd1eB",
};
const LOGIN: [&str; 4] = [VARIABLE_CHAP_USER, VARIABLE_CHAP_SECRET, VARIABLE_CHAP_MUTUAL_USER, VARIABLE_CHAP_MUTUAL_SECRET];

/// A machine that has answered, and the appliance's session with it.
fn answered() -> (Fake, Session) {
    let (mut machine, mut appliance) = known(false);
    let session = session_of(&mut machine, &mut appliance);
    (machine, session)
}

/// The machine answers a challenge; the session that follows, on the appliance's side.
fn session_of(machine: &mut Fake, appliance: &mut Appliance) -> Session {
    let challenge = appliance.challenge(0);
    run(machine, Some(&appliance.words(&challenge))).unwrap();
    let device_boot_key = machine.octets(VARIABLE_BOOT_KEY).unwrap().try_into().unwrap();
    let answer = Answer { challenge, uuid: [0; 16], server_key: appliance.server_key(), device_boot_key };
    let Ok(session) = answer.session(&SERVER_SECRET, Side::Appliance) else { panic!("low order") };
    session
}

fn words(blob: &[u8]) -> String {
    format!("x.efi unseal {}", blob.iter().map(|octet| format!("{octet:02x}")).collect::<String>())
}

/// Refused with this; the session can not be tried again, and no octet of a login is in the store or was said.
fn is_refused(machine: &mut Fake, words: &str, refusal: Refusal, why: &str) {
    assert_eq!(run(machine, Some(words)), Err(refusal), "{why}");
    for gone in LOGIN.iter().chain(&[VARIABLE_SESSION, VARIABLE_ANSWER]) {
        assert_eq!(machine.octets(gone), None, "{why}: {gone}");
    }
    let secrets = [CHAP.secret, CHAP.mutual_secret];
    assert!(secrets.iter().all(|secret| !machine.said.join("\n").contains(secret)), "{why}");
}

#[test]
fn a_login_of_the_session_is_left_for_ipxe_and_the_session_is_gone() {
    let (mut machine, session) = answered();
    let kept = [VARIABLE_KEY, VARIABLE_SERVER].map(|name| machine.variables.get(name).cloned());
    let blob = CHAP.seal(session).unwrap();
    run(&mut machine, Some(&words(&blob))).unwrap();
    for (name, value) in LOGIN.iter().zip([CHAP.user, CHAP.secret, CHAP.mutual_user, CHAP.mutual_secret]) {
        // Volatile and for boot services only: gone with power, and when an operating system starts.
        assert_eq!(machine.variables.get(*name), Some(&(Kind::Volatile, value.as_bytes().to_vec())), "{name}");
    }
    for gone in [VARIABLE_SESSION, VARIABLE_SESSION_MASK, VARIABLE_ANSWER, VARIABLE_BOOT_KEY] {
        assert_eq!(machine.octets(gone), None, "{gone}");
    }
    assert_eq!([VARIABLE_KEY, VARIABLE_SERVER].map(|name| machine.variables.get(name).cloned()), kept);
    let said = machine.said.join("\n");
    assert!(said.contains("login to its disk") && !said.contains(CHAP.secret) && !said.contains(CHAP.mutual_secret), "{said}");
    is_refused(&mut machine, &words(&blob), Refusal::BadSeal, "a second time");
}

#[test]
fn what_is_left_of_a_login_goes_with_the_next_order() {
    let (machine, session) = answered();
    let opened = words(&CHAP.seal(session).unwrap());
    for next in ["x.efi identify", "x.efi answer", "x.efi", "x.efi unseal", ""] {
        let mut machine = machine.clone();
        run(&mut machine, Some(&opened)).unwrap();
        let _ = run(&mut machine, Some(next));
        assert!(LOGIN.iter().all(|name| machine.octets(name).is_none()), "{next}");
    }
}

#[test]
fn a_machine_that_was_refused_can_answer_the_next_challenge_and_open_its_login() {
    let (mut machine, mut appliance) = known(false);
    let wrong = CHAP.seal(session_of(&mut machine, &mut appliance)).unwrap();
    // The later answer's session is the one that counts.
    let _ = session_of(&mut machine, &mut appliance);
    is_refused(&mut machine, &words(&wrong), Refusal::BadSeal, "of an earlier answer");
    let right = CHAP.seal(session_of(&mut machine, &mut appliance)).unwrap();
    run(&mut machine, Some(&words(&right))).unwrap();
    assert_eq!(machine.octets(VARIABLE_CHAP_SECRET), Some(CHAP.secret.as_bytes()));
}

#[test]
fn a_blob_of_another_session_or_with_any_octet_changed_or_missing_is_refused() {
    let (machine, session) = answered();
    let blob = CHAP.seal(session).unwrap();
    let (_, other) = {
        let (mut machine, mut appliance) = known(false);
        let _ = session_of(&mut machine, &mut appliance);
        let session = session_of(&mut machine, &mut appliance);
        (machine, session)
    };
    is_refused(&mut machine.clone(), &words(&CHAP.seal(other).unwrap()), Refusal::BadSeal, "another machine's");
    for at in 0..blob.len() {
        let mut changed = blob.clone();
        changed[at] ^= 1;
        is_refused(&mut machine.clone(), &words(&changed), Refusal::BadSeal, &format!("octet {at} changed"));
        if at > 0 {
            is_refused(&mut machine.clone(), &words(&blob[..at]), Refusal::BadSeal, &format!("cut at {at}"));
        }
    }
    is_refused(&mut machine.clone(), &words(&[&blob[..], &[0]].concat()), Refusal::BadSeal, "one octet more");
    for malformed in ["x.efi unseal", "x.efi unseal 0g", &format!("{} 00", words(&blob)), &words(&blob)[..words(&blob).len() - 1]] {
        is_refused(&mut machine.clone(), malformed, Refusal::BadArguments, malformed);
    }
    assert!(run(&mut machine.clone(), Some(&words(&blob))).is_ok(), "and as it is it is opened");
}

#[test]
fn a_sealed_text_that_is_no_login_is_refused() {
    let good = "user=u\nsecret=aaaaaaaaaaaa\nmutual_user=t\nmutual_secret=bbbbbbbbbbbb\n";
    let boot = "worker=atlas\nmac=02:00:00:00:00:01\n";
    for (text, opens) in [
        (good.into(), true),
        (String::new(), false),
        (boot.into(), false),
        (format!("{good}lun=1\n"), false),
        (good.replace("aaaaaaaaaaaa", "aaaaaaaaaaa"), false),
        (good.replace("aaaaaaaaaaaa", "${mac}aaaaaa"), false),
        (good.replace('b', "a"), false),
    ] {
        let (mut machine, session) = answered();
        let words = words(&session.seal(text.as_bytes()));
        if opens {
            run(&mut machine, Some(&words)).unwrap();
        } else {
            is_refused(&mut machine, &words, Refusal::BadLogin, &text);
        }
    }
}

#[test]
fn without_a_session_of_this_power_on_nothing_is_opened() {
    let (machine, session) = answered();
    let opened = words(&CHAP.seal(session).unwrap());
    type Change = fn(&mut Fake);
    let without: [(&str, Change); 5] = [
        ("off and on", Fake::power_cycle),
        ("no mask", |machine| drop(machine.variables.remove(VARIABLE_SESSION_MASK))),
        ("a mask of another start", |machine| {
            run(machine, Some("x.efi identify")).unwrap();
        }),
        // What an operating system can write: a session that it knows, which is not volatile.
        ("planted", |machine| {
            let octets = machine.octets(VARIABLE_SESSION).unwrap().to_vec();
            machine.variables.insert(VARIABLE_SESSION.into(), (Kind::Taken, octets));
        }),
        ("changed", |machine| {
            if let Some((_, octets)) = machine.variables.get_mut(VARIABLE_SESSION) {
                octets[40] ^= 1;
            }
        }),
    ];
    for (why, change) in without {
        let mut machine = machine.clone();
        change(&mut machine);
        is_refused(&mut machine, &opened, Refusal::BadSeal, why);
        assert_eq!(machine.octets(VARIABLE_SESSION_MASK), None, "{why}: the mask is worth nothing and goes, too");
    }
    let mut damaged = machine;
    damaged.variables.insert(VARIABLE_SESSION.into(), (Kind::Handed, vec![1; 20]));
    is_refused(&mut damaged, &opened, Refusal::Firmware, "a damaged session");
}

/// The store fails after each number of writes: a login is left whole or not at all, as far as the store lets it be removed.
#[test]
fn a_store_that_fails_in_between_leaves_no_half_login() {
    let (machine, session) = answered();
    let opened = words(&CHAP.seal(session).unwrap());
    for refused in LOGIN {
        let mut machine = Fake { refuses: Some(refused), ..machine.clone() };
        is_refused(&mut machine, &opened, Refusal::Firmware, refused);
    }
}
