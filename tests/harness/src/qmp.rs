//! QEMU's control socket: the few orders the lab gives (reset, power button, quit).

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// QEMU answers its monitor at once unless it hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// A connection to one machine's monitor.
pub struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Qmp {
    /// Greets QEMU and enters command mode.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_WITHIN)).context("set a deadline for QMP")?;
        let writer = stream.try_clone().context("second handle of QMP")?;
        let mut qmp = Self { reader: BufReader::new(stream), writer };
        qmp.line().context("QMP greeting")?;
        qmp.execute("qmp_capabilities")?;
        Ok(qmp)
    }

    /// One command without arguments; its return value.
    pub fn execute(&mut self, command: &str) -> Result<Value> {
        self.execute_with(command, &json!({}))
    }

    /// One command; its return value.
    pub fn execute_with(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.writer, "{request}").with_context(|| format!("send QMP {command}"))?;
        loop {
            let answer = self.line().with_context(|| format!("answer to QMP {command}"))?;
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
            // Anything else is an event; nobody waits for those here.
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("QEMU closed its monitor");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
