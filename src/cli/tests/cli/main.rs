//! The real `kurrent` against the real `kurrentd`, in folders and on ports of their own.

mod daemon;
mod first_hour;
mod ledger;
mod refusals;
