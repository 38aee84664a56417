//! What the peers of a TCP server can have: places in all and for each address, time without progress, life of a connection.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What strangers can have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one address.
    pub per_address: usize,
    /// For a request head, and for a form. Also how long an idle connection is kept.
    pub read: Duration,
    /// A peer that takes nothing for so long is gone.
    pub stall: Duration,
    /// No connection lives longer, unless it carries [`Self::least`]: a peer that takes one octet a minute would hold it for ever.
    pub lifetime: Duration,
    /// A connection that carried so many octets in one [`Self::lifetime`] may have another.
    pub least: u64,
}

/// Connections that may be open at once. Cheap to clone.
#[derive(Clone)]
pub struct Places {
    all: Arc<Semaphore>,
    of: Arc<Mutex<HashMap<IpAddr, usize>>>,
    per_address: usize,
}

impl Places {
    /// So many in all, so many for each address.
    #[must_use]
    pub fn new(connections: usize, per_address: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(connections)), of: Arc::default(), per_address }
    }

    /// A place, if one is free; never waits, so that nobody can keep the one who accepts waiting.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take(&self, peer: IpAddr) -> Result<Place, NoPlace> {
        self.of_peer(peer, Arc::clone(&self.all).try_acquire_owned().map_err(|_| NoPlace::AtAll)?)
    }

    /// As [`Self::take`], once a place is free.
    ///
    /// # Errors
    /// The address has too many.
    pub async fn wait(&self, peer: IpAddr) -> Result<Place, NoPlace> {
        self.of_peer(peer, Arc::clone(&self.all).acquire_owned().await.map_err(|_| NoPlace::AtAll)?)
    }

    fn of_peer(&self, peer: IpAddr, permit: OwnedSemaphorePermit) -> Result<Place, NoPlace> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let open = of.entry(peer).or_default();
        if *open >= self.per_address {
            return Err(NoPlace::OfAddress);
        }
        *open += 1;
        Ok(Place { of: Arc::clone(&self.of), peer, _permit: permit })
    }
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// All are taken.
    AtAll,
    /// This address has as many as one may.
    OfAddress,
}

/// Given back when dropped.
pub struct Place {
    of: Arc<Mutex<HashMap<IpAddr, usize>>>,
    peer: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = of.get_mut(&self.peer) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                of.remove(&self.peer);
            }
        }
    }
}

/// Sets up an accepted connection: the kernel gives it up when the peer takes nothing for `stall`, also behind a shut window.
///
/// # Errors
/// The peer is gone already.
pub fn set_up(stream: &TcpStream, stall: Duration) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(stall))?;
    stream.set_nodelay(true)
}

/// A stream that counts the octets it carries, both ways.
pub struct Counted<S> {
    stream: S,
    octets: Arc<AtomicU64>,
}

impl<S> Counted<S> {
    /// The stream, and its count.
    pub fn new(stream: S) -> (Self, Arc<AtomicU64>) {
        let octets = Arc::new(AtomicU64::new(0));
        (Self { stream, octets: Arc::clone(&octets) }, octets)
    }

    fn count(&self, octets: usize) {
        self.octets.fetch_add(u64::try_from(octets).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.count(buffer.filled().len().saturating_sub(before));
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(context, octets));
        self.count(*result.as_ref().unwrap_or(&0));
        Poll::Ready(result)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, pieces));
        self.count(*result.as_ref().unwrap_or(&0));
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Runs `work` for `lifetime`, and again for as long while `octets` grows by at least `least` each time; `None`: cut off.
pub async fn while_it_moves<F: Future>(work: F, octets: &AtomicU64, least: u64, lifetime: Duration) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut before = 0;
    loop {
        if let Ok(done) = tokio::time::timeout(lifetime, &mut work).await {
            return Some(done);
        }
        let now = octets.load(Ordering::Relaxed);
        if now.saturating_sub(before) < least {
            return None;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_run_out_for_one_address_and_for_all_and_come_back() {
        let address = |n| IpAddr::from([10, 77, 0, n]);
        let places = Places::new(5, 2);
        let mut held: Vec<Place> = (0..2).map(|_| places.take(address(1)).unwrap()).collect();
        assert_eq!(places.take(address(1)).err(), Some(NoPlace::OfAddress), "two for one address");
        held.extend((2..5).map(|n| places.take(address(n)).unwrap()));
        assert_eq!(places.take(address(9)).err(), Some(NoPlace::AtAll), "five for all");
        held.clear();
        assert!(places.of.lock().unwrap().is_empty(), "nothing is remembered of who has gone");
        assert!((1..=5).all(|n| places.take(address(n)).is_ok()));
    }

    #[tokio::test]
    async fn who_moves_lives_on_and_who_drips_is_cut_off() {
        let lifetime = Duration::from_millis(5);
        // Looked at once for each lifetime at least.
        let work = async |octets: &AtomicU64, each: u64| {
            let mut looks = 0;
            let work = std::future::poll_fn(|_| {
                octets.fetch_add(each, Ordering::Relaxed);
                looks += 1;
                if looks > 10 { Poll::Ready(()) } else { Poll::Pending }
            });
            while_it_moves(work, octets, 4000, lifetime).await
        };
        assert_eq!(work(&AtomicU64::new(0), 4000).await, Some(()), "an upload lives on");
        assert_eq!(work(&AtomicU64::new(0), 1).await, None, "a drip does not");
    }
}
