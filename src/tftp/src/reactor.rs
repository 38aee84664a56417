//! The one thread that sends and receives for all transfers. It waits for packets and times only, never for a disk.
//!
//! A block in lock-step costs two system calls beside the waiting, and a window three: receive the ACK, (read the page cache,) send.

use crate::content::{Content, Files, Found, Piece};
use crate::pool::Pool;
use crate::sending::{Next, Port, Sending, UNREADABLE};
use crate::server::{Options, Ports, Server};
use crate::socket;
use crate::table::{Key, Table, Tenant};
use crate::transfer::{Event, Mono, Transfer};
use crate::wire::{self, ErrorCode, Initial, ReadRequest};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Longer requests are cut and then junk: RFC 2347 s2 bounds them by 512.
const REQUEST_BYTES: usize = 1024;
/// Datagrams that are taken from the server's port before other transfers have their turn.
const BATCH: usize = 64;
/// A client that has acknowledged something within this time has not begun anew, whatever its port asks for: it is an echo, or forged. Later
/// it has (firmware that always uses one port).
pub(crate) const QUIET: Duration = Duration::from_secs(1);
/// What epoll says for the server's own port, and for what other threads have done. No [`Key`] has these.
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// Tells the thread that there is something to do.
pub(crate) fn wake(fd: &OwnedFd) {
    // It fails only when it is set already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// What other threads have done.
enum Done {
    Found(Key, Prepared),
    Read(Key, io::Result<Piece>),
}

/// What a name stands for, ready to be sent.
enum Prepared {
    Silence,
    Refused(ErrorCode, String),
    Content(Content),
}

/// A place in the table.
struct Slot {
    client: SocketAddr,
    /// `None` is a write.
    request: Option<ReadRequest>,
    /// Absent while its name is looked for.
    sending: Option<Box<Sending>>,
    /// The earliest time at which the slot is looked at, among [`Reactor::timers`].
    armed: Option<Mono>,
}

impl Tenant for Slot {
    fn client(&self) -> SocketAddr {
        self.client
    }

    fn answered(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| sending.transfer.answered())
    }
}

pub(crate) struct Reactor {
    epoll: OwnedFd,
    shared: Port,
    options: Options,
    files: Arc<dyn Files>,
    table: Table<Slot>,
    timers: BinaryHeap<Reverse<(Mono, u64)>>,
    /// Transfers that wait for room in the shared port's queue.
    full: Vec<Key>,
    pool: Pool,
    /// Names that are being looked for; bounded like the places, also when those give way.
    finding: usize,
    done: Receiver<Done>,
    tell: Sender<Done>,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    began: Instant,
    /// The next port of [`Ports::Range`], as an offset.
    turn: u16,
}

impl Reactor {
    pub(crate) fn new(server: Server, files: Arc<dyn Files>, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let Server { socket, options } = server;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let places = match options.ports {
            Ports::Range(first, last) => options.limits.transfers.min(usize::from(last.saturating_sub(first)) + 1),
            Ports::Any | Ports::Single => options.limits.transfers,
        };
        let (tell, done) = channel();
        Ok(Self {
            epoll,
            shared: Port::new(socket),
            table: Table::new(places, options.limits.transfers_per_address),
            options,
            files,
            timers: BinaryHeap::new(),
            full: Vec::new(),
            pool: Pool::start()?,
            finding: 0,
            done,
            tell,
            wake,
            stop: Arc::default(),
            began: Instant::now(),
            turn: 0,
        })
    }

