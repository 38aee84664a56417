//! One boot as a table: the appliance's own marks, put on the worker's clock by its first DISCOVER on the wire.

use crate::frame;
use crate::worker;
use crate::{appliance::Appliance, machine::Machine};
use anyhow::{Context, Result};
use kurrent_core::id::MacAddr;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A pcap file's header, and the header of each record (libpcap file format).
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// A captured frame and when it was on the wire.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Host time.
    pub at: SystemTime,
    /// The frame, perhaps cut.
    pub frame: Vec<u8>,
}

/// The frames of a capture that QEMU wrote on this machine (native byte order, microseconds); a record still being
/// written is left out.
pub fn read_capture(path: &Path) -> Result<Vec<Captured>> {
    let octets = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let mut frames = Vec::new();
    let mut rest = octets.get(FILE_HEADER..).unwrap_or_default();
    loop {
        let field = |index: usize| -> Option<u32> { Some(u32::from_ne_bytes(rest.get(index * 4..index * 4 + 4)?.try_into().ok()?)) };
        let (Some(seconds), Some(micros), Some(length)) = (field(0), field(1), field(2)) else { return Ok(frames) };
        let end = RECORD_HEADER.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        let Some(frame) = rest.get(RECORD_HEADER..end) else { return Ok(frames) };
        let at = UNIX_EPOCH + Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
        frames.push(Captured { at, frame: frame.to_vec() });
        rest = rest.get(end..).unwrap_or_default();
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Step in the product's words, or `login`.
    pub step: String,
    /// After power-on.
    pub at: Duration,
}

/// A boot from power-on to login.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// In order of time.
    pub rows: Vec<Row>,
}

/// The boot of `machine` that ended in a login prompt at `login`.
pub fn of_boot(appliance: &Appliance, machine: &Machine, login: Instant) -> Result<Timeline> {
    let mac = worker::mac(machine.spec());
    // Power-on in host time; the console and the capture use different clocks of the same machine.
    let power_on = SystemTime::now() - machine.started.elapsed();
    let first = first_discover(&read_capture(machine.capture())?, mac, power_on).context("no DISCOVER of this boot in the capture")?;
    let answer = appliance.api.get(&format!("/v1/devices/{mac}/timeline"))?;
    let mut rows = rows_of_marks(&answer, first.duration_since(power_on).unwrap_or_default());
    rows.push(Row { step: "login".into(), at: login - machine.started });
    Ok(Timeline { rows })
}

fn first_discover(frames: &[Captured], mac: MacAddr, since: SystemTime) -> Option<SystemTime> {
    let is_ours = |c: &&Captured| c.at >= since && frame::parse(&c.frame).is_some_and(|d| d.client == mac && d.message_type == 1);
    frames.iter().find(is_ours).map(|captured| captured.at)
}

fn rows_of_marks(answer: &Value, first: Duration) -> Vec<Row> {
    let marks = answer.get("marks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let row = |mark: &Value| {
        let since = Duration::from_millis(mark.get("since_start_ms")?.as_u64()?);
        Some(Row { step: mark.get("step")?.as_str()?.to_owned(), at: first + since })
    };
    marks.iter().filter_map(row).collect()
}

impl Timeline {
    /// When a step was reached.
    pub fn at(&self, step: &str) -> Option<Duration> {
        self.rows.iter().find(|row| row.step == step).map(|row| row.at)
    }

    /// The table: step, seconds it took, seconds since power-on. `waited`: how long the device waited for its operator, which
    /// is inside the step before `attest`.
    pub fn table(&self, waited: Option<Duration>) -> String {
        let mut text = String::from("  step      took    since power-on\n");
        let mut before = Duration::ZERO;
        for row in &self.rows {
            let took = row.at.saturating_sub(before).as_secs_f64();
            text.push_str(&format!("  {:<8} {took:5.1} s  {:5.1} s", row.step, row.at.as_secs_f64()));
            if let (Some(waited), "attest") = (waited, row.step.as_str()) {
                text.push_str(&format!("   ({:.1} s of it waiting to be bound)", waited.as_secs_f64()));
            }
            text.push('\n');
            before = row.at;
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_read_and_a_half_written_record_left_out() -> Result<()> {
        let mut octets = vec![0_u8; FILE_HEADER];
        for field in [10_u32, 500_000, 3, 3] {
            octets.extend(field.to_ne_bytes());
        }
        octets.extend(*b"abc");
        octets.extend([0; 7]);
        let path = std::env::temp_dir().join(format!("kurrent-capture-{}.pcap", std::process::id()));
        fs::write(&path, octets)?;
        let frames = read_capture(&path)?;
        fs::remove_file(&path)?;
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].at, UNIX_EPOCH + Duration::from_millis(10_500));
        assert_eq!(frames[0].frame, b"abc");
        Ok(())
    }

    #[test]
    fn the_table_shows_each_step_and_its_share() {
        let answer = serde_json::json!({"marks": [{"step": "dhcp", "since_start_ms": 0}, {"step": "loader", "since_start_ms": 1500}]});
        let rows = rows_of_marks(&answer, Duration::from_secs(3));
        let table = Timeline { rows }.table(None);
        assert_eq!(table, "  step      took    since power-on\n  dhcp       3.0 s    3.0 s\n  loader     1.5 s    4.5 s\n");
    }
}
