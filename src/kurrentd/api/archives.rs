//! Backup and restore. Passphrases come in bodies only, and are wiped.

use super::Api;
use super::body::Body as Json_;
use super::file_body::FileBody;
use super::idempotency::ShownOnce;
use super::names::Time;
use super::problem::Problem;
use crate::api::guard::actor;
use crate::audit::Event;
use crate::backup::{self, BackupError, MAX_ARCHIVE_BYTES, Passphrase, Restored, Source, Target};
use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;
use zeroize::Zeroizing;

/// Between two pieces of an upload.
const PIECE_WITHIN: Duration = Duration::from_secs(60);
const FILE_MODE: u32 = 0o600;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(make_backup))
        .routes(routes!(upload_backup).map(|r| r.layer(DefaultBodyLimit::disable())))
        .routes(routes!(restore_backup))
}

impl From<BackupError> for Problem {
    fn from(error: BackupError) -> Self {
        let code = error.code();
        let status = match (&error, code) {
            (BackupError::Io { .. }, _) => 507,
            (_, "in_use") => 409,
            (_, "seal_failed" | "manifest_not_encoded" | "ledger_not_encoded") => 500,
            (_, "archive_too_large") => 413,
            _ => 422,
        };
        Self::new(status, code, error.to_string())
    }
}

/// Only one at a time: each takes 64 MiB for its key. A rotation of the server key goes beside none.
pub(super) fn alone(api: &Api) -> Result<tokio::sync::MutexGuard<'_, ()>, Problem> {
    let busy = |_| {
        Problem::new(409, "archive_busy", "another backup, restore or rotation of the server key is at work; ask again when it is done")
    };
    api.shared.archives.try_lock().map_err(busy)
}

fn record(api: &Api, verb: &'static str, result: &str) {
    let event = Event { actor: actor(), verb, device: None, object: String::new(), result: result.to_owned(), detail: String::new() };
    api.shared.audit.record(event);
}

fn word<T>(result: &Result<T, BackupError>) -> &'static str {
    result.as_ref().map_or_else(BackupError::code, |_| "ok")
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<Result<T, BackupError>, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| super::problem::of_panic())
}

/// For a new backup.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MakeBackup {
    /// Secrets are sealed with it; without it the backup is worthless.
    #[schema(min_length = 12, write_only)]
    passphrase: String,
}

