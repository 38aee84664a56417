//! Attacks on the API.

use super::refused;
use crate::net::Net;
use anyhow::{Context, Result, ensure};
use kurrent_harness::api::{Answer, Api};
use serde_json::{Value, json};

const JSON: &str = "Content-Type: application/json\r\n";
const PASSWORD: &str = "a long enough password";

fn ask(api: &Api, method: &str, path: &str, head: &str, body: &Value) -> Result<Answer> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    api.exchange(method, path, &format!("{JSON}{head}"), body.as_bytes())
}

fn code(answer: &Answer) -> String {
    let problem = answer.json().unwrap_or_default();
    format!("{} {}", answer.status, problem.get("code").and_then(Value::as_str).unwrap_or_default())
}

fn served(test: &str) -> Result<(Net, Api)> {
    let net = Net::new(test)?;
    net.keep(net.serve()?);
    let api = net.api()?;
    api.ask("POST", "/v1/users", Some(&json!({ "name": "vera", "role": "viewer", "password": PASSWORD })))?;
    Ok((net, api))
}

fn session_of_vera(api: &Api) -> Result<String> {
    let answer = ask(api, "POST", "/v1/login", "", &json!({ "name": "vera", "password": PASSWORD }))?;
    let token = answer.json()?.get("token").and_then(Value::as_str).context("a session")?.to_owned();
    Ok(token)
}

/// Every route with every role: `kurrentd`'s own test of roles.csv.
#[test]
fn nobody_and_a_viewer_change_nothing() -> Result<()> {
    let (net, api) = served("attack-roles")?;
    let vera = format!("Authorization: Bearer {}\r\n", session_of_vera(&api)?);
    for (method, path, body) in [
        ("POST", "/v1/devices", json!({ "mac": "52:54:00:00:0a:01" })),
        ("POST", "/v1/workers", json!({ "worker_id": "atlas" })),
        ("PUT", "/v1/settings/registration-window", json!({ "minutes": 10 })),
        ("PATCH", "/v1/settings", json!({ "enforcement": false })),
        ("POST", "/v1/users", json!({ "name": "eve", "role": "admin", "password": PASSWORD })),
        ("POST", "/v1/backup", json!({ "passphrase": PASSWORD })),
    ] {
        let nobody = code(&ask(&api, method, path, "", &body)?);
        ensure!(nobody == "401 token_missing", "{method} {path} without a token: {nobody}");
        let viewer = code(&ask(&api, method, path, &vera, &body)?);
        ensure!(viewer == "403 role_missing", "{method} {path} by a viewer: {viewer}");
        let forged = code(&ask(&api, method, path, "Authorization: Bearer krt_0000_AAAA\r\n", &body)?);
        ensure!(forged.starts_with("401 "), "{method} {path} with a made-up token: {forged}");
    }
    refused(&api, "API without and with wrong role", "401 token_missing, 403 role_missing", &["api"], "role_missing")?;
    net.passed();
    Ok(())
}

#[test]
fn a_token_in_a_url_is_refused_and_stays_out_of_log_and_audit() -> Result<()> {
    let (net, api) = served("attack-url")?;
    let token = session_of_vera(&api)?;
    for path in [
        format!("/v1/status?token={token}"),
        format!("/v1/status?access_token={token}"),
        format!("/v1/devices?limit=1&authorization={token}"),
    ] {
        let said = code(&ask(&api, "GET", &path, "", &Value::Null)?);
        ensure!(said == "400 token_in_url", "{said}");
    }
    refused(&api, "token in URL", "400 token_in_url", &["api"], "token_in_url")?;
    let operations = std::fs::read_to_string(net.path("state/operations.jsonl"))?;
    ensure!(!operations.contains(&token), "the token is in the audit");
    net.passed();
    Ok(())
}

#[test]
fn a_page_of_another_site_can_not_use_the_cookie() -> Result<()> {
    let (net, api) = served("attack-csrf")?;
    let request = net.path("login.json");
    std::fs::write(&request, json!({ "name": "vera", "password": PASSWORD, "cookie": true }).to_string())?;
    let mut curl = net.command("curl");
    curl.args(["-s", "-i", "-H", "Content-Type: application/json", "--data-binary"]).arg(format!("@{}", request.display()));
    let output = curl.arg(format!("{}/v1/login", api.url())).output().context("start curl")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let cookie = text
        .lines()
        .find_map(|line| line.to_ascii_lowercase().starts_with("set-cookie: ").then(|| line["set-cookie: ".len()..].trim().to_owned()));
    let cookie = cookie.with_context(|| format!("no cookie: {text}"))?;
    for mark in ["__Host-kurrent=", "Secure", "HttpOnly", "SameSite=Strict"] {
        ensure!(cookie.contains(mark), "{mark} is missing: {cookie}");
    }
    let pair = cookie.split(';').next().unwrap_or_default();
    for (method, path, body) in [("POST", "/v1/logout", json!({})), ("POST", "/v1/workers", json!({ "worker_id": "atlas" }))] {
        for site in
            ["", "Origin: https://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n"]
        {
            let said = code(&ask(&api, method, path, &format!("Cookie: {pair}\r\n{site}"), &body)?);
            ensure!(said == "403 cross_site", "{method} {path} with {site:?}: {said}");
        }
    }
    refused(&api, "CSRF on the console's routes", "403 cross_site", &["api"], "cross_site")?;
    net.passed();
    Ok(())
}
