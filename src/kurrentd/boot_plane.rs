//! boot_plane
