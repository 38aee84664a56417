//! The API over TLS, as programs that know nothing of us see it: curl and OpenSSL.

use crate::net::{DEADLINE, Net, wait_for};
use anyhow::{Context, Result, ensure};
use kurrent_harness::netns;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const STRANGER: &str = "52:54:00:00:77:01";
const TOKEN: &str = "A234567A234567A234567A2345";

fn path(net: &Net, name: &str) -> Result<String> {
    net.path(name).to_str().map(str::to_owned).context("a path")
}

/// The API is up with a certificate; the token.
fn serve(net: &Net) -> Result<String> {
    let daemon = net.serve()?;
    daemon.wait_for_log("a new certificate")?;
    net.keep(daemon);
    let api = net.api()?;
    api.wait_for("API", "/v1/status", DEADLINE, |_| Some(()))?;
    Ok(api.token)
}

/// `curl` in this namespace; status and body.
fn curl(netns: &str, arguments: &[&str]) -> Result<(String, String)> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns, "curl", "-s", "-S", "-m", "20", "-w", "\n%{http_code}"]).args(arguments);
    let output = command.output().context("start curl")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').context("a status")?;
    Ok((status.to_owned(), format!("{body}{}", String::from_utf8_lossy(&output.stderr))))
}

/// A machine on the boot network with an address of its own.
fn neighbour(net: &Net) -> Result<crate::net::Client> {
    let client = net.client(STRANGER)?;
    client.address("10.77.0.30/24")?;
    client.ip(&["addr", "add", "2001:db8:77::30/64", "dev", "eth0", "nodad"])?;
    Ok(client)
}

#[test]
fn curl_believes_the_ca_on_every_address_and_an_address_that_comes_later_cuts_no_stream() -> Result<()> {
    let net = Net::new("https-addresses")?;
    net.ip(&["addr", "add", "2001:db8:77::1/64", "dev", "boot", "nodad"])?;
    let client = neighbour(&net)?;
    let token = serve(&net)?;
    let (status, pem) = curl(&client.netns, &["-k", "https://10.77.0.1:8443/v1/ca"])?;
    ensure!((status.as_str(), pem.trim()) == ("200", fs::read_to_string(net.path("state/ca.crt"))?.trim()), "{pem}");
    let (ca, auth) = (path(&net, "state/ca.crt")?, format!("Authorization: Bearer {token}"));
    for host in ["10.77.0.1", "[2001:db8:77::1]"] {
        let url = format!("https://{host}:8443/v1/status");
        let (status, body) = curl(&client.netns, &["--cacert", &ca, "-H", &auth, &url])?;
        ensure!(status == "200" && body.contains("ca_fingerprint"), "{url}: {status} {body}");
        ensure!(curl(&client.netns, &[&url])?.0 == "000", "believed without the CA");
    }
    for host in ["127.0.0.1", "[::1]", "localhost", "net", "net.local", "10.77.0.1"] {
        let (url, resolve) = (format!("https://{host}:8443/v1/status"), format!("{host}:8443:127.0.0.1"));
        let more = if host.starts_with('n') { vec!["--resolve", &resolve] } else { vec![] };
        let (status, body) = curl(net.netns(), &[more, vec!["--cacert", &ca, "-H", &auth, &url]].concat())?;
        ensure!(status == "200", "{url}: {status} {body}");
    }

    // A stream that is open from before.
    let mut stream = Stream::open(&client.netns, &["--cacert", &ca, "-H", &auth, "https://10.77.0.1:8443/v1/events"])?;
    let late = "https://10.77.0.99:8443/v1/status";
    net.ip(&["addr", "add", "10.77.0.99/24", "dev", "boot"])?;
    wait_for("the new address in the certificate", || {
        curl(&client.netns, &["--cacert", &ca, "-H", &auth, late]).is_ok_and(|(status, _)| status == "200")
    })?;
    crate::net::register(&net.api()?, "52:54:00:00:77:09")?;
    stream.says("change")?;
    let audit = net.api()?.get("/v1/operations?verb=certificate_renewed")?.to_string();
    ensure!(audit.contains("names_changed"), "{audit}");
    net.ip(&["addr", "del", "10.77.0.99/24", "dev", "boot"])?;
    net.api()?.wait_for("a second renewal", "/v1/operations?verb=certificate_renewed", DEADLINE, |found| {
        (found.to_string().matches("names_changed").count() == 2).then_some(())
    })?;
    net.passed();
    Ok(())
}

