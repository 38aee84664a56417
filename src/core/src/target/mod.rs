//! The kernel's NVMe target: what it should export, what it exports, and the steps from one to the other.
//!
//! ```text
//! ledger + credentials --> tree::Desired --+
//!                                          +--> plan::plan --> [Step] --> sys::configfs runs them --> observe again: plan is empty
//! configfs --> tree::Observed -------------+
//! ```
//! Access opens last and closes first: a subsystem is linked to the port only when its one host, its keys and its namespace are
//! right, and anything that must be taken away is taken away with the link cut. The allow-any attribute is never set.

pub mod changed;
pub mod plan;
pub mod secret;
pub mod tree;

pub use plan::{Step, plan};
pub use secret::Secret;
pub use tree::{Desired, Observed};
