//! Over a real socket, as any client sees it.

use super::*;
use crate::listen::limits::Limits;
use crate::shared::Shared;
use kurrent_core::access::Role;
use kurrent_core::config::{BootNetwork, Config};
use kurrent_sys::configfs::Nvmet;
use kurrent_sys::configfs::fake::FakeKernel;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

mod batches;
mod boot_settings;
mod described;
mod every_field;
mod explained;
mod hostile;
mod meanwhile;
mod once;
mod people;
mod roles;
mod running;
mod server_key;
mod storage;
mod uploads;
mod versions;

use people::token_of;

struct Server {
    address: SocketAddr,
    token: String,
    shared: SharedRef,
    stop: watch::Sender<bool>,
    served: tokio::task::JoinHandle<anyhow::Result<()>>,
    folder: tempfile::TempDir,
}

async fn server_in(folder: tempfile::TempDir) -> Server {
    server_with(folder, serve::LIMITS).await
}

/// Strangers are who asks from 127.5.0.0/16.
async fn server_with(folder: tempfile::TempDir, limits: Limits) -> Server {
    let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
    config.agent.disk_dir = folder.path().join("disks");
    config.boot_network = BootNetwork { address: Ipv4Addr::new(127, 5, 0, 1), prefix: 16, ..config.boot_network };
    let shared = Shared::open(config).unwrap();
    let (tree, tcp) = (folder.path().join("nvmet"), folder.path().join("tcp"));
    std::fs::write(&tcp, "").unwrap();
    let nvmet = Nvmet::new(tree.clone(), Box::new(FakeKernel::new(&tree).unwrap()));
    tokio::spawn(crate::reconcile::serve(shared.clone(), crate::reconcile::Kernel { nvmet, tcp }));
    tokio::spawn(crate::tls::serve(shared.clone()));
    while shared.tls.ca_pem().is_none() {
        tokio::task::yield_now().await;
    }
    let text = token_of(&shared, "ada", Role::Admin, true).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let served = tokio::spawn(serve::serve_on(listener, shared.clone(), stopped, limits));
    Server { address, token: text, shared, stop, served, folder }
}

async fn server() -> Server {
    server_in(tempfile::tempdir().unwrap()).await
}

impl Server {
    async fn raw(&self, octets: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may answer and close before it has read all: that is what is tested.
        let _ = stream.write_all(octets).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.expect("an answer in time");
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.ask_with(method, path, &[], body).await
    }

    /// [`Server::ask`] with further headers; one of them may be another `Content-Type`.
    async fn ask_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let (status, body) = self.raw(self.request(method, path, headers, body).as_bytes()).await;
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
        let given: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let kind = if headers.iter().any(|(name, _)| *name == "Content-Type") { "" } else { "Content-Type: application/json\r\n" };
        let auth = format!("Host: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n", self.token);
        format!("{method} {path} HTTP/1.1\r\n{auth}{kind}{given}Content-Length: {}\r\n\r\n{body}", body.len())
    }

    /// The `ETag` of what is at this path.
    async fn tag(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(self.request("GET", path, &[], "").as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        let line = answer.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("etag: ").map(str::to_owned));
        line.unwrap_or_else(|| panic!("no ETag: {answer}"))
    }

    /// Asks and expects this status; with an error also its code.
    async fn expect(&self, request: (&str, &str, Value), status: u16, code: &str) -> Value {
        let body = if request.2.is_null() { String::new() } else { request.2.to_string() };
        let (found, answer) = self.ask(request.0, request.1, &body).await;
        assert_eq!((found, answer["code"].as_str().unwrap_or_default()), (status, code), "{request:?}: {answer}");
        if status >= 400 {
            assert!(answer["detail"].as_str().is_some_and(|d| d.len() > 10), "{answer}");
        }
        answer
    }
}

/// A connection from one of the boot network's addresses.
async fn stranger(server: &Server, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 5, 0, last], 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Reads until the server closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut octets = Vec::new();
    // A reset is an end too.
    let _ = tokio::time::timeout(WITHIN, stream.read_to_end(&mut octets)).await.expect("the server closes in time");
    String::from_utf8_lossy(&octets).into_owned()
}

const WITHIN: Duration = Duration::from_secs(20);
const MAC: &str = "/v1/devices/52:54:00:00:00:01";
const ADMIT: &str = "/v1/devices/52:54:00:00:00:01/admit";

