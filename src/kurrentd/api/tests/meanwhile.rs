//! What ends while a request comes in, or while its answer goes on: tokens, roles, users.

use super::people::admin;
use super::*;

const OLGA: &str = "olga";

/// What may happen to who asks, and what that is told as.
const LOSSES: [(&str, &str); 4] =
    [("token", "token_wrong"), ("role", "role_missing"), ("disabled", "token_wrong"), ("deleted", "token_wrong")];

async fn lose(api: &Server, what: &str, token: &str) {
    let (people, by, name) = (&api.shared.people, admin(&api.shared), OLGA.parse().unwrap());
    match what {
        "token" => people.revoke(name, people.standing(token).unwrap().unwrap().id, by).await.unwrap(),
        "role" => people.edit(name, Some(Role::Viewer), None, by).await.unwrap(),
        "disabled" => people.edit(name, None, Some(true), by).await.unwrap(),
        _ => people.delete(name, by).await.unwrap(),
    }
}

/// An operator, new for each loss.
async fn olga(api: &Server, role: Role) -> String {
    let _ = api.shared.people.delete(OLGA.parse().unwrap(), admin(&api.shared)).await;
    token_of(&api.shared, OLGA, role, false).await
}

/// All ways in which a body is read.
#[tokio::test]
async fn whoever_may_not_any_more_when_the_body_is_there_has_changed_nothing() {
    let api = server().await;
    let generation = api.shared.ledger.snapshot().generation;
    let json = "Content-Type: application/json\r\n";
    let keyed = format!("{json}Idempotency-Key: k1\r\n");
    for (method, path, head, role) in [
        ("POST", "/v1/workers", json, Role::Operator),
        ("POST", "/v1/workers", keyed.as_str(), Role::Operator),
        ("POST", "/v1/devices/import", "Content-Type: text/csv\r\n", Role::Operator),
        ("PUT", "/v1/masters/a_tpl_b.img", "", Role::Operator),
        ("PUT", "/v1/restore/archive", "", Role::Admin),
        ("POST", "/v1/users", json, Role::Admin),
    ] {
        let body = match path {
            "/v1/devices/import" => "mac\n52:54:00:00:00:01\n".to_owned(),
            "/v1/users" => json!({"name": "eve", "role": "admin", "password": "a long enough password"}).to_string(),
            "/v1/workers" => json!({"worker_id": "w1"}).to_string(),
            _ => "x".repeat(4096),
        };
        for (loss, expected) in LOSSES {
            let token = olga(&api, role).await;
            let mut stream = TcpStream::connect(api.address).await.unwrap();
            let auth = format!("Host: x\r\nConnection: close\r\nExpect: 100-continue\r\nAuthorization: Bearer {token}\r\n");
            let head = format!("{method} {path} HTTP/1.1\r\n{auth}{head}Content-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            // The body is asked for: whoever asks has looked at the token.
            let mut go_on = [0; 12];
            tokio::time::timeout(WITHIN, stream.read_exact(&mut go_on)).await.expect("in time").unwrap();
            assert_eq!(&go_on, b"HTTP/1.1 100", "{method} {path}");
            lose(&api, loss, &token).await;
            stream.write_all(body.as_bytes()).await.unwrap();
            let answer = rest(&mut stream).await;
            assert!(answer.contains(expected), "{method} {path}, {loss}: {answer}");
        }
    }
    assert_eq!(api.shared.ledger.snapshot().generation, generation);
    assert!(!api.folder.path().join("disks/a_tpl_b.img").exists());
    assert!(!crate::backup::upload_path(&api.shared.config.state_dir).unwrap().exists());
    assert!(api.shared.people.people().user(&"eve".parse().unwrap()).is_err());
    let refusals = api.shared.audit.read(&crate::audit::Filter { result: Some("token_wrong".into()), ..Default::default() }).unwrap();
    assert!(!refusals.entries.is_empty());
}

async fn listen(api: &Server, token: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    tokio::time::timeout(WITHIN, stream.read_exact(&mut status)).await.expect("in time").unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

/// Within seconds, with a last event that says why; [`rest`] has the deadline.
#[tokio::test]
async fn events_end_with_the_token_that_they_are_told_to() {
    let api = server().await;
    let _receiving = api.shared.storage.jobs().start(crate::storage::jobs::Kind::Import, "a test".into(), None, 0).unwrap();
    let job = api.shared.storage.jobs().views()[0].id.clone();
    for path in ["/v1/events".to_owned(), format!("/v1/jobs/{job}/events")] {
        for (loss, expected) in LOSSES.into_iter().filter(|(loss, _)| *loss != "role") {
            let token = olga(&api, Role::Viewer).await;
            let (mut ends, mut stays) = (listen(&api, &token, &path).await, listen(&api, &api.token, &path).await);
            lose(&api, loss, &token).await;
            let told = rest(&mut ends).await;
            let last = told.split("event: ").last().unwrap_or_default();
            assert!(last.starts_with("ended") && last.contains(expected), "{path}, {loss}: {told}");
            let mut octets = [0; 4096];
            let more = tokio::time::timeout(Duration::from_millis(50), async { while stays.read(&mut octets).await.unwrap() > 0 {} }).await;
            assert!(more.is_err(), "others listen on");
        }
    }
}

#[tokio::test]
async fn events_end_when_the_token_expires_or_is_worth_too_little() {
    let api = server().await;
    let token = token_of(&api.shared, OLGA, Role::Operator, false).await;
    let standing = api.shared.people.standing(&token).unwrap().unwrap();
    let asked = |standing: &kurrent_core::access::people::Standing, method: &str, path: &str| {
        guard::Asked::new(&api.shared, guard::Who::Person(standing.clone()), method.parse().unwrap(), path)
    };
    assert!(asked(&standing, "POST", "/v1/workers").still().is_ok());
    assert_eq!(asked(&standing, "GET", "/v1/users").still().unwrap_err().code(), "role_missing");
    lose(&api, "role", &token).await;
    assert_eq!(asked(&standing, "POST", "/v1/workers").still().unwrap_err().code(), "role_missing");
    assert!(asked(&standing, "GET", "/v1/events").still().is_ok());
    let gone = kurrent_core::access::people::Standing { id: "000000000000".into(), ..standing };
    assert_eq!(asked(&gone, "GET", "/v1/events").still().unwrap_err().code(), "token_wrong");
}
