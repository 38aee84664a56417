//! `tests/golden/roles.csv`: the table of who may do what, as people read it. `UPDATE=1` rewrites it; each changed line is reviewed.

use kurrent_core::access::{Asker, ROUTES, Role, Route, may};
use std::fmt::Write;
use std::path::Path;

/// The table as people read it.
fn csv() -> String {
    let mut text = "method,path,tag,nobody,first_run,viewer,operator,admin\n".to_owned();
    let mut rows: Vec<&Route> = ROUTES.iter().collect();
    rows.sort_by_key(|r| (r.tag, r.path, r.method));
    for Route { method, path, tag, .. } in rows {
        write!(text, "{method},{path},{tag}").unwrap();
        let askers = [Asker::Nobody, Asker::FirstRun].into_iter().chain(Role::ALL.map(|role| Asker::Person { role, only: &[] }));
        for asker in askers {
            text += if may(asker, method, path).is_ok() { ",yes" } else { ",no" };
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_table_for_people_is_this_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/roles.csv");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, csv()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), csv(), "UPDATE=1 writes it anew; look at each changed line");
}
