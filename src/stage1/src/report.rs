//! `POST /stage1/report`: the appliance's timeline of this boot. That it is not heard never stops a boot.

use crate::Fault;
use kurrent_core::stage1::Credentials;
use kurrent_handshake::report_proof;
use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(3);
/// What the appliance keeps of it.
const DETAIL_MAX: usize = 200;

/// One report, ready to be sent: its proof is made, so it can be sent when its key is gone.
pub struct Prepared {
    server: SocketAddrV4,
    body: String,
}

impl Prepared {
    /// Holds nothing secret.
    pub fn new(credentials: &Credentials, step: &str, detail: &str) -> Self {
        let detail: String = detail.chars().take(DETAIL_MAX).collect();
        Self { server: credentials.server, body: form(credentials, step, &detail) }
    }

    /// Sends it.
    pub fn send(&self) -> Result<(), Fault> {
        let (server, body) = (self.server, &self.body);
        let failed = |e: std::io::Error| format!("{server}: {e}");
        let mut stream = TcpStream::connect_timeout(&SocketAddr::V4(server), PATIENCE).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).map_err(failed)?;
        let head = format!(
            "POST /stage1/report HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(failed)?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).map_err(failed)?;
        let answer = String::from_utf8_lossy(answer.get(..length).unwrap_or_default());
        let status = answer.split_ascii_whitespace().nth(1).unwrap_or("nothing");
        if status == "204" { Ok(()) } else { Err(format!("it answers {status}")) }
    }
}

fn form(credentials: &Credentials, step: &str, detail: &str) -> String {
    let proof = hex::encode(report_proof(&credentials.report_key, &credentials.boot_id, step, detail));
    format!("boot_id={}&step={}&detail={}&proof={proof}", credentials.boot_id, encoded(step), encoded(detail))
}

/// `application/x-www-form-urlencoded`, with `%20` for a space.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for octet in text.bytes() {
        if octet.is_ascii_alphanumeric() || b"-._~".contains(&octet) {
            out.push(char::from(octet));
        } else {
            out.push_str(&format!("%{octet:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_can_not_add_fields_to_the_form() {
        assert_eq!(encoded("a&step=root \u{e9}%"), "a%26step%3Droot%20%C3%A9%25");
    }
}
