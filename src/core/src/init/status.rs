//! What the daemon tells PID 1 for the screen: `/run/kurrent/status`, `key=value` lines.
//!
//! Keys this version does not know are passed over: the screen is for people, and half a screen is better than none.

use super::line;

/// The service that writes the status: with its end the status is not true any more.
pub const WRITER: &str = "kurrentd";

/// Lists in a status are cut to this many entries when read: the screen has 24 lines.
const MAX_ENTRIES: usize = 64;

/// The daemon's state in the screen's words. Only text for people; no secret but the first-run token, which the
/// screen is there to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether the daemon serves at all.
    pub serving: bool,
    /// Addresses of the API (`https://192.0.2.9:8443`).
    pub api: Vec<String>,
    /// Until the first user is made; then absent.
    pub first_run_token: Option<String>,
    /// SHA-256 of the CA certificate in hex: what people compare before they trust.
    pub ca_fingerprint: Option<String>,
    /// Who can let others in: names of admins, some of them.
    pub admins: Vec<String>,
    /// Counts in words (`2 pooled, 1 bound, 0 revoked`).
    pub devices: String,
    /// Recent devices, newest first: MAC, state, worker, step.
    pub device: Vec<String>,
    /// What is wrong, as sentences.
    pub faults: Vec<String>,
    /// The last refusals, newest first.
    pub refusals: Vec<String>,
}

impl Status {
    /// The lines.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        line(&mut text, "serving", if self.serving { "yes" } else { "no" });
        let lists =
            [("api", &self.api), ("admin", &self.admins), ("device", &self.device), ("fault", &self.faults), ("refusal", &self.refusals)];
        if let Some(token) = &self.first_run_token {
            line(&mut text, "first_run_token", token);
        }
        if let Some(fingerprint) = &self.ca_fingerprint {
            line(&mut text, "ca_fingerprint", fingerprint);
        }
        line(&mut text, "devices", &self.devices);
        for (key, entries) in lists {
            for entry in entries {
                line(&mut text, key, entry);
            }
        }
        text
    }

    /// Reads the lines back. Never fails: what is missing stays empty.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let list = match key {
                "serving" => {
                    status.serving = value == "yes";
                    continue;
                }
                "first_run_token" => {
                    status.first_run_token = Some(value.to_owned());
                    continue;
                }
                "ca_fingerprint" => {
                    status.ca_fingerprint = Some(value.to_owned());
                    continue;
                }
                "devices" => {
                    value.clone_into(&mut status.devices);
                    continue;
                }
                "api" => &mut status.api,
                "admin" => &mut status.admins,
                "device" => &mut status.device,
                "fault" => &mut status.faults,
                "refusal" => &mut status.refusals,
                _ => continue,
            };
            if list.len() < MAX_ENTRIES {
                list.push(value.to_owned());
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back_as_it_was() {
        let status = Status {
            serving: true,
            api: vec!["https://10.77.0.1:8443".to_owned(), "https://192.0.2.9:8443".to_owned()],
            first_run_token: Some("ABCDEFGHIJKLMNOPQRSTUVWXYZ".to_owned()),
            ca_fingerprint: Some("ab".repeat(32)),
            admins: vec!["ada".to_owned()],
            devices: "1 pooled, 1 bound, 0 revoked".to_owned(),
            device: vec!["52:54:00:12:34:56 bound node-1 root".to_owned()],
            faults: vec!["a=b: devices.yml line 3".to_owned()],
            refusals: vec!["52:54:00:12:34:57 wrong_key".to_owned()],
        };
        assert_eq!(Status::parse(&status.encode()), status);
        assert_eq!(Status::parse(&Status::default().encode()), Status::default());
    }

    #[test]
    fn a_value_cannot_start_a_line_of_its_own() {
        let status = Status { faults: vec!["x\nserving=yes\u{1b}[2J".to_owned()], ..Status::default() };
        let read = Status::parse(&status.encode());
        assert_eq!((read.serving, read.faults), (false, vec!["x serving=yes [2J".to_owned()]));
    }

    #[test]
    fn lists_of_a_status_are_bounded_and_foreign_lines_passed_over() {
        let text = "fault=x\n".repeat(1000) + "colour=red\nnonsense\n";
        assert_eq!(Status::parse(&text).faults.len(), MAX_ENTRIES);
    }
}
