//! A TFTP client that loses what it is told to lose, and says what honest ones do not.

use crate::net::{Client, DEADLINE, SERVER};
use anyhow::{Context, Result, bail};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// A socket waits so long for a datagram.
const POLL: Duration = Duration::from_millis(100);

/// A socket of this client, at one of its addresses.
pub fn socket(client: &Client, address: Ipv4Addr) -> Result<UdpSocket> {
    let socket = client.enter(move || UdpSocket::bind((address, 0)))??;
    socket.set_read_timeout(Some(POLL))?;
    Ok(socket)
}

/// RRQ or WRQ.
pub fn request(opcode: u8, name: &str, options: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, opcode];
    for text in [name, "octet"].into_iter().chain(options.iter().flat_map(|(k, v)| [*k, *v])) {
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    }
    out
}

/// Everything that arrives within a time.
pub fn collect(socket: &UdpSocket, within: Duration) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + within;
    let mut all = Vec::new();
    let mut buffer = [0; 2048];
    while Instant::now() < deadline {
        if let Ok((len, _)) = socket.recv_from(&mut buffer) {
            all.push(buffer[..len].to_vec());
        }
    }
    all
}

/// The first answer, however late, and what follows it at once.
pub fn answers(socket: &UdpSocket) -> Result<Vec<Vec<u8>>> {
    let mut buffer = [0; 2048];
    socket.set_read_timeout(Some(DEADLINE))?;
    let len = socket.recv(&mut buffer).context("an answer")?;
    socket.set_read_timeout(Some(POLL))?;
    let more = collect(socket, Duration::from_millis(500));
    Ok([vec![buffer[..len].to_vec()], more].concat())
}

/// Reads a whole file, losing one datagram in `lose_one_in` in each direction.
pub fn read(socket: &UdpSocket, name: &str, window: u16, lose_one_in: u32) -> Result<Vec<u8>> {
    let mut state = u32::from(socket.local_addr()?.port()) | 1;
    let mut lost = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.is_multiple_of(lose_one_in)
    };
    let window_text = window.to_string();
    let rrq = request(1, name, &[("blksize", "1468"), ("windowsize", &window_text)]);
    let server = SocketAddr::from((SERVER, 69));
    let mut peer = None;
    let mut file = Vec::new();
    let (mut have, mut in_window) = (0_u16, 0);
    let mut buffer = [0; 2048];
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut answer = rrq.clone();
    let mut to = server;
    loop {
        if !answer.is_empty() && !lost() {
            socket.send_to(&answer, to)?;
        }
        answer.clear();
        if Instant::now() > deadline {
            bail!("{name}: {} octets in a minute", file.len());
        }
        let Ok((len, from)) = socket.recv_from(&mut buffer) else {
            // Our timer: say again what we have, or ask again.
            answer = peer.map_or_else(|| rrq.clone(), |_| ack(have));
            in_window = 0;
            continue;
        };
        if lost() || peer.is_some_and(|p| p != from) {
            continue;
        }
        peer = Some(from);
        to = from;
        match buffer.get(..len).context("a datagram")? {
            [0, 6, ..] => answer = ack(have),
            [0, 3, high, low, payload @ ..] => {
                let block = u16::from_be_bytes([*high, *low]);
                if block == have.wrapping_add(1) {
                    have = block;
                    in_window += 1;
                    file.extend_from_slice(payload);
                    if payload.len() < 1468 {
                        // The last ACK may be lost: the server asks again a few times.
                        for _ in 0..3 {
                            socket.send_to(&ack(have), from)?;
                        }
                        return Ok(file);
                    }
                    if in_window == window {
                        in_window = 0;
                        answer = ack(have);
                    }
                } else {
                    in_window = 0;
                    answer = ack(have);
                }
            }
            other => bail!("{name}: unexpected {other:?}"),
        }
    }
}

fn ack(block: u16) -> Vec<u8> {
    let [high, low] = block.to_be_bytes();
    vec![0, 4, high, low]
}
