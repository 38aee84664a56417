//! `kurrent backup`, `kurrent restore`. The passphrase goes into the body of a request and nowhere else.

use crate::arguments::system::{Backup, Restore};
use crate::confirm;
use crate::failure::Failure;
use crate::output::{fields, size};
use crate::progress::Progress;
use crate::session::Session;
use crate::upload::Upload;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// Between two pieces of an archive.
const SILENCE: Duration = Duration::from_secs(60);

/// `kurrent backup`: a file that is whole, or none.
pub async fn backup(session: &Session, wanted: Backup) -> Result<(), Failure> {
    let path = &wanted.file;
    if path.exists() {
        return Err(Failure::local(format!("{} is there already; name a new file, or remove it", path.display())));
    }
    let passphrase = confirm::passphrase(&wanted.passphrase, true)?;
    let response = session.client.download("/v1/backup", json!({ "passphrase": passphrase })).await?;
    let length = response.headers().get(hyper::header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let unfinished = path.with_extension(format!("unfinished.{}", std::process::id()));
    let saved = save(response.into_body(), &unfinished, length).await.and_then(|octets| {
        // Not over a file that came meanwhile.
        std::fs::hard_link(&unfinished, path).map_err(|e| Failure::local(format!("{}: {e}", path.display())))?;
        Ok(octets)
    });
    // Without a name of its own it is in nobody's way; the failure that matters is told.
    let _ = std::fs::remove_file(&unfinished);
    let octets = saved?;
    let answer = json!({ "file": path.display().to_string(), "size_bytes": octets });
    session.show(&answer, |_| format!("{} holds the backup ({}); without its passphrase it is worthless", path.display(), size(octets)))
}

async fn save(mut body: Incoming, path: &Path, length: Option<u64>) -> Result<u64, Failure> {
    let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", path.display()));
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let mut progress = length.map(|length| Progress::new("receiving the backup", length));
    let mut octets: u64 = 0;
    let cut = |what: String| Failure::Unreachable(format!("the backup was cut: {what}; ask again"));
    while let Some(frame) = tokio::time::timeout(SILENCE, body.frame()).await.map_err(|_| cut("nothing came any more".into()))? {
        let frame = frame.map_err(|e| cut(e.to_string()))?;
        if let Some(piece) = frame.data_ref() {
            file.write_all(piece).map_err(failed)?;
            octets = octets.saturating_add(u64::try_from(piece.len()).unwrap_or(0));
            if let Some(progress) = &mut progress {
                progress.show(octets);
            }
        }
    }
    file.sync_all().map_err(failed)?;
    Ok(octets)
}

/// `kurrent restore`.
pub async fn restore(session: &Session, wanted: Restore) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::local(format!("{}: {e}", wanted.file.display()));
    let file = std::fs::File::open(&wanted.file).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(Failure::local(format!("{} is not a file", wanted.file.display())));
    }
    if !wanted.dry_run && confirm::needed(wanted.sure) {
        let what = "everything the appliance knows of devices, Workers and disks, and its keys";
        confirm::ask(&format!("Put {} in the place of {what}? The appliance starts again with it.", wanted.file.display()))?;
    }
    let passphrase = confirm::passphrase(&wanted.passphrase, false)?;
    let upload = Upload::new(file, meta.len(), "sending the backup");
    session.client.upload("/v1/restore/archive", "application/octet-stream", upload).await?;
    let order = json!({ "passphrase": passphrase, "dry_run": wanted.dry_run });
    let answer = session.client.post("/v1/restore", order).await?;
    session.show(&answer, |answer| {
        let tokens = match answer["revocations_known"].as_bool() {
            Some(true) => "tokens that were revoked since the backup stay revoked",
            Some(false) => "which tokens were revoked since is not known: list them, and revoke what was revoked since the backup",
            None => "look at its users and tokens",
        };
        let done = if wanted.dry_run {
            "the backup is good; nothing was changed".to_owned()
        } else {
            format!("restored; the appliance starts again with it; all sessions have ended: kurrent login; {tokens}")
        };
        if answer.is_null() { done } else { format!("{done}\n{}", fields(answer)) }
    })
}