#[tokio::test]
async fn a_device_goes_through_its_life() {
    let api = server().await;
    api.expect(("GET", MAC, Value::Null), 404, "device_not_found").await;
    let device = api.expect(("POST", "/v1/devices", json!({"mac": "52-54-00-00-00-01", "note": "n"})), 201, "").await;
    assert_eq!(
        (device["mac"].as_str(), device["state"].as_str(), device["source"].as_str()),
        (Some("52:54:00:00:00:01"), Some("pooled"), Some("manual"))
    );
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 409, "device_exists").await;
    api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 404, "worker_not_found").await;
    let worker = api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    assert_eq!((worker["state"].as_str(), worker["readiness"].as_str()), (Some("registered"), Some("idle")));
    let device = api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    assert_eq!(device["bound_worker_id"], "w1");
    assert_eq!(device["data_plane"], "followed");
    let worker = api.expect(("GET", "/v1/workers/w1", Value::Null), 200, "").await;
    assert_eq!((worker["bound_device"].as_str(), worker["readiness"].as_str()), (Some("52:54:00:00:00:01"), Some("partial")));
    api.expect(("DELETE", MAC, Value::Null), 409, "device_not_revoked").await;
    let device = api.expect(("POST", &format!("{MAC}/revoke"), Value::Null), 200, "").await;
    assert_eq!((device["state"].as_str(), device.get("bound_worker_id")), (Some("revoked"), None));
    assert_eq!(api.ask("DELETE", MAC, "").await.0, 204);
    let list = api.expect(("GET", "/v1/devices?state=revoked", Value::Null), 200, "").await;
    assert_eq!(list["devices"], json!([]));
    let operations = api.expect(("GET", "/v1/operations?device=52:54:00:00:00:01&result=ok", Value::Null), 200, "").await;
    let verbs: Vec<&str> = operations["operations"].as_array().unwrap().iter().filter_map(|o| o["verb"].as_str()).collect();
    assert_eq!(verbs, ["purge", "unbind", "revoke", "bind", "register"]);
}

#[tokio::test]
async fn k09_a_knocking_device_is_admitted_with_the_key_it_reported() {
    let api = server().await;
    api.expect(("POST", ADMIT, json!({})), 409, "not_knocking").await;
    let key = format!("ed25519:{}", hex::encode(ed25519_dalek::SigningKey::from_bytes(&[7; 32]).verifying_key().to_bytes()));
    let mac = "52:54:00:00:00:01".parse().unwrap();
    let report =
        kurrent_core::ledger::Change::Report { mac, uuid: String::new(), public_key: Some(key.clone()), fingerprint: Default::default() };
    api.shared.ledger.submit(report, "device").await.unwrap();
    let knocking = api.expect(("GET", "/v1/knocking", Value::Null), 200, "").await;
    assert_eq!(knocking["knocking"][0]["public_key"], key.as_str());
    let device = api.expect(("POST", ADMIT, json!({})), 201, "").await;
    assert_eq!(device["public_key"], key.as_str());
    assert_eq!(api.ask("GET", "/v1/knocking", "").await.1["knocking"], json!([]));
}

#[tokio::test]
async fn admitting_takes_the_key_that_the_person_saw_and_no_other() {
    let api = server().await;
    let key = |n: u8| format!("ed25519:{}", hex::encode(ed25519_dalek::SigningKey::from_bytes(&[n; 32]).verifying_key().to_bytes()));
    let hash = |n| kurrent_core::ledger::schema::key_hash(&key(n)).unwrap();
    let knock = async |n| {
        let mac = "52:54:00:00:00:01".parse().unwrap();
        let report =
            kurrent_core::ledger::Change::Report { mac, uuid: String::new(), public_key: Some(key(n)), fingerprint: Default::default() };
        api.shared.ledger.submit(report, "device").await.unwrap();
    };
    knock(7).await;
    let seen = api.ask("GET", "/v1/knocking", "").await.1["knocking"][0].clone();
    assert_eq!((seen["public_key_hash"].as_str(), seen["key_changed"].as_bool()), (Some(hash(7).as_str()), Some(false)));
    knock(8).await;
    let seen = api.ask("GET", "/v1/knocking", "").await.1["knocking"][0].clone();
    assert_eq!((seen["public_key_hash"].as_str(), seen["key_changed"].as_bool()), (Some(hash(7).as_str()), Some(true)));
    api.expect(("POST", ADMIT, json!({})), 409, "key_changed").await;
    for other in [hash(8), String::new(), hash(7)[1..].to_owned()] {
        api.expect(("POST", ADMIT, json!({"public_key_hash": other})), 409, "key_hash_mismatch").await;
    }
    api.expect(("POST", ADMIT, json!({"public_key": key(7)})), 422, "body_invalid").await;
    let device = api.expect(("POST", ADMIT, json!({"public_key_hash": hash(7)})), 201, "").await;
    assert_eq!(device["public_key"], key(7).as_str());
}

