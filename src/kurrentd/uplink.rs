//! uplink
