use super::*;
use kurrent_core::time::Mono;
use std::os::unix::fs::PermissionsExt;

const PASSWORD: &str = "correct horse battery";

fn secret(text: &str) -> Zeroizing<String> {
    Zeroizing::new(text.to_owned())
}

fn name(text: &str) -> UserName {
    text.parse().unwrap()
}

fn log_in(name: &str, password: &str, address: [u8; 4]) -> LogIn {
    LogIn { name: name.into(), password: secret(password), address: address.into(), side: Side::Elsewhere }
}

fn code<T>(result: Result<T, PeopleError>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(PeopleError::Refused(refused)) => refused.code.to_owned(),
        Err(other) => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
    }
}

impl PeopleStore {
    /// How long this attempt would have had to wait at this time.
    pub(crate) fn pause(&self, attempt: Attempt<'_>, at: Mono) -> Option<Duration> {
        self.lockout().begin(attempt, at).err()
    }

    /// A failure of an hour ahead: until then every attempt is refused, however slow the test is.
    pub(crate) fn lock_out(&self, attempt: Attempt<'_>) {
        let _ = self.lockout().begin(attempt, clock::now().mono.after(Duration::from_hours(1))).unwrap();
    }
}

struct Bench {
    folder: tempfile::TempDir,
    people: PeopleStore,
}

fn open(folder: &Path) -> PeopleStore {
    store::private_folder(&folder.join("secrets")).unwrap();
    PeopleStore::open(folder).unwrap()
}

async fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let people = open(folder.path());
    people.create(name("ada"), Role::Admin, secret(PASSWORD), None).await.unwrap();
    Bench { folder, people }
}

/// A new session of this user, as who asks for a change.
async fn by(people: &PeopleStore, user: &str, needs: Role) -> By {
    let standing = people.log_in(log_in(user, PASSWORD, [192, 0, 2, 200])).await.unwrap().0;
    By { standing, needs }
}

async fn ada(people: &PeopleStore) -> Option<By> {
    Some(by(people, "ada", Role::Admin).await)
}

#[tokio::test]
async fn the_first_run_token_makes_one_admin_and_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets/first-run-token");
    let people = open(folder.path());
    assert!(people.first_run().is_some() && file.exists());
    let both = tokio::join!(
        people.create(name("ada"), Role::Admin, secret(PASSWORD), None),
        people.create(name("eve"), Role::Admin, secret(PASSWORD), None)
    );
    let codes = [code(both.0), code(both.1)];
    assert!(codes.contains(&String::new()) && codes.contains(&"first_admin_exists".to_owned()), "{codes:?}");
    assert!(people.first_run().is_none() && !file.exists());
    // A crash between the admin and the removal.
    std::fs::write(&file, "A".repeat(26)).unwrap();
    assert!(open(folder.path()).first_run().is_none() && !file.exists());
    // The admin is gone: by hand.
    let users = folder.path().join(USERS);
    std::fs::write(&users, std::fs::read_to_string(&users).unwrap().replace("disabled: false", "disabled: true")).unwrap();
    assert!(open(folder.path()).first_run().is_some() && file.exists());
}

#[tokio::test]
async fn sessions_are_read_back_by_the_next_start_and_nothing_secret_is_in_a_file() {
    let Bench { folder, people } = bench().await;
    let (standing, token) = people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await.unwrap();
    assert_eq!((standing.user.as_str(), standing.role, standing.session), ("ada", Role::Admin, true));
    let again = open(folder.path());
    assert_eq!(again.standing(&token.text).unwrap(), Some(standing.clone()));
    for wrong in [format!("{}x", token.text.as_str()), token.text.replace(&token.id, "000000000000"), String::new(), "krt_".into()] {
        assert_eq!(again.standing(&wrong).unwrap(), None);
    }
    for file in [USERS, files::LOGINS] {
        let path = folder.path().join(file);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(!text.contains(PASSWORD) && !text.contains(token.text.as_str()) && !text.contains(&token.text[17..]), "{text}");
    }
}

