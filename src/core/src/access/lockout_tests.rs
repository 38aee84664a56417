use super::*;

const ADA: &str = "ada";
const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Mono {
    Mono(Duration::from_secs(10_000 + seconds))
}

fn attempt(user: &str, address: [u8; 4], side: Side) -> Attempt<'_> {
    Attempt { user, address: address.into(), side }
}

/// How long somebody has to wait; nothing: the attempt was let through, and failed.
fn wait(lockout: &mut Lockout, attempt: Attempt<'_>, now: Mono) -> Option<Duration> {
    lockout.begin(attempt, now).err()
}

#[test]
fn the_pause_doubles_from_a_second_to_a_quarter_of_an_hour_and_is_forgotten() {
    let (mut lockout, stranger) = (Lockout::default(), attempt(ADA, [10, 0, 0, 1], Side::Boot));
    let mut now = 0;
    for expected in [1u64, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
        assert_eq!(wait(&mut lockout, stranger, at(now)), None);
        assert_eq!(wait(&mut lockout, stranger, at(now)), Some(Duration::from_secs(expected)), "many at once are not many tries");
        now += expected;
    }
    assert_eq!(wait(&mut lockout, stranger, at(now + 900)), None);
    assert_eq!(wait(&mut lockout, stranger, at(now + 900)), Some(SECOND), "a quarter of an hour of peace");
}

#[test]
fn a_stranger_can_not_lock_the_operator_out() {
    let mut lockout = Lockout::default();
    let operator = attempt(ADA, [10, 0, 0, 200], Side::Boot);
    let begun = lockout.begin(operator, at(0)).unwrap();
    lockout.succeeded(begun);
    let mut now = 1;
    for n in 1..=100u8 {
        let stranger = attempt(ADA, [10, 0, 0, n], Side::Boot);
        if let Some(pause) = wait(&mut lockout, stranger, at(now)) {
            now += pause.as_secs();
            assert_eq!(wait(&mut lockout, stranger, at(now)), None);
        }
    }
    assert!(wait(&mut lockout, attempt(ADA, [10, 0, 0, 150], Side::Boot), at(now)).is_some(), "many addresses are no way around");
    let begun = lockout.begin(operator, at(now)).unwrap();
    lockout.succeeded(begun);
    for (address, side) in [([192, 0, 2, 1], Side::Elsewhere), ([127, 0, 0, 1], Side::Loopback)] {
        assert_eq!(wait(&mut lockout, attempt(ADA, address, side), at(now)), None, "another side");
    }
    assert!(wait(&mut lockout, attempt(ADA, [10, 0, 0, 151], Side::Boot), at(now)).is_some(), "his log-in helps nobody else");
}

/// NAT, a /64, a reverse proxy on loopback.
#[test]
fn whoever_guesses_pauses_nobody_else_who_shares_the_address() {
    let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
    for [one, other] in [[IpAddr::from([192, 0, 2, 1]); 2], [IpAddr::from([127, 0, 0, 1]); 2], [v6(1), v6(2)]] {
        let (mut lockout, side) = (Lockout::default(), Side::Elsewhere);
        let mut now = at(0);
        for _ in 0..21 {
            let pause = wait(&mut lockout, Attempt { user: ADA, address: one, side }, now);
            now = Mono(now.0 + pause.unwrap_or_default());
        }
        assert!(wait(&mut lockout, Attempt { user: ADA, address: other, side }, now).is_some(), "one network is one guesser");
        assert_eq!(wait(&mut lockout, Attempt { user: "olga", address: other, side }, now), None, "{other}");
    }
}

#[test]
fn a_log_in_of_ones_own_forgives_no_guess_at_others() {
    let mut lockout = Lockout::default();
    let (own, other) = (attempt("eve", [192, 0, 2, 1], Side::Elsewhere), attempt(ADA, [192, 0, 2, 1], Side::Elsewhere));
    let mut now = 0;
    for expected in [1u64, 2, 4, 8, 16, 32] {
        let begun = lockout.begin(own, at(now)).unwrap();
        lockout.succeeded(begun);
        assert_eq!(wait(&mut lockout, other, at(now)), None);
        assert_eq!(wait(&mut lockout, other, at(now)), Some(Duration::from_secs(expected)));
        now += expected;
    }
    // And not when he sprays.
    let mut lockout = Lockout::default();
    let mut tried = 0;
    for n in 0..200 {
        let begun = lockout.begin(own, at(0)).unwrap();
        lockout.succeeded(begun);
        tried += usize::from(wait(&mut lockout, attempt(&format!("user{n}"), [192, 0, 2, 1], Side::Elsewhere), at(0)).is_none());
    }
    assert_eq!(tried, 21);
    // Nor while one of his own waits to be looked at.
    let begun = lockout.begin(own, at(0)).unwrap();
    lockout.withdrawn(begun);
    assert!(wait(&mut lockout, attempt("more", [192, 0, 2, 1], Side::Elsewhere), at(0)).is_some());
}

