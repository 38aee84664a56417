//! The REST API.

use crate::secrets::Token;
use crate::shared::SharedRef;
use tokio::sync::watch;

/// Serves until `stopped` turns true.
pub async fn serve(shared: SharedRef, token: Token, mut stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let _ = (shared, token);
    stopped.wait_for(|s| *s).await?;
    Ok(())
}
