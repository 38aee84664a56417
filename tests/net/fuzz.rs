//! The API under requests that a program makes of its own description, right ones and wrong ones, by independent programs:
//! the description is valid OpenAPI 3.1, and every answer is one that it has.
//!
//! Not asked: the two streams of events, which do not end by themselves (`kurrentd::api::tests::running` has them).

use crate::net::Net;
use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// For each of the two runs; about half a minute on two busy cores.
const AT_MOST_SECS: &str = "170";
/// Requests made by chance for each operation; besides those that go through each field's bounds.
const EXAMPLES: &str = "8";
/// The same requests each time: a failure can be looked at again.
const SEED: &str = "20261130";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
const REFUSED: &str = "negative_data_rejection";
/// A refusal for another reason than the one that was made up is a refusal too.
const SETTINGS: &str =
    "[checks.negative_data_rejection]\nexpected-statuses = [400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 503, 507]\n";
/// Tells of wrong rows in its answer: not refused.
const IMPORT: &str = "/v1/devices/import";
/// Ends the session that asks: last.
const LOGOUT: &str = "/v1/logout";
const STREAMS: [&str; 2] = ["/v1/events", "/v1/jobs/{id}/events"];

/// A disk folder that no request fills beyond this.
struct Small(PathBuf);

impl Small {
    fn mount(folder: PathBuf) -> Result<Self> {
        mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), Some("size=64m")).context("mount a small file system")?;
        Ok(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn tool(name: &str) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin").join(name);
    ensure!(path.exists(), "{} is missing; `make deps` installs it", path.display());
    Ok(path)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_description_is_valid_and_every_answer_is_one_that_it_has() -> Result<()> {
    let net = Net::new("fuzz")?;
    let _small = Small::mount(net.path("disks"))?;
    let mut daemon = net.serve()?;
    let api = net.api()?;
    let document = api.get("/v1/openapi.json")?;
    let file = net.path("openapi.json");
    fs::write(&file, document.to_string())?;
    let valid = Command::new(tool("openapi-spec-validator")?).arg("--schema").arg("3.1").arg(&file).output()?;
    ensure!(valid.status.success(), "the description is not valid OpenAPI 3.1: {}", said(&valid));
    fs::write(net.path("schemathesis.toml"), SETTINGS)?;
    let fuzz = |checks: &str, paths: &[&str]| -> Result<()> {
        let mut fuzz = net.command("timeout");
        fuzz.args(["--kill-after=5", AT_MOST_SECS]).arg(tool("schemathesis")?).args(["run", "--no-color"]);
        fuzz.arg(&file).args(["--url", &api.url(), "--header", &format!("Authorization: Bearer {}", api.token)]);
        fuzz.args(["--checks", checks, "--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", SEED]);
        fuzz.args(["--request-timeout", "20", "--continue-on-failure", "--no-shrink", "--generation-database", "none"]);
        fuzz.args(["--warnings", "off", "--suppress-health-check", "all"]).args(paths).current_dir(net.path(""));
        let output = fuzz.output().context("start schemathesis")?;
        let text = said(&output);
        ensure!(output.status.success(), "schemathesis found something:\n{text}");
        let shown = |line: &&str| line.contains("generated") || line.contains("Tested");
        text.lines().filter(shown).for_each(|line| eprintln!("schemathesis: {}", line.trim()));
        Ok(())
    };
    let streams = STREAMS.iter().flat_map(|path| ["--exclude-path", *path]);
    let all_but_import: Vec<&str> = streams.chain(["--exclude-path", IMPORT, "--exclude-path", LOGOUT]).collect();
    fuzz(&format!("{CHECKS},{REFUSED}"), &all_but_import)?;
    fuzz(CHECKS, &["--include-path", IMPORT])?;
    ensure!(api.get("/v1/whoami").is_ok(), "the session of all these requests has ended on the way");
    fuzz(CHECKS, &["--include-path", LOGOUT])?;
    ensure!(daemon.runs(), "kurrentd has ended: {}", daemon.log());
    ensure!(!daemon.log().contains("panicked"), "something panicked: {}", daemon.log());
    net.passed();
    Ok(())
}
