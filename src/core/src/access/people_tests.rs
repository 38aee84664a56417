use super::people::*;
use super::*;
use crate::id::UserName;
use crate::time::Wall;
use jiff::SignedDuration;

fn name(text: &str) -> UserName {
    text.parse().unwrap()
}

fn now() -> Wall {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

fn later(minutes: i64) -> Wall {
    now().checked_add(SignedDuration::from_mins(minutes)).unwrap()
}

fn people() -> People {
    let mut people = People::default();
    people.add(name("ada"), Role::Admin, now()).unwrap();
    people.add(name("olga"), Role::Operator, now()).unwrap();
    people
}

fn token(role: Role, minutes: i64) -> Token {
    Token {
        id: "0123456789ab".into(),
        session: false,
        note: String::new(),
        role,
        only: vec![],
        created_at: now(),
        expires_at: later(minutes),
    }
}

fn session(people: &mut People, user: &str) -> Standing {
    people.add_session(&name(user), format!("{:012x}", people.user(&name(user)).unwrap().tokens.len()), now()).unwrap()
}

fn code<T>(result: Result<T, Refused>) -> &'static str {
    result.err().map_or("", |r| r.code)
}

fn all(_: &UserName) -> bool {
    true
}

#[test]
fn the_last_admin_who_can_log_in_stays_one() {
    let mut people = people();
    let ada = name("ada");
    assert_eq!(code(people.delete(&ada, &all)), "last_admin");
    assert_eq!(code(people.edit(&ada, Some(Role::Operator), None, &all)), "last_admin");
    assert_eq!(code(people.edit(&ada, None, Some(true), &all)), "last_admin");
    people.edit(&name("olga"), Some(Role::Admin), None, &all).unwrap();
    // An admin without a password lets nobody in.
    let not_olga = |name: &UserName| name.as_str() != "olga";
    assert_eq!(people.admins(&not_olga).count(), 1);
    for result in [
        people.delete(&ada, &not_olga),
        people.edit(&ada, Some(Role::Viewer), None, &not_olga),
        people.edit(&ada, None, Some(true), &not_olga),
    ] {
        assert_eq!(code(result), "last_admin");
    }
    people.clone().delete(&name("olga"), &not_olga).unwrap();
    people.edit(&ada, None, Some(true), &all).unwrap();
    assert_eq!(code(people.delete(&name("olga"), &all)), "last_admin");
    people.delete(&ada, &all).unwrap();
}

#[test]
fn a_token_ends_itself_and_what_does_no_more_than_it_does() {
    let mut people = people();
    let olga = name("olga");
    let logged_in = session(&mut people, "olga");
    for (id, role) in [("a00000000000", Role::Viewer), ("a00000000001", Role::Viewer), ("a00000000002", Role::Operator)] {
        people.add_token(&olga, Token { id: id.into(), ..token(role, 60) }, &logged_in, now()).unwrap();
    }
    let by = |people: &People, id: &str| people.standing(&olga, id, now()).unwrap();
    let viewer = by(&people, "a00000000000");
    for stronger in ["a00000000002", logged_in.id.as_str()] {
        assert_eq!(code(people.revoke(&olga, stronger, &viewer)), "role_missing", "{stronger}");
    }
    assert_eq!(code(people.revoke(&olga, "a00000000009", &viewer)), "token_not_found");
    let limited = Standing { only: vec!["devices".into()], ..by(&people, "a00000000002") };
    assert_eq!(code(people.revoke(&olga, "a00000000001", &limited)), "role_missing", "a limited one ends itself only");
    people.clone().revoke(&olga, "a00000000002", &limited).unwrap();
    people.revoke(&olga, "a00000000001", &viewer).unwrap();
    people.revoke(&olga, "a00000000000", &viewer).unwrap();
    let operator = by(&people, "a00000000002");
    people.clone().revoke(&olga, &logged_in.id, &operator).unwrap();
    people.revoke(&olga, "a00000000002", &logged_in).unwrap();
    // An operator who is a viewer by now: so is the token.
    people.add_token(&olga, Token { id: "a00000000003".into(), ..token(Role::Operator, 60) }, &logged_in, now()).unwrap();
    people.edit(&olga, Some(Role::Viewer), None, &all).unwrap();
    let now_viewer = by(&people, &logged_in.id);
    people.revoke(&olga, "a00000000003", &now_viewer).unwrap();
}

#[test]
fn who_asked_has_to_be_worth_as_much_when_it_is_done() {
    let mut people = people();
    let (ada, olga) = (session(&mut people, "ada"), session(&mut people, "olga"));
    let still = |people: &People, asked: &Standing, needs, at| code(people.still(asked, needs, at));
    assert_eq!(still(&people, &ada, Role::Admin, now()), "");
    assert_eq!(still(&people, &olga, Role::Admin, now()), "role_missing");
    assert_eq!(still(&people, &olga, Role::Operator, later(12 * 60)), "token_wrong", "expired");
    people.edit(&name("olga"), Some(Role::Viewer), None, &all).unwrap();
    assert_eq!(still(&people, &olga, Role::Operator, now()), "role_missing", "lowered");
    assert_eq!(people.still(&olga, Role::Viewer, now()).unwrap().role, Role::Viewer, "what it is worth now counts");
    people.edit(&name("olga"), None, Some(true), &all).unwrap();
    assert_eq!(still(&people, &olga, Role::Viewer, now()), "token_wrong", "disabled");
    people.end_tokens(&name("ada")).unwrap();
    assert_eq!(still(&people, &ada, Role::Viewer, now()), "token_wrong", "another password");
    people.delete(&name("olga"), &all).unwrap();
    assert_eq!(still(&people, &olga, Role::Viewer, now()), "token_wrong", "deleted");
}

