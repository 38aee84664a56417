use super::*;

fn person(role: Role) -> Asker<'static> {
    Asker::Person { role, only: &[] }
}

#[test]
fn what_is_not_in_the_table_is_refused_to_everybody() {
    for (method, path) in [("GET", "/v1/nothing"), ("PUT", "/v1/status"), ("get", "/v1/status"), ("GET", "/v1/status/"), ("", "")] {
        for asker in [Asker::Nobody, Asker::FirstRun, person(Role::Admin)] {
            assert_eq!(may(asker, method, path), Err(Refusal::NotListed), "{method} {path}");
        }
    }
}

#[test]
fn no_route_has_two_rows_and_a_greater_role_has_all_of_a_lesser_one() {
    for (n, route) in ROUTES.iter().enumerate() {
        assert!(!ROUTES[..n].iter().any(|r| r.method == route.method && r.path == route.path), "{route:?}");
        let may = Role::ALL.map(|role| may(person(role), route.method, route.path).is_ok());
        assert!(may.is_sorted() && may[2], "{route:?}");
    }
}

#[test]
fn a_viewer_changes_nothing_but_what_is_his_own() {
    for route in ROUTES.iter().filter(|r| r.method != "GET") {
        let own = [TAG_SESSION, "tokens"].contains(&route.tag);
        assert_eq!(may(person(Role::Viewer), route.method, route.path).is_ok(), own, "{route:?}");
    }
}

#[test]
fn a_limited_token_reaches_its_tags_its_session_and_never_users_or_tokens() {
    let only = |tags: &[&str]| tags.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    for limit in [only(&["devices"]), only(&["devices", "users", "tokens"]), only(&["no such tag"])] {
        let asker = Asker::Person { role: Role::Admin, only: &limit };
        for route in ROUTES.iter().filter(|r| r.least != Least::Nobody) {
            let fine = route.tag == TAG_SESSION || (route.tag == "devices" && limit.contains(&"devices".to_owned()));
            let refused = Err(Refusal::TagMissing { needs: route.tag });
            assert_eq!(may(asker, route.method, route.path), if fine { Ok(()) } else { refused }, "{route:?}");
        }
    }
    assert!(may_limit_to("devices") && !may_limit_to("users") && !may_limit_to("tokens") && !may_limit_to("session") && !may_limit_to("x"));
}

#[test]
fn head_is_read_as_get() {
    assert_eq!(may(person(Role::Viewer), "HEAD", "/v1/devices"), Ok(()));
    assert_eq!(may(Asker::Nobody, "HEAD", "/v1/devices"), Err(Refusal::TokenMissing));
}
