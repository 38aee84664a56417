//! Every route has its row in `core::access`, and the running router keeps to it.

use super::*;
use kurrent_core::access::{Asker, Least, ROUTES, may};

/// A path that fits the template; what it names need not be there.
pub(super) fn some_path(template: &str) -> String {
    let filled = template.replace("{mac}", "52:54:00:00:00:01").replace("{address}", "192.0.2.1");
    filled.replace("{id}", "none").replace("{name}", "none").replace("{tag}", "none")
}

#[test]
fn the_table_and_the_description_have_the_same_routes_and_tags() {
    let described: Vec<_> = described::operations()
        .into_iter()
        .map(|(method, path, operation)| (method, path, operation["tags"][0].as_str().unwrap_or_default().to_owned()))
        .collect();
    for row in &described {
        let listed = ROUTES.iter().any(|r| (r.method, r.path, r.tag) == (row.0.as_str(), row.1.as_str(), row.2.as_str()));
        assert!(listed, "{row:?} has no row in core::access::table: nobody may use it");
    }
    assert_eq!(ROUTES.len(), described.len(), "a row of the table is no route");
}

#[tokio::test]
async fn nobody_gets_to_a_route_that_asks_for_somebody() {
    let api = server().await;
    for route in ROUTES.iter().filter(|r| r.least != Least::Nobody) {
        let request = format!(
            "{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n",
            route.method,
            some_path(route.path)
        );
        let (status, body) = api.raw(request.as_bytes()).await;
        assert_eq!(status, 401, "{route:?}: {body}");
        assert!(body.contains("token_missing"), "{route:?}: {body}");
    }
}

/// With a token of each role, the running router lets through exactly what `tests/golden/roles.csv` says. Requests are such that they
/// are refused for something else when they get through: nothing here changes anything.
#[tokio::test]
async fn every_role_gets_exactly_to_the_routes_of_its_column() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/roles.csv");
    let table = std::fs::read_to_string(file).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut api = server_in(folder).await;
    let admin = api.token.clone();
    for (column, role) in [(5, Role::Viewer), (6, Role::Operator), (7, Role::Admin)] {
        api.token = match role {
            Role::Admin => admin.clone(),
            _ => token_of(&api.shared, role.as_str(), role, false).await,
        };
        let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|l| l.split(',').collect()).collect();
        assert_eq!(rows.len(), ROUTES.len());
        // What ends the token comes last, and streams have no end.
        for row in rows.iter().filter(|r| r[1] != "/v1/logout" && r[1] != "/v1/events") {
            let wrong = if row[0] == "GET" { "" } else { "{\"no_such_field\": 1}" };
            let (status, answer) = api.ask_with(row[0], &some_path(row[1]), &[("Content-Type", "application/json")], wrong).await;
            let let_through = !["role_missing", "tag_missing", "token_missing"].contains(&answer["code"].as_str().unwrap_or_default());
            assert_eq!(let_through, row[column] == "yes", "{role}: {row:?}: {status} {answer}");
            assert_ne!(status, 401, "{row:?}: {answer}");
        }
    }
    assert!(may(Asker::FirstRun, "POST", "/v1/users").is_ok());
}

#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let api = server().await;
    for (head, code) in [
        ("", "token_missing"),
        ("Authorization: Basic YTpi\r\n", "token_missing"),
        ("Authorization: Bearer\r\n", "token_missing"),
        ("Authorization: Bearer x\r\n", "token_wrong"),
        ("Authorization: Bearer \r\n", "token_missing"),
        (&format!("Authorization: Bearer {}\r\n", "A".repeat(26)), "token_wrong"),
        (&format!("X-Token: {}\r\n", api.token), "token_missing"),
    ] {
        for path in ["/v1/status", "/v1/devices", "/v1/nothing", "/", "/v1/masters/a_tpl_b"] {
            let (status, body) = api.raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n").as_bytes()).await;
            assert_eq!(status, 401, "{head:?} {path}: {body}");
            assert!(body.contains(code) && !body.contains(&api.token), "{head:?} {path}: {body}");
        }
    }
    let (status, _) =
        api.raw(format!("GET /v1/status?token={} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", api.token).as_bytes()).await;
    assert_eq!(status, 400, "a token in a URL is no token");
}