#[tokio::test]
async fn a_wrong_password_costs_a_pause_and_a_name_that_is_not_there_costs_the_same() {
    let Bench { people, folder: _folder } = bench().await;
    for (user, counted, last) in [("ada", "ada", 1), ("nobody", "nobody", 2), ("../x", "?", 3)] {
        let attempt = Attempt { user: counted, address: [192, 0, 2, last].into(), side: Side::Elsewhere };
        let before = clock::now().mono;
        assert_eq!(code(people.log_in(log_in(user, "wrong wrong wrong", [192, 0, 2, last])).await), "password_wrong", "{user}");
        // It counts from when the attempt began, and may be over by now.
        let pause = people.pause(attempt, before);
        assert!(pause.is_some_and(|p| p >= Duration::from_secs(1)), "{user}: {pause:?}");
        people.lock_out(attempt);
        assert_eq!(code(people.log_in(log_in(user, PASSWORD, [192, 0, 2, last])).await), "LockedOut", "{user}");
    }
}

#[tokio::test]
async fn another_password_ends_every_token() {
    let Bench { people, folder } = bench().await;
    let (_, token) = people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await.unwrap();
    let old = log_in("ada", "not the old one", [192, 0, 2, 2]);
    assert_eq!(code(people.change_password(old, secret("another password"), ada(&people).await.unwrap()).await), "password_wrong");
    assert!(people.standing(&token.text).unwrap().is_some());
    let old = log_in("ada", PASSWORD, [192, 0, 2, 1]);
    people.change_password(old, secret("another password"), ada(&people).await.unwrap()).await.unwrap();
    assert!(people.standing(&token.text).unwrap().is_none());
    for _ in 0..2 {
        let people = open(folder.path());
        assert!(people.standing(&token.text).unwrap().is_none());
        assert_eq!(code(people.log_in(log_in("ada", "another password", [192, 0, 2, 1])).await), "");
        assert_eq!(code(people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await), "password_wrong");
    }
}

#[tokio::test]
async fn files_that_do_not_read_are_not_empty_ones_and_let_nobody_in() {
    let Bench { folder, people } = bench().await;
    let (_, token) = people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await.unwrap();
    let users = folder.path().join(USERS);
    let good = std::fs::read_to_string(&users).unwrap();
    let wrong = good.replace("role: admin", "role: root");
    std::fs::write(&users, &wrong).unwrap();
    // The one that runs does not write over it.
    let standing = people.standing(&token.text).unwrap().unwrap();
    assert_eq!(code(people.edit(name("ada"), None, Some(false), By { standing, needs: Role::Admin }).await), "Edited");
    let refused = open(folder.path());
    let fault = refused.fault().unwrap();
    assert!(fault.contains("users.yml:") && fault.contains("viewer, operator or admin"), "{fault}");
    assert_eq!(check(folder.path()).map(|f| fault.starts_with(&f)), Some(true));
    assert_eq!(code(refused.standing(&token.text)), "Unreadable");
    assert!(refused.first_run().is_none(), "a damaged file makes no new admin");
    assert_eq!(std::fs::read_to_string(&users).unwrap(), wrong);
    std::fs::write(&users, good).unwrap();
    assert!(open(folder.path()).standing(&token.text).unwrap().is_some());
}

#[tokio::test]
async fn what_can_not_be_written_did_not_happen() {
    let Bench { folder, people } = bench().await;
    let (first, second) = (ada(&people).await, ada(&people).await);
    // A folder in the place of the temporary file: writing fails for root as well.
    let in_the_way = store::temporary(&folder.path().join(USERS)).unwrap();
    std::fs::create_dir_all(in_the_way.join("x")).unwrap();
    assert_eq!(code(people.create(name("olga"), Role::Operator, secret(PASSWORD), first).await), "NotDurable");
    assert_eq!(code(people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await), "NotDurable");
    for people in [people.clone(), open(folder.path())] {
        assert!(people.people().user(&name("olga")).is_err());
    }
    std::fs::remove_dir_all(in_the_way).unwrap();
    people.create(name("olga"), Role::Operator, secret(PASSWORD), second).await.unwrap();
    assert_eq!(code(people.log_in(log_in("olga", PASSWORD, [192, 0, 2, 5])).await), "");
}

