//! Tokens for programs: one's own, and for admins those of others. A token is shown when it is made, and never again.

use super::{RoleName, audited};
use crate::api::Api;
use crate::api::body::{Body, Query, Segments, given};
use crate::api::guard::Who;
use crate::api::idempotency::ShownOnce;
use crate::api::names::{Name, Time};
use crate::api::page::Piece;
use crate::api::problem::Problem;
use crate::people::{By, PeopleError};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, LOCATION};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kurrent_core::access::Role;
use kurrent_core::access::people::Token;
use kurrent_core::id::UserName;
use kurrent_core::time::Wall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// 30 days.
const DEFAULT_MINUTES: i64 = 30 * 24 * 60;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_tokens, create_token))
        .routes(routes!(revoke_token))
        .routes(routes!(list_user_tokens, create_user_token))
        .routes(routes!(revoke_user_token))
}

#[derive(Serialize, ToSchema)]
#[schema(as = AccessToken)]
struct TokenView {
    #[schema(value_type = Name)]
    id: String,
    /// Made by logging in.
    session: bool,
    #[schema(max_length = 256)]
    note: String,
    /// What it is worth now: at most what its owner is.
    role: RoleName,
    /// Tags that it is limited to; none: all.
    #[schema(max_items = 64)]
    only: Vec<String>,
    #[schema(value_type = Time)]
    created_at: Wall,
    #[schema(value_type = Time)]
    expires_at: Wall,
}

impl TokenView {
    fn new(token: &Token, owner: Role) -> Self {
        let Token { id, session, note, role, only, created_at, expires_at } = token.clone();
        Self { id, session, note, role: role.min(owner).into(), only, created_at, expires_at }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = AccessTokenList)]