    /// Set it and [`wake`] to end the thread.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(BATCH);
        while !self.stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), self.timeout().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let (data, flags) = (event.data.u64(), event.flags);
                match data {
                    LISTENER => self.on_listener(flags),
                    WAKE => self.on_wake(),
                    slot => self.on_slot(Key::from_bits(slot), flags),
                }
            }
            self.expire();
        }
        Ok(())
    }

    fn now(&self) -> Mono {
        self.began.elapsed()
    }

    fn timeout(&self) -> Option<Timespec> {
        let Reverse((due, _)) = self.timers.peek()?;
        Timespec::try_from(due.saturating_sub(self.now())).ok()
    }

    fn expire(&mut self) {
        let Some(Reverse((due, _))) = self.timers.peek().copied() else { return };
        let now = self.now();
        if due > now {
            return;
        }
        while let Some(Reverse((due, bits))) = self.timers.peek().copied().filter(|Reverse((due, _))| *due <= now) {
            self.timers.pop();
            let key = Key::from_bits(bits);
            let Some(slot) = self.table.tenant(key).filter(|slot| slot.armed == Some(due)) else { continue };
            slot.armed = None;
            self.event(key, Event::Timer);
        }
    }

    fn on_listener(&mut self, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            let _ = epoll::modify(&self.epoll, &self.shared.socket, EventData::new_u64(LISTENER), EventFlags::IN);
            for key in std::mem::take(&mut self.full) {
                self.resume(key);
            }
        }
        let mut buffer = [0; REQUEST_BYTES];
        for _ in 0..BATCH {
            let (len, client) = match self.shared.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // An ICMP error of an earlier answer, or the link is down: it is taken with this, the service goes on.
                Err(error) => {
                    tracing::debug!(%error, "TFTP: receiving");
                    continue;
                }
            };
            let datagram = buffer.get(..len).unwrap_or_default();
            match wire::initial(datagram) {
                Initial::Read(request) => self.request(client, Some(request)),
                Initial::Write => self.request(client, None),
                Initial::Junk if self.options.ports == Ports::Single => {
                    if let Some(key) = self.table.by_client(client) {
                        self.event(key, Event::Received(wire::reply(datagram)));
                    }
                }
                Initial::Junk => {}
            }
        }
    }

    fn request(&mut self, client: SocketAddr, request: Option<ReadRequest>) {
        if !self.files.answers(client.ip()) || self.finding >= self.options.limits.transfers {
            return;
        }
        if let Some(key) = self.table.by_client(client) {
            let now = self.now();
            let Some(slot) = self.table.tenant(key) else { return };
            let stays = match slot.sending.as_ref().and_then(|sending| sending.transfer.progressed()) {
                Some(progressed) => now.saturating_sub(progressed) < QUIET,
                // Its size was asked for first, and now the file is; or it is an echo.
                None => slot.request == request,
            };
            if stays {
                return;
            }
            self.table.leave(key);
        }
        let Some(key) = self.table.enter(Slot { client, request: request.clone(), sending: None, armed: None }) else { return };
        self.finding += 1;
        let (files, tell, fd) = (Arc::clone(&self.files), self.tell.clone(), Arc::clone(&self.wake));
        self.pool.run(move || {
            // A caller's fault costs this transfer only.
            let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&*files, client.ip(), request)))
                .unwrap_or_else(|_| Prepared::Refused(ErrorCode::Undefined, UNREADABLE.into()));
            let _ = tell.send(Done::Found(key, prepared));
            wake(&fd);
        });
    }

    fn on_wake(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(done) = self.done.try_recv() {
            match done {
                Done::Found(key, prepared) => {
                    self.finding -= 1;
                    self.found(key, prepared);
                }
                Done::Read(key, piece) => {
                    let now = self.now();
                    if let Some(sending) = self.table.tenant(key).and_then(|slot| slot.sending.as_mut()) {
                        let next = sending.read(piece, &mut self.shared, now);
                        self.follow(key, next);
                    }
                }
            }
        }
    }

    fn found(&mut self, key: Key, prepared: Prepared) {
        let now = self.now();
        let Some(client) = self.table.tenant(key).map(|slot| slot.client) else { return };
        let content = match prepared {
            Prepared::Silence => return drop(self.table.leave(key)),
            Prepared::Refused(code, message) => {
                self.refuse(client, &wire::error(code, &message));
                return drop(self.table.leave(key));
            }
            Prepared::Content(content) => content,
        };
        let own = match self.open(client) {
            Ok(own) => own,
            Err(error) => {
                tracing::debug!(%client, %error, "TFTP: no socket for a transfer");
                return drop(self.table.leave(key));
            }
        };
        if let Some(own) = &own
            && let Err(error) = epoll::add(&self.epoll, &own.socket, EventData::new_u64(key.to_bits()), EventFlags::IN)
        {
            tracing::debug!(%client, %error, "TFTP: no socket for a transfer");
            return drop(self.table.leave(key));
        }
        let Some((slot, request)) = self.table.tenant(key).and_then(|slot| slot.request.clone().map(|request| (slot, request))) else {
            return;
        };
        let (transfer, output) = Transfer::start(&request.asked, content.size(), self.options.limits.block_bytes, now);
        let sending = slot.sending.insert(Box::new(Sending::new(own, client, request.name, content, transfer, now)));
        let next = sending.act(output, &mut self.shared, now);
        self.follow(key, next);
    }

    /// Says why not, once.
    fn refuse(&mut self, client: SocketAddr, error: &[u8]) {
        let sent = match self.open(client) {
            Ok(Some(mut own)) => own.segments.send_one(&own.socket, None, error),
            Ok(None) => self.shared.segments.send_one(&self.shared.socket, Some(client), error),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(%client, %error, "TFTP: an ERROR was not sent");
        }
    }

    /// A connected socket for one transfer, so that the kernel drops what others send to it; none on a single port.
    fn open(&mut self, client: SocketAddr) -> io::Result<Option<Port>> {
        let bind = |port| socket::bind(self.options.address, port, self.options.interface.as_deref());
        let socket = match self.options.ports {
            Ports::Single => return Ok(None),
            Ports::Any => bind(0)?,
            Ports::Range(first, last) => {
                let count = last.saturating_sub(first).saturating_add(1);
                let mut found = Err(io::Error::from(ErrorKind::AddrInUse));
                for _ in 0..count {
                    // In turn: late packets of an ended transfer do not meet the next one.
                    let port = first.saturating_add(self.turn % count);
                    self.turn = (self.turn + 1) % count;
                    found = bind(port);
                    if !found.as_ref().is_err_and(|e| e.kind() == ErrorKind::AddrInUse) {
                        break;
                    }
                }
                found?
            }
        };
        socket.connect(client)?;
        Ok(Some(Port::new(socket)))
    }

    fn on_slot(&mut self, key: Key, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            if let Some(own) = own(&mut self.table, key) {
                let _ = epoll::modify(&self.epoll, own, EventData::new_u64(key.to_bits()), EventFlags::IN);
            }
            self.resume(key);
        }
        let mut buffer = [0; 64];
        // One datagram: epoll tells of the next.
        let received = match own(&mut self.table, key) {
            Some(own) => own.recv(&mut buffer),
            None => return,
        };
        match received {
            Ok(len) => self.event(key, Event::Received(wire::reply(buffer.get(..len).unwrap_or_default()))),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            // The client's port is closed: it is gone (a crash, or the end of a tsize probe; pin/tftp 125).
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => drop(self.table.leave(key)),
            // The link is down, or a router says so: the timer decides.
            Err(error) => tracing::debug!(%error, "TFTP: receiving"),
        }
    }

    fn resume(&mut self, key: Key) {
        let now = self.now();
        if let Some(sending) = self.table.tenant(key).and_then(|slot| slot.sending.as_mut()) {
            let next = sending.resume(&mut self.shared, now);
            self.follow(key, next);
        }
    }

    fn event(&mut self, key: Key, event: Event) {
        let now = self.now();
        if let Some(sending) = self.table.tenant(key).and_then(|slot| slot.sending.as_mut()) {
            let next = sending.on(event, &mut self.shared, now);
            self.follow(key, next);
        }
    }

    fn follow(&mut self, key: Key, next: Next) {
        match next {
            Next::End => return drop(self.table.leave(key)),
            Next::Wait => {}
            Next::Full => {
                let flags = EventFlags::IN | EventFlags::OUT;
                let _ = match self.table.tenant(key).and_then(|slot| slot.sending.as_ref()?.own.as_ref()) {
                    Some(own) => epoll::modify(&self.epoll, &own.socket, EventData::new_u64(key.to_bits()), flags),
                    None => {
                        self.full.push(key);
                        epoll::modify(&self.epoll, &self.shared.socket, EventData::new_u64(LISTENER), flags)
                    }
                };
            }
            Next::Read(read) => {
                let (tell, fd) = (self.tell.clone(), Arc::clone(&self.wake));
                self.pool.run(move || {
                    let _ = tell.send(Done::Read(key, read.run()));
                    wake(&fd);
                });
            }
        }
        let Some(slot) = self.table.tenant(key) else { return };
        let Some(due) = slot.sending.as_ref().map(|sending| sending.transfer.deadline()) else { return };
        // Most deadlines only move away: the one entry is looked at when it is due, and put back.
        if slot.armed.is_none_or(|armed| due < armed) {
            slot.armed = Some(due);
            self.timers.push(Reverse((due, key.to_bits())));
        }
    }
}

