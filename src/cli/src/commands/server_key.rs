//! The key that machines pin.

use crate::arguments::system::ServerKey;
use crate::confirm;
use crate::failure::Failure;
use crate::output::{Column, at, table, text};
use crate::session::Session;
use serde_json::{Value, json};

const FORMER: &[Column] = &[("FORMER KEY (SHA-256)", "fingerprint"), ("REPLACED", "replaced_at")];

/// Carries it out.
pub async fn run(session: &Session, command: ServerKey) -> Result<(), Failure> {
    match command {
        ServerKey::Show(look) => session.one("/v1/server-key".into(), look, people).await,
        ServerKey::Rotate { force, sure } => {
            if confirm::needed(sure) {
                let now = session.client.get("/v1/server-key").await?;
                confirm::ask(&question(&now))?;
            }
            let answer = session.client.post("/v1/server-key/rotate", json!({ "force": force })).await?;
            session.show(&answer, |key| {
                format!("{}\n\nmake a backup now: machines that have followed refuse an appliance restored from an older one", people(key))
            })
        }
    }
}

fn question(now: &Value) -> String {
    let left = match at(now, "left_behind_next").as_u64() {
        None | Some(0) => String::new(),
        Some(left) => format!(" {left} machines may still have pinned the oldest key, which is forgotten now."),
    };
    format!("Replace the key that machines pin? Each follows at its next boot; backups of before are then of no use for them.{left}")
}

fn people(key: &Value) -> String {
    let head = format!("SHA-256 {}\ned25519 {}", text(at(key, "fingerprint")), text(at(key, "public_key")));
    let former = table(key, "former", FORMER, "it was never replaced");
    let behind = format!(
        "machines that have not proved themselves since the last rotation: {}\nrotations until the oldest key is forgotten: {}",
        text(at(key, "not_followed")),
        text(at(key, "rotations_left"))
    );
    [head, former, behind].join("\n\n")
}
