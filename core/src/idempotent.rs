//! The path of one message, in reading order.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::attempt::{InTx, Run, Start};
use crate::claim::Token;
use crate::delivery::Delivery;
use crate::engine::{Claimed, Engine, Stored};
use crate::error::InvalidSetting;
use crate::handler::{Handler, TxHandler};
use crate::mode::Mode;
use crate::observe::{Look, Observed};
use crate::settings::Settings;
use crate::settle::Disposition;
use crate::stop::Stop;
use crate::store::DedupStore;
use crate::store::transactional::TransactionalStore;

/// Runs a handler once for each message id.
///
/// For a consumer loop that you already have: give each delivery to [`process`](Idempotent::process), and
/// settle it with your broker when, and only when, the answer is [`Disposition::Settle`]. The
/// [`Worker`](crate::worker::Worker) does that for many deliveries at once.
///
/// For any other code there is [`run`](Idempotent::run).
#[derive(Debug)]
pub struct Idempotent<S, H = ()> {
    pub(crate) engine: Arc<Engine>,
    store: Arc<S>,
    pub(crate) handler: Arc<H>,
}

impl<S, H> Clone for Idempotent<S, H> {
    fn clone(&self) -> Self {
        let (engine, store) = (Arc::clone(&self.engine), Arc::clone(&self.store));
        Self { engine, store, handler: Arc::clone(&self.handler) }
    }
}

impl<S: DedupStore> Idempotent<S> {
    /// For [`run`](Idempotent::run) only.
    ///
    /// # Errors
    /// When a setting does not fit the store.
    pub fn without_handler(store: S, settings: Settings) -> Result<Self, InvalidSetting> {
        let store = Arc::new(store);
        let engine = settings.engine(Arc::<S>::clone(&store))?;
        Ok(Self { engine: Arc::new(engine), store, handler: Arc::new(()) })
    }
}

impl<S: DedupStore, H: Handler> Idempotent<S, H> {
    /// Runs `handler` once for each message id, remembering in `store`.
    ///
    /// # Errors
    /// When a setting does not fit the store.
    pub fn new(store: S, handler: H, settings: Settings) -> Result<Self, InvalidSetting> {
        let store = Arc::new(store);
        let engine = settings.engine(Arc::<S>::clone(&store))?;
        Ok(Self { engine: Arc::new(engine), store, handler: Arc::new(handler) })
    }
}

impl<S: TransactionalStore, H: TxHandler<S>> Idempotent<S, InTx<S, H>> {
    /// Runs `handler` in the transaction of its outcome.
    ///
    /// # Errors
    /// When a setting does not fit the store.
    pub fn in_tx(store: S, handler: H, settings: Settings) -> Result<Self, InvalidSetting> {
        let store = Arc::new(store);
        let engine = settings.engine(Arc::<S>::clone(&store))?;
        let handler = Arc::new(InTx { store: Arc::clone(&store), handler });
        Ok(Self { engine: Arc::new(engine), store, handler })
    }
}

impl<S: DedupStore, H> Idempotent<S, H> {
    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// What was counted in the mode [`Observe`](Mode::Observe).
    #[must_use]
    pub fn observed(&self) -> Observed {
        self.engine.observed()
    }
}

impl<S: DedupStore, H: Run> Idempotent<S, H> {
    /// Processes one delivery to the point where its broker can be told, or not.
    ///
    /// `cancel` stops the handler and gives its claim back, uncharged.
    ///
    /// # Cancel safety
    /// Dropping the future stops the handler; its key can be claimed again when the lease has ended, and
    /// the next attempt is told that one was interrupted. Cancelling `cancel` is the better way.
    pub async fn process(&self, delivery: &Delivery, cancel: &CancellationToken) -> Disposition {
        let (engine, handler, stop) = (&self.engine, &*self.handler, Stop::from(cancel));
        match engine.mode.get() {
            Mode::Enforce => engine.process(handler, delivery, Token::random(), &stop, |_| ()).await,
            mode => {
                let look = Look { mode, token: Token::random(), counted: &mut false, later: None };
                engine.observe(handler, delivery, look, &stop, |_| ()).await
            }
        }
    }
}

/// How far the processing of a message has come.
pub(crate) enum Reached {
    /// The claim is held.
    Claimed,
    /// The handler has returned, and its outcome is on its way to the disk.
    Ran,
}

impl Engine {
    /// `token` names the claim: the same as before when the store's last answer was an error.
    pub(crate) async fn process(
        &self,
        handler: &dyn Run,
        delivery: &Delivery,
        token: Token,
        stop: &Stop,
        mut reached: impl FnMut(Reached),
    ) -> Disposition {
        // 1. Which operation is it?
        let key = match self.identify(delivery) {
            Ok(key) => key,
            Err(no_id) => return self.without_id(delivery, no_id).await,
        };
        // 2. Claim it, or learn what became of it.
        let (mut lease, start) = match self.claim(&key, delivery, token, stop).await {
            Claimed::Run(lease, start) => (lease, start),
            Claimed::Decided(disposition) => return disposition,
        };
        reached(Reached::Claimed);
        // 3. Run the handler.
        let mut ended = self.attempt(handler, &lease, delivery, start, stop).await;
        reached(Reached::Ran);
        // 4. Store what came of it, durably. 5. The caller settles.
        let mut conflicts = 0;
        loop {
            match self.store_outcome(lease, ended, delivery).await {
                Stored::As(disposition) => return disposition,
                Stored::RunAgain(same) => lease = same,
            }
            conflicts += 1;
            self.after_conflict(conflicts).await;
            ended = self.attempt(handler, &lease, delivery, Start::Before, stop).await;
        }
    }
}
