//! kmod
