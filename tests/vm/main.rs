//! Machine tests: real firmware, real loaders, the real image, a real Debian. Run as root (`make test-vm`), one at a time.
//!
//! Every test is named after the rule it holds. Tests that leave the appliance as they found it share one lab
//! (`shared::with`) and its workers; those that break something boot their own. Plain `#[test]` functions, `Result` out; a
//! [`kurrent_harness::evidence::Run`] that is not told `passed()` keeps its consoles and captures. What cannot run fails:
//! there is no skipping here.

mod attack;
mod clone;
mod credentials;
mod disk;
mod exported;
mod fence;
mod firmware;
mod harness;
mod image;
mod junk;
mod migrate;
mod power;
mod secrets;
mod server_key;
mod shared;
mod target;
mod vlan;
mod worker;
mod writer;
