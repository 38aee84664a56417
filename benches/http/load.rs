//! The load: connections from many addresses that ask for one file again and again, in one thread, so that the server has the rest of
//! the machine. Each answer is read to its end and its length is checked.

use anyhow::{Context, Result, bail, ensure};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinSet, LocalSet};

/// Addresses that the load comes from: a server allows each only so many connections.
pub const ADDRESSES: u8 = 64;
/// Not measured.
const WARM_UP: Duration = Duration::from_millis(500);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// One of the addresses.
pub fn address(n: usize) -> Ipv4Addr {
    let last = u8::try_from(n % usize::from(ADDRESSES)).unwrap_or(0);
    Ipv4Addr::new(10, 77, 1, last.saturating_add(1))
}

/// What is asked for, and how.
#[derive(Clone, Copy)]
pub struct Shape {
    /// For the table.
    pub name: &'static str,
    /// Path of the file.
    pub path: &'static str,
    /// Its octets.
    pub length: u64,
    /// Connections at once.
    pub connections: usize,
    /// How long it is measured.
    pub time: Duration,
}

/// What was measured: of octets, those of bodies.
#[derive(Clone, Copy)]
pub struct Figure {
    pub requests_per_second: f64,
    pub megabytes_per_second: f64,
}

#[derive(Default)]
struct Counted {
    requests: AtomicU64,
    octets: AtomicU64,
}

/// Runs one shape.
///
/// # Errors
/// A connection is refused or ends, or an answer is not the file.
pub fn run(shape: Shape, server: SocketAddr) -> Result<Figure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async move {
        let counted = Rc::new(Counted::default());
        let mut tasks = JoinSet::new();
        for n in 0..shape.connections {
            let stream = tokio::time::timeout(CONNECT_WITHIN, connect(address(n), server)).await.context("connecting takes too long")??;
            tasks.spawn_local(ask(stream, shape, Rc::clone(&counted)));
        }
        let measured = async {
            tokio::time::sleep(WARM_UP).await;
            let read = || (counted.requests.load(Ordering::Relaxed), counted.octets.load(Ordering::Relaxed), Instant::now());
            let from = read();
            tokio::time::sleep(shape.time).await;
            let to = read();
            let seconds = to.2.duration_since(from.2).as_secs_f64();
            #[allow(clippy::cast_precision_loss)] // figures for people
            let rate = |count: u64| count as f64 / seconds;
            Figure { requests_per_second: rate(to.0 - from.0), megabytes_per_second: rate(to.1 - from.1) / 1e6 }
        };
        tokio::select! {
            figure = measured => Ok(figure),
            ended = tasks.join_next() => match ended {
                Some(Ok(Err(error))) => Err(error),
                _ => bail!("a connection ended"),
            },
        }
    })
}

async fn connect(from: Ipv4Addr, server: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect(server).await.with_context(|| format!("connect to {server}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn ask(mut stream: TcpStream, shape: Shape, counted: Rc<Counted>) -> Result<()> {
    let request = format!("GET {} HTTP/1.1\r\nHost: bench\r\n\r\n", shape.path);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        stream.write_all(request.as_bytes()).await?;
        let mut filled = 0;
        let head = loop {
            let count = stream.read(buffer.get_mut(filled..).unwrap_or_default()).await?;
            ensure!(count > 0, "the server ended the connection");
            filled += count;
            let so_far = buffer.get(..filled).unwrap_or_default();
            if let Some(at) = so_far.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let text = std::str::from_utf8(buffer.get(..head).unwrap_or_default())?;
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        ensure!(text.starts_with("HTTP/1.1 200 ") && length == Some(shape.length.to_string().as_str()), "not the file: {text}");
        let mut got = u64::try_from(filled - head)?;
        counted.octets.fetch_add(got, Ordering::Relaxed);
        while got < shape.length {
            let count = u64::try_from(stream.read(&mut buffer).await?)?;
            ensure!(count > 0, "the file is cut off");
            got += count;
            counted.octets.fetch_add(count, Ordering::Relaxed);
        }
        ensure!(got == shape.length, "more than the file");
        counted.requests.fetch_add(1, Ordering::Relaxed);
    }
}
