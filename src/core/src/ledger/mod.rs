//! The ledgers: what is true about devices, workers, disks and settings.
//!
//! `schema` is the on-disk form, `change` the only verbs, `apply` what a verb does to the whole, `view` what readers ask, `records`
//! what files and journal hold, `check` the invariants, `merge` what an edit by hand does, `migrate` reads what earlier versions wrote.
//! Only `kurrentd`'s ledger task applies changes; everybody else holds an immutable [`Ledger`] snapshot.

pub mod apply;
pub mod change;
mod check;
mod displaced;
pub mod merge;
pub mod migrate;
pub mod plan;
pub mod records;
pub mod rules;
pub mod schema;
pub mod view;

pub use change::{Change, Outcome, Rejected};
pub use schema::{Agent, BootSettings, Device, DeviceState, Disk, DiskSource, Fingerprint, JoinToken, MasterTags, Role, Source, Worker};
pub use view::{Ledger, Settings};
