//! The ledgers: what is true about devices, workers, disks and settings.
//!
//! `schema` is the on-disk form, `change` the only verbs, `apply` what a verb does to the whole, `view` what readers ask, `records`
//! what files and journal hold, `check` the invariants, `merge` what an edit by hand does, `by_hand` its words in the audit, `detail` what the audit holds of a change,
//! `restore` what a restored backup becomes, `weight` how large files can become, `unread` what a damaged side ledger stops, `migrate` reads what earlier versions wrote.
//! Only `kurrentd`'s ledger task applies changes; everybody else holds an immutable [`Ledger`] snapshot.

pub mod apply;
pub mod by_hand;
pub mod change;
mod check;
mod detail;
mod displaced;
pub mod merge;
pub mod migrate;
pub mod plan;
pub mod records;
mod restore;
pub mod rules;
pub mod schema;
mod unread;
pub mod view;
mod weight;

pub use change::{Change, Outcome, Rejected};
pub use schema::{
    Agent, BootSettings, Device, DeviceState, Disk, DiskSource, Fingerprint, JoinToken, MasterTags, Migration, Role, Source, Worker,
};
pub use unread::Unread;
pub use view::{Ledger, Settings};
pub use weight::MAX_WEIGHT;