/// A `curl` that reads events.
struct Stream {
    child: Child,
    lines: Arc<Mutex<String>>,
}

impl Stream {
    fn open(netns: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns, "curl", "-s", "-N", "-i"]).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().context("start curl")?;
        let (from, lines) = (child.stdout.take().context("its output")?, Arc::new(Mutex::new(String::new())));
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push_str(&line);
            }
        });
        let mut stream = Self { child, lines };
        stream.says("text/event-stream")?;
        Ok(stream)
    }

    fn says(&mut self, what: &str) -> Result<()> {
        let lines = Arc::clone(&self.lines);
        wait_for(&format!("{what:?} in the stream"), || lines.lock().is_ok_and(|lines| lines.contains(what)))?;
        ensure!(self.child.try_wait()?.is_none(), "the stream was cut");
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn plain_http_is_for_loopback_and_what_others_send_is_told_to_nobody() -> Result<()> {
    let net = Net::new("https-plain")?;
    let client = neighbour(&net)?;
    let token = serve(&net)?;
    let auth = format!("Authorization: Bearer {token}");
    ensure!(curl(net.netns(), &["-H", &auth, "http://127.0.0.1:8443/v1/status"])?.0 == "200", "plain from loopback");
    let secret = format!("Authorization: Bearer {TOKEN}");
    let large = "x".repeat(40_000);
    for request in
        [vec!["-H", &secret, "http://10.77.0.1:8443/v1/status"], vec!["-H", &auth, "-d", &large, "http://10.77.0.1:8443/v1/workers"]]
    {
        let (status, body) = curl(&client.netns, &request)?;
        ensure!(status == "400" && body.contains("\"https_needed\"") && body.contains("https://10.77.0.1:8443"), "{status} {body}");
    }
    // Neither a wrong token nor a path was looked at.
    let audit = net.api()?.get("/v1/operations")?.to_string();
    let log = fs::read_to_string(net.path("status"))?;
    ensure!(!audit.contains("token_wrong") && !audit.contains(TOKEN) && !log.contains("token_wrong"), "{audit}");
    net.passed();
    Ok(())
}

#[test]
fn old_versions_are_refused_and_new_ones_are_not() -> Result<()> {
    let net = Net::new("https-versions")?;
    let client = neighbour(&net)?;
    serve(&net)?;
    let ca = path(&net, "state/ca.crt")?;
    let openssl = |more: &[&str]| -> Result<(bool, String)> {
        let mut command = client.command("openssl");
        let fixed = ["s_client", "-connect", "10.77.0.1:8443", "-CAfile", &ca, "-verify_ip", "10.77.0.1", "-verify_return_error", "-brief"];
        let output = command.args(fixed).args(more).stdin(Stdio::null()).output().context("start openssl")?;
        let said = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
        Ok((output.status.success(), said))
    };
    for (version, spoken) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (ok, said) = openssl(&[version])?;
        ensure!(ok && said.contains(spoken) && said.contains("Verification: OK"), "{said}");
    }
    // The client would speak it: it is the server that does not.
    let (ok, said) = openssl(&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"])?;
    ensure!(!ok && said.contains("alert"), "{said}");
    net.passed();
    Ok(())
}

#[test]
fn a_flood_of_half_handshakes_keeps_nobody_out_for_longer_than_a_head_may_take() -> Result<()> {
    let net = Net::new("https-flood")?;
    let (stranger, client) = (net.client("52:54:00:00:77:02")?, neighbour(&net)?);
    stranger.address("10.77.0.40/24")?;
    let token = serve(&net)?;
    let (ca, auth) = (path(&net, "state/ca.crt")?, format!("Authorization: Bearer {token}"));
    let held = stranger.enter(|| {
        let target = SocketAddr::from(([10, 77, 0, 1], 8443));
        let half = |n: usize| {
            let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(5)).ok()?;
            // Nothing, one octet, or the begin of a record.
            let _ = stream.write_all(&b"\x16\x03\x01\x02\x00\x01"[..[0, 1, 6][n % 3]]);
            Some(stream)
        };
        (0..200).filter_map(half).collect::<Vec<_>>()
    })?;
    ensure!(held.len() > 100, "{} connections", held.len());
    let begun = Instant::now();
    let (status, body) = curl(&client.netns, &["--cacert", &ca, "-H", &auth, "https://10.77.0.1:8443/v1/status"])?;
    ensure!(status == "200", "another machine of the same network: {status} {body}");
    ensure!(begun.elapsed() < Duration::from_secs(10), "it waited {:?}", begun.elapsed());
    // Who does not get on is cut off, all of them.
    for mut stream in held {
        stream.set_read_timeout(Some(DEADLINE))?;
        if let Err(e) = stream.read_to_end(&mut Vec::new()) {
            ensure!(e.kind() == std::io::ErrorKind::ConnectionReset, "{e}");
        }
    }
    net.passed();
    Ok(())
}

