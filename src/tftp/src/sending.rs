//! One transfer at work: what its state machine says is done on its socket, and what the disk has not yet is waited for.

use crate::content::{Content, Held, Piece, Read};
use crate::socket::{Segments, Sent};
use crate::transfer::{Event, Mono, Output, Transfer, low_bits};
use crate::wire::{self, ErrorCode};
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// What clients are told when a file fails; causes are for the log, not for the wire.
pub(crate) const UNREADABLE: &str = "the file cannot be read; see the server's log";

/// A socket and how blocks leave by it.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) socket: UdpSocket,
    pub(crate) segments: Segments,
}

impl Port {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        Self { socket, segments: Segments::new() }
    }
}

/// What comes next.
pub(crate) enum Next {
    /// A packet or the timer.
    Wait,
    /// The socket's queue is full: [`Sending::resume`] when it is not.
    Full,
    /// This has to be read, then [`Sending::read`].
    Read(Read),
    /// It is over.
    End,
}

/// A transfer with its content and its socket.
pub(crate) struct Sending {
    /// Connected to the client; absent on a single port.
    pub(crate) own: Option<Port>,
    pub(crate) transfer: Transfer,
    client: SocketAddr,
    content: Content,
    name: Option<String>,
    began: Mono,
    /// Blocks that are to leave, from the first to the last.
    pending: Option<(u64, u64)>,
    /// They wait for the disk.
    reading: bool,
    /// They wait for the link.
    full: bool,
}

impl Sending {
    pub(crate) fn new(
        own: Option<Port>,
        client: SocketAddr,
        name: Option<String>,
        content: Content,
        transfer: Transfer,
        now: Mono,
    ) -> Self {
        Self { own, transfer, client, content, name, began: now, pending: None, reading: false, full: false }
    }

    /// Something happened. `shared` is the server's port.
    pub(crate) fn on(&mut self, event: Event, shared: &mut Port, now: Mono) -> Next {
        if event == Event::Timer && (self.reading || self.full) && self.transfer.deadline() <= now && !self.transfer.is_over(now) {
            // Not the client's fault; but no place is taken for ever.
            self.transfer.left(now);
            return Next::Wait;
        }
        let output = self.transfer.on(event, now);
        self.act(output, shared, now)
    }

    /// Does what the state machine says.
    pub(crate) fn act(&mut self, output: Output, shared: &mut Port, now: Mono) -> Next {
        match output {
            Output::Wait => Next::Wait,
            Output::OptionAck => self.say(&wire::option_ack(self.transfer.accepted()), shared),
            Output::Blocks { first, last } => {
                self.pending = Some((first, last));
                self.pump(shared)
            }
            Output::Done => {
                tracing::debug!(name = ?self.name, octets = self.content.size(), millis = (now.saturating_sub(self.began)).as_millis(), "TFTP: sent");
                Next::End
            }
            Output::Aborted => Next::End,
            Output::GaveUp => {
                // An address that never answered may be somebody else's.
                if self.transfer.answered() {
                    self.say(&wire::error(ErrorCode::Undefined, "no answer in time"), shared);
                }
                Next::End
            }
        }
    }

    /// The link's queue has room.
    pub(crate) fn resume(&mut self, shared: &mut Port, now: Mono) -> Next {
        self.full = false;
        self.transfer.left(now);
        self.pump(shared)
    }

    /// What was to be read is here.
    pub(crate) fn read(&mut self, read: io::Result<Piece>, shared: &mut Port, now: Mono) -> Next {
        self.reading = false;
        match read {
            Ok(piece) => {
                self.content.put(piece);
                self.transfer.left(now);
                self.pump(shared)
            }
            Err(error) => self.fail(&error, shared),
        }
    }

