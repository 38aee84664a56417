//! tftp
