//! What a crash leaves: the real daemon is ended with `SIGKILL` at each of its write steps, and at random under load. After each,
//! the next start has every acknowledged change, nothing half-done, and the invariants of the model.

mod check;
mod keys;
mod load;
mod steps;

pub use check::text;
