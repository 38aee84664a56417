//! The real `kurrent` against a server that answers what the test says and keeps what was asked: what a real appliance can
//! hardly be brought to do.

mod archives;
mod batches;
mod fake;
mod foreign;
mod lists;
mod terminal;
mod transport;
