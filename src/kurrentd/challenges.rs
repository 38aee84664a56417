//! challenges
