//! Join tokens: each lets one further node join, once, for some minutes. The token itself is shown once and kept as a hash.

use super::Api;
use super::body::{Body, Query, Segments};
use super::idempotency::ShownOnce;
use super::names::{Name, Note, Time};
use super::page::Piece;
use super::problem::Problem;
use crate::api::guard::actor;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kurrent_core::ledger::{Change, JoinToken};
use kurrent_core::time::Wall;
use kurrent_sys::{clock, entropy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Long enough to walk to the other machine.
const DEFAULT_MINUTES: i64 = 15;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list_join_tokens, create_join_token)).routes(routes!(revoke_join_token))
}

/// A join token, without the token itself.
#[derive(Serialize, ToSchema)]
#[schema(as = JoinToken)]
struct TokenView {
    #[schema(value_type = Name)]
    id: String,
    #[schema(value_type = Time)]
    created_at: Wall,
    /// It opens nothing from then on.
    #[schema(value_type = Time)]
    expires_at: Wall,
    /// Whether that is so already.
    expired: bool,
    #[schema(value_type = Note)]
    note: String,
}

impl TokenView {
    fn new(token: &JoinToken, now: Wall) -> Self {
        Self {
            id: token.id.clone(),
            created_at: token.created_at,
            expires_at: token.expires_at,
            expired: token.expires_at <= now,
            note: token.note.clone(),
        }
    }
}

#[derive(Serialize, ToSchema)]
struct TokenList {
    #[schema(max_items = 1000)]
    join_tokens: Vec<TokenView>,
    /// The cursor of what follows; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List join tokens
#[utoipa::path(get, path = "/v1/join-tokens", tag = "agents", params(Piece),
    responses((status = 200, description = "Without the tokens themselves", body = TokenList)))]
async fn list_join_tokens(State(api): State<Api>, Query(piece): Query<Piece>) -> Result<Json<TokenList>, Problem> {
    let wanted = piece.wanted()?;
    let (ledger, now) = (api.shared.ledger.snapshot(), clock::now().wall);
    let page = wanted.take_sorted(ledger.join_tokens.values(), |t| t.id.clone());
    Ok(Json(TokenList { join_tokens: page.items.into_iter().map(|t| TokenView::new(t, now)).collect(), next: page.next }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateToken {
    /// How long it can be used; 15 when left out.
    #[schema(minimum = 1, maximum = 60)]
    minutes: Option<i64>,
    #[serde(default)]
    #[schema(value_type = Note)]
    note: String,
}

/// A new join token.
#[derive(Serialize, ToSchema)]
#[schema(as = NewJoinToken)]
struct NewToken {
    #[serde(flatten)]
    view: TokenView,
    /// 128 random bits in base32. Shown this once.
    token: String,
}

/// Create a join token
///
/// The token is in this answer only; nobody can read it again.
#[utoipa::path(post, path = "/v1/join-tokens", tag = "agents", request_body = CreateToken,
    responses((status = 201, description = "Created", body = NewToken, headers(("Location" = String)))))]
async fn create_join_token(State(api): State<Api>, Body(body): Body<CreateToken>) -> Result<Response, Problem> {
    let minutes = body.minutes.unwrap_or(DEFAULT_MINUTES);
    let now = clock::now().wall;
    let until = jiff::SignedDuration::try_from_mins(minutes).and_then(|m| now.checked_add(m).ok());
    let out_of_range =
        || Problem::new(422, "minutes_out_of_range", "a join token can be used for 1 to 60 minutes; choose that").at("minutes");
    let expires_at = until.ok_or_else(out_of_range)?;
    let token = crate::secrets::random_letters();
    let record = JoinToken {
        id: hex::encode(entropy::random::<6>()),
        token_hash: hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token.as_bytes())),
        created_at: now,
        expires_at,
        note: body.note,
    };
    let view = TokenView::new(&record, now);
    let location = format!("/v1/join-tokens/{}", record.id);
    api.shared.ledger.submit(Change::AddJoinToken { token: record }, &actor()).await?;
    let shown = Json(NewToken { view, token: token.as_str().to_owned() });
    Ok((StatusCode::CREATED, [(LOCATION, location)], Extension(ShownOnce), shown).into_response())
}

/// Revoke a join token
#[utoipa::path(delete, path = "/v1/join-tokens/{id}", tag = "agents", responses((status = 204, description = "It opens nothing any more")))]
async fn revoke_join_token(State(api): State<Api>, path: Segments) -> Result<StatusCode, Problem> {
    api.shared.ledger.submit(Change::RevokeJoinToken { id: path.text("id").to_owned() }, &actor()).await?;
    Ok(StatusCode::NO_CONTENT)
}
