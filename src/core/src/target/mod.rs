//! nvmet.
