//! What a restore makes of users, sessions and tokens.

use super::hostile::{archive_of, forged, members};
use super::*;
use crate::people::{By, LogIn, NewToken, PeopleStore, Tokens, USERS};
use kurrent_core::access::Role;
use kurrent_core::access::people::Token;
use kurrent_core::id::UserName;
use kurrent_core::origin::Side;
use std::time::Duration;

const PASSWORD: &str = "a long enough password";

fn ada() -> UserName {
    "ada".parse().unwrap()
}

fn log_in() -> LogIn {
    LogIn { name: "ada".into(), password: Zeroizing::new(PASSWORD.into()), address: [192, 0, 2, 1].into(), side: Side::Elsewhere }
}

/// With an admin, a session, and two tokens, of whom the second is revoked after the backup.
struct People {
    lived: Lived,
    session: NewToken,
    tokens: [NewToken; 2],
}

impl People {
    async fn new() -> Self {
        let lived = Lived::new().await;
        let people = &lived.bench.plane.shared().people;
        people.create(ada(), Role::Admin, Zeroizing::new(PASSWORD.into()), None).await.unwrap();
        let (standing, session) = people.log_in(log_in()).await.unwrap();
        let by = || By { standing: standing.clone(), needs: Role::Admin };
        let now = clock::now().wall;
        let token = || Token {
            id: String::new(),
            session: false,
            note: "ci".into(),
            role: Role::Operator,
            only: vec!["devices".into()],
            created_at: now,
            expires_at: now + Duration::from_secs(3600),
        };
        let tokens = [people.add_token(ada(), token(), by()).await.unwrap().1, people.add_token(ada(), token(), by()).await.unwrap().1];
        std::fs::write(lived.secret("ca.key"), "the CA of this appliance").unwrap();
        lived.back_up();
        people.revoke(ada(), tokens[1].id.clone(), by()).await.unwrap();
        Self { lived, session, tokens }
    }

    /// What is told, and what the tokens (session, kept, revoked) are worth in the staged state.
    async fn restored(&self, state: &Path) -> (Tokens, [bool; 3]) {
        let told = self.lived.stage(state, &self.lived.archive, PASSPHRASE, false).unwrap().tokens;
        let staged = beside(state, ".restore").unwrap();
        let people = PeopleStore::open(&staged).unwrap();
        let worth = [&self.session, &self.tokens[0], &self.tokens[1]].map(|t| people.standing(&t.text).unwrap().is_some());
        assert!(people.log_in(log_in()).await.is_ok(), "the password of the backup");
        (told, worth)
    }
}

impl Lived {
    fn secret(&self, name: &str) -> PathBuf {
        self.bench.folder.path().join("state/secrets").join(name)
    }
}

#[tokio::test]
async fn a_restore_over_the_living_state_brings_back_no_session_and_no_revoked_token() {
    let people = People::new().await;
    let state = people.lived.bench.folder.path().join("state");
    let (told, worth) = people.restored(&state).await;
    assert_eq!(told, Tokens { sessions: 1, restored: 1, revoked: 1, revocations_known: true });
    assert_eq!(worth, [false, true, false]);
}

#[tokio::test]
async fn where_nobody_knows_what_was_revoked_tokens_come_back_and_that_is_told() {
    let people = People::new().await;
    let unknown = Tokens { sessions: 1, restored: 2, revoked: 0, revocations_known: false };
    // An appliance that is new, one of another CA, and one whose users do not read.
    let state = people.lived.other();
    assert_eq!(people.restored(&state).await, (unknown, [false, true, true]));
    let living = people.lived.bench.folder.path().join("state");
    std::fs::create_dir(state.join("secrets")).unwrap();
    for (users, ca, known) in [
        (std::fs::read_to_string(living.join(USERS)).unwrap(), "the CA of another one", false),
        ("nonsense".into(), "the CA of this appliance", false),
        (std::fs::read_to_string(living.join(USERS)).unwrap(), "the CA of this appliance", true),
    ] {
        std::fs::write(state.join(USERS), users).unwrap();
        std::fs::write(state.join("secrets/ca.key"), ca).unwrap();
        let (told, worth) = people.restored(&state).await;
        assert_eq!((told.revocations_known, worth[2]), (known, !known), "{ca}");
        assert!(known || told == unknown);
    }
}

/// The first format knew no users: whoever restores it makes the first admin again.
#[tokio::test]
async fn a_backup_of_before_there_were_users_is_restored_without_any() {
    let lived = Lived::new().await;
    let outside = members(&lived.archive);
    let (_, sealed) = outside.iter().find(|m| m.0 == SEALED).unwrap();
    let inside = lived.bench.folder.path().join("inside.tar");
    std::fs::write(&inside, seal::open(&passphrase(PASSPHRASE), sealed).unwrap().as_slice()).unwrap();
    let mut inside = members(&inside);
    assert!(!outside.iter().any(|m| m.0 == USERS) && !inside.iter().any(|m| m.0 == crate::people::LOGINS));
    let first = |octets: &[u8]| String::from_utf8_lossy(octets).replace("\"format\": 2,", "\"format\": 1,").into_bytes();
    let manifest = inside.iter_mut().find(|m| m.0 == MANIFEST).unwrap();
    manifest.1 = first(&manifest.1);
    let plain = Zeroizing::new(archive_of(&inside).into_inner().unwrap());
    let sealed = seal::seal(&passphrase(PASSPHRASE), &plain).unwrap();
    let mut outside = forged(&outside, SEALED, |_| sealed.clone());
    let manifest = outside.last_mut().unwrap();
    manifest.1 = first(&manifest.1);
    std::fs::write(&lived.archive, archive_of(&outside).into_inner().unwrap()).unwrap();
    let state = lived.other();
    assert_eq!(lived.stage(&state, &lived.archive, PASSPHRASE, false).unwrap().tokens, Tokens::default());
    assert!(matches!(swap::carry_out(&state).unwrap(), Swapped::Restored(_)));
    let people = PeopleStore::open(&state).unwrap();
    assert_eq!((people.fault(), people.people().iter().count(), people.first_run().is_some()), (None, 0, true));
}
