//! One task per protocol, and the limits that their peers have.

pub mod dhcp;
pub mod dhcp6;
pub mod http;
pub mod limits;
mod quiet;
<<<<<<< HEAD
pub mod ra;
=======
pub mod rivals;
>>>>>>> 274080f (dhcp: other servers are found and shown; kurrent dhcp status)
pub mod tftp;
