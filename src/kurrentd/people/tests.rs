use super::*;
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
    people.create(name("ada"), Role::Admin, secret(PASSWORD), true).await.unwrap();
    Bench { folder, people }
}

#[tokio::test]
async fn the_first_run_token_makes_one_admin_and_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets/first-run-token");
    let people = open(folder.path());
    assert!(people.first_run().is_some() && file.exists());
    let both = tokio::join!(
        people.create(name("ada"), Role::Admin, secret(PASSWORD), true),
        people.create(name("eve"), Role::Admin, secret(PASSWORD), true)
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
    for (user, last) in [("ada", 1), ("nobody", 2), ("../x", 3)] {
        assert_eq!(code(people.log_in(log_in(user, "wrong wrong wrong", [192, 0, 2, last])).await), "password_wrong", "{user}");
        assert_eq!(code(people.log_in(log_in(user, PASSWORD, [192, 0, 2, last])).await), "LockedOut", "{user}");
    }
}

#[tokio::test]
async fn another_password_ends_every_token() {
    let Bench { people, folder } = bench().await;
    let (_, token) = people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await.unwrap();
    let old = log_in("ada", "not the old one", [192, 0, 2, 2]);
    assert_eq!(code(people.set_password(name("ada"), Some(old), secret("another password")).await), "password_wrong");
    assert!(people.standing(&token.text).unwrap().is_some());
    let old = log_in("ada", PASSWORD, [192, 0, 2, 1]);
    people.set_password(name("ada"), Some(old), secret("another password")).await.unwrap();
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
    assert_eq!(code(people.edit(|p, _| p.edit(&name("ada"), None, Some(false))).await), "Edited");
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
    // A folder in the place of the temporary file: writing fails for root as well.
    let in_the_way = store::temporary(&folder.path().join(USERS)).unwrap();
    std::fs::create_dir_all(in_the_way.join("x")).unwrap();
    assert_eq!(code(people.create(name("olga"), Role::Operator, secret(PASSWORD), false).await), "NotDurable");
    assert_eq!(code(people.log_in(log_in("ada", PASSWORD, [192, 0, 2, 1])).await), "NotDurable");
    for people in [people.clone(), open(folder.path())] {
        assert!(people.people().user(&name("olga")).is_err());
    }
    std::fs::remove_dir_all(in_the_way).unwrap();
    people.create(name("olga"), Role::Operator, secret(PASSWORD), false).await.unwrap();
    assert_eq!(code(people.log_in(log_in("olga", PASSWORD, [192, 0, 2, 5])).await), "");
}

#[tokio::test]
async fn a_password_is_neither_short_nor_endless() {
    let Bench { people, folder: _folder } = bench().await;
    for (octets, expected) in [(0, "password_length"), (11, "password_length"), (12, ""), (1024, "user_exists"), (1025, "password_length")]
    {
        assert_eq!(code(people.create(name("olga"), Role::Viewer, secret(&"x".repeat(octets)), false).await), expected, "{octets}");
    }
    assert_eq!(code(people.create(name("pia"), Role::Viewer, secret(&"ü".repeat(11)), false).await), "password_length", "characters");
}
