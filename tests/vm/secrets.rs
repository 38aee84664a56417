//! No secret of an appliance is where others look: not on consoles, in logs and the audit, in answers of the API, on the wire, in
//! what runs on a worker. A key that is no secret is put there in every form first, so that a search that finds nothing means something.
//!
//! Not searched: the memory of machines, and `/proc` of the appliance, which runs no program of ours that could read it. No core is
//! ever written of kurrentd.

use crate::shared::{self, hostname};
use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use kurrent_handshake::{VARIABLE_KEY, VARIABLE_SERVER};
use kurrent_harness::api::{Api, PASSWORD};
use kurrent_harness::appliance::{ADDRESS, Appliance, BOOT_PORT, OUR_ADDRESS, shown_token};
use kurrent_harness::machine::{Firmware, Machine};
use kurrent_harness::needles::{FORMS, Needles};
use kurrent_harness::worker::{self, SHELL_WITHIN};
use kurrent_harness::{frame, netns, rescue, timeline};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const OFF_WITHIN: Duration = Duration::from_secs(120);
/// Everything that a worker's system shows, under emulation.
const SHOWN_WITHIN: Duration = Duration::from_secs(240);
/// A change is an event in milliseconds; the programs that make and show them take seconds to start.
const EVENTS_WITHIN: Duration = Duration::from_secs(120);
const VIEWER: &str = "vera";
const VIEWERS_PASSWORD: &str = "fourteen horses of vera";
/// Where a worker sends what it shows.
const LISTENS: u16 = 9999;
/// Its base64 has the letters in which the alphabets differ.
const CANARY: [u8; 24] = *b"\xfb\xef\xff\xf0\x7e\x3f\xfe\x91\x8a\xc1\xff\xfb\xef\xc3\xa2\xd3\x97\x86\xbb\xee\xfa\xaa\x99\xe1";
/// The parts of a private key in PEM that are secret: a line each (RFC 5958; behind them stands the public key).
const SECRET_PEM_LINES: usize = 2;

/// Somewhere to look.
struct Place {
    name: String,
    octets: Vec<u8>,
    /// Says that it is what it is meant to be.
    shows: &'static str,
    /// The forms in which the canary was put there.
    planted: &'static [&'static str],
}

impl Place {
    fn new(name: impl Into<String>, octets: impl Into<Vec<u8>>, shows: &'static str) -> Self {
        Self { name: name.into(), octets: octets.into(), shows, planted: &[] }
    }

    fn planted(self, planted: &'static [&'static str]) -> Self {
        Self { planted, ..self }
    }
}

#[test]
fn no_secret_is_on_a_console_in_a_log_an_answer_or_the_audit_on_the_wire_or_in_a_workers_system() -> Result<()> {
    shared::with(|shared| {
        let mut served = shared.take(1)?;
        let appliance = shared.lab.appliance()?;
        let core_dumps = appliance.api.get("/v1/status")?.pointer("/confinement/0").cloned();
        ensure!(core_dumps.as_ref().and_then(|part| part.get("state")?.as_str()) == Some("on"), "cores may be written: {core_dumps:?}");

        let mut needles = Needles::default();
        let viewer = use_secrets(appliance, &mut needles)?;
        let mut places = answers(appliance, &viewer, &worker::mac(served.machine.spec()).to_string())?;
        say_on_the_wire(&mut served.machine)?;
        places.extend(wire(&served.machine)?);
        let netns = appliance.api.netns.clone().context("machine tests run on a bridge")?;
        places.push(system(&mut served.machine, &netns)?);
        places.push(Place::new("a worker's console", served.machine.console.text(), "login:"));
        let screen = fs::read(shared.lab.run.evidence().join("appliance.console")).context("the appliance's console")?;

        let spec = shared.lab.take_appliance()?.machine.power_off(OFF_WITHIN)?;
        let run = &shared.lab.run;
        let files = rescue::read(spec.disk.as_deref().unwrap_or(Path::new("")), run.scratch())?;
        collect(&files.join("state/secrets"), &mut needles)?;
        keys_of_firmware(&served.machine, &mut needles)?;
        places.push(Place::new("the appliance's console", screen.clone(), " serving"));
        places.extend(state_and_log(&files)?);
        let restarted = Appliance::start(run, &shared.lab.network, spec)?;
        shared.lab.put_appliance(restarted);
        shared.put(1, served);

        places.iter().try_for_each(check)?;
        let mut found: Vec<String> = places.iter().flat_map(|place| look(place, &needles)).collect();
        // It is shown on the appliance's own screen, and nowhere else.
        let token = shown_token(&String::from_utf8_lossy(&screen)).context("the first-run token is not on the screen")?;
        let mut first_run = Needles::default();
        first_run.add("first-run token", token.as_bytes())?;
        let others = places.iter().filter(|place| place.name != "the appliance's console");
        found.extend(others.flat_map(|place| look(place, &first_run)));
        println!("secrets: {} places, {} octets", places.len(), places.iter().map(|place| place.octets.len()).sum::<usize>());
        ensure!(found.is_empty(), "{}", found.join("\n"));
        Ok(())
    })
}

