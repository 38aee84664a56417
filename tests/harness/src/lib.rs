//! The lab: QEMU machines on a boot network, driven by deadlines and conditions, with evidence kept when something fails.
//!
//! Used by `kurrent-lab` (what `make lab` runs) and by the machine tests. It knows the product only as an operator does: an
//! image, a configuration file, a console, the `kurrent` program, the API. It must never leave a process or a namespace
//! behind, however a run ends, and two runs at once must not meet.

pub mod api;
pub mod appliance;
pub mod attack;
pub mod capture;
pub mod console;
pub mod evidence;
pub mod frame;
pub mod kept;
pub mod lab;
pub mod machine;
pub mod master;
pub mod needles;
pub mod netns;
pub mod operator;
pub mod process;
pub mod qmp;
pub mod rescue;
pub mod steps;
pub mod timeline;
pub mod tls;
pub mod tools;
pub mod wire;
pub mod worker;
