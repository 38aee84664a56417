//! The only place that reads clocks.

use kurrent_core::time::{Mono, Now, Wall};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::time::Duration;

/// Reads both clocks once.
#[must_use]
pub fn now() -> Now {
    let read = |clock| {
        let t = clock_gettime(clock);
        Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
    };
    let wall = read(ClockId::Realtime);
    let wall = Wall::new(i64::try_from(wall.as_secs()).unwrap_or(0), i32::try_from(wall.subsec_nanos()).unwrap_or(0));
    Now { mono: Mono(read(ClockId::Boottime)), wall: wall.unwrap_or(Wall::UNIX_EPOCH) }
}

/// Sets the wall clock.
///
/// # Errors
/// As `clock_settime(2)`: only root may.
pub fn set_wall(wall: Wall) -> std::io::Result<()> {
    let nanos = wall.subsec_nanosecond().max(0);
    Ok(clock_settime(ClockId::Realtime, Timespec { tv_sec: wall.as_second(), tv_nsec: nanos.into() })?)
}
