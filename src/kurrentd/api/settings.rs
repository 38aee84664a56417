//! Settings that change at run time: the registration window, enforcement, what Workers boot with.

use super::Api;
use super::body::{Body, given};
use super::etag::{Conditions, IfMatch, tagged};
use super::names::Time;
use super::problem::Problem;
use super::workers::BootForm;
use crate::api::guard::actor;
use crate::ledger::expect::{Expectation, etag_of};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use kurrent_core::ledger::{Change, Ledger};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_settings, edit_settings)).routes(routes!(get_window, open_window, close_window))
}

/// What changes at run time.
#[derive(Serialize, ToSchema)]
struct Settings {
    /// Whether only a verified answer opens the data plane, now.
    enforcement: bool,
    /// What overrides the configuration's enforcement; null: nothing.
    enforcement_override: Option<bool>,
    /// What Workers without settings of their own boot with.
    boot: BootForm,
    registration_window: Window,
}

impl Settings {
    fn of(api: &Api, ledger: &Ledger) -> Self {
        Self {
            enforcement: ledger.enforcement(api.shared.config.enforcement),
            enforcement_override: ledger.settings.enforcement,
            boot: ledger.settings.boot.clone().into(),
            registration_window: Window::of(ledger),
        }
    }
}

/// Get the settings
#[utoipa::path(get, path = "/v1/settings", tag = "settings",
    responses((status = 200, description = "As they are now", body = Settings, headers(("ETag" = String)))))]
async fn get_settings(State(api): State<Api>) -> Response {
    let ledger = api.shared.ledger.snapshot();
    // The clock closes the window, and the configuration has a say in enforcement: never "unchanged".
    tagged(&etag_of(&ledger.settings), Json(Settings::of(&api, &ledger)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditSettings {
    /// Overrides `spec.security.enforcement`; null: what the configuration says again.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<bool>)]
    enforcement: Option<Option<bool>>,
    /// Replaces what Workers without settings of their own boot with.
    boot: Option<BootForm>,
}

/// Edit the settings
///
/// What is left out stays as it is; all that is given is set, or nothing.
#[utoipa::path(patch, path = "/v1/settings", tag = "settings", params(IfMatch), request_body = EditSettings,
    responses((status = 200, description = "As they are now", body = Settings, headers(("ETag" = String)))))]
async fn edit_settings(State(api): State<Api>, conditions: Conditions, Body(body): Body<EditSettings>) -> Result<Response, Problem> {
    let change = Change::EditSettings { enforcement: body.enforcement, boot: body.boot.map(Into::into) };
    let (_, ledger) = api.shared.ledger.submit_if(change, &actor(), conditions.expect(Expectation::Settings)).await?;
    Ok(tagged(&etag_of(&ledger.settings), Json(Settings::of(&api, &ledger))))
}

/// Automatic admission.
#[derive(Serialize, ToSchema)]
#[schema(as = RegistrationWindow)]
pub(super) struct Window {
    open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>, nullable = false)]
    until: Option<Wall>,
}

impl Window {
    pub(super) fn of(ledger: &Ledger) -> Self {
        let open = ledger.window_open(kurrent_sys::clock::now().wall);
        Self { open, until: ledger.settings.registration_open_until.filter(|_| open) }
    }
}

/// Whether the registration window is open
#[utoipa::path(get, path = "/v1/settings/registration-window", tag = "settings",
    responses((status = 200, description = "Open or closed", body = Window)))]
async fn get_window(State(api): State<Api>) -> Json<Window> {
    Json(Window::of(&api.shared.ledger.snapshot()))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OpenWindow {
    /// How long; by default what the configuration says.
    #[schema(minimum = 1, maximum = 60)]
    minutes: Option<u32>,
}

/// `minutes` from now.
pub(super) fn minutes_ahead(minutes: u32) -> Result<Wall, Problem> {
    let ahead = jiff::SignedDuration::from_mins(i64::from(minutes));
    let wrong = |_| Problem::new(422, "minutes_out_of_range", "choose 1 to 60 minutes").at("minutes");
    kurrent_sys::clock::now().wall.checked_add(ahead).map_err(wrong)
}

/// Open the registration window
#[utoipa::path(put, path = "/v1/settings/registration-window", tag = "settings", request_body = OpenWindow,
    responses((status = 200, description = "Open", body = Window)))]
async fn open_window(State(api): State<Api>, Body(body): Body<OpenWindow>) -> Result<Json<Window>, Problem> {
    let minutes = body.minutes.unwrap_or(u32::from(api.shared.config.registration_minutes));
    let (_, ledger) = api.shared.ledger.submit(Change::OpenWindow { until: minutes_ahead(minutes)? }, &actor()).await?;
    Ok(Json(Window::of(&ledger)))
}

/// Close the registration window
#[utoipa::path(delete, path = "/v1/settings/registration-window", tag = "settings",
    responses((status = 200, description = "Closed", body = Window)))]
async fn close_window(State(api): State<Api>) -> Result<Json<Window>, Problem> {
    let (_, ledger) = api.shared.ledger.submit(Change::CloseWindow, &actor()).await?;
    Ok(Json(Window::of(&ledger)))
}
