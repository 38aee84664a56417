//! A packet capture of a namespace's interface, in the format that tcpdump and Wireshark read.
//!
//! Not tcpdump itself: it gives up its privileges to a user that a user namespace does not have, and a confined one (AppArmor)
//! may not write here.

use crate::wire::Wire;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

/// How often the thread looks whether it is still wanted; the file is complete up to then.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
/// pcap's link type for Ethernet.
const LINKTYPE_ETHERNET: u32 = 1;
/// Whole frames, also those that the kernel has not cut into packets yet.
const SNAP_OCTETS: u32 = 65536;

/// A running capture; ends when dropped.
#[derive(Debug)]
pub struct Capture {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Writes every frame on `interface` of the namespace into `file` from now on.
    pub fn start(netns: &str, interface: &str, file: &Path) -> Result<Self> {
        let mut wire = Wire::in_netns(netns, interface)?;
        let mut out = BufWriter::new(File::create(file).with_context(|| format!("create {}", file.display()))?);
        out.write_all(&head()).with_context(|| format!("write {}", file.display()))?;
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let record = |frame: &[u8]| {
                    let _ = out.write_all(&record_head(SystemTime::now(), frame.len())).and_then(|()| out.write_all(frame));
                    false
                };
                // The bridge goes away before the capture when a test ends early.
                if wire.receive(LOOKS_EVERY, record).is_err() || out.flush().is_err() {
                    return;
                }
            }
        });
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// pcap's file header: magic (microseconds), version 2.4, zone and accuracy unused, longest frame, link type.
fn head() -> [u8; 24] {
    let mut head = [0; 24];
    head[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
    head[4..6].copy_from_slice(&2_u16.to_le_bytes());
    head[6..8].copy_from_slice(&4_u16.to_le_bytes());
    head[16..20].copy_from_slice(&SNAP_OCTETS.to_le_bytes());
    head[20..].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
    head
}

/// Seconds, microseconds, octets captured, octets on the wire.
fn record_head(now: SystemTime, octets: usize) -> [u8; 16] {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let octets = u32::try_from(octets).unwrap_or(u32::MAX);
    let words = [u32::try_from(since.as_secs()).unwrap_or(u32::MAX), since.subsec_micros(), octets, octets];
    let mut head = [0; 16];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_are_those_of_pcap_2_4() {
        let head: String = head().iter().map(|octet| format!("{octet:02x}")).collect();
        assert_eq!(head, "d4c3b2a1020004000000000000000000".to_owned() + "0000010001000000");
        let record = record_head(SystemTime::UNIX_EPOCH + Duration::from_micros(0x0102_0304 * 1_000_000 + 5), 342);
        assert_eq!(record, [4, 3, 2, 1, 5, 0, 0, 0, 0x56, 1, 0, 0, 0x56, 1, 0, 0]);
    }
}
