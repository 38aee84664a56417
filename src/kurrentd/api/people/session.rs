//! Logging in and out, and what concerns oneself.

use super::{RoleName, audited};
use crate::api::Api;
use crate::api::body::Body;
use crate::api::guard::{COOKIE_NAME, Who, side};
use crate::api::idempotency::ShownOnce;
use crate::api::names::{Name, Time, UserName};
use crate::api::problem::Problem;
use crate::api::serve::From as Origin;
use crate::people::LogIn;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kurrent_core::access::Role;
use kurrent_core::access::people::{SESSION, Standing};
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use zeroize::Zeroizing;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(log_in)).routes(routes!(log_out)).routes(routes!(who_am_i)).routes(routes!(change_password))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LogIn)]
struct Credentials {
    #[schema(max_length = 256)]
    name: String,
    #[schema(max_length = 256, write_only)]
    password: String,
    /// Set the session as a cookie instead of answering the token: for a browser.
    #[serde(default)]
    cookie: bool,
}

/// Who has logged in, or asks.
#[derive(Serialize, ToSchema)]
#[schema(as = WhoAmI)]
struct Myself {
    #[schema(value_type = UserName)]
    name: String,
    /// What the token is worth now.
    role: RoleName,
    /// Tags that the token is limited to; none: all.
    #[schema(max_items = 64)]
    only: Vec<String>,
    /// The token's id.
    #[schema(value_type = Name)]
    id: String,
    /// Whether the token was made by logging in.
    session: bool,
    #[schema(value_type = Time)]
    expires_at: Wall,
}

impl From<&Standing> for Myself {
    fn from(s: &Standing) -> Self {
        let Standing { user, role, only, id, session, expires_at } = s.clone();
        Self { name: user.to_string(), role: role.into(), only, id, session, expires_at }
    }
}

/// A session.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
struct LoggedIn {
    #[serde(flatten)]
    myself: Myself,
    /// The bearer token. Shown this once; not there with `cookie`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token: Option<String>,
}

/// Log in
///
/// A session of 12 hours. Wrong passwords cost the user and the address a growing pause.
#[utoipa::path(post, path = "/v1/login", tag = "session", request_body = Credentials,
    responses((status = 200, description = "Logged in", body = LoggedIn)))]
async fn log_in(State(api): State<Api>, from: Option<Extension<Origin>>, Body(body): Body<Credentials>) -> Result<Response, Problem> {
    let (address, side) = side(&api, from.as_deref());
    let asked = LogIn { name: body.name.clone(), password: Zeroizing::new(body.password), address, side };
    let made = api.shared.people.log_in(asked).await;
    // A name that is not there may be a password in the wrong field.
    let known = body.name.parse().is_ok_and(|name| api.shared.people.people().user(&name).is_ok());
    let object = if known { body.name } else { String::new() };
    let (standing, token) = audited(&api, "login", object, String::new(), made).await?;
    let text = (!body.cookie).then(|| token.text.to_string());
    let mut response = (Extension(ShownOnce), Json(LoggedIn { myself: Myself::from(&standing), token: text })).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if body.cookie {
        let age = SESSION.as_secs();
        let cookie =
            Zeroizing::new(format!("{COOKIE_NAME}={}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Strict", token.text.as_str()));
        response.headers_mut().insert(SET_COOKIE, sensitive(&cookie)?);
    }
    Ok(response)
}

fn sensitive(text: &str) -> Result<HeaderValue, Problem> {
    let mut value = HeaderValue::from_str(text).map_err(|_| crate::api::problem::of_panic())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Log out
///
/// The token that asks is worth nothing afterwards, and a cookie goes, also one that had ended already.
#[utoipa::path(post, path = "/v1/logout", tag = "session", request_body = Nothing,
    responses((status = 204, description = "The token is worth nothing now")))]
async fn log_out(State(api): State<Api>, Extension(who): Extension<Who>, Body(Nothing {}): Body<Nothing>) -> Result<Response, Problem> {
    if let Who::Person(standing) = &who {
        let (user, id) = (standing.user.clone(), standing.id.clone());
        let done = api.shared.people.revoke(user.clone(), id, who.by(Role::Viewer)?).await;
        audited(&api, "logout", user.to_string(), String::new(), done).await?;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().insert(SET_COOKIE, sensitive(&format!("{COOKIE_NAME}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict"))?);
    Ok(response)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Who asks
#[utoipa::path(get, path = "/v1/whoami", tag = "session", responses((status = 200, description = "The owner of the token", body = Myself)))]
async fn who_am_i(Extension(who): Extension<Who>) -> Result<Json<Myself>, Problem> {
    Ok(Json(Myself::from(who.person()?)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ChangePassword {
    #[schema(max_length = 256, write_only)]
    old_password: String,
    /// At least 12 characters, at most 1024 octets.
    #[schema(min_length = 12, max_length = 1024, write_only)]
    new_password: String,
}

/// Change the own password
///
/// All tokens and sessions of the user end, the one that asks as well.
#[utoipa::path(put, path = "/v1/whoami/password", tag = "session", request_body = ChangePassword,
    responses((status = 204, description = "Changed")))]
async fn change_password(
    State(api): State<Api>,
    Extension(who): Extension<Who>,
    from: Option<Extension<Origin>>,
    Body(body): Body<ChangePassword>,
) -> Result<StatusCode, Problem> {
    let user = who.person()?.user.clone();
    let (address, side) = side(&api, from.as_deref());
    let old = LogIn { name: user.to_string(), password: Zeroizing::new(body.old_password), address, side };
    let done = api.shared.people.change_password(old, Zeroizing::new(body.new_password), who.by(Role::Viewer)?).await;
    let done = audited(&api, "password", user.to_string(), String::new(), done).await;
    done.map_err(|error| match Problem::from(error) {
        // Who asks is logged in; what is wrong is a field.
        problem if problem.code() == "password_wrong" => {
            Problem::new(422, "password_wrong", "the old password is another one; try again").at("old_password")
        }
        problem => problem,
    })?;
    Ok(StatusCode::NO_CONTENT)
}
