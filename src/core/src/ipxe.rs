//! ipxe