    fn pump(&mut self, shared: &mut Port) -> Next {
        if self.reading || self.full {
            return Next::Wait;
        }
        while let Some((first, last)) = self.pending {
            let (port, to) = match &mut self.own {
                Some(own) => (own, None),
                None => (&mut *shared, Some(self.client)),
            };
            let block_bytes = self.transfer.block_bytes();
            let most = port.segments.most(block_bytes);
            let blocks = usize::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or(usize::MAX).min(most);
            let at = u64::try_from(block_bytes).unwrap_or(u64::MAX).saturating_mul(first - 1);
            let payload = match self.content.hold(at, blocks * block_bytes) {
                Ok(Held::Yes(payload)) => payload,
                Ok(Held::Read(read)) => {
                    self.reading = true;
                    return Next::Read(read);
                }
                Err(error) => return self.fail(&error, shared),
            };
            match port.segments.send(&port.socket, to, low_bits(first), payload, block_bytes, blocks) {
                Ok(Some(Sent::Yes)) => {
                    let next = first + u64::try_from(blocks).unwrap_or(u64::MAX);
                    self.pending = (next <= last).then_some((next, last));
                }
                // One by one from here on.
                Ok(None) => {}
                Ok(Some(Sent::Later)) => {
                    self.full = true;
                    return Next::Full;
                }
                Ok(Some(Sent::Gone)) => return Next::End,
                Err(error) => {
                    tracing::debug!(client = %self.client, %error, "TFTP: a transfer ended");
                    return Next::End;
                }
            }
        }
        Next::Wait
    }

    fn fail(&mut self, error: &io::Error, shared: &mut Port) -> Next {
        tracing::warn!(name = ?self.name, %error, "TFTP: reading a file that is being sent");
        self.say(&wire::error(ErrorCode::Undefined, UNREADABLE), shared);
        Next::End
    }

    /// OACK and ERROR: what a full queue swallows is said again when the timer says so.
    fn say(&mut self, octets: &[u8], shared: &mut Port) -> Next {
        let (port, to) = match &mut self.own {
            Some(own) => (own, None),
            None => (shared, Some(self.client)),
        };
        match port.segments.send_one(&port.socket, to, octets) {
            Ok(Sent::Yes | Sent::Later) => Next::Wait,
            Ok(Sent::Gone) => Next::End,
            Err(error) => {
                tracing::debug!(client = %self.client, %error, "TFTP: a transfer ended");
                Next::End
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Asked, Mode, Reply};
    use std::net::Ipv4Addr;
    use std::time::Duration;

    const SECS: fn(u64) -> Mono = Duration::from_secs;

    /// A transfer whose client has taken one block, and the client.
    fn sending() -> (Sending, Port, UdpSocket) {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        client.set_read_timeout(Some(SECS(10))).expect("a timeout");
        let address = client.local_addr().expect("an address");
        let bind = || Port::new(crate::socket::bind(Ipv4Addr::LOCALHOST.into(), 0, None).expect("a socket"));
        let (own, mut shared) = (bind(), bind());
        own.socket.connect(address).expect("connect");
        let content = Content::of_octets(vec![7; 5000], Mode::Octet);
        let (transfer, output) = Transfer::start(&Asked::default(), content.size(), 1468, SECS(0));
        let mut sending = Sending::new(Some(own), address, None, content, transfer, SECS(0));
        assert!(matches!(sending.act(output, &mut shared, SECS(0)), Next::Wait));
        assert!(matches!(sending.on(Event::Received(Reply::Ack(1)), &mut shared, SECS(0)), Next::Wait));
        (sending, shared, client)
    }

    /// What the thread does with timers until `until`; fails when one is due that was looked at already, which would be for ever.
    fn timers(sending: &mut Sending, shared: &mut Port, until: Mono) -> Option<Mono> {
        let mut now = SECS(0);
        while now < until {
            assert!(sending.transfer.deadline() > now, "due again at {now:?}");
            now = sending.transfer.deadline();
            if matches!(sending.on(Event::Timer, shared, now), Next::End) {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn a_disk_or_a_link_that_is_slow_is_waited_for_until_the_time_of_the_transfer_is_up_and_no_timer_is_due_for_ever() {
        type Held = fn(&mut Sending);
        for held in [(|sending| sending.reading = true) as Held, |sending| sending.full = true] {
            let (mut sending, mut shared, client) = sending();
            held(&mut sending);
            assert_eq!(timers(&mut sending, &mut shared, SECS(290)), None, "not the client's fault");
            let over = timers(&mut sending, &mut shared, SECS(400)).expect("the end");
            assert!((SECS(300)..SECS(301)).contains(&over), "{over:?}");
            let mut buffer = [0; 600];
            let heads = [1, 2, 3].map(|_| client.recv(&mut buffer).map(|_| buffer[..4].to_vec()).expect("a datagram"));
            assert_eq!(heads, [[0, 3, 0, 1], [0, 3, 0, 2], [0, 5, 0, 0]], "and the client is told");
        }
    }
}
