//! What each verb does to the ledgers.