#[test]
fn a_token_gives_no_more_than_its_owner_and_its_maker_have() {
    let mut people = people();
    let (ada, olga) = (session(&mut people, "ada"), session(&mut people, "olga"));
    assert_eq!(code(people.add_token(&name("olga"), token(Role::Admin, 60), &olga, now())), "role_too_high");
    assert_eq!(
        code(people.add_token(&name("olga"), token(Role::Admin, 60), &ada, now())),
        "role_too_high",
        "an admin gives no more either"
    );
    let by_token = Standing { session: false, expires_at: later(60), role: Role::Viewer, ..olga.clone() };
    assert_eq!(code(people.add_token(&name("olga"), token(Role::Operator, 30), &by_token, now())), "role_too_high");
    assert_eq!(code(people.add_token(&name("olga"), token(Role::Viewer, 61), &by_token, now())), "expires_too_late");
    for minutes in [4, 366 * 24 * 60 + 1, -5] {
        assert_eq!(code(people.add_token(&name("olga"), token(Role::Viewer, minutes), &olga, now())), "minutes_out_of_range");
    }
    let limited = Token { only: vec!["users".into()], ..token(Role::Viewer, 60) };
    assert_eq!(code(people.add_token(&name("olga"), limited, &olga, now())), "tag_unknown");
    people.add_token(&name("olga"), token(Role::Operator, 60), &olga, now()).unwrap();
}

#[test]
fn what_a_token_is_worth_follows_its_user_at_once() {
    let mut people = people();
    let (olga, id) = (name("olga"), session(&mut people, "olga").id);
    let role = |people: &People, at| people.standing(&name("olga"), &id, at).map(|s| s.role);
    assert_eq!(role(&people, now()), Some(Role::Operator));
    people.edit(&olga, Some(Role::Viewer), None, &all).unwrap();
    assert_eq!(role(&people, now()), Some(Role::Viewer));
    assert_eq!(role(&people, later(12 * 60 - 1)), Some(Role::Viewer));
    assert_eq!(role(&people, later(12 * 60)), None, "expired");
    people.edit(&olga, None, Some(true), &all).unwrap();
    assert_eq!(role(&people, now()), None);
    people.edit(&olga, None, Some(false), &all).unwrap();
    assert_eq!(role(&people, now()), None, "enabling brings no token back");
    assert_eq!(code(people.add_session(&name("nobody"), "x".into(), now())), "user_not_found");
}

#[test]
fn tokens_and_sessions_are_bounded_and_only_the_oldest_session_gives_way() {
    let mut people = people();
    let by = session(&mut people, "ada");
    for n in 0..MAX_TOKENS {
        people.add_token(&name("ada"), Token { id: format!("a{n:011}"), ..token(Role::Viewer, 60) }, &by, now()).unwrap();
    }
    assert_eq!(code(people.add_token(&name("ada"), token(Role::Viewer, 60), &by, now())), "too_many_tokens");
    for n in 0..20 {
        people.add_session(&name("ada"), format!("b{n:011}"), now()).unwrap();
    }
    let tokens = &people.user(&name("ada")).unwrap().tokens;
    assert_eq!((tokens.len(), tokens.iter().filter(|t| t.session).count()), (64, MAX_SESSIONS));
    assert!(people.standing(&name("ada"), &by.id, now()).is_none() && people.standing(&name("ada"), "b00000000019", now()).is_some());
    // Ended ones make room.
    people.add_token(&name("ada"), Token { expires_at: later(120), ..token(Role::Viewer, 60) }, &by, later(61)).unwrap();
}

#[test]
fn the_first_admin_is_made_once_and_is_an_admin() {
    let mut people = People::default();
    assert_eq!(code(people.add_first(name("ada"), Role::Viewer, &all, now())), "first_user_is_admin");
    people.add_first(name("ada"), Role::Admin, &all, now()).unwrap();
    assert_eq!(code(people.add_first(name("eve"), Role::Admin, &all, now())), "first_admin_exists");
    people.add_first(name("eve"), Role::Admin, &|_| false, now()).unwrap();
}

#[test]
fn a_list_with_a_fault_is_not_taken() {
    let user = |tokens| User { name: name("ada"), role: Role::Admin, disabled: false, created_at: now(), tokens };
    let twice = People::checked(vec![user(vec![]), user(vec![])]).unwrap_err();
    assert_eq!((twice.at.as_str(), twice.what.contains("twice")), ("ada", true));
    for wrong in [Token { id: "x".into(), ..token(Role::Viewer, 60) }, Token { only: vec!["tokens".into()], ..token(Role::Viewer, 60) }] {
        assert!(People::checked(vec![user(vec![wrong])]).is_err());
    }
    assert!(People::checked(vec![user(vec![token(Role::Viewer, 60), token(Role::Viewer, 60)])]).is_err(), "one id, two tokens");
    assert!(People::checked(vec![user(vec![token(Role::Viewer, 60)])]).is_ok());
}
