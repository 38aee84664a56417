//! The uplink's DHCP client as a state machine (RFC 2131 s4.4); the shell is `kurrentd uplink`.
//!
//! ```text
//! Selecting --offer--> Requesting --ack--> Bound --T1--> Renewing --T2--> Rebinding --over--> Selecting
//!     ^                    | nak, no answer   ^              | ack            | ack                ^
//!     +--------------------+                  +--------------+----------------+     nak: ----------+
//! ```
