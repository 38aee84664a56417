//! Lines for people: on every console of the machine, serial and screen alike (`/dev/console` is only the last of them).

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// Consoles of one machine; more are not written to.
const MOST: usize = 4;

/// Makes `/dev/console` our standard streams, once `/dev` is there: whatever a library prints is seen.
pub fn open() {
    let Ok(console) = OpenOptions::new().read(true).write(true).open("/dev/console") else { return };
    for result in [rustix::stdio::dup2_stdin(&console), rustix::stdio::dup2_stdout(&console), rustix::stdio::dup2_stderr(&console)] {
        // Without a console there is nobody to tell.
        let _ = result;
    }
}

/// One line on every console.
pub fn say(line: &str) {
    let line = format!("\r\nkurrent: {}\r\n", printable(line));
    let active = fs::read_to_string("/sys/class/tty/console/active").unwrap_or_default();
    let mut told = false;
    for name in active.split_ascii_whitespace().take(MOST) {
        // A console that is not there (no serial port) must not keep the others silent.
        let opened = OpenOptions::new().write(true).open(Path::new("/dev").join(name));
        told |= opened.is_ok_and(|mut console| console.write_all(line.as_bytes()).is_ok());
    }
    if !told {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Text from outside must not move the cursor.
fn printable(line: &str) -> String {
    line.chars().take(400).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_can_not_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a [2Jb c");
        assert_eq!(printable(&"x".repeat(1000)).len(), 400);
    }
}
