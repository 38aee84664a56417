//! Fetches datagrams from port 67 as they come, in a thread of its own: a boot storm must fit into the kernel's buffer only
//! for the moment until this thread runs, not for as long as decisions take. Where `CAP_NET_ADMIN` is missing, that buffer
//! holds less than two hundred.

use crate::listen::quiet::Quiet;
use kurrent_sys::clock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// Datagrams that may wait for a decision; further ones are dropped, as their clients ask again. At the longest they hold 8 MiB.
const QUEUE: usize = 4096;
/// Longest datagram that is looked at; a longer one is cut and then refused as malformed.
const DATAGRAM_BYTES: usize = 2048;
/// Datagrams taken before it is asked again whether to stop.
const DRAIN: usize = 256;
/// The interface is down, or an ICMP error came back: that neither ends the service nor may it spin.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread and what it has fetched. Ends it when dropped.
pub struct Reader {
    datagrams: mpsc::Receiver<Box<[u8]>>,
    left_out: Arc<AtomicU64>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    pub(super) fn start(socket: Arc<Socket>) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let (fetched, datagrams) = mpsc::channel(QUEUE);
        let left_out = Arc::new(AtomicU64::new(0));
        let count = left_out.clone();
        let work = move || {
            let mut quiet = Quiet::default();
            while let Err(error) = fetch(&*socket, &stopped, &fetched, &count) {
                if let Some(more) = quiet.admit("receive", clock::now().mono) {
                    tracing::warn!(%error, more, "DHCP: receiving");
                }
                std::thread::sleep(PAUSE);
            }
        };
        let thread = std::thread::Builder::new().name("dhcp-reader".into()).spawn(work)?;
        Ok(Self { datagrams, left_out, stop: Some(stop), thread: Some(thread) })
    }

    /// Waits for datagrams and takes at most `limit`; how many. 0: the thread has ended. Cancel-safe.
    pub async fn take(&mut self, into: &mut Vec<Box<[u8]>>, limit: usize) -> usize {
        self.datagrams.recv_many(into, limit).await
    }

    /// Datagrams that were dropped because decisions did not keep up.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The other end wakes up by it.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Until it is stopped, or an error.
fn fetch(socket: &impl AsFd, stopped: &UnixStream, fetched: &mpsc::Sender<Box<[u8]>>, left_out: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if waiting.get(1).is_some_and(|stopped| stopped.any().unwrap_or(true)) {
            return Ok(());
        }
        // A flood must not keep it from its end.
        for _ in 0..DRAIN {
            let len = match nix::unistd::read(socket, &mut buffer).map_err(io::Error::from) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            if fetched.try_send(buffer.get(..len).unwrap_or_default().into()).is_err() {
                left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};
    use std::net::{Ipv4Addr, SocketAddrV4};

    #[test]
    fn it_ends_in_the_middle_of_a_flood_that_does_not() {
        let flood = std::fs::File::open("/dev/zero").unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (fetched, mut datagrams) = mpsc::channel(1);
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || ended.send(fetch(&flood, &stopped, &fetched, &AtomicU64::new(0)).is_ok()));
        assert!(datagrams.blocking_recv().is_some());
        drop(stop);
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[tokio::test]
    async fn all_come_in_order_what_is_too_much_is_counted_and_the_end_is_quick() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None).unwrap();
        socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let to = socket.local_addr().unwrap();
        let sender = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let mut reader = Reader::start(Arc::new(socket)).unwrap();
        let mut got = Vec::new();
        for number in 0..100_u8 {
            sender.send_to(&[number], &to).unwrap();
        }
        while got.len() < 100 {
            assert!(tokio::time::timeout(Duration::from_secs(30), reader.take(&mut got, 7)).await.unwrap() <= 7);
        }
        assert!(got.iter().zip(0..).all(|(datagram, number)| **datagram == [number]));
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while reader.left_out() == 0 && std::time::Instant::now() < deadline {
            sender.send_to(&[], &to).unwrap();
        }
        assert!(reader.left_out() > 0, "nobody takes them");
        drop(reader);
    }
}