struct TokenList {
    #[schema(max_items = 64)]
    tokens: Vec<TokenView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

fn list(api: &Api, name: &UserName, piece: &Piece) -> Result<Json<TokenList>, Problem> {
    let (people, now) = (api.shared.people.people(), kurrent_sys::clock::now().wall);
    let user = people.user(name).map_err(PeopleError::from)?;
    let mut tokens: Vec<&Token> = user.tokens.iter().filter(|t| t.expires_at > now).collect();
    tokens.sort_by(|a, b| a.id.cmp(&b.id));
    let page = piece.wanted()?.take_sorted(tokens.into_iter(), |t| t.id.clone());
    Ok(Json(TokenList { tokens: page.items.into_iter().map(|t| TokenView::new(t, user.role)).collect(), next: page.next }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MakeToken {
    /// At most the owner's, and that of who asks; that when left out.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    role: Option<RoleName>,
    /// Limit it to calls with these tags of this description; `users`, `tokens` and `session` are none to limit to.
    #[serde(default)]
    #[schema(max_items = 64)]
    only: Vec<String>,
    /// How long it lives, up to 366 days; 30 days when left out.
    #[serde(default, deserialize_with = "given")]
    #[schema(minimum = 5, maximum = 527_040, nullable = false)]
    minutes: Option<i64>,
    #[serde(default)]
    #[schema(max_length = 256)]
    note: String,
}

/// A new token.
#[derive(Serialize, ToSchema)]
#[schema(as = NewAccessToken)]
struct NewTokenView {
    #[serde(flatten)]
    view: TokenView,
    /// The bearer token. Shown this once.
    token: String,
}

async fn make(api: &Api, name: UserName, by: By, wanted: MakeToken, own: bool) -> Result<Response, Problem> {
    let now = kurrent_sys::clock::now().wall;
    let minutes = wanted.minutes.unwrap_or(DEFAULT_MINUTES);
    let until = jiff::SignedDuration::try_from_mins(minutes).and_then(|m| now.checked_add(m).ok());
    let out_of_range = || Problem::new(422, "minutes_out_of_range", "a token lives 5 minutes to 366 days; choose that").at("minutes");
    let owner = api.shared.people.people().user(&name).map_err(PeopleError::from)?.role;
    let role = wanted.role.map_or(owner.min(by.standing.role), Role::from);
    let mut only = wanted.only;
    only.sort();
    only.dedup();
    let expires_at = until.ok_or_else(out_of_range)?;
    let token = Token { id: String::new(), session: false, note: wanted.note, role, only, created_at: now, expires_at };
    let made = api.shared.people.add_token(name.clone(), token, by).await;
    let object = made.as_ref().map_or_else(|_| name.to_string(), |(token, _)| format!("{name} {}", token.id));
    let (token, new) = audited(api, "token-create", object, format!("role={role}"), made).await?;
    let location = if own { format!("/v1/tokens/{}", token.id) } else { format!("/v1/users/{name}/tokens/{}", token.id) };
    let shown = Json(NewTokenView { view: TokenView::new(&token, owner), token: new.text.to_string() });
    let headers = [(LOCATION, location), (CACHE_CONTROL, "no-store".into())];
    Ok((StatusCode::CREATED, headers, Extension(ShownOnce), shown).into_response())
}

async fn revoke(api: &Api, name: UserName, id: &str, by: By) -> Result<StatusCode, Problem> {
    let done = api.shared.people.revoke(name.clone(), id.to_owned(), by).await;
    // An id that is not there is a stranger's text.
    let object = if done.is_ok() { format!("{name} {id}") } else { name.to_string() };
    audited(api, "token-revoke", object, String::new(), done).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the own tokens
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", params(Piece),
    responses((status = 200, description = "Without the tokens themselves", body = TokenList)))]
async fn list_tokens(
    State(api): State<Api>,
    Extension(who): Extension<Who>,
    Query(piece): Query<Piece>,
) -> Result<Json<TokenList>, Problem> {
    list(&api, &who.person()?.user, &piece)
}

/// Create a token of one's own
///
/// It can do no more, and, made with a token, nothing for longer than who asks.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = MakeToken,
    responses((status = 201, description = "Created", body = NewTokenView, headers(("Location" = String)))))]
async fn create_token(State(api): State<Api>, Extension(who): Extension<Who>, Body(body): Body<MakeToken>) -> Result<Response, Problem> {
    let by = who.by(Role::Viewer)?;
    make(&api, by.standing.user.clone(), by, body, true).await
}

/// Revoke one of the own tokens
///
/// A token ends itself, and others that do no more than it does.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", responses((status = 204, description = "It is worth nothing now")))]
async fn revoke_token(State(api): State<Api>, Extension(who): Extension<Who>, path: Segments) -> Result<StatusCode, Problem> {
    let by = who.by(Role::Viewer)?;
    revoke(&api, by.standing.user.clone(), path.text("id"), by).await
}

/// List a user's tokens
#[utoipa::path(get, path = "/v1/users/{name}/tokens", tag = "users", params(Piece),
    responses((status = 200, description = "Without the tokens themselves", body = TokenList)))]
async fn list_user_tokens(State(api): State<Api>, path: Segments, Query(piece): Query<Piece>) -> Result<Json<TokenList>, Problem> {
    list(&api, &path.read("name")?, &piece)
}

/// Create a token for a user
#[utoipa::path(post, path = "/v1/users/{name}/tokens", tag = "users", request_body = MakeToken,
    responses((status = 201, description = "Created", body = NewTokenView, headers(("Location" = String)))))]
async fn create_user_token(
    State(api): State<Api>,
    Extension(who): Extension<Who>,
    path: Segments,
    Body(body): Body<MakeToken>,
) -> Result<Response, Problem> {
    make(&api, path.read("name")?, who.by(Role::Admin)?, body, false).await
}

/// Revoke a user's token
#[utoipa::path(delete, path = "/v1/users/{name}/tokens/{id}", tag = "users", responses((status = 204, description = "It is worth nothing now")))]
async fn revoke_user_token(State(api): State<Api>, Extension(who): Extension<Who>, path: Segments) -> Result<StatusCode, Problem> {
    revoke(&api, path.read("name")?, path.text("id"), who.by(Role::Admin)?).await
}
