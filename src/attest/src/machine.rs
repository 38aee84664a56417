//! What the program needs of the machine it runs on: the seam between the order of events and the firmware.

use crate::Refusal;
use crate::smbios::Memory;
use zeroize::Zeroizing;

/// Who may see a variable, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Kept over power-off, gone when an operating system starts.
    Protected,
    /// Until an operating system starts.
    Volatile,
    /// Until power-off or reset, and the operating system sees it and can not remove it: what stage-1 is handed.
    Handed,
    /// Kept until stage-1 removes it: only non-volatile variables can be removed by an operating system.
    Taken,
}

/// A machine with a store of variables.
pub trait Machine {
    /// Reads a variable of a kind. One of the same name and of another kind is not ours: a former tenant's operating system may
    /// have planted a key that it knows. It is removed, and counts as absent.
    ///
    /// # Errors
    /// [`Refusal::Firmware`] when the store fails, or the variable is ours but not `N` octets: it is never overwritten.
    fn read<const N: usize>(&mut self, name: &str, kind: Kind) -> Result<Option<Zeroizing<[u8; N]>>, Refusal>;

    /// Writes a variable. A protected one never takes the place of what has its name; others do.
    ///
    /// # Errors
    /// [`Refusal::Firmware`] when the store refuses.
    fn write(&mut self, name: &str, kind: Kind, octets: &[u8]) -> Result<(), Refusal>;

    /// Gives a protected variable that was read before another value, in one firmware call.
    ///
    /// # Errors
    /// [`Refusal::Firmware`] when the store refuses.
    fn replace(&mut self, name: &str, octets: &[u8; 32]) -> Result<(), Refusal>;

    /// Removes a variable, if it is there.
    ///
    /// # Errors
    /// [`Refusal::Firmware`] when the store refuses.
    fn remove(&mut self, name: &str) -> Result<(), Refusal>;

    /// Removes variables that have one of `names` under another vendor's GUID. iPXE looks variables up by name alone: what a
    /// former tenant's operating system left there would be read instead of ours, its public key registered for this machine.
    ///
    /// # Errors
    /// [`Refusal::Firmware`] when one can not be removed.
    fn remove_lookalikes(&mut self, names: &[&str]) -> Result<(), Refusal>;

    /// Random octets.
    ///
    /// # Errors
    /// [`Refusal::NoEntropy`].
    fn random(&mut self) -> Result<Zeroizing<[u8; 32]>, Refusal>;

    /// The memory that is plugged in, if the firmware tells.
    fn memory(&mut self) -> Option<Memory>;

    /// One line on the console, for the person in front of the machine.
    fn say(&mut self, line: &str);
}
