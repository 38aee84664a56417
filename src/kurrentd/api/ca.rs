//! `GET /v1/ca`: the CA certificate, for anybody. Whoever fetches it compares its fingerprint with the appliance's screen before he
//! trusts it.

use super::Api;
use super::problem::Problem;
use axum::extract::State;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// RFC 8555 section 9.1; there is no closer name for a certificate as PEM.
const PEM: &str = "application/pem-certificate-chain";

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_ca))
}

/// Get the CA certificate
///
/// Needs no token. Its SHA-256 fingerprint stands on the appliance's screen.
#[utoipa::path(get, path = "/v1/ca", tag = "system", security(()),
    responses((status = 200, description = "The certificate as PEM", body = String, content_type = "application/pem-certificate-chain")))]
async fn get_ca(State(api): State<Api>) -> Result<Response, Problem> {
    let pem = api.shared.tls.ca_pem();
    let pem = pem.ok_or_else(|| Problem::new(503, "no_ca", "the CA can not be used; the appliance's screen and log say why"))?;
    // Who has no token keeps no connection.
    Ok(([(CONTENT_TYPE, PEM), (CONNECTION, "close")], pem).into_response())
}
