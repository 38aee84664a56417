//! Machine tests: real firmware, real loaders, the real image, a real Debian. Run as root (`make test-vm`), one at a time.
//!
//! Every test is named after the rule it holds. Tests that leave the appliance as they found it share one (`lab::shared`);
//! those that break something boot their own. What cannot run fails: there is no skipping here.

mod harness;
