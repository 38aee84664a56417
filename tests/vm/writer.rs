//! A worker that writes numbered records without pause, and the records as whoever has the disk next reads them.
//!
//! Each number goes to the raw disk and to a file, both past every cache, and is said on the console when both are acknowledged.
//! On the raw disk the records are a ring between the partition table and the first partition, where nothing else is.

use anyhow::{Context, Result, ensure};
use kurrent_harness::machine::Machine;
use kurrent_harness::worker::SHELL_WITHIN;
use std::time::{Duration, Instant};

/// First block of the ring and its length, in blocks of 4096 octets: from 256 KiB to 768 KiB; the partition begins at 1 MiB.
const RING: [u64; 2] = [64, 128];
/// Records that are there before anything is done to the writer.
const SETTLED: u64 = 8;
/// From the cut to the error: the kernel of a worker knocks again after its reconnect delay (5 s), and is then refused for good.
const FAILS_WITHIN: Duration = Duration::from_secs(180);

/// How a writer ended.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The last record that was acknowledged to it, and when it said so.
    pub acknowledged: (u64, Instant),
    /// When its next one failed.
    pub failed: Instant,
}

/// Starts writing; returns when some records are there, with when the last of these was acknowledged.
pub fn start(machine: &mut Machine) -> Result<Instant> {
    let [first, length] = RING;
    // `nocreat`: a disk whose node is gone must not become a file in memory. `printf` pads, and `sync` fills the block with zeros.
    let raw = format!("dd of=/dev/nvme0n1 bs=4096 seek=$(({first}+n%{length})) conv=sync,nocreat,notrunc oflag=direct");
    let file = "dd of=/root/records bs=4096 conv=sync,notrunc,fsync oflag=direct,append";
    let both = format!("{{ printf '%-8d' $n | {raw} && printf '%-8d' $n | {file}; }} 2>/dev/null");
    let console = &mut machine.console;
    let empty =
        format!("rm -f /root/records; dd if=/dev/zero of=/dev/nvme0n1 bs=4096 seek={first} count={length} oflag=direct 2>/dev/null");
    console.shell(&empty, SHELL_WITHIN)?;
    // It goes on trying, and says only the first failure: later ones would be in the way of whoever uses the console. What it runs
    // then has to be in memory already.
    let failed = "[ $f ] || echo fai''led-$n; f=1; sleep 1 2>/dev/null";
    let writes = format!("(f=; n=0; while n=$((n+1)); do if {both}; then echo wr''ote-$n; else {failed}; fi; done) &");
    console.send_line(&format!("sleep 0; dmesg | grep -c . >/dev/null; {writes}"))?;
    Ok(console.wait_for(&format!("wrote-{SETTLED}\n"), SHELL_WITHIN)?.at)
}

/// Waits until a write of it fails. `last`: when it was seen to write.
pub fn wait_for_cut(machine: &mut Machine, mut last: Instant) -> Result<Cut> {
    let console = &mut machine.console;
    loop {
        let found = console.wait_for_any(&["wrote-", "failed-"], FAILS_WITHIN)?;
        if found.which == 1 {
            let text = console.text();
            let acknowledged = (last_number(&text, "wrote-").context("the writer has written nothing")?, last);
            return Ok(Cut { acknowledged, failed: found.at });
        }
        last = found.at;
    }
}

/// Nothing was acknowledged after the failure.
pub fn stays_cut(machine: &Machine) -> Result<()> {
    let text = machine.console.text();
    let (_, after) = text.rsplit_once("failed-").context("no write has failed")?;
    ensure!(!after.contains("wrote-"), "a write was acknowledged after one had failed: {after}");
    Ok(())
}

/// What has the disk: the ring's numbers in order, and those of the file. Read past every cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// The ring's.
    pub raw: Vec<u64>,
    /// The file's.
    pub file: Vec<u64>,
}

impl Records {
    /// As the machine that has the disk now reads them.
    pub fn read(machine: &mut Machine) -> Result<Self> {
        let [first, length] = RING;
        let raw = format!("dd if=/dev/nvme0n1 bs=4096 skip={first} count={length} iflag=direct");
        let mut numbers = |read: &str| -> Result<Vec<u64>> {
            let text = machine.console.shell(&format!("{read} 2>/dev/null | tr -d '\\0' | tr -s ' ' '\\n'"), SHELL_WITHIN)?;
            let mut numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>().with_context(|| text.clone())?;
            numbers.sort_unstable();
            Ok(numbers)
        };
        Ok(Self { raw: numbers(&raw)?, file: numbers("dd if=/root/records bs=4096 iflag=direct")? })
    }

    /// Everything that was acknowledged is there, and of what was not, at most the one record that was under way.
    pub fn hold(&self, acknowledged: u64) -> Result<()> {
        let one_more = |last: u64| (acknowledged..=acknowledged + 1).contains(&last);
        let whole: Vec<u64> = (1..=self.file.last().copied().unwrap_or_default()).collect();
        ensure!(self.file == whole && one_more(whole.last().copied().unwrap_or_default()), "{acknowledged} were acknowledged: {self:?}");
        let (last, length) = (self.raw.last().copied().unwrap_or_default(), RING[1]);
        let ring: Vec<u64> = (last.saturating_sub(length) + 1..=last).collect();
        ensure!(self.raw == ring && one_more(last), "{acknowledged} were acknowledged: {self:?}");
        Ok(())
    }
}

/// The number behind the last `mark` of a text.
fn last_number(text: &str, mark: &str) -> Option<u64> {
    let (_, after) = text.rsplit_once(mark)?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