#[tokio::test]
async fn the_window_opens_for_minutes_and_closes() {
    let api = server().await;
    let path = "/v1/settings/registration-window";
    assert_eq!(api.expect(("GET", path, Value::Null), 200, "").await["open"], false);
    for minutes in [0u64, 61, 4_000_000_000] {
        api.expect(("PUT", path, json!({"minutes": minutes})), 422, "minutes_out_of_range").await;
    }
    api.expect(("PUT", path, json!({"minutes": 5_000_000_000u64})), 422, "body_invalid").await;
    for body in [json!({"minutes": 1}), json!({"minutes": 60}), json!({}), Value::Null] {
        assert_eq!(api.expect(("PUT", path, body), 200, "").await["open"], true);
    }
    assert_eq!(api.expect(("DELETE", path, Value::Null), 200, "").await["open"], false);
}

#[tokio::test]
async fn wrong_requests_get_a_code_and_change_nothing() {
    let api = server().await;
    let generation = api.shared.ledger.snapshot().generation;
    let table: &[(&str, &str, &str, u16, &str)] = &[
        ("GET", "/v1/nothing", "", 404, "no_such_path"),
        ("GET", "/", "", 404, "no_such_path"),
        ("PATCH", "/v1/workers", "", 405, "method_not_allowed"),
        ("GET", "/v1/devices/zz", "", 400, "name_invalid"),
        ("GET", "/v1/devices/01:00:5e:00:00:01", "", 400, "name_invalid"),
        ("GET", "/v1/devices/52:54:00:00:00:01%00", "", 400, "name_invalid"),
        ("GET", "/v1/workers/..%2F..%2Fetc", "", 400, "name_invalid"),
        ("GET", "/v1/workers/%ff", "", 400, "path_invalid"),
        ("GET", "/v1/workers/w1", "", 404, "worker_not_found"),
        ("POST", "/v1/workers", "", 422, "body_invalid"),
        ("POST", "/v1/workers", "{", 400, "body_not_json"),
        ("POST", "/v1/workers", "[]", 422, "body_invalid"),
        ("POST", "/v1/workers", "{\"worker_id\":1}", 422, "body_invalid"),
        ("POST", "/v1/workers", "{\"worker_id\":\"W_1\"}", 422, "body_invalid"),
        ("POST", "/v1/workers", "{\"worker_id\":\"w\\u0000\"}", 422, "body_invalid"),
        ("POST", "/v1/workers", "{\"worker_id\":\"w1\",\"more\":1}", 422, "body_invalid"),
        ("POST", "/v1/workers", "{\"worker_id\":\"w1\"}{}", 400, "body_not_json"),
        ("POST", MAC, "", 405, "method_not_allowed"),
        ("POST", "/v1/devices", "{\"mac\":\"52:54:00:00:00:01\",\"public_key\":\"ed25519:00\"}", 422, "public_key_invalid"),
        ("POST", "/v1/devices", "{\"mac\":\"52:54:00:00:00:01\",\"note\":\"a\\u0000b\"}", 422, "note_invalid"),
        ("GET", "/v1/devices?state=gone", "", 400, "query_invalid"),
        ("GET", "/v1/devices?colour=red", "", 400, "query_invalid"),
        ("GET", "/v1/operations?device=x", "", 400, "query_invalid"),
        ("GET", "/v1/operations?limit=0", "", 400, "query_invalid"),
        ("GET", "/v1/operations?since=yesterday", "", 400, "query_invalid"),
        ("GET", "/v1/jobs/none", "", 404, "job_not_found"),
        ("GET", "/v1/devices/52:54:00:00:00:01/timeline", "", 404, "no_boot_seen"),
        ("POST", "/v1/devices/52:54:00:00:00:01/revoke", "", 404, "device_not_found"),
        ("POST", "/v1/devices/52:54:00:00:00:01/revoke", "{\"force\":true}", 422, "body_invalid"),
        ("POST", "/v1/workers/w1/disks", "{\"os\":\"debian\"}", 422, "body_invalid"),
        ("POST", "/v1/workers/w1/disks", "{\"os\":\"debian\",\"master\":\"../x_tpl_\"}", 422, "body_invalid"),
        ("POST", "/v1/workers/w1/disks", "{\"os\":\"debian\",\"size_bytes\":-1}", 422, "body_invalid"),
        ("POST", "/v1/workers/w1/disks", "{\"os\":\"debian\",\"size_bytes\":4096}", 404, "worker_not_found"),
        ("PUT", "/v1/masters/plain.img", "x", 422, "not_a_master"),
        ("PUT", "/v1/masters/..%2Fa_tpl_b.img", "x", 400, "name_invalid"),
    ];
    for (method, path, body, status, code) in table {
        let (found, answer) = api.ask(method, path, body).await;
        assert_eq!((found, answer["code"].as_str().unwrap_or_default()), (*status, *code), "{method} {path} {body}: {answer}");
        assert!(answer["detail"].as_str().is_some_and(|d| d.len() > 10), "{answer}");
    }
    assert_eq!(api.shared.ledger.snapshot().generation, generation);
}

