//! stage1