/// The socket of a transfer that has its own.
fn own(table: &mut Table<Slot>, key: Key) -> Option<&UdpSocket> {
    table.tenant(key)?.sending.as_ref()?.own.as_ref().map(|own| &own.socket)
}

/// Finds and opens what a request asks for. May wait for disks.
fn prepare(files: &dyn Files, client: IpAddr, request: Option<ReadRequest>) -> Prepared {
    let Some(request) = request else {
        return match files.find(client, None) {
            Found::Silence => Prepared::Silence,
            Found::File(..) | Found::Octets(_) | Found::Nothing | Found::Fault(_) => {
                Prepared::Refused(ErrorCode::AccessViolation, "this server is read-only".into())
            }
        };
    };
    match files.find(client, request.name.as_deref()) {
        Found::Silence => Prepared::Silence,
        Found::Nothing => Prepared::Refused(ErrorCode::NotFound, "no such file".into()),
        Found::Fault(why) => {
            tracing::warn!(%client, name = ?request.name, %why, "TFTP: a file cannot be served");
            Prepared::Refused(ErrorCode::Undefined, UNREADABLE.into())
        }
        Found::Octets(octets) => Prepared::Content(Content::of_octets(octets, request.mode)),
        Found::File(file, size) => match Content::of_file(file, size, request.mode) {
            Ok(content) => Prepared::Content(content),
            Err(e) if e.kind() == ErrorKind::FileTooLarge => Prepared::Refused(ErrorCode::Undefined, e.to_string()),
            Err(error) => {
                tracing::warn!(%client, name = ?request.name, %error, "TFTP: a file cannot be read");
                Prepared::Refused(ErrorCode::Undefined, UNREADABLE.into())
            }
        },
    }
}
