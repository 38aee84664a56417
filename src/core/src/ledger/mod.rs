//! The ledgers: what is true about devices, workers, disks and settings.
//!
//! `schema` is the on-disk form, `change` the only verbs, `apply` what a verb does to the whole, `view` what readers ask, `migrate`
//! reads what earlier versions wrote.
//! Only `kurrentd`'s ledger task applies changes; everybody else holds an immutable [`Ledger`] snapshot.

pub mod apply;
pub mod change;
mod displaced;
pub mod migrate;
pub mod rules;
pub mod schema;
pub mod view;

pub use change::{Change, Outcome, Rejected};
pub use schema::{Agent, BootSettings, Device, DeviceState, Disk, DiskSource, Fingerprint, JoinToken, MasterTags, Role, Source, Worker};
pub use view::{Ledger, Settings};
