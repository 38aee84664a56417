//! Questions on a terminal: whether it is meant, and the passphrase of a backup.

use crate::arguments::Sure;
use crate::arguments::system::Passphrase;
use crate::failure::Failure;
use std::io::{BufRead, IsTerminal, Read, Write};

/// Longer is no passphrase, but a file that was named by mistake.
const MAX_PASSPHRASE_OCTETS: u64 = 4096;

/// Whether a person is there to be asked. Scripts said what they mean.
pub fn needed(sure: Sure) -> bool {
    !sure.yes && possible()
}

/// Whether there is a terminal to ask on.
pub fn possible() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Goes on only after a yes.
pub fn ask(question: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::local(format!("the terminal can not be read: {e}; say --yes"));
    let mut terminal = std::io::stderr();
    write!(terminal, "{question} [y/N] ").and_then(|()| terminal.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().take(64).read_line(&mut answer).map_err(failed)?;
    if is_yes(&answer) { Ok(()) } else { Err(Failure::local("not done, as you did not say yes")) }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// The passphrase from its file, or typed unseen; twice for a new one, as nobody sees a slip.
pub fn passphrase(wanted: &Passphrase, new: bool) -> Result<String, Failure> {
    let found = match &wanted.passphrase_file {
        Some(path) => {
            let failed = |e: std::io::Error| Failure::local(format!("the passphrase file {} can not be read: {e}", path.display()));
            let mut text = String::new();
            std::fs::File::open(path).map_err(failed)?.take(MAX_PASSPHRASE_OCTETS).read_to_string(&mut text).map_err(failed)?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        None => {
            if !std::io::stdin().is_terminal() {
                let what = "there is no terminal to ask for the passphrase; give --passphrase-file FILE or set KURRENT_PASSPHRASE_FILE";
                return Err(Failure::local(what));
            }
            let typed = prompt("Passphrase: ")?;
            if new && prompt("The same again: ")? != typed {
                return Err(Failure::local("the two passphrases differ; nothing was done"));
            }
            typed
        }
    };
    if found.is_empty() { Err(Failure::local("the passphrase is empty; nothing was done")) } else { Ok(found) }
}

fn prompt(text: &str) -> Result<String, Failure> {
    rpassword::prompt_password(text).map_err(|e| Failure::local(format!("the terminal can not be read: {e}; give --passphrase-file FILE")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, expected) in
            [("y\n", true), ("YES\n", true), (" y ", true), ("", false), ("\n", false), ("n\n", false), ("yep", false)]
        {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }
}
