//! How the API asks the owner of the lease table (`listen::dhcp`) for what only it can say or do.

use arc_swap::ArcSwapOption;
use kurrent_core::dhcp::lease::State;
use kurrent_core::id::MacAddr;
use kurrent_core::time::Wall;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Orders that may wait; more are refused.
const QUEUE: usize = 16;
/// The disk is slow, or the owner is at fault: whoever asked is told.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// One address of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which.
    pub address: Ipv4Addr,
    /// Whose.
    pub mac: MacAddr,
    /// How it stands.
    pub state: State,
    /// Until when.
    pub until: Wall,
}

/// Why an address was not released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// Nobody has it.
    #[error("no machine has a lease of {0}; see the lease list")]
    NotFound(Ipv4Addr),
    /// A machine found somebody else using it.
    #[error("{0} is in quarantine, because a machine found another one using it; that ends by itself")]
    Declined(Ipv4Addr),
    /// DHCP does not run, or is behind.
    #[error("{0}")]
    NotServed(String),
    /// The disk refused.
    #[error("the release could not be written: {0}; make room on the data partition or check the disk")]
    NotDurable(String),
}

/// What the owner is asked.
pub(crate) enum LeaseOrder {
    /// All of the table that was given out.
    List(oneshot::Sender<Vec<Listed>>),
    /// Take an address back; answered with its holder when that is durable.
    Release(Ipv4Addr, oneshot::Sender<Result<MacAddr, ReleaseError>>),
}

/// The way to the owner, if there is one.
#[derive(Default)]
pub struct LeaseOrders(ArcSwapOption<mpsc::Sender<LeaseOrder>>);

impl LeaseOrders {
    /// The owner begins to listen; a former one is forgotten.
    pub(crate) fn listen(&self) -> mpsc::Receiver<LeaseOrder> {
        let (orders, orders_in) = mpsc::channel(QUEUE);
        self.0.store(Some(Arc::new(orders)));
        orders_in
    }

    async fn ask<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> LeaseOrder) -> Result<T, ReleaseError> {
        let not_served = |what: &str| ReleaseError::NotServed(what.to_owned());
        let off = || not_served("DHCP does not run here: spec.dhcp.mode is off or proxy, or it is at fault (see the status)");
        let orders = self.0.load_full().ok_or_else(off)?;
        let (done, answer) = oneshot::channel();
        orders.try_send(order(done)).map_err(|_| off())?;
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(not_served("DHCP was started again meanwhile; look whether it was done")),
            Err(_) => Err(not_served("DHCP did not answer in time; look whether it was done")),
        }
    }

    /// All addresses that were given out.
    ///
    /// # Errors
    /// [`ReleaseError::NotServed`].
    pub async fn list(&self) -> Result<Vec<Listed>, ReleaseError> {
        self.ask(LeaseOrder::List).await
    }

    /// Takes an address back; returns whose it was when that is durable.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub async fn release(&self, address: Ipv4Addr) -> Result<MacAddr, ReleaseError> {
        self.ask(|done| LeaseOrder::Release(address, done)).await?
    }
}
