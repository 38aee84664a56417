//! The worker's side after the kernel: what it is told (sealed), and what it does next.

pub mod credentials;
pub mod session;

pub use credentials::{Credentials, Malformed};
pub use session::{Action, Event, Phase, Session};
