//! What a device has done of its boot, step by step: the answer to "where did it stop?".

use crate::time::Now;
use serde::Serialize;

/// The steps of one boot, in order. `Login` is never seen by the appliance; the lab reads it from the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// First DISCOVER of this boot.
    Dhcp,
    /// The network boot program was asked for (TFTP or HTTP).
    Loader,
    /// `boot.ipxe` was fetched.
    Script,
    /// `/boot-vars` accepted the device's answer.
    Attest,
    /// The kernel was fetched.
    Kernel,
    /// Stage-1 connected to its disk.
    Connect,
    /// Stage-1 found the root file system and switches to it.
    Root,
}

/// One step and when it was first seen in this boot.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// Which step.
    pub step: Step,
    /// Wall-clock time, RFC 3339.
    pub at: crate::time::Wall,
    /// Milliseconds since the first step of this boot.
    pub since_start_ms: u64,
}

/// The latest boot of one device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Boot {
    /// Steps seen, in order of time.
    pub marks: Vec<Mark>,
    /// The last thing that was refused or failed in this boot, in words.
    pub fault: Option<String>,
    #[serde(skip)]
    started: crate::time::Mono,
}

impl Boot {
    /// Records `step`. A [`Step::Dhcp`] after a later step starts a new boot; a step already seen is kept as first seen.
    pub fn mark(&mut self, step: Step, now: Now) {
        if step == Step::Dhcp && self.marks.iter().any(|m| m.step > Step::Dhcp) {
            *self = Self::default();
        }
        if self.marks.iter().any(|m| m.step == step) {
            return;
        }
        if self.marks.is_empty() {
            self.started = now.mono;
        }
        let since_start_ms = u64::try_from(now.mono.since(self.started).as_millis()).unwrap_or(u64::MAX);
        self.marks.push(Mark { step, at: now.wall, since_start_ms });
    }
}