#[tokio::test]
async fn too_much_and_too_odd_is_refused_and_the_server_lives() {
    let api = server().await;
    let auth = format!("Host: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n", api.token);
    let (status, _) = api.ask("POST", "/v1/workers", &format!("{{\"worker_id\":\"{}\"}}", "a".repeat(100_000))).await;
    assert_eq!(status, 413);
    let claimed = format!("POST /v1/workers HTTP/1.1\r\n{auth}Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{{}}");
    let sent = tokio::time::timeout(Duration::from_secs(5), api.raw(format!("{claimed}{}", " ".repeat(70_000)).as_bytes())).await;
    assert_eq!(sent.map(|a| a.0), Ok(413));
    assert_eq!(api.raw(format!("GET /v1/status HTTP/1.1\r\n{auth}X-Long: {}\r\n\r\n", "x".repeat(40_000)).as_bytes()).await.0, 431);
    for junk in [&b"\0\0\0\0\r\n\r\n"[..], b"GET\r\n\r\n", b"GET /v1/status HTTP/9.9\r\n\r\n", &[0xff; 300]] {
        let (status, _) = api.raw(&[junk, b"\r\n\r\n"].concat()).await;
        assert!(status == 400 || status == 0, "{junk:?}: {status}");
    }
    let plain = format!("POST /v1/workers HTTP/1.1\r\n{auth}Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}");
    assert_eq!(api.raw(plain.as_bytes()).await.0, 415);
    assert_eq!(api.ask("GET", "/v1/status", "").await.0, 200);
}

#[tokio::test]
async fn with_unreadable_ledgers_the_status_says_where_and_the_rest_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir_all(&state).unwrap();
    let text = "version: 1\ngeneration: 5\ndevices:\n- mac: nonsense\n";
    std::fs::write(state.join("devices.yml"), text).unwrap();
    std::fs::write(state.join("workers.yml"), "version: 1\ngeneration: 5\nworkers: []\n").unwrap();
    std::fs::write(state.join("settings.yml"), "version: 1\ngeneration: 5\n").unwrap();
    let api = server_in(folder).await;
    let status = api.expect(("GET", "/v1/status", Value::Null), 200, "").await;
    assert_eq!(status["serving"], false);
    assert!(status["faults"][0].as_str().is_some_and(|f| f.contains("devices.yml:4:")), "{status}");
    for (method, path) in
        [("GET", "/v1/devices"), ("POST", "/v1/workers"), ("GET", MAC), ("DELETE", MAC), ("PUT", "/v1/settings/registration-window")]
    {
        let problem = api.expect((method, path, Value::Null), 503, "ledger_unreadable").await;
        assert!(problem["detail"].as_str().is_some_and(|d| d.contains("devices.yml:4:")), "{problem}");
    }
    assert_eq!(std::fs::read_to_string(state.join("devices.yml")).unwrap(), text);
}