#[tokio::test]
async fn a_password_is_neither_short_nor_endless() {
    let Bench { people, folder: _folder } = bench().await;
    for (octets, expected) in [(0, "password_length"), (11, "password_length"), (12, ""), (1024, "user_exists"), (1025, "password_length")]
    {
        assert_eq!(
            code(people.create(name("olga"), Role::Viewer, secret(&"x".repeat(octets)), ada(&people).await).await),
            expected,
            "{octets}"
        );
    }
    assert_eq!(
        code(people.create(name("pia"), Role::Viewer, secret(&"ü".repeat(11)), ada(&people).await).await),
        "password_length",
        "characters"
    );
}

/// A turn is not found in time, or the users do not read: nothing was learnt of the password.
#[tokio::test]
async fn an_attempt_that_was_not_looked_at_costs_no_pause() {
    let Bench { people, folder } = bench().await;
    people.0.hashing.close();
    for _ in 0..3 {
        assert_eq!(code(people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await), "Busy");
    }
    std::fs::write(folder.path().join(USERS), "nonsense").unwrap();
    let people = open(folder.path());
    for _ in 0..3 {
        assert_eq!(code(people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await), "Unreadable");
    }
}

/// Begins work that compares olga's password, from this address, and waits until it has read what it compares with.
async fn in_flight<T: Send + 'static>(
    people: &PeopleStore,
    last: u8,
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let before = clock::now().mono;
    let work = tokio::spawn(work);
    let attempt = Attempt { user: "olga", address: [192, 0, 2, last].into(), side: Side::Elsewhere };
    // Another one from there has to wait then, and one of before it for ever: the pause is over only after its begin.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while let Ok(begun) = { people.0.lockout.lock().unwrap().begin(attempt, before) } {
        people.0.lockout.lock().unwrap().withdrawn(begun);
        assert!(std::time::Instant::now() < deadline, "no attempt was begun");
        tokio::task::yield_now().await;
    }
    work
}

#[tokio::test]
async fn what_changes_while_a_password_is_looked_at_counts() {
    for what in ["another password", "disabled", "deleted"] {
        let Bench { people, folder: _folder } = bench().await;
        people.create(name("olga"), Role::Operator, secret(PASSWORD), ada(&people).await).await.unwrap();
        let (admin, olga) = (ada(&people).await.unwrap(), by(&people, "olga", Role::Viewer).await);
        people.log_in(log_in("olga", PASSWORD, [192, 0, 2, 201])).await.unwrap();
        let turns = people.0.hashing.acquire_many(u32::try_from(HASHES_AT_ONCE).unwrap()).await.unwrap();
        let theirs = people.clone();
        let logging_in = async move { theirs.log_in(log_in("olga", PASSWORD, [192, 0, 2, 200])).await };
        let logging_in = in_flight(&people, 200, logging_in).await;
        let theirs = people.clone();
        let old = log_in("olga", PASSWORD, [192, 0, 2, 201]);
        let changing = async move { theirs.change_password(old, secret("yet another one"), olga).await };
        let changing = in_flight(&people, 201, changing).await;
        match what {
            "another password" => {
                let phc = password::hash("another password").unwrap();
                let set = people.change(move |people, logins| {
                    people.end_tokens(&name("olga"))?;
                    logins.passwords.insert(name("olga"), phc);
                    Ok(())
                });
                set.await.unwrap();
            }
            "disabled" => people.edit(name("olga"), None, Some(true), admin).await.unwrap(),
            _ => people.delete(name("olga"), admin).await.unwrap(),
        }
        drop(turns);
        assert_eq!(code(logging_in.await.unwrap()), "password_wrong", "{what}");
        assert_eq!(code(changing.await.unwrap()), "token_wrong", "{what}");
        assert!(people.people().user(&name("olga")).is_ok_and(|u| u.tokens.is_empty()) || what == "deleted");
    }
}

