//! Every route has its row in `core::access`, and the running router keeps to it.

use super::*;
use kurrent_core::access::{Least, ROUTES};

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