/// The secrets that are in a place, in words.
fn look(place: &Place, needles: &Needles) -> Vec<String> {
    needles.find(&place.octets).into_iter().map(|(secret, form)| format!("{secret}, {form}, is in {}", place.name)).collect()
}

/// Whether a search of this place would find something.
fn check(place: &Place) -> Result<()> {
    let Place { name, octets, shows, planted } = place;
    ensure!(octets.windows(shows.len()).any(|window| window == shows.as_bytes()), "{name} shows no {shows:?}: it was not looked at");
    let mut canary = Needles::default();
    canary.add("canary", &CANARY)?;
    let found: BTreeSet<&str> = canary.find(octets).into_iter().map(|(_, form)| form).collect();
    ensure!(planted.iter().all(|form| found.contains(form)), "a canary in {name} was only found as {found:?}");
    Ok(())
}

/// The canary as text, in each form of text.
fn canary_texts() -> [String; 4] {
    let hex = hex::encode(CANARY);
    [hex.clone(), hex.to_uppercase(), STANDARD.encode(CANARY), URL_SAFE_NO_PAD.encode(CANARY)]
}

/// Makes and uses what people and programs have; the viewer's API.
fn use_secrets(appliance: &Appliance, needles: &mut Needles) -> Result<Api> {
    let api = &appliance.api;
    needles.add("the admin's password", PASSWORD.as_bytes())?;
    let wrong = json!({ "name": VIEWER, "password": "a password of nobody" });
    let _ = api.request("POST", "/v1/login", Some(&wrong))?;
    needles.add("a wrong password", b"a password of nobody")?;
    api.ask("POST", "/v1/users", Some(&json!({ "name": VIEWER, "role": "viewer", "password": VIEWERS_PASSWORD })))?;
    needles.add("the viewer's password", VIEWERS_PASSWORD.as_bytes())?;
    let mut token = |name: &str, answer: &Value| -> Result<String> {
        let token = answer.get("token").and_then(Value::as_str).with_context(|| format!("no token in {answer}"))?.to_owned();
        // `krt_ID_SECRET`: what is in front is no secret, and the secret itself may hold a `_`.
        needles.add(name, token.splitn(3, '_').last().unwrap_or(&token).as_bytes())?;
        Ok(token)
    };
    token("the admin's session", &json!({ "token": api.token }))?;
    let login = json!({ "name": VIEWER, "password": VIEWERS_PASSWORD });
    let viewer = token("the viewer's session", &api.ask("POST", "/v1/login", Some(&login))?)?;
    // By the program that people have: its requests carry keys under which the appliance keeps answers for a while.
    let made = appliance.kurrent(&["token", "create", "--role", "viewer", "--note", "for a search", "--output", "json"])?;
    let program = token("a program's token", &serde_json::from_str(&made).with_context(|| made.clone())?)?;
    let api = Api { token: program, ..api.clone() };
    api.get("/v1/whoami")?;
    let join = appliance.kurrent(&["join-token", "create", "--output", "json"])?;
    token("a join token", &serde_json::from_str(&join).with_context(|| join.clone())?)?;
    Ok(Api { token: viewer, ..api })
}

