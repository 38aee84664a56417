//! System disks, masters, files without a record, jobs.

mod batch;
mod disks;
mod jobs;
mod leftovers;
mod masters;

use super::Api;
pub(super) use jobs::Job;
use utoipa_axum::router::OpenApiRouter;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .merge(disks::routes())
        .merge(batch::routes())
        .merge(masters::routes())
        .merge(leftovers::routes())
        .merge(jobs::routes())
}
