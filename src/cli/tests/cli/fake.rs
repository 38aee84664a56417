//! A server of HTTP/1.1, one request a connection, and the program under test.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const WITHIN: Duration = Duration::from_secs(20);

/// What was asked.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// What is answered.
pub enum Reply {
    Json(u16, Value),
    /// With this ETag.
    Tagged(&'static str, Value),
    /// These octets, then the end.
    Raw(Vec<u8>),
    /// This head, then these pieces, then the end when the test ends it.
    Stream(Vec<Vec<u8>>),
    /// The connection is cut.
    Drop,
}

/// `(request, how many were there before)`.
type Handler = Box<dyn Fn(&Seen, usize) -> Reply + Send + Sync>;

pub struct Fake {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    folder: tempfile::TempDir,
}

impl Fake {
    pub fn start(handler: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, handler) = (seen.clone(), Arc::new(Box::new(handler) as Handler));
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, handler) = (kept.clone(), handler.clone());
                std::thread::spawn(move || serve(stream, &kept, &**handler));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "TOKEN\n").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self { url, seen, folder }
    }

    /// Always the same answer.
    pub fn answering(status: u16, body: Value) -> Self {
        Self::start(move |_, _| Reply::Json(status, body.clone()))
    }

    /// In front of a real server, with its token.
    pub fn before(url: &str, token: &Path, handler: impl Fn(&Seen, usize, Vec<u8>) -> Reply + Send + Sync + 'static) -> Self {
        let real = url.to_owned();
        let fake = Self::start(move |seen, before| handler(seen, before, forward(&real, seen)));
        std::fs::copy(token, fake.folder().join("token")).unwrap();
        fake
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.seen().iter().map(Seen::line).collect()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kurrent"));
        for name in ["KURRENT_TOKEN", "KURRENT_CONTEXT", "KURRENT_PASSPHRASE_FILE", "XDG_CONFIG_HOME"] {
            command.env_remove(name);
        }
        command.args(arguments).env("HOME", self.folder());
        command.env("KURRENT_URL", &self.url).env("KURRENT_TOKEN_FILE", self.folder().join("token"));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Must succeed; stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Must fail with this exit code; stderr.
    pub fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        stderr
    }
}

/// Waits for it, or fails saying what was there instead.
pub fn eventually<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> T, is: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + WITHIN;
    loop {
        let found = look();
        if is(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn serve(mut stream: TcpStream, kept: &Mutex<Vec<Seen>>, handler: &(dyn Fn(&Seen, usize) -> Reply + Send + Sync)) {
    let Some(request) = read(&stream) else { return };
    let before = {
        let mut kept = kept.lock().unwrap();
        kept.push(request.clone());
        kept.len() - 1
    };
    let head = |status: u16, more: &str, length: usize| {
        format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n{more}\r\n")
    };
    let written = match handler(&request, before) {
        Reply::Drop => Ok(()),
        Reply::Raw(octets) => stream.write_all(&octets),
        Reply::Json(status, body) => {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            stream.write_all(format!("{}{body}", head(status, "", body.len())).as_bytes())
        }
        Reply::Tagged(tag, body) => {
            let body = body.to_string();
            stream.write_all(format!("{}{body}", head(200, &format!("etag: {tag}\r\n"), body.len())).as_bytes())
        }
        Reply::Stream(pieces) => {
            let start = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            let sent = stream.write_all(start.as_bytes()).and_then(|()| pieces.iter().try_for_each(|p| stream.write_all(p)));
            // Stays open until the other side has enough.
            let _ = stream.read(&mut [0; 1]);
            sent
        }
    };
    // The program may have ended; what it did is the test's business.
    let _ = written.and_then(|()| stream.flush());
}

fn read(stream: &TcpStream) -> Option<Seen> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|octets| *octets > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut seen = Seen { method: words.next()?, path: words.next()?, ..Seen::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            None => break,
            Some((name, value)) => seen.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
        };
    }
    let length = seen.header("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    seen.body = vec![0; length];
    reader.read_exact(&mut seen.body).ok()?;
    Some(seen)
}

/// What a real server at `url` answers to the same request.
pub fn forward(url: &str, seen: &Seen) -> Vec<u8> {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    let mut head = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", seen.method, seen.path);
    for (name, value) in seen.headers.iter().filter(|(name, _)| *name != "connection") {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(&[format!("{head}\r\n").as_bytes(), &seen.body].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}
