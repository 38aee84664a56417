//! config_file
