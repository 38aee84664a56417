//! Rules of the tree that the compiler does not know: who may touch the world, how long a file may be, what may be written
//! into one. The rules are those of ARCHITECTURE.md; each failure names file, line and rule.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// House rule: a file is read in one sitting. A little slack keeps a comment from forcing a split.
const MAX_LINES: usize = 440;

/// What `src/core` must never name: it decides, others act.
const NOT_IN_CORE: &[&str] = &[
    "std::fs",
    "std::process",
    "std::thread",
    "std::env",
    "std::io",
    "Instant::now",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "tokio",
    "async fn",
    "tracing::",
    "println!",
    "eprintln!",
    "getrandom",
    "kurrent_sys",
];

/// Written in halves, so that this file passes its own rule.
fn forbidden_hosts() -> Vec<String> {
    [("deb.debian", ".org"), ("crates", ".io/api"), ("static.crates", ".io"), ("index.crates", ".io"), ("static.rust-lang", ".org")]
        .iter()
        .map(|(first, second)| format!("{first}{second}"))
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the tree that is ours, with its text.
fn files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    folders.push(path);
                }
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((path.strip_prefix(root()).expect("below the root").to_path_buf(), text));
            }
        }
    }
    found.sort();
    found
}

fn rust_files() -> Vec<(PathBuf, String)> {
    files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "rs")).collect()
}

/// Unit tests in a file of their own, beside the module they test.
fn is_unit_tests(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"))
}

/// The part of a Rust file before its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

