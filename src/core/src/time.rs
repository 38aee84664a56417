//! Times are arguments: core cannot read a clock, it is told what time it is.

use std::time::Duration;

/// Monotonic time since this boot of the host. For timeouts within one run; never written to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub Duration);

impl Mono {
    /// The instant `later` after this one (saturating).
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// How long ago `earlier` was; zero when it lies in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Wall-clock time, for what people read and what must survive a restart. Written as RFC 3339 UTC.
pub type Wall = jiff::Timestamp;

/// One reading of both clocks, taken by the shell once per event.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic time: a step of the wall clock does not move it.
    pub mono: Mono,
    /// Wall-clock time, UTC.
    pub wall: Wall,
}