/// `kurrent` in this namespace, with a home of its own.
fn kurrent(net: &Net, netns: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new("ip");
    let program = kurrent_harness::appliance::program("kurrent")?;
    command.args(["netns", "exec", netns]).arg(program).args(arguments).stdin(Stdio::null());
    command.env("HOME", net.path("home")).env_remove("XDG_CONFIG_HOME");
    let output = command.output().context("start kurrent")?;
    Ok((output.status.code(), String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()))
}

#[test]
fn kurrent_believes_the_ca_of_its_context_and_tells_no_other_the_token() -> Result<()> {
    let net = Net::new("https-kurrent")?;
    let client = neighbour(&net)?;
    let token = serve(&net)?;
    fs::create_dir_all(net.path("home"))?;
    fs::write(net.path("home/token"), &token)?;
    fs::set_permissions(net.path("home/token"), fs::Permissions::from_mode(0o600))?;
    let fingerprint = net.api()?.get("/v1/status")?.get("ca_fingerprint").and_then(|f| f.as_str()).context("a fingerprint")?.to_owned();
    wait_for("the screen shows it", || {
        fs::read_to_string(net.path("status")).is_ok_and(|s| s.contains(&format!("ca_fingerprint={fingerprint}")))
    })?;
    let (url, file) = ("https://10.77.0.1:8443", path(&net, "home/token")?);
    let add = |name: &str, more: &[&str]| {
        let fixed = ["context", "add", name, "--token-file", &file, "--url"];
        kurrent(&net, &client.netns, &[&fixed[..], more].concat())
    };
    let (code, said) = add("lab", &[url])?;
    ensure!(code == Some(1) && said.contains("--ca-fingerprint"), "no terminal: {said}");
    let (code, said) = add("lab", &[url, "--ca-fingerprint", &"ab".repeat(32)])?;
    ensure!(code == Some(1) && said.contains("shows another CA") && said.contains(&fingerprint), "{said}");
    let (code, said) = add("lab", &["http://10.77.0.1:8443"])?;
    ensure!(code == Some(1) && said.contains("use https://10.77.0.1:8443"), "{said}");
    let (code, said) = add("lab", &[url, "--ca-fingerprint", &fingerprint])?;
    ensure!(code == Some(0), "{said}");
    let (code, said) = kurrent(&net, &client.netns, &["status"])?;
    ensure!(code == Some(0) && said.contains(&fingerprint), "{said}");
    let (code, said) = kurrent(&net, &client.netns, &["ca"])?;
    ensure!(code == Some(0) && said.trim() == fs::read_to_string(net.path("state/ca.crt"))?.trim(), "{said}");

    // The appliance is set up anew: another CA. What it is sent is recorded by a relay in between, which sees TLS only; so the fake
    // below ends TLS itself.
    net.daemon_ends()?;
    fs::remove_file(net.path("state/secrets/ca.key"))?;
    fs::remove_file(net.path("state/ca.crt"))?;
    serve(&net)?;
    let (code, said) = kurrent(&net, &client.netns, &["status"])?;
    ensure!(code == Some(1) && said.contains("shows another CA") && said.contains("no token was sent"), "{said}");
    net.daemon_ends()?;

    // Somebody else, with a certificate of his own for the same address.
    let (key, certificate) = (path(&net, "fake.key")?, path(&net, "fake.crt")?);
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=x"])
        .args(["-addext", "subjectAltName=IP:10.77.0.1", "-keyout", &key, "-out", &certificate])
        .output()
        .context("start openssl")?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut fake = Command::new("ip");
    fake.args(["netns", "exec", net.netns(), "openssl", "s_server", "-accept", "8443", "-cert", &certificate, "-key", &key]);
    let mut fake = fake.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("start openssl")?;
    let seen = fake.stdout.take().context("its output")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = BufReader::new(seen).read_to_string(&mut text);
        text
    });
    wait_for("the fake listens", || netns::enter(net.netns(), || TcpStream::connect("10.77.0.1:8443").is_ok()).unwrap_or(false))?;
    let refused = kurrent(&net, &client.netns, &["status"]);
    let _ = fake.kill();
    let _ = fake.wait();
    let (code, said) = refused?;
    ensure!(code == Some(1) && said.contains("not to be trusted"), "{said}");
    let recorded = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
    ensure!(!recorded.contains(&token) && !recorded.to_lowercase().contains("authorization"), "{recorded}");
    net.passed();
    Ok(())
}