/// Every answer that a viewer may read, and the events of a change.
fn answers(appliance: &Appliance, viewer: &Api, mac: &str) -> Result<Vec<Place>> {
    let note = canary_texts().join(" ");
    appliance.kurrent(&["device", "edit", mac, "--note", &note])?;
    let described = viewer.get("/v1/openapi.json")?;
    let paths = described.get("paths").and_then(Value::as_object).context("paths")?;
    let disk = viewer.get(&format!("/v1/workers/{}/disks", hostname(1)))?;
    let tag = disk.pointer("/disks/0/os_tag").and_then(Value::as_str).context("a disk")?;
    let mut all = Vec::new();
    let mut unlike = Vec::new();
    for path in paths.iter().filter(|(_, item)| item.get("get").is_some()).map(|(path, _)| path) {
        // Streams end when their reader goes: below.
        if path.ends_with("/events") {
            continue;
        }
        let mut filled = path.replace("{mac}", mac).replace("{tag}", tag);
        if let Some((list, key)) = filled.split_once("/{").and_then(|(list, rest)| Some((list, rest.split_once('}')?.0))) {
            let named = if list == "/v1/workers" { hostname(1).to_owned() } else { first_of(&appliance.api, list, key)? };
            filled = filled.replace(&format!("{{{key}}}"), &named);
        }
        let answer = viewer.request("GET", &filled, None)?;
        if ![200, 403].contains(&answer.status) {
            unlike.push(format!("GET {filled}: {} {}", answer.status, answer.text()));
        }
        all.extend(format!("{filled} {}\n", answer.status).into_bytes());
        all.extend(answer.body);
    }
    ensure!(unlike.is_empty(), "{}", unlike.join("\n"));
    let mut events = appliance.kurrent_command()?;
    events.env("KURRENT_TOKEN", &viewer.token).args(["events", "--count", "3", "--output", "json"]).stdout(Stdio::piped());
    let mut events = events.spawn().context("kurrent events")?;
    let deadline = Instant::now() + EVENTS_WITHIN;
    let mut changes = || -> Result<()> {
        while events.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "no events");
            appliance.kurrent(&["device", "edit", mac, "--note", &note])?;
            appliance.kurrent(&["device", "edit", mac, "--note", ""])?;
        }
        Ok(())
    };
    let changed = changes();
    // It has ended, or is to.
    let _ = events.kill();
    changed?;
    let mut streamed = Vec::new();
    events.stdout.take().context("events")?.read_to_end(&mut streamed)?;
    let answers = Place::new("the answers of the API to a viewer", all, "/v1/devices").planted(FORMS.split_at(1).1);
    Ok(vec![answers, Place::new("the events of the API", streamed, "device")])
}

/// The `key` of the first item of a list.
fn first_of(api: &Api, list: &str, key: &str) -> Result<String> {
    let shown = api.get(list)?;
    let items = shown.as_object().into_iter().flat_map(serde_json::Map::values).find_map(Value::as_array);
    let item = items.and_then(|items| items.first()).with_context(|| format!("nothing in {list}: {shown}"))?;
    item.get(key).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no {key} in {item}"))
}

/// A request with the canary, from a worker to the boot plane.
fn say_on_the_wire(machine: &mut Machine) -> Result<()> {
    let raw: String = CANARY.iter().map(|octet| format!("\\x{octet:02x}")).collect();
    let path = canary_texts().join("/");
    let say = format!(
        "exec 3<>/dev/tcp/{ADDRESS}/{BOOT_PORT} && printf 'GET /{path} HTTP/1.0\\r\\nX: {raw}\\r\\n\\r\\n' >&3; cat <&3 >/dev/null; exec 3>&-"
    );
    machine.console.shell(&format!("bash -c \"{say}\""), SHELL_WITHIN).map(drop)
}

/// What a machine's NIC has seen since it was switched on: as frames, and as each connection had it.
fn wire(machine: &Machine) -> Result<Vec<Place>> {
    let frames = timeline::read_capture(machine.capture())?;
    let streams = frame::streams(frames.iter().map(|captured| captured.frame.as_slice()));
    let streams: Vec<u8> = streams.into_values().flatten().collect();
    let frames: Vec<u8> = frames.into_iter().flat_map(|captured| captured.frame).collect();
    // The scripts, the challenge and the answer are in it.
    Ok(vec![
        Place::new("the wire", streams, "POST /boot-vars").planted(&FORMS),
        Place::new("the frames on the wire", frames, "PXEClient").planted(&FORMS),
    ])
}

