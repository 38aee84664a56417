//! Users: for admins. The first one is made with the first-run token.

use super::{RoleName, audited};
use crate::api::Api;
use crate::api::body::{Body, Query, Segments, given};
use crate::api::guard::Who;
use crate::api::names::{Time, UserName};
use crate::api::page::Piece;
use crate::api::problem::Problem;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kurrent_core::access::Role;
use kurrent_core::access::people::User;
use kurrent_core::id;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use zeroize::Zeroizing;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_users, create_user))
        .routes(routes!(get_user, edit_user, delete_user))
        .routes(routes!(set_password))
}

#[derive(Serialize, ToSchema)]
#[schema(as = User)]
struct UserView {
    #[schema(value_type = UserName)]
    name: String,
    role: RoleName,
    /// Can not log in, and has no token.
    disabled: bool,
    #[schema(value_type = Time)]
    created_at: Wall,
    /// Tokens that are no session.
    tokens: usize,
    /// How often the user is logged in.
    sessions: usize,
}

impl UserView {
    fn new(user: &User, now: Wall) -> Self {
        let count = |session| user.tokens.iter().filter(|t| t.session == session && t.expires_at > now).count();
        Self {
            name: user.name.to_string(),
            role: user.role.into(),
            disabled: user.disabled,
            created_at: user.created_at,
            tokens: count(false),
            sessions: count(true),
        }
    }
}

#[derive(Serialize, ToSchema)]
struct UserList {
    #[schema(max_items = 1000)]
    users: Vec<UserView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List users
#[utoipa::path(get, path = "/v1/users", tag = "users", params(Piece), responses((status = 200, description = "By name", body = UserList)))]
async fn list_users(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<UserList>, Problem> {
    let (people, now) = (api.shared.people.people(), kurrent_sys::clock::now().wall);
    let page = piece.wanted()?.take_sorted(people.iter(), |u| u.name.to_string());
    Ok(Json(UserList { users: page.items.into_iter().map(|u| UserView::new(u, now)).collect(), next: page.next }))
}

fn view(api: &Api, name: &id::UserName) -> Result<UserView, Problem> {
    let people = api.shared.people.people();
    let user = people.user(name).map_err(crate::people::PeopleError::from)?;
    Ok(UserView::new(user, kurrent_sys::clock::now().wall))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateUser {
    #[schema(value_type = UserName)]
    name: id::UserName,
    role: RoleName,
    /// At least 12 characters, at most 1024 octets.
    #[schema(min_length = 12, max_length = 1024, write_only)]
    password: String,
}

/// Create a user
///
/// With the first-run token: the first admin. The token is worth nothing afterwards.
#[utoipa::path(post, path = "/v1/users", tag = "users", request_body = CreateUser,
    responses((status = 201, description = "Created", body = UserView, headers(("Location" = String)))))]
async fn create_user(State(api): State<Api>, Extension(who): Extension<Who>, Body(body): Body<CreateUser>) -> Result<Response, Problem> {
    let (name, role) = (body.name, Role::from(body.role));
    let by = if matches!(who, Who::FirstRun) { None } else { Some(who.by(Role::Admin)?) };
    let made = api.shared.people.create(name.clone(), role, Zeroizing::new(body.password), by).await;
    audited(&api, "user-create", name.to_string(), format!("role={role}"), made).await?;
    Ok((StatusCode::CREATED, [(LOCATION, format!("/v1/users/{name}"))], Json(view(&api, &name)?)).into_response())
}

/// Show a user
#[utoipa::path(get, path = "/v1/users/{name}", tag = "users", responses((status = 200, description = "The user", body = UserView)))]
async fn get_user(State(api): State<Api>, path: Segments) -> Result<Json<UserView>, Problem> {
    Ok(Json(view(&api, &path.read("name")?)?))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditUser {
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    role: Option<RoleName>,
    /// Disabling ends all tokens and sessions.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    disabled: Option<bool>,
}

/// Change a user
///
/// What is not given stays. It holds at once, also for who is logged in.
#[utoipa::path(patch, path = "/v1/users/{name}", tag = "users", request_body = EditUser,
    responses((status = 200, description = "As it is now", body = UserView)))]
async fn edit_user(
    State(api): State<Api>,
    Extension(who): Extension<Who>,
    path: Segments,
    Body(body): Body<EditUser>,
) -> Result<Json<UserView>, Problem> {
    let name: id::UserName = path.read("name")?;
    let (role, disabled) = (body.role.map(Role::from), body.disabled);
    let words = [role.map(|r| format!("role={r}")), disabled.map(|d| format!("disabled={d}"))];
    let detail = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let done = api.shared.people.edit(name.clone(), role, disabled, who.by(Role::Admin)?).await;
    audited(&api, "user-edit", name.to_string(), detail, done).await?;
    Ok(Json(view(&api, &name)?))
}

/// Delete a user
#[utoipa::path(delete, path = "/v1/users/{name}", tag = "users", responses((status = 204, description = "Deleted, with all tokens")))]
async fn delete_user(State(api): State<Api>, Extension(who): Extension<Who>, path: Segments) -> Result<StatusCode, Problem> {
    let name: id::UserName = path.read("name")?;
    let done = api.shared.people.delete(name.clone(), who.by(Role::Admin)?).await;
    audited(&api, "user-delete", name.to_string(), String::new(), done).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SetPassword {
    /// At least 12 characters, at most 1024 octets.
    #[schema(min_length = 12, max_length = 1024, write_only)]
    password: String,
}

/// Give a user another password
///
/// All tokens and sessions of the user end.
#[utoipa::path(put, path = "/v1/users/{name}/password", tag = "users", request_body = SetPassword,
    responses((status = 204, description = "Set")))]
async fn set_password(
    State(api): State<Api>,
    Extension(who): Extension<Who>,
    path: Segments,
    Body(body): Body<SetPassword>,
) -> Result<StatusCode, Problem> {
    let name: id::UserName = path.read("name")?;
    let done = api.shared.people.set_password(name.clone(), Zeroizing::new(body.password), who.by(Role::Admin)?).await;
    audited(&api, "user-password", name.to_string(), String::new(), done).await?;
    Ok(StatusCode::NO_CONTENT)
}
