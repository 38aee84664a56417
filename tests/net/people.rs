//! People at a real `kurrentd`: what a crash, a stranger, an edit by hand and a full disk do to who may log in.

use crate::net::{DEADLINE, Net, wait_for_api};
use anyhow::{Context, Result, ensure};
use kurrent_harness::api::{Answer, Api};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PASSWORD: &str = "an unlikely pass phrase";

fn log_in(api: &Api, name: &str, password: &str) -> Result<Answer> {
    let body = json!({ "name": name, "password": password }).to_string();
    api.exchange("POST", "/v1/login", "Content-Type: application/json\r\n", body.as_bytes())
}

fn session(api: &Api, name: &str) -> Result<Api> {
    let answer = log_in(api, name, PASSWORD)?.json()?;
    let token = answer["token"].as_str().with_context(|| answer.to_string())?;
    Ok(Api { token: token.to_owned(), ..api.clone() })
}

fn create(api: &Api, name: &str, role: &str) -> Result<Value> {
    api.ask("POST", "/v1/users", Some(&json!({ "name": name, "role": role, "password": PASSWORD })))
}

/// Every file below a folder whose octets hold one of these.
fn holding(folder: &Path, secrets: &[&str]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(holding(&path, secrets)?);
        } else {
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            found.extend(secrets.iter().filter(|s| text.contains(**s)).map(|s| format!("{} holds {s}", path.display())));
        }
    }
    Ok(found)
}

#[test]
fn sessions_survive_a_crash_and_no_secret_is_in_any_file_or_log() -> Result<()> {
    let net = Net::new("people")?;
    let daemon = net.serve()?;
    let admin = net.api()?;
    ensure!(!net.path("state/secrets/first-run-token").exists(), "the first-run token is used");
    create(&admin, "olga", "operator")?;
    let olga = session(&admin, "olga")?;
    let order = json!({ "note": "ci", "minutes": 60, "only": ["devices"] });
    let made = olga.ask("POST", "/v1/tokens", Some(&order))?;
    let token = made["token"].as_str().context("a token")?.to_owned();
    let in_url = olga.exchange("GET", &format!("/v1/status?token={token}"), "", b"")?;
    ensure!(in_url.status == 400 && in_url.text().contains("token_in_url"), "{}", in_url.text());
    // With a key: what the answers are kept for must not keep this one.
    let head = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\nIdempotency-Key: k1\r\n", olga.token);
    let keyed = olga.exchange("POST", "/v1/tokens", &head, b"{}")?.json()?;
    let keyed = keyed["token"].as_str().context("a token")?.to_owned();
    daemon.kill();
    let daemon = net.serve()?;
    wait_for_api(&olga)?;
    ensure!(olga.get("/v1/whoami")?["name"] == "olga", "the session did not survive");
    ensure!(Api { token: token.clone(), ..olga.clone() }.get("/v1/devices").is_ok(), "nor the token");
    let secret_of = |token: &str| token.splitn(3, '_').last().unwrap_or_default().to_owned();
    let mut secrets = vec![PASSWORD.to_owned()];
    secrets.extend([&token, &keyed, &olga.token, &admin.token].map(|t| t.get(17..).map_or_else(|| secret_of(t), str::to_owned)));
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    fs::remove_file(net.path("state/lab-session"))?;
    let found = holding(&net.path("state"), &secrets)?;
    ensure!(found.is_empty(), "{found:?}");
    ensure!(!secrets.iter().any(|s| daemon.log().contains(s)), "the log holds a secret");
    net.keep(daemon);
    net.passed();
    Ok(())
}

#[test]
fn strangers_who_guess_wait_and_do_not_keep_the_operator_out() -> Result<()> {
    let net = Net::new("people-guess")?;
    let daemon = net.serve()?;
    let admin = net.api()?;
    create(&admin, "olga", "operator")?;
    let stranger = net.client("52:54:00:00:07:01")?;
    stranger.address("10.77.0.201/24")?;
    let guess = || -> Result<String> {
        let body = format!("{{\"name\": \"olga\", \"password\": \"wrong wrong {}\"}}", 1);
        let url = format!("https://10.77.0.1:{}/v1/login", admin.address.port());
        let output = stranger.output("curl", &["-s", "-k", "-m", "20", "-H", "Content-Type: application/json", "-d", &body, &url])?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let begun = Instant::now();
    ensure!(guess()?.contains("password_wrong"), "the first guess");
    // A pause begins with the guess before it, and a busy machine may need longer for one; but the pause doubles each time.
    let (mut pause, mut pauses) = (Duration::from_secs(1), Duration::ZERO);
    while !guess()?.contains("locked_out") {
        pauses += pause;
        pause *= 2;
        ensure!((pauses..DEADLINE).contains(&begun.elapsed()), "not locked out after {:?}", begun.elapsed());
    }
    ensure!(session(&admin, "olga").is_ok(), "the operator on the appliance itself is let in");
    let audit = admin.get("/v1/operations?verb=login")?.to_string();
    ensure!(audit.contains("locked_out") && audit.contains("password_wrong"), "{audit}");
    net.keep(daemon);
    net.passed();
    Ok(())
}

#[test]
fn an_edit_by_hand_counts_after_a_restart_and_one_that_does_not_read_lets_nobody_in() -> Result<()> {
    let net = Net::new("people-edit")?;
    let daemon = net.serve()?;
    let admin = net.api()?;
    create(&admin, "olga", "operator")?;
    let users = net.path("state/users.yml");
    let good = fs::read_to_string(&users)?;
    fs::write(&users, good.replace("role: operator", "role: viewer"))?;
    let refused = admin.request("DELETE", "/v1/users/olga", None)?;
    ensure!(refused.status == 409 && refused.text().contains("users_edited"), "{}", refused.text());
    daemon.kill();
    let daemon = net.serve()?;
    wait_for_api(&admin)?;
    ensure!(admin.get("/v1/users/olga")?["role"] == "viewer", "the edit counts");
    daemon.kill();
    fs::write(&users, good.replace("role: operator", "role: root"))?;
    let daemon = net.serve()?;
    wait_for_api(&admin)?;
    let refused = admin.request("GET", "/v1/status", None)?;
    ensure!(refused.status == 503 && refused.text().contains("users_unreadable"), "{}", refused.text());
    ensure!(!net.path("state/secrets/first-run-token").exists(), "a damaged file makes no new admin");
    ensure!(daemon.log().contains("users.yml:"), "the log names the line");
    let mut check = Command::new(env!("CARGO_BIN_EXE_kurrentd"));
    let said = check.args(["state", "check", "--state-dir"]).arg(net.path("state")).output()?;
    ensure!(String::from_utf8_lossy(&said.stderr).contains("users.yml:"), "state check names the line");
    net.keep(daemon);
    net.passed();
    Ok(())
}
