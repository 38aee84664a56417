//! Who is at work on which file: two requests never write one, and none removes what another reads.

use super::StorageError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Names {
    written: BTreeSet<String>,
    /// With how many readers.
    read: BTreeMap<String, usize>,
}

/// Names in use now. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Claims(Arc<Mutex<Names>>);

/// A name in use; free again when dropped.
pub struct Claim {
    claims: Claims,
    name: String,
    writes: bool,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For whoever makes, changes or removes it.
    ///
    /// # Errors
    /// `busy`: somebody else is at work on it.
    pub(super) fn write(&self, name: impl Into<String>) -> Result<Claim, StorageError> {
        let name = name.into();
        let mut names = self.lock();
        if names.read.contains_key(&name) {
            let detail = format!("{name} is being cloned; wait for that to end, or cancel the job");
            return Err(StorageError::new("busy", 409, detail));
        }
        if !names.written.insert(name.clone()) {
            return Err(StorageError::new("busy", 409, format!("{name} is being written already; wait for that to end")));
        }
        Ok(Claim { claims: self.clone(), name, writes: true })
    }

    /// For one of several readers.
    ///
    /// # Errors
    /// `busy`: it is being written or removed.
    pub(super) fn read(&self, name: impl Into<String>) -> Result<Claim, StorageError> {
        let name = name.into();
        let mut names = self.lock();
        if names.written.contains(&name) {
            return Err(StorageError::new("busy", 409, format!("{name} is being written or removed; ask again when that has ended")));
        }
        let readers = names.read.entry(name.clone()).or_default();
        *readers = readers.saturating_add(1);
        Ok(Claim { claims: self.clone(), name, writes: false })
    }

    pub(super) fn is_written(&self, name: &str) -> bool {
        self.lock().written.contains(name)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut names = self.claims.lock();
        if self.writes {
            names.written.remove(&self.name);
        } else if let Some(readers) = names.read.get_mut(&self.name) {
            *readers = readers.saturating_sub(1);
            if *readers == 0 {
                names.read.remove(&self.name);
            }
        }
    }
}