fn report(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

#[test]
fn core_has_no_clock_file_socket_thread_or_log() {
    let mut faults = Vec::new();
    // `UPDATE=1` rewrites what golden tests compare with: they alone write files.
    let decides = |path: &Path| path.starts_with("src/core/src") && !path.ends_with("golden_tests.rs");
    for (path, text) in rust_files().iter().filter(|(path, _)| decides(path)) {
        for (number, line) in without_tests(text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            faults.extend(
                NOT_IN_CORE.iter().filter(|word| code.contains(**word)).map(|word| format!("{}:{}: {word}", path.display(), number + 1)),
            );
        }
    }
    report("core decides, it does not act", &faults);
}

#[test]
fn every_module_says_what_it_is_for() {
    let faults: Vec<String> = rust_files()
        .iter()
        .filter(|(path, text)| !is_unit_tests(path) && !text.starts_with("//!"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    report("a file begins with its module doc", &faults);
}

#[test]
fn files_are_short_enough_to_read() {
    let faults: Vec<String> = rust_files()
        .iter()
        .map(|(path, text)| (path, without_tests(text).lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    report(&format!("at most {MAX_LINES} lines"), &faults);
}

#[test]
fn no_test_is_switched_off() {
    let ignored = format!("#[{}", "ignore");
    let faults: Vec<String> =
        rust_files().iter().filter(|(_, text)| text.contains(&ignored)).map(|(path, _)| path.display().to_string()).collect();
    report("a test runs or is deleted", &faults);
}

#[test]
fn no_file_names_a_package_host() {
    let hosts = forbidden_hosts();
    let mut faults = Vec::new();
    // Cargo writes its registry's name into the lock file.
    for (path, text) in files().iter().filter(|(path, _)| path != Path::new("Cargo.lock")) {
        faults.extend(hosts.iter().filter(|host| text.contains(*host)).map(|host| format!("{}: {host}", path.display())));
    }
    report("packages come from the machine's own sources", &faults);
}

#[test]
fn a_todo_names_its_issue() {
    let word = format!("TO{}", "DO");
    let mut faults = Vec::new();
    for (path, text) in rust_files() {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.contains(&word)) {
            if !line.contains(&format!("{word}(#")) && !path.ends_with("tidy.rs") {
                faults.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    report("TODO(#issue)", &faults);
}

#[test]
fn programs_depend_only_on_what_their_place_allows() {
    // Crate, and what must not be among its dependencies.
    let rules: &[(&str, &[&str])] = &[
        ("src/core/Cargo.toml", &["kurrent-sys", "tokio", "hyper", "tracing", "nix", "rustix", "libc"]),
        ("src/sys/Cargo.toml", &["tokio", "hyper", "axum", "serde-saphyr"]),
        ("src/init/Cargo.toml", &["tokio", "serde-saphyr", "kurrentd", "kurrent-stage1"]),
        ("src/stage1/Cargo.toml", &["tokio", "serde-saphyr", "kurrentd", "kurrent-init"]),
        ("tests/harness/Cargo.toml", &["kurrentd", "kurrent-sys", "tokio"]),
    ];
    let mut faults = Vec::new();
    for (manifest, forbidden) in rules {
        let text = fs::read_to_string(root().join(manifest)).expect("a member's manifest");
        let dependencies = text.split("[dependencies]").nth(1).unwrap_or_default().split("\n[").next().unwrap_or_default();
        for line in dependencies.lines() {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if forbidden.contains(&name) {
                faults.push(format!("{manifest}: {name}"));
            }
        }
    }
    report("who may depend on whom (ARCHITECTURE.md)", &faults);
}

#[test]
fn every_crate_has_a_licence_that_the_notice_covers() {
    let allowed = [
        "MIT",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-1-Clause",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "ISC",
        "Unicode-3.0",
        "Unlicense",
        "Zlib",
        "0BSD",
        "MPL-2.0",
        "MPL-2.0+",
    ];
    let cargo = Command::new(env!("CARGO")).current_dir(root()).args(["metadata", "--locked", "--format-version", "1"]).output();
    let output = cargo.expect("cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let notice = fs::read_to_string(root().join("NOTICE")).expect("NOTICE");
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let (name, licence) = (package["name"].as_str().unwrap_or_default(), package["license"].as_str().unwrap_or_default());
        // `(A OR B) AND C`: every part needs one that is allowed.
        let plain = licence.replace(['(', ')'], "");
        let covered =
            plain.split(" AND ").all(|part| part.split(" OR ").flat_map(|p| p.split('/')).any(|one| allowed.contains(&one.trim())));
        // Copyleft by file: fine to link, but its source must be pointed to by name.
        let must_be_named = licence.starts_with("MPL");
        if !covered || (must_be_named && !notice.contains(name)) {
            faults.push(format!("{name}: {licence}"));
        }
    }
    report("a licence we know, and MPL crates named in NOTICE", &faults);
}

/// Reports from the field that answers to firmware must not forget: the project, and the number there. The list is that of the
/// paragraph "Known quirks" in the design of the network services.
const QUIRKS: &[(&str, u32)] = &[
    ("edk2", 8149),
    ("fog_docs", 188),
    ("edk2", 6944),
    ("netboot", 43),
    ("booter", 4),
    ("xcat_core", 7743),
    ("smee", 210),
    ("smee", 225),
    ("ipxe", 1527),
    ("ipxe", 908),
    ("ipxe", 922),
    ("ipxe", 203),
    ("tinkerbell", 424),
    ("raspberrypi_firmware", 801),
    ("raspberrypi_firmware", 1265),
    ("openwrt", 14660),
    ("technitium", 1719),
    ("netboot_xyz", 1198),
    ("opnsense", 7744),
    ("systemd", 27471),
    ("warewulf", 802),
    ("understack", 1928),
    ("talos", 7694),
    ("fog", 196),
    ("opnsense", 9872),
    ("ipxe", 798),
    ("barclamp_provisioner", 2),
    ("pin_tftp", 125),
    ("node_tftp", 13),
    ("crowbar_core", 1078),
    ("rpi_eeprom", 720),
    ("u_root", 1966),
    ("rs_tftpd", 49),
    ("netboot", 10),
    ("rpi_eeprom", 475),
    ("ipxe", 1023),
    ("ipxe", 1545),
];

/// Names of test functions.
fn tests() -> Vec<String> {
    let mut names = Vec::new();
    for (_, text) in rust_files() {
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            let function = line.trim_start_matches("async ").strip_prefix("fn ");
            if let Some(name) = function.filter(|_| is_test).and_then(|rest| rest.split('(').next()) {
                names.push(name.to_owned());
            }
            // Other attributes may stand between.
            is_test = line.starts_with("#[") && (is_test || line.ends_with("test]"));
        }
    }
    names
}

#[test]
fn every_quirk_of_the_field_has_a_test_that_names_it() {
    let names = tests();
    // `ipxe_908_922_203_...`: the project, then numbers, among them this one.
    let is_named = |project: &str, number: &str, name: &str| {
        let words: Vec<&str> = name.split('_').collect();
        let project: Vec<&str> = project.split('_').collect();
        words.windows(project.len()).enumerate().filter(|(_, window)| *window == project).any(|(at, _)| {
            let numbers = words.iter().skip(at + project.len()).take_while(|word| word.bytes().all(|b| b.is_ascii_digit()));
            numbers.into_iter().any(|word| *word == number)
        })
    };
    assert!(is_named("ipxe", "922", "ipxe_908_922_203_no_loader") && !is_named("ipxe", "92", "ipxe_908_922"));
    assert!(!is_named("netboot", "1198", "netboot_xyz_1198_nul") && is_named("fog_docs", "188", "edk2_8149_fog_docs_188_binl"));
    let faults: Vec<String> = QUIRKS
        .iter()
        .filter(|(project, number)| !names.iter().any(|name| is_named(project, &number.to_string(), name)))
        .map(|(project, number)| format!("{project} {number}"))
        .collect();
    report("each report has a test with its project and number in the name", &faults);
}

/// The concept page "Devices, Workers and System Disks" has 42 statements in the project's checklist (K01 to K42).
#[test]
fn every_statement_of_the_concept_page_has_a_test_that_names_it() {
    let names: Vec<String> = rust_files()
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| line.trim_start().trim_start_matches("async ").strip_prefix("fn ").map(str::to_owned))
        .collect();
    let named = |id: &str| names.iter().any(|name| name.split('(').next().is_some_and(|n| n.split('_').any(|word| word == id)));
    let faults: Vec<String> = (1..=42).map(|n| format!("k{n:02}")).filter(|id| !named(id)).collect();
    report("each statement has a test with its id in the name", &faults);
}