#[tokio::test]
async fn an_empty_disk_is_made_recorded_and_deleted_with_its_file() {
    let api = server().await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let disk = api.expect(("POST", "/v1/workers/w1/disks", json!({"os": "data", "size_bytes": 1_048_576})), 201, "").await;
    let (tag, file) = (disk["os_tag"].as_str().unwrap(), disk["filename"].as_str().unwrap());
    let path = api.shared.config.agent.disk_dir.join(file);
    assert_eq!(path.metadata().unwrap().len(), 1_048_576);
    let worker = api.expect(("GET", "/v1/workers/w1", Value::Null), 200, "").await;
    assert_eq!((worker["default_disk"].as_str(), worker["state"].as_str()), (Some(tag), Some("ready")));
    api.expect(("POST", "/v1/workers/w1/disks", json!({"os": "data", "size_bytes": 1_048_576})), 409, "disk_exists").await;
    assert_eq!(api.ask("DELETE", &format!("/v1/workers/w1/disks/{tag}?delete_file=true"), "").await.0, 204);
    assert!(!path.exists());
    let worker = api.expect(("GET", "/v1/workers/w1", Value::Null), 200, "").await;
    assert_eq!(worker.get("default_disk"), None);
}

#[tokio::test]
async fn a_change_that_the_kernel_can_not_follow_stands_and_says_so() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01", "keyless_allowed": true})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    // In one step: the task that follows the ledger works in there.
    std::fs::rename(api.folder.path().join("nvmet"), api.folder.path().join("gone")).unwrap();
    let device = api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    assert_eq!(device["state"], "bound");
    assert!(
        device["data_plane"].as_str().is_some_and(|d| d.starts_with("not yet: ") && d.contains("not available on this kernel")),
        "{device}"
    );
    let target = api.expect(("GET", "/v1/target", Value::Null), 200, "").await;
    assert!(target["faults"][0].as_str().is_some_and(|f| f.contains("not available")), "{target}");
}

#[tokio::test]
async fn k31_binding_a_device_without_a_key_warns() {
    let api = server().await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let device = api.expect(("POST", &format!("{MAC}/bind"), json!({"worker_id": "w1"})), 200, "").await;
    assert!(device["warning"].as_str().is_some_and(|w| w.contains("no key")), "{device}");
}

#[tokio::test]
async fn strangers_that_hold_connections_neither_keep_the_operator_out_nor_the_daemon_from_ending() {
    let api = server_with(tempfile::tempdir().unwrap(), Limits { connections: 4, per_address: 3, ..serve::LIMITS }).await;
    api.expect(("POST", "/v1/devices", json!({"mac": "52:54:00:00:00:01"})), 201, "").await;
    let mut held = Vec::new();
    for last in [2, 2, 2, 3] {
        let mut stream = stranger(&api, last).await;
        stream.write_all(b"GET /v1/status HTTP/1.1\r\n").await.unwrap();
        held.push(stream);
    }
    for last in [2, 3, 4] {
        assert_eq!(rest(&mut stranger(&api, last).await).await, "", "closed at once");
    }
    let device = api.expect(("POST", &format!("{MAC}/revoke"), Value::Null), 200, "").await;
    assert_eq!(device["state"], "revoked");
    api.stop.send_replace(true);
    tokio::time::timeout(WITHIN, api.served).await.expect("it ends in time").unwrap().unwrap();
    drop(held);
}

#[tokio::test]
async fn without_the_token_a_connection_is_good_for_one_answer() {
    let api = server_with(tempfile::tempdir().unwrap(), Limits { read: Duration::from_millis(300), ..serve::LIMITS }).await;
    for head in ["", "Authorization: Bearer x\r\n", "Content-Length: 100\r\n"] {
        let mut stream = stranger(&api, 2).await;
        stream.write_all(format!("GET /v1/status HTTP/1.1\r\nHost: x\r\n{head}\r\n").as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("connection: close"), "{answer}");
    }
    for start in ["", "GET /v1/status HTTP/1.1\r\nHost:"] {
        let mut stream = stranger(&api, 2).await;
        stream.write_all(start.as_bytes()).await.unwrap();
        assert!(!rest(&mut stream).await.starts_with("HTTP/1.1 200"), "slow");
    }
}
