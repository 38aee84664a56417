//! What a backup's users are worth after a restore: sessions nothing, tokens only what is not known to be revoked.

use super::files;
use kurrent_core::time::Wall;
use kurrent_sys::store;
use serde::Serialize;
use std::path::Path;

const MAX_CA_BYTES: u64 = 64 << 10;
/// The appliance's CA: another one, another appliance.
const CA_KEY: &str = "secrets/ca.key";

/// What became of the tokens of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Sessions that were in the backup; none is after the restore.
    pub sessions: usize,
    /// Tokens that count again.
    pub restored: usize,
    /// Tokens that were revoked, or have ended, since the backup.
    pub revoked: usize,
    /// Whether it could be known which were revoked.
    pub revocations_known: bool,
}

/// Ends all sessions in the unpacked backup in `folder`, and the tokens that `living`, a state of the same appliance that reads, does
/// not have any more.
///
/// # Errors
/// `FILE:LINE: what`, of the backup.
pub fn after_restore(folder: &Path, living: &Path, now: Wall) -> Result<Tokens, String> {
    let held = files::read(folder)?;
    let living = files::read(living).ok().filter(|state| state.octets.users.is_some() && !is_another(folder, living));
    let mut told = Tokens { revocations_known: living.is_some(), ..Tokens::default() };
    let mut people = held.people.clone();
    people.keep_tokens(|user, token| {
        let keeps = !token.session && living.as_ref().is_none_or(|l| l.people.standing(user, &token.id, now).is_some());
        *match (token.session, keeps) {
            (true, _) => &mut told.sessions,
            (false, true) => &mut told.restored,
            (false, false) => &mut told.revoked,
        } += 1;
        keeps
    });
    if people != held.people {
        files::write(folder, &held, people, held.logins.clone()).map_err(|failed| format!("{failed:?}"))?;
    }
    Ok(told)
}

/// Whether the two are known to be of different appliances.
fn is_another(backup: &Path, living: &Path) -> bool {
    let key = |state: &Path| store::read(&state.join(CA_KEY), MAX_CA_BYTES).ok().flatten().map(zeroize::Zeroizing::new);
    key(backup).zip(key(living)).is_some_and(|(backup, living)| *backup != *living)
}
