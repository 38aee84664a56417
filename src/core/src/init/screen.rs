//! The status screen as text: 24 lines of at most 80 ASCII characters, for any monitor and any serial line.
//!
//! Faults have the first claim on the room: they are shown whole before devices and refusals get any.

use super::status::Status;

/// Characters in a line.
pub const WIDTH: usize = 80;
/// Lines.
pub const HEIGHT: usize = 24;

const MAX_API_LINES: usize = 3;
const MAX_DEVICES: usize = 6;
const MAX_REFUSALS: usize = 3;
/// Indent of entries and of what goes on in the next line.
const INDENT: &str = "  ";
const LABEL: usize = 15;

/// One network for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkLine {
    /// Kernel name of the NIC.
    pub nic: String,
    /// `10.77.0.1/24`, or why there is none.
    pub address: String,
    /// Hardware address.
    pub mac: String,
    /// A cable with something at the other end.
    pub link: bool,
}

/// Everything the screen can show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Kurrent's version.
    pub version: String,
    /// The appliance's hostname; empty until it is known.
    pub hostname: String,
    /// What PID 1 is doing, until services run ("Looking for the appliance's disk").
    pub phase: String,
    /// Boot network.
    pub boot: Option<NetworkLine>,
    /// Uplink.
    pub uplink: Option<NetworkLine>,
    /// PID 1's own faults.
    pub faults: Vec<String>,
    /// What the daemon says; `None` while it has not said anything.
    pub status: Option<Status>,
}

/// The lines, without trailing blanks; at most [`HEIGHT`] of at most [`WIDTH`] characters.
#[must_use]
pub fn render(view: &View) -> Vec<String> {
    let mut lines = vec![title(view), "-".repeat(WIDTH)];
    if !view.phase.is_empty() {
        lines.push(fact("State", &view.phase));
    } else if let Some(status) = &view.status {
        lines.push(fact("State", if status.serving { "serving" } else { "NOT SERVING" }));
    } else {
        lines.push(fact("State", "starting"));
    }
    for (label, network) in [("Boot network", &view.boot), ("Uplink", &view.uplink)] {
        lines.extend(network.as_ref().map(|network| fact(label, &network_text(network))));
    }
    let empty = Status::default();
    let status = view.status.as_ref().unwrap_or(&empty);
    for (position, api) in status.api.iter().take(MAX_API_LINES).enumerate() {
        lines.push(fact(if position == 0 { "API" } else { "" }, api));
    }
    lines.extend(status.ca_fingerprint.as_ref().map(|fingerprint| fact("CA SHA-256", fingerprint)));
    match &status.first_run_token {
        Some(token) => lines.push(fact("First token", token)),
        None if !status.admins.is_empty() => lines.push(fact("Log in", &format!("kurrent login (admins: {})", status.admins.join(", ")))),
        None => {}
    }
    if !status.devices.is_empty() {
        lines.push(fact("Devices", &status.devices));
    }

    let faults: Vec<&String> = view.faults.iter().chain(&status.faults).collect();
    if !faults.is_empty() {
        let room = HEIGHT.saturating_sub(lines.len() + 2);
        lines.extend(["".to_owned(), "FAULTS".to_owned()]);
        lines.extend(bounded(faults.iter().flat_map(|fault| wrapped(fault)).collect(), room));
    }
    for (heading, entries, most) in [("Last seen", &status.device, MAX_DEVICES), ("Last refused", &status.refusals, MAX_REFUSALS)] {
        // The heading, the blank line before it and one entry, or nothing.
        let room = HEIGHT.saturating_sub(lines.len() + 2).min(most);
        if room > 0 && !entries.is_empty() {
            lines.extend(["".to_owned(), heading.to_owned()]);
            lines.extend(entries.iter().take(room).map(|entry| cut(&format!("{INDENT}{}", ascii(entry)))));
        }
    }
    lines.into_iter().take(HEIGHT).map(|line| line.trim_end().to_owned()).collect()
}

fn title(view: &View) -> String {
    let name = cut(&ascii(&view.hostname));
    let left = format!("Kurrent {}", ascii(&view.version));
    let gap = WIDTH.saturating_sub(left.len() + name.len()).max(1);
    cut(&format!("{left}{}{name}", " ".repeat(gap)))
}

fn fact(label: &str, value: &str) -> String {
    cut(&format!("{label:<LABEL$}{}", ascii(value)))
}

fn network_text(network: &NetworkLine) -> String {
    let link = if network.link { "link" } else { "NO LINK" };
    format!("{:<8} {:<20} {:<19} {link}", network.nic, network.address, network.mac)
}

