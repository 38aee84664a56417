//! PID 1 tables.