/// Between a request and its change a token may be revoked, and its user lose a role or everything.
#[tokio::test]
async fn whoever_may_not_any_more_changes_nobody() {
    let Bench { people, folder: _folder } = bench().await;
    people.create(name("olga"), Role::Admin, secret(PASSWORD), ada(&people).await).await.unwrap();
    for (lost, expected) in [("role", "role_missing"), ("token", "token_wrong"), ("user", "token_wrong")] {
        let olga = by(&people, "olga", Role::Admin).await;
        let again = || Some(By { standing: olga.standing.clone(), needs: Role::Admin });
        let admin = ada(&people).await.unwrap();
        match lost {
            "role" => people.edit(name("olga"), Some(Role::Operator), None, admin).await.unwrap(),
            "token" => people.revoke(name("olga"), olga.standing.id.clone(), admin).await.unwrap(),
            _ => people.edit(name("olga"), None, Some(true), admin).await.unwrap(),
        }
        let wanted = Token {
            id: String::new(),
            session: false,
            note: String::new(),
            role: Role::Viewer,
            only: vec![],
            created_at: clock::now().wall,
            expires_at: clock::now().wall + Duration::from_secs(3600),
        };
        let ada_s = people.people().user(&name("ada")).unwrap().tokens[0].id.clone();
        let codes = [
            code(people.create(name("eve"), Role::Viewer, secret(PASSWORD), again()).await),
            code(people.edit(name("ada"), Some(Role::Viewer), None, again().unwrap()).await),
            code(people.delete(name("ada"), again().unwrap()).await),
            code(people.set_password(name("ada"), secret("another password"), again().unwrap()).await),
            code(people.add_token(name("ada"), wanted, again().unwrap()).await),
            code(people.revoke(name("ada"), ada_s, again().unwrap()).await),
        ];
        assert_eq!(codes, [expected; 6], "{lost}");
        if lost == "role" {
            people.edit(name("olga"), Some(Role::Admin), None, ada(&people).await.unwrap()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_admin_without_a_password_is_not_the_last_one_who_can_log_in() {
    let Bench { people, folder } = bench().await;
    people.create(name("olga"), Role::Admin, secret(PASSWORD), ada(&people).await).await.unwrap();
    // As after an edit by hand that took out an unusable one.
    let taken_out = people.change(|_, logins| Ok(logins.passwords.remove(&name("olga"))));
    assert!(taken_out.await.unwrap().is_some());
    drop(people);
    let people = open(folder.path());
    assert_eq!((people.fault(), people.admins()), (None, vec!["ada".to_owned()]));
    assert_eq!(code(people.edit(name("ada"), None, Some(true), ada(&people).await.unwrap()).await), "last_admin");
    assert_eq!(code(people.delete(name("ada"), ada(&people).await.unwrap()).await), "last_admin");
    people.set_password(name("olga"), secret(PASSWORD), ada(&people).await.unwrap()).await.unwrap();
    people.delete(name("ada"), ada(&people).await.unwrap()).await.unwrap();
}

/// A backup takes both files: a session in one of them is in the other as well, whatever is written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn both_files_are_of_one_moment() {
    let Bench { people, folder } = bench().await;
    let theirs = people.clone();
    let writing = tokio::spawn(async move {
        for n in 0..40u8 {
            theirs.log_in(log_in("ada", PASSWORD, [192, 0, 2, n])).await.unwrap();
        }
    });
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("secrets")).unwrap();
    let mut seen = 0;
    while !writing.is_finished() {
        let Octets { users, logins } = people.octets().unwrap();
        std::fs::write(copy.path().join(USERS), &*users.unwrap()).unwrap();
        std::fs::write(copy.path().join(LOGINS), logins.unwrap().as_slice()).unwrap();
        let held = files::read(copy.path()).unwrap();
        let ids: Vec<&String> = held.people.iter().flat_map(|u| u.tokens.iter().map(|t| &t.id)).collect();
        assert_eq!(held.logins.tokens.keys().collect::<std::collections::BTreeSet<_>>(), ids.iter().copied().collect());
        seen = ids.len().max(seen);
        tokio::task::yield_now().await;
    }
    writing.await.unwrap();
    let read = Octets::read(folder.path()).unwrap();
    assert!(seen > 0 && read.users == people.octets().unwrap().users && read.logins == people.octets().unwrap().logins);
}