/// Printable ASCII only: a monitor's font and a log have nothing else for sure, and no text may move the cursor.
fn ascii(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

fn cut(line: &str) -> String {
    if line.len() <= WIDTH {
        return line.to_owned();
    }
    let kept: String = line.chars().take(WIDTH - 2).collect();
    format!("{kept}..")
}

/// A sentence as lines, broken between words where that is possible.
fn wrapped(text: &str) -> Vec<String> {
    let room = WIDTH - 2 * INDENT.len();
    let mut lines = vec![String::new()];
    for word in ascii(text).split(' ').filter(|word| !word.is_empty()) {
        let mut rest = word;
        loop {
            let line = lines.last_mut().map_or(0, |line| line.len());
            let separator = usize::from(line > 0);
            if line + separator + rest.len() <= room {
                if let Some(last) = lines.last_mut() {
                    last.push_str(&" ".repeat(separator));
                    last.push_str(rest);
                }
                break;
            }
            if line > 0 {
                lines.push(String::new());
                continue;
            }
            // One word longer than a line.
            let (head, tail) = rest.split_at_checked(room).unwrap_or((rest, ""));
            if let Some(last) = lines.last_mut() {
                last.push_str(head);
            }
            lines.push(String::new());
            rest = tail;
        }
    }
    let indent = |(position, line)| format!("{}{line}", if position == 0 { INDENT.to_owned() } else { INDENT.repeat(2) });
    lines.into_iter().filter(|line| !line.is_empty()).enumerate().map(indent).collect()
}

/// At most `room` lines; the last one says how many are not shown.
fn bounded(mut lines: Vec<String>, room: usize) -> Vec<String> {
    if lines.len() > room {
        let hidden = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        lines.push(format!("{INDENT}... {hidden} more lines in the log"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> View {
        View {
            version: "0.1.0".to_owned(),
            hostname: "kurrent".to_owned(),
            phase: String::new(),
            boot: Some(NetworkLine {
                nic: "eth1".to_owned(),
                address: "10.77.0.1/24".to_owned(),
                mac: "52:54:00:12:34:56".to_owned(),
                link: true,
            }),
            uplink: Some(NetworkLine {
                nic: "eth0".to_owned(),
                address: "waiting for DHCP".to_owned(),
                mac: "52:54:00:12:34:57".to_owned(),
                link: false,
            }),
            faults: vec![],
            status: Some(Status {
                serving: true,
                api: vec!["https://10.77.0.1:8443".to_owned(), "https://10.0.2.15:8443".to_owned()],
                first_run_token: Some("ABCDEFGHIJKLMNOPQRSTUVWXYZ".to_owned()),
                ca_fingerprint: Some("0123456789abcdef".repeat(4)),
                admins: vec![],
                devices: "1 pooled, 1 bound, 0 revoked".to_owned(),
                device: vec!["52:54:00:aa:00:01 bound node-1 root".to_owned(), "52:54:00:aa:00:02 pooled".to_owned()],
                faults: vec![],
                refusals: vec!["52:54:00:aa:00:03 wrong_signature".to_owned()],
            }),
        }
    }

    #[test]
    fn a_serving_appliance_shows_what_people_need() {
        let expected = "\
Kurrent 0.1.0                                                            kurrent
--------------------------------------------------------------------------------
State          serving
Boot network   eth1     10.77.0.1/24         52:54:00:12:34:56   link
Uplink         eth0     waiting for DHCP     52:54:00:12:34:57   NO LINK
API            https://10.77.0.1:8443
               https://10.0.2.15:8443
CA SHA-256     0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
First token    ABCDEFGHIJKLMNOPQRSTUVWXYZ
Devices        1 pooled, 1 bound, 0 revoked

Last seen
  52:54:00:aa:00:01 bound node-1 root
  52:54:00:aa:00:02 pooled

Last refused
  52:54:00:aa:00:03 wrong_signature";
        assert_eq!(render(&full()).join("\n"), expected);
    }

    #[test]
    fn a_bad_file_is_named_with_its_line() {
        let view = View {
            version: "0.1.0".to_owned(),
            phase: "NOT SERVING: kurrent.yaml has to be corrected".to_owned(),
            faults: vec![
                "/boot/kurrent.yaml:12: unknown key 'adress' under spec.networking.boot; the nearest valid key is 'address', \
                 see the example that came with the image"
                    .to_owned(),
            ],
            ..View::default()
        };
        let expected = "\
Kurrent 0.1.0
--------------------------------------------------------------------------------
State          NOT SERVING: kurrent.yaml has to be corrected

FAULTS
  /boot/kurrent.yaml:12: unknown key 'adress' under spec.networking.boot; the
    nearest valid key is 'address', see the example that came with the image";
        assert_eq!(render(&view).join("\n"), expected);
    }

    #[test]
    fn whatever_comes_the_screen_stays_24_lines_of_80_ascii_characters() {
        let long = "x\u{1b}[2J\u{e4}".repeat(300) + &" word".repeat(500);
        let many = vec![long.clone(); 100];
        let status = Status {
            serving: true,
            api: many.clone(),
            first_run_token: Some(long.clone()),
            ca_fingerprint: Some(long.clone()),
            admins: many.clone(),
            devices: long.clone(),
            device: many.clone(),
            faults: many.clone(),
            refusals: many.clone(),
        };
        let line = NetworkLine { nic: long.clone(), address: long.clone(), mac: long.clone(), link: true };
        let view = View {
            version: long.clone(),
            hostname: long,
            phase: String::new(),
            boot: Some(line.clone()),
            uplink: Some(line),
            faults: many,
            status: Some(status),
        };
        for view in [view.clone(), View { faults: vec![], status: None, ..view }, View::default()] {
            let lines = render(&view);
            assert!(lines.len() <= HEIGHT, "{}", lines.len());
            for line in lines {
                assert!(line.len() <= WIDTH && line.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{line}");
            }
        }
    }
}