#[test]
fn a_damaged_ca_key_is_a_fault_that_stops_tls_alone_and_a_restart_keeps_the_ca() -> Result<()> {
    let net = Net::new("https-damaged")?;
    let client = neighbour(&net)?;
    serve(&net)?;
    let (ca, file) = (path(&net, "home-ca.crt")?, net.path("state/secrets/ca.key"));
    fs::copy(net.path("state/ca.crt"), &ca)?;
    let good = fs::read(&file)?;
    net.daemon_ends()?;
    fs::write(&file, "damaged")?;
    let daemon = net.serve()?;
    wait_for("the screen tells of it", || {
        fs::read_to_string(net.path("status")).is_ok_and(|s| s.contains("fault=tls:") && s.contains("restore the file from a backup"))
    })?;
    net.keep(daemon);
    // Started after TLS: its port may not be there yet.
    net.api()?;
    ensure!(curl(net.netns(), &["http://127.0.0.1:8443/v1/status"])?.0 == "401", "loopback is not served");
    ensure!(curl(&client.netns, &["http://10.77.0.1/boot.ipxe"])?.0 == "200", "the boot plane is not served");
    ensure!(curl(&client.netns, &["-k", "https://10.77.0.1:8443/v1/status"])?.0 == "000", "TLS without a certificate");
    ensure!(fs::read(&file)? == b"damaged", "the key was replaced");
    // Put back, as a restore does: the same CA, and the copy for people is written again.
    fs::write(&file, good)?;
    fs::remove_file(net.path("state/ca.crt"))?;
    wait_for("TLS is back", || curl(&client.netns, &["--cacert", &ca, "https://10.77.0.1:8443/v1/status"]).is_ok_and(|(s, _)| s == "401"))?;
    ensure!(fs::read(net.path("state/ca.crt"))? == fs::read(&ca)?, "another CA");
    net.passed();
    Ok(())
}
