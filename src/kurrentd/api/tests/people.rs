//! Users, tokens and sessions over a real socket.

use super::*;
use crate::people::{By, LogIn};
use kurrent_core::access::lockout::Attempt;
use kurrent_core::origin::Side;

const PASSWORD: &str = "correct horse battery";

/// Makes a user, if it is not there, and logs in.
pub(super) async fn token_of(shared: &SharedRef, name: &str, role: Role, first: bool) -> String {
    let secret = || zeroize::Zeroizing::new(PASSWORD.to_owned());
    let by = if first { None } else { Some(admin(shared)) };
    // A folder that is served again has its users.
    let _ = shared.people.create(name.parse().unwrap(), role, secret(), by).await;
    let asked = LogIn { name: name.into(), password: secret(), address: [192, 0, 2, 1].into(), side: Side::Elsewhere };
    shared.people.log_in(asked).await.unwrap().1.text.to_string()
}

/// The first admin, who has logged in, as who asks for a change.
pub(super) fn admin(shared: &SharedRef) -> By {
    let (people, ada) = (shared.people.people(), "ada".parse().unwrap());
    let session = people.user(&ada).unwrap().tokens.iter().find(|t| t.session).unwrap();
    By { standing: people.standing(&ada, &session.id, kurrent_sys::clock::now().wall).unwrap(), needs: Role::Admin }
}

fn user(name: &str, role: &str) -> Value {
    json!({"name": name, "role": role, "password": PASSWORD})
}

async fn as_user(api: &mut Server, name: &str, role: Role) -> String {
    let token = token_of(&api.shared, name, role, false).await;
    std::mem::replace(&mut api.token, token)
}