/// Make a backup
///
/// The whole state in one archive (decision 0005). Disk images and masters are not in it.
#[utoipa::path(post, path = "/v1/backup", tag = "backup", request_body = MakeBackup,
    responses((status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar")))]
async fn make_backup(State(api): State<Api>, Json_(body): Json_<MakeBackup>) -> Result<Response, Problem> {
    let passphrase = Passphrase::new(Zeroizing::new(body.passphrase))?;
    let _alone = alone(&api)?;
    api.shared.ledger.flush().await;
    let shared = api.shared.clone();
    let now = kurrent_sys::clock::now().wall;
    let name = format!("kurrent-{}-{}.tar", shared.config.name, now.strftime("%Y%m%dT%H%M%SZ"));
    let made = blocking(move || {
        shared.audit.flush();
        let ledger = shared.ledger.snapshot();
        let config = &shared.config;
        // Of files that do not read, what is there.
        let people = shared.people.octets().map_or_else(|| crate::people::Octets::read(&config.state_dir), Ok);
        let people = people.map_err(|(path, cause)| BackupError::Io { path, cause })?;
        let (name, file) = (config.name.clone(), config.file.clone());
        let source = Source { state_dir: &config.state_dir, ledger: &ledger, people, name, config: file, now };
        let (mut file, path) = nameless(&config.state_dir)?;
        backup::write(&source, &passphrase, &mut file, &path)?;
        let size = file.metadata().map_err(|cause| BackupError::Io { path, cause })?.len();
        Ok((file, size))
    });
    let made = made.await?;
    record(&api, "backup", word(&made));
    let (file, size) = made?;
    let mut response = Response::new(Body::new(FileBody::new(file, size)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The name is a DNS label and a time.
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    response.extensions_mut().insert(ShownOnce);
    Ok(response)
}

/// A file that is gone when it is closed, also after a crash.
fn nameless(state_dir: &Path) -> Result<(File, PathBuf), BackupError> {
    let path = state_dir.join(format!(".backup{}", kurrent_sys::store::TEMPORARY_SUFFIX));
    let failed = |cause| BackupError::Io { path: path.clone(), cause };
    kurrent_sys::store::remove(&path).map_err(failed)?;
    let file = File::options().read(true).write(true).create_new(true).mode(FILE_MODE).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    Ok((file, path))
}

/// Upload a backup to be restored
///
/// The body is the archive. It waits beside the state until it is restored; a later upload replaces it.
#[utoipa::path(put, path = "/v1/restore/archive", tag = "backup",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204, description = "Taken; nothing of it was looked at yet")))]
async fn upload_backup(State(api): State<Api>, request: Request) -> Result<StatusCode, Problem> {
    let _alone = alone(&api)?;
    let path = backup::upload_path(&api.shared.config.state_dir)?;
    let mut body = request.into_body();
    let taken = take(&mut body, &path).await;
    if taken.is_err() {
        super::body::drain(body).await;
    }
    record(&api, "restore-upload", taken.as_ref().map_or_else(|p| p.code(), |()| "ok"));
    taken.map(|()| StatusCode::NO_CONTENT)
}

async fn take(body: &mut Body, path: &Path) -> Result<(), Problem> {
    let too_large = || Problem::new(413, "archive_too_large", format!("a backup has at most {MAX_ARCHIVE_BYTES} octets; this is none"));
    if body.size_hint().lower() > MAX_ARCHIVE_BYTES {
        return Err(too_large());
    }
    let failed = |e: std::io::Error| Problem::from(BackupError::Io { path: path.to_owned(), cause: e });
    let part = backup::part_of(path);
    kurrent_sys::store::remove(&part).map_err(failed)?;
    let file = File::options().write(true).create_new(true).mode(FILE_MODE).open(&part).map_err(failed)?;
    let mut file = tokio::fs::File::from_std(file);
    let mut octets: u64 = 0;
    let copied = async {
        let slow = |_| Problem::new(408, "body_too_slow", "the archive did not arrive in time; send it again");
        while let Some(frame) = tokio::time::timeout(PIECE_WITHIN, body.frame()).await.map_err(slow)? {
            let frame = frame.map_err(|_| Problem::new(400, "body_cut", "the archive ended too early; send it again"))?;
            let Ok(piece) = frame.into_data() else { continue };
            octets = octets.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if octets > MAX_ARCHIVE_BYTES {
                return Err(too_large());
            }
            file.write_all(&piece).await.map_err(failed)?;
        }
        file.sync_all().await.map_err(failed)
    };
    let done = copied.await.and_then(|()| std::fs::rename(&part, path).map_err(failed));
    if done.is_err() {
        // The next upload, or the next start, removes what can not be removed now.
        let _ = std::fs::remove_file(&part);
    }
    done
}

/// For a restore.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RestoreBackup {
    /// Of the backup.
    #[schema(write_only)]
    passphrase: String,
    /// Only check the archive and say what it holds.
    #[serde(default)]
    dry_run: bool,
}

/// What a backup holds, and what a restore makes of it.
#[derive(Serialize, ToSchema)]
#[schema(as = Restored)]
struct RestoredView {
    /// Whether kurrentd starts again with it now. Users and passwords are the backup's then.
    applied: bool,
    /// The appliance that it is of.
    name: String,
    /// Which program wrote it.
    kurrentd: String,
    #[schema(value_type = Time)]
    made_at: Wall,
    /// The generation of the backup.
    generation: u64,
    /// The generation that the ledgers go on from.
    restored_generation: u64,
    devices: usize,
    /// Each gets a new epoch and must boot again.
    bound: usize,
    workers: usize,
    disks: usize,
    /// Sessions in the backup: all of them end, everybody logs in again.
    sessions_ended: usize,
    /// Tokens for programs that are good again.
    tokens_restored: usize,
    /// Tokens of the backup that have ended since, or were revoked: they stay so.
    tokens_revoked: usize,
    /// Whether the present state could tell which tokens were revoked since the backup; if not, all of them are good again.
    revocations_known: bool,
    /// Recorded disks whose file is not there: a backup holds no disks.
    missing_disks: Vec<String>,
    /// Where the present state is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    kept_aside: Option<String>,
    /// Where the audit in the backup had been changed, if it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    audit_broken: Option<String>,
}

impl RestoredView {
    fn new(restored: Restored, applied: bool) -> Self {
        let Restored { name, kurrentd, made_at, generation, restored_generation, devices, bound, workers, disks, .. } = restored;
        let Restored { tokens, missing_disks, kept_aside, audit_broken, .. } = restored;
        Self {
            applied,
            name,
            kurrentd,
            made_at,
            generation,
            restored_generation,
            devices,
            bound,
            workers,
            disks,
            sessions_ended: tokens.sessions,
            tokens_restored: tokens.restored,
            tokens_revoked: tokens.revoked,
            revocations_known: tokens.revocations_known,
            missing_disks,
            kept_aside,
            audit_broken,
        }
    }
}

/// Restore the uploaded backup
///
/// Everything is checked before anything changes; then kurrentd ends in order and starts again with the restored state.
#[utoipa::path(post, path = "/v1/restore", tag = "backup", request_body = RestoreBackup,
    responses((status = 200, description = "What the backup holds", body = RestoredView)))]
async fn restore_backup(State(api): State<Api>, Json_(body): Json_<RestoreBackup>) -> Result<Json<RestoredView>, Problem> {
    let passphrase = Passphrase::given(Zeroizing::new(body.passphrase));
    let dry_run = body.dry_run;
    let _alone = alone(&api)?;
    let archive = backup::upload_path(&api.shared.config.state_dir)?;
    if !archive.exists() {
        return Err(Problem::new(409, "archive_missing", "no archive was uploaded; send one with PUT /v1/restore/archive first"));
    }
    let shared = api.shared.clone();
    let staged = blocking(move || {
        let config = &shared.config;
        let target = Target {
            state_dir: &config.state_dir,
            // Of ledgers that can not be served, the snapshot tells nothing.
            present: shared.ledger.snapshot().generation.max(crate::ledger::load::highest_readable(&config.state_dir)),
            disk_dir: Some(&config.agent.disk_dir),
            now: kurrent_sys::clock::now().wall,
        };
        backup::stage(&archive, &passphrase, target, dry_run)
    });
    let staged = staged.await?;
    record(&api, if dry_run { "restore-check" } else { "restore" }, word(&staged));
    let restored = staged?;
    if !dry_run {
        tracing::info!("a backup is restored: kurrentd starts again with it");
        api.shared.restart.notify_one();
    }
    Ok(Json(RestoredView::new(restored, !dry_run)))
}