/// What a worker's system shows to its root: of every process arguments and environment, the kernel's command line and log, the
/// journal, what stage-1 has left, the firmware's variables.
fn system(machine: &mut Machine, netns: &str) -> Result<Place> {
    let address: Ipv4Addr = OUR_ADDRESS.split('/').next().unwrap_or_default().parse()?;
    let listener = netns::enter(netns, move || TcpListener::bind((address, LISTENS)))?.context("listen")?;
    rustix::net::sockopt::set_socket_timeout(&listener, rustix::net::sockopt::Timeout::Recv, Some(SHOWN_WITHIN))?;
    let received = std::thread::spawn(move || -> Result<Vec<u8>> {
        let (mut stream, _) = listener.accept().context("the worker's system sent nothing")?;
        stream.set_read_timeout(Some(SHOWN_WITHIN))?;
        let mut octets = Vec::new();
        stream.read_to_end(&mut octets)?;
        Ok(octets)
    });
    let raw: String = CANARY.iter().map(|octet| format!("\\x{octet:02x}")).collect();
    let [hex, upper, base64, url] = canary_texts();
    let console = &mut machine.console;
    // One form to each kind of place.
    console
        .shell(&format!("printf '{raw}' >/run/canary; echo {hex} >/dev/kmsg; logger {upper} || systemd-cat echo {upper}"), SHELL_WITHIN)?;
    console.shell(
        &format!("(CANARY={base64} sleep 1000 & echo $! >/run/s1; exec -a {url} sleep 1000 & echo $! >/run/s2) >/dev/null"),
        SHELL_WITHIN,
    )?;
    let shows = "mount -t efivarfs e /sys/firmware/efi/efivars; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/cmdline; dmesg; \
                 journalctl -b; find /run /etc /root /tmp /var/log -xdev -type f -exec cat {} +; cat /sys/firmware/efi/efivars/*";
    console.shell(&format!("{{ {shows}; }} >/dev/tcp/{address}/{LISTENS} 2>/dev/null; kill $(cat /run/s1 /run/s2)"), SHOWN_WITHIN)?;
    let octets = received.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
    Ok(Place::new("a worker's system", octets, "kurrent.boot=").planted(&FORMS))
}

/// The secrets of the state folder. A file that is not known here fails: somebody has to say what of it is secret.
fn collect(folder: &Path, needles: &mut Needles) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        match name.as_str() {
            "server.key" => {
                needles.add("the server key", &hex::decode(text.lines().next().unwrap_or_default()).map_err(anyhow::Error::msg)?)?
            }
            "ca.key" => {
                let key = text.split_once("PRIVATE KEY-----\n").context("a private key")?.1;
                for (line, at) in key.lines().take(SECRET_PEM_LINES).zip(1..) {
                    needles.add(&format!("line {at} of the CA's key"), line.as_bytes())?;
                }
                let der = STANDARD
                    .decode(key.lines().take_while(|line| !line.starts_with('-')).collect::<String>())
                    .map_err(anyhow::Error::msg)?;
                // OCTET STRING of 32 octets: the private number (RFC 5915).
                let at = der.windows(2).position(|two| two == [0x04, 0x20]).context("a private number")?;
                needles.add("the CA's key", der.get(at + 2..at + 34).context("a whole one")?)?;
            }
            "credentials.yml" => {
                let secrets: Vec<&str> = text.split("DHHC-1:01:").skip(1).filter_map(|rest| rest.split(':').next()).collect();
                ensure!(secrets.len() >= 2, "no credentials");
                for secret in secrets {
                    let octets = STANDARD.decode(secret).map_err(anyhow::Error::msg)?;
                    needles.add("a disk's secret", octets.get(..32).context("32 octets and a sum")?)?;
                }
            }
            "logins.yml" => {
                let hashes = text.split_whitespace().filter_map(|word| word.rsplit_once('$').map(|(_, hash)| hash.trim_end_matches('"')));
                for hash in hashes {
                    needles.add("a password's hash", hash.as_bytes())?;
                }
            }
            other => anyhow::bail!("secrets/{other} is new: say here what of it is secret"),
        }
    }
    Ok(())
}

/// The device's own key, from its firmware store.
fn keys_of_firmware(machine: &Machine, needles: &mut Needles) -> Result<()> {
    let Firmware::Uefi(store) = &machine.spec().firmware else { anyhow::bail!("workers of the lab have UEFI") };
    let octets = fs::read(store).context("the firmware store")?;
    let value = |name: &str| -> Option<&[u8]> {
        let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let at = octets.windows(name.len()).rposition(|window| window == name)? + name.len();
        octets.get(at..at + 32)
    };
    ensure!(value(VARIABLE_SERVER).is_some(), "the store is not read as it is");
    needles.add("the device's key", value(VARIABLE_KEY).context("no device key in the store")?)
}

/// The log, and all of the state that is not in the folder of secrets.
fn state_and_log(files: &Path) -> Result<Vec<Place>> {
    let read = |path: &str| fs::read(files.join(path)).with_context(|| format!("read {path}"));
    let mut places = vec![
        Place::new("the log", read("log/kurrent.log")?, "boot granted"),
        Place::new("the audit", read("state/operations.jsonl")?, "boot-vars"),
    ];
    let mut rest = Vec::new();
    let mut folders = vec![files.join("state")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("state/secrets") {
                folders.push(path);
            } else if path.is_file() {
                rest.extend(format!("\n{}\n", path.display()).into_bytes());
                rest.extend(fs::read(&path)?);
            }
        }
    }
    places.push(Place::new("the state", rest, "devices.yml"));
    Ok(places)
}