#[tokio::test]
async fn users_are_made_changed_and_deleted_and_one_admin_stays() {
    let api = server().await;
    let made = api.expect(("POST", "/v1/users", user("olga", "operator")), 201, "").await;
    assert_eq!((made["name"].as_str(), made["role"].as_str(), made["sessions"].as_u64()), (Some("olga"), Some("operator"), Some(0)));
    assert!(!made.to_string().contains(PASSWORD));
    api.expect(("POST", "/v1/users", user("olga", "viewer")), 409, "user_exists").await;
    api.expect(("POST", "/v1/users", json!({"name": "x", "role": "viewer", "password": "short"})), 422, "password_length").await;
    api.expect(("POST", "/v1/users", user("Olga", "viewer")), 422, "body_invalid").await;
    assert_eq!(api.expect(("GET", "/v1/users", Value::Null), 200, "").await["users"].as_array().unwrap().len(), 2);
    for (method, path, body) in [
        ("DELETE", "/v1/users/ada", Value::Null),
        ("PATCH", "/v1/users/ada", json!({"disabled": true})),
        ("PATCH", "/v1/users/ada", json!({"role": "viewer"})),
    ] {
        api.expect((method, path, body), 409, "last_admin").await;
    }
    assert_eq!(api.expect(("PATCH", "/v1/users/olga", json!({"role": "viewer"})), 200, "").await["role"], "viewer");
    assert_eq!(api.ask("DELETE", "/v1/users/olga", "").await.0, 204);
    api.expect(("GET", "/v1/users/olga", Value::Null), 404, "user_not_found").await;
    let audit = api.expect(("GET", "/v1/operations?actor=user%20ada&object=olga", Value::Null), 200, "").await;
    let lines: Vec<_> = audit["operations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| (o["verb"].as_str().unwrap(), o["detail"].as_str().unwrap_or_default()))
        .collect();
    assert!(lines.contains(&("user-create", "role=operator")) && lines.contains(&("user-edit", "role=viewer")), "{audit}");
}

#[tokio::test]
async fn a_token_does_what_it_is_for_and_raises_nobody() {
    let mut api = server().await;
    let ada = as_user(&mut api, "olga", Role::Operator).await;
    api.expect(("POST", "/v1/tokens", json!({"role": "admin"})), 422, "role_too_high").await;
    api.expect(("POST", "/v1/tokens", json!({"only": ["users"]})), 422, "tag_unknown").await;
    api.expect(("GET", "/v1/users", Value::Null), 403, "role_missing").await;
    let made = api.expect(("POST", "/v1/tokens", json!({"only": ["devices"], "minutes": 60, "note": "ci"})), 201, "").await;
    let id = made["id"].as_str().unwrap().to_owned();
    let olga = std::mem::replace(&mut api.token, made["token"].as_str().unwrap().to_owned());
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    api.expect(("GET", "/v1/workers", Value::Null), 403, "tag_missing").await;
    api.expect(("POST", "/v1/tokens", json!({})), 403, "tag_missing").await;
    let me = api.expect(("GET", "/v1/whoami", Value::Null), 200, "").await;
    assert_eq!((me["name"].as_str(), me["session"].as_bool(), me["only"][0].as_str()), (Some("olga"), Some(false), Some("devices")));
    let audit = api.shared.audit.read(&crate::audit::Filter { verb: Some("register".into()), ..Default::default() }).unwrap();
    assert_eq!(audit.entries[0].actor, format!("token olga/{id}"));
    // Lowered: at once. Disabled: at once.
    let token = std::mem::replace(&mut api.token, ada);
    api.expect(("PATCH", "/v1/users/olga", json!({"role": "viewer"})), 200, "").await;
    let ada = std::mem::replace(&mut api.token, token.clone());
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:02"})), 403, "role_missing").await;
    api.token = ada;
    api.expect(("PATCH", "/v1/users/olga", json!({"disabled": true})), 200, "").await;
    for ended in [token, olga] {
        let ada = std::mem::replace(&mut api.token, ended);
        api.expect(("GET", "/v1/devices", Value::Null), 401, "token_wrong").await;
        api.token = ada;
    }
}

#[tokio::test]
async fn logging_in_answers_a_token_that_logging_out_ends() {
    let mut api = server().await;
    let (status, session) = api.ask("POST", "/v1/login", &json!({"name": "ada", "password": PASSWORD}).to_string()).await;
    assert_eq!((status, session["role"].as_str()), (200, Some("admin")), "{session}");
    api.token = session["token"].as_str().unwrap().to_owned();
    assert_eq!(api.expect(("GET", "/v1/whoami", Value::Null), 200, "").await["session"], true);
    assert_eq!(api.ask("POST", "/v1/logout", "").await.0, 204);
    api.expect(("GET", "/v1/whoami", Value::Null), 401, "token_wrong").await;
}

#[tokio::test]
async fn a_wrong_password_waits_and_keeps_nobody_out_who_is_logged_in() {
    let api = server().await;
    let login = |password: &str| {
        let body = json!({"name": "ada", "password": password}).to_string();
        format!(
            "POST /v1/login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let attempt = Attempt { user: "ada", address: [127, 0, 0, 1].into(), side: Side::Loopback };
    let before = kurrent_sys::clock::now().mono;
    let (status, body) = api.raw(login("wrong wrong wrong").as_bytes()).await;
    assert!(status == 401 && body.contains("password_wrong"), "{body}");
    // Its pause may be over before the next request is there.
    let pause = api.shared.people.pause(attempt, before);
    assert!(pause.is_some_and(|p| p >= Duration::from_secs(1)), "{pause:?}");
    api.shared.people.lock_out(attempt);
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream.write_all(login(PASSWORD).as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await.to_ascii_lowercase();
    assert!(answer.contains("429") && answer.contains("locked_out"), "{answer}");
    let wait = answer.lines().find_map(|l| l.strip_prefix("retry-after: ")?.parse::<u64>().ok());
    assert!(wait.is_some_and(|w| (1..=3601).contains(&w)), "{answer}");
    api.expect(("GET", "/v1/whoami", Value::Null), 200, "").await;
    // From the other side it is another matter.
    let mut stranger = stranger(&api, 7).await;
    stranger.write_all(login(PASSWORD).as_bytes()).await.unwrap();
    assert!(rest(&mut stranger).await.contains("200 OK"));
    let audit = api.shared.audit.read(&crate::audit::Filter { verb: Some("login".into()), ..Default::default() }).unwrap();
    let results: Vec<&str> = audit.entries.iter().map(|e| e.result.as_str()).collect();
    assert_eq!(results, ["ok", "locked_out", "password_wrong"]);
}

#[tokio::test]
async fn a_cookie_is_a_session_for_our_own_pages_only() {
    let api = server().await;
    let body = json!({"name": "ada", "password": PASSWORD, "cookie": true}).to_string();
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream.write_all(api.request("POST", "/v1/login", &[], &body).as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    let line = answer.lines().find_map(|l| l.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{answer}"));
    for word in ["Secure", "HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(line.contains(word), "{line}");
    }
    let cookie = line.split(';').next().unwrap();
    assert!(!answer.split("\r\n\r\n").nth(1).unwrap().contains("krt_"), "{answer}");
    let ask = async |method: &str, path: &str, more: &str| {
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: kurrent\r\nConnection: close\r\nCookie: {cookie}\r\nContent-Length: 0\r\n{more}\r\n"
        );
        api.raw(text.as_bytes()).await
    };
    assert_eq!(ask("GET", "/v1/whoami", "").await.0, 200);
    let window = "/v1/settings/registration-window";
    for more in ["", "Sec-Fetch-Site: cross-site\r\n", "Origin: https://evil.example\r\n", "Sec-Fetch-Site: same-site\r\n"] {
        let (status, body) = ask("DELETE", window, more).await;
        assert!(status == 403 && body.contains("cross_site"), "{more}: {status} {body}");
    }
    for more in ["Sec-Fetch-Site: same-origin\r\n", "Origin: https://kurrent\r\n"] {
        assert_eq!(ask("DELETE", window, more).await.0, 200, "{more}");
    }
}

#[tokio::test]
async fn a_secret_in_a_url_is_refused_before_it_is_looked_at() {
    let api = server().await;
    for path in [format!("/v1/status?token={}", api.token), format!("/v1/devices/{}", api.token), "/v1/nothing?access_token=x".into()] {
        let answer = api.expect(("GET", &path, Value::Null), 400, "token_in_url").await;
        assert!(!answer.to_string().contains(&api.token));
    }
    let audit = api.shared.audit.read(&crate::audit::Filter::default()).unwrap();
    assert!(audit.entries.iter().any(|e| e.result == "token_in_url"));
    assert!(!format!("{audit:?}").contains(&api.token[17..]));
}

#[tokio::test]
async fn a_cookie_that_has_ended_keeps_nobody_from_logging_in() {
    let api = server().await;
    let ask = async |method: &str, path: &str, cookie: &str, body: &Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: kurrent\r\nConnection: close\r\nContent-Type: application/json\r\n");
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        let text = format!("{head}Cookie: {cookie}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).await.unwrap();
        rest(&mut stream).await
    };
    let ended = token_of(&api.shared, "ada", Role::Admin, true).await;
    let standing = api.shared.people.standing(&ended).unwrap().unwrap();
    api.shared.people.revoke("ada".parse().unwrap(), standing.id, admin(&api.shared)).await.unwrap();
    let credentials = json!({"name": "ada", "password": PASSWORD, "cookie": true});
    for stale in [format!("__Host-kurrent={ended}"), "__Host-kurrent=krt_0123456789ab_x".into(), "__Host-kurrent=".into()] {
        for (method, path, body, expected) in [
            ("GET", "/v1/ca", Value::Null, "HTTP/1.1 200"),
            ("POST", "/v1/login", credentials.clone(), "HTTP/1.1 200"),
            ("POST", "/v1/logout", json!({}), "HTTP/1.1 204"),
            ("GET", "/v1/whoami", Value::Null, "HTTP/1.1 401"),
            ("POST", "/v1/workers", json!({}), "HTTP/1.1 401"),
        ] {
            let answer = ask(method, path, &stale, &body).await;
            assert!(answer.starts_with(expected), "{method} {path} {stale}: {answer}");
            assert!(path != "/v1/logout" || answer.contains("__Host-kurrent=; Path=/; Max-Age=0"), "{answer}");
        }
    }
    // One that counts is looked at as ever.
    let good = format!("__Host-kurrent={}", api.token);
    assert!(ask("POST", "/v1/logout", &good, &json!({})).await.starts_with("HTTP/1.1 403"));
}

#[tokio::test]
async fn a_weaker_token_ends_itself_and_none_that_does_more() {
    let mut api = server().await;
    let olga = token_of(&api.shared, "olga", Role::Operator, false).await;
    api.token = olga.clone();
    let strong = api.expect(("POST", "/v1/tokens", json!({"minutes": 60})), 201, "").await["id"].as_str().unwrap().to_owned();
    let weak = api.expect(("POST", "/v1/tokens", json!({"minutes": 60, "role": "viewer"})), 201, "").await;
    let session = api.expect(("GET", "/v1/whoami", Value::Null), 200, "").await["id"].as_str().unwrap().to_owned();
    api.token = weak["token"].as_str().unwrap().to_owned();
    for id in [&strong, &session] {
        api.expect(("DELETE", &format!("/v1/tokens/{id}"), Value::Null), 403, "role_missing").await;
    }
    assert_eq!(api.ask("DELETE", &format!("/v1/tokens/{}", weak["id"].as_str().unwrap()), "").await.0, 204);
    api.token = olga;
    assert_eq!(api.ask("DELETE", &format!("/v1/tokens/{strong}"), "").await.0, 204);
    assert_eq!(api.ask("DELETE", &format!("/v1/tokens/{session}"), "").await.0, 204, "who has logged in may end what is his");
}
