//! PID 1 of the appliance as decisions: what it is told, what it mounts, what it runs, what it shows.

pub mod clock;
pub mod disk;
pub mod gpt;
pub mod grow;
pub mod mounts;
pub mod nic;
pub mod plan;
pub mod screen;
pub mod status;
pub mod supervise;

pub use plan::{Plan, UplinkPlan};
pub use status::Status;

use std::fmt::Write as _;

/// Appends `key=value`, kept to one line whatever the value holds.
fn line(text: &mut String, key: &str, value: impl std::fmt::Display) {
    let value: String = value.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{key}={value}");
}
