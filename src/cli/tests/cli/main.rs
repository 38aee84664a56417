//! The real `kurrent` against the real `kurrentd`, in folders and on ports of their own; and against a server that answers what
//! the test says and keeps what was asked, where a real appliance can hardly be brought to do that.

mod archives;
mod batches;
mod coverage;
mod daemon;
mod devices;
mod fake;
mod first_hour;
mod foreign;
mod ledger;
mod lists;
mod migrations;
mod promises;
mod refusals;
mod restore;
mod storage;
mod terminal;
mod transport;
