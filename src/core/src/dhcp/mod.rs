//! DHCP.