#[test]
fn one_address_that_tries_many_names_is_slowed_to_one_a_minute_and_keeps_nobody_out_who_was_there_before() {
    let (mut lockout, address, side) = (Lockout::default(), [192, 0, 2, 1], Side::Elsewhere);
    let begun = lockout.begin(attempt(ADA, address, side), at(0)).unwrap();
    lockout.succeeded(begun);
    let (mut tried, mut name) = (0, 0);
    for second in 0..3600 {
        for _ in 0..5 {
            name += 1;
            tried += usize::from(wait(&mut lockout, attempt(&format!("user{name}"), address, side), at(second)).is_none());
        }
    }
    assert!((60..100).contains(&tried), "{tried}");
    assert_eq!(wait(&mut lockout, attempt(ADA, address, side), at(3600)), None, "he has logged in from there");
    assert_eq!(wait(&mut lockout, attempt("new", [192, 0, 2, 2], side), at(3600)), None, "another address");
    let pause = wait(&mut lockout, attempt("new", address, side), at(3600)).unwrap_or_default();
    assert!(pause <= Duration::from_mins(1), "{pause:?}");
}

/// No turn, or users that do not read.
#[test]
fn an_attempt_whose_password_was_not_looked_at_does_not_count() {
    let (mut lockout, tried) = (Lockout::default(), attempt(ADA, [192, 0, 2, 1], Side::Elsewhere));
    for _ in 0..100 {
        let begun = lockout.begin(tried, at(0)).unwrap();
        lockout.withdrawn(begun);
    }
    assert!(lockout.pairs.0.is_empty() && lockout.users.0.is_empty() && lockout.addresses.0.is_empty());
    // What failed before it stays, and what began meanwhile.
    assert_eq!(wait(&mut lockout, tried, at(0)), None);
    let slow = lockout.begin(tried, at(1)).unwrap();
    lockout.withdrawn(slow);
    let slow = lockout.begin(tried, at(2)).unwrap();
    assert_eq!(wait(&mut lockout, tried, at(4)), None);
    lockout.withdrawn(slow);
    assert_eq!(wait(&mut lockout, tried, at(4)), Some(Duration::from_secs(4)), "the pause of the later one");
    assert_eq!(wait(&mut lockout, tried, at(8)), None);
    assert_eq!(wait(&mut lockout, tried, at(8)), Some(Duration::from_secs(4)), "two failures before it");
}

#[test]
fn who_gets_a_name_that_was_deleted_has_logged_in_from_nowhere() {
    let (mut lockout, before) = (Lockout::default(), attempt(ADA, [192, 0, 2, 1], Side::Elsewhere));
    let begun = lockout.begin(before, at(0)).unwrap();
    lockout.succeeded(begun);
    assert_eq!(wait(&mut lockout, attempt(ADA, [192, 0, 2, 9], Side::Elsewhere), at(0)), None);
    lockout.forget(ADA);
    assert!(wait(&mut lockout, before, at(0)).is_some());
}

#[test]
fn what_is_remembered_is_bounded_and_invented_names_push_out_no_real_lock() {
    let mut lockout = Lockout::default();
    for n in [0, 1, 3, 7] {
        assert_eq!(wait(&mut lockout, attempt(ADA, [10, 1, 0, u8::try_from(n).unwrap()], Side::Boot), at(n)), None);
    }
    for n in 0..5000u32 {
        let [_, b, c, d] = n.to_be_bytes();
        let name = format!("invented{n}");
        assert_eq!(wait(&mut lockout, Attempt { user: &name, address: [11, b, c, d].into(), side: Side::Boot }, at(8)), None);
        let begun =
            lockout.begin(Attempt { user: &format!("known{n}"), address: [12, b, c, d].into(), side: Side::Loopback }, at(8)).unwrap();
        lockout.succeeded(begun);
    }
    // The last one who was right has left a place.
    for entries in [lockout.pairs.0.len(), lockout.addresses.0.len(), lockout.users.0.len()] {
        assert_eq!(entries, MAX_ENTRIES - 1);
    }
    assert_eq!(lockout.known.len(), MAX_KNOWN_USERS);
    assert!(wait(&mut lockout, attempt(ADA, [10, 9, 0, 1], Side::Boot), at(8)).is_some());
}
