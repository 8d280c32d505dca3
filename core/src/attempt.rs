//! One run of the handler under a claim, whatever the handler does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use rand::RngExt;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::claim::{Claim, Failing, SettleAnswer};
use crate::clock::timeout;
use crate::delivery::Delivery;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::handler::{Context, Failure, FailureKind, Handler, Reply, TxHandler};
use crate::lease::Lease;
use crate::names;
use crate::outcome::FailReason;
use crate::quiet::{Quiet, caught, drop_quietly, panic_text};
use crate::settle::Unsettled;
use crate::stop::Stop;
use crate::store::DedupStoreExt;
use crate::store::transactional::{TransactionalStore, TxAnswer};

/// A handler as the engine runs it: with or without a transaction of its store.
#[async_trait]
pub trait Run: Send + Sync + 'static {
    /// Runs the handler once.
    #[doc(hidden)]
    async fn run(&self, context: Context, claim: &Claim) -> Result<Effect, Failure>;
}

/// What a run left to be stored.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "never seen from outside")]
pub struct Effect {
    pub(crate) reply: Reply,
    pub(crate) commit: Option<Box<dyn Commit>>,
}

/// A transaction that waits for its outcome.
#[async_trait]
pub(crate) trait Commit: Send {
    async fn commit(self: Box<Self>, claim: &Claim, result: Option<Bytes>) -> Result<TxAnswer, StoreError>;

    /// Without an outcome; `false` when it must run again.
    async fn commit_alone(self: Box<Self>) -> Result<bool, StoreError>;
}

#[async_trait]
impl<H: Handler> Run for H {
    async fn run(&self, context: Context, _: &Claim) -> Result<Effect, Failure> {
        let reply = self.handle(context).await?;
        Ok(Effect { reply, commit: None })
    }
}

/// A [`TxHandler`] together with the store that it writes to.
#[derive(Debug)]
pub struct InTx<S, H> {
    pub(crate) store: Arc<S>,
    pub(crate) handler: H,
}

struct Pending<S: TransactionalStore> {
    store: Arc<S>,
    tx: S::Tx,
}

#[async_trait]
impl<S: TransactionalStore> Commit for Pending<S> {
    async fn commit(self: Box<Self>, claim: &Claim, result: Option<Bytes>) -> Result<TxAnswer, StoreError> {
        self.store.commit(self.tx, claim, result).await
    }

    async fn commit_alone(self: Box<Self>) -> Result<bool, StoreError> {
        self.store.commit_alone(self.tx).await
    }
}

#[async_trait]
impl<S: TransactionalStore, H: TxHandler<S>> Run for InTx<S, H> {
    async fn run(&self, context: Context, claim: &Claim) -> Result<Effect, Failure> {
        let mut tx = self.store.begin(claim).await?;
        let reply = self.handler.handle(context, &mut tx).await?;
        let commit = Pending { store: Arc::clone(&self.store), tx };
        Ok(Effect { reply, commit: Some(Box::new(commit)) })
    }
}

/// How a run ended.
pub(crate) enum Ended {
    /// The handler says that it is done.
    Done(Effect, Context),
    /// It is not; `asked` is the wait that the handler asked for itself.
    Failed { failing: Failing, asked: Option<Duration> },
    /// It does not want the message.
    Ignored,
    /// It was stopped from outside, or could not be started. Charged to nobody.
    Stopped(Unsettled),
}

/// A key that was interrupted twice runs alone in its process, so that a death can be laid at its door.
static COMPANY: RwLock<()> = RwLock::const_new(());

/// The right to run among others, or alone.
#[derive(Debug)]
pub(crate) struct Company {
    _among_others: Option<RwLockReadGuard<'static, ()>>,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
}

impl Company {
    pub(crate) async fn new(alone: bool) -> Self {
        match alone {
            true => Self { _among_others: None, _alone: Some(COMPANY.write().await) },
            false => Self { _among_others: Some(COMPANY.read().await), _alone: None },
        }
    }
}

/// Whether the store knows that the handler starts.
#[derive(Debug)]
pub(crate) enum Start {
    /// The claim said so, made when nothing could hold up the start: who waits while another runs alone must
    /// not count as started, or that one's crash would be charged to it. (A claim that must run alone has
    /// not started with its claim, whatever was asked for.)
    WithClaim(Company),
    /// Said before, under this claim.
    Before,
    /// Not yet.
    NotYet,
}

/// Ends with the reason when a handler must not go on.
async fn stopped(lost: &CancellationToken, stop: &Stop) -> Unsettled {
    tokio::select! {
        biased;
        () = lost.cancelled() => Unsettled::LeaseLost,
        () = stop.asked() => Unsettled::Cancelled,
    }
}

impl Engine {
    /// Runs the handler under `lease`.
    pub(crate) async fn attempt(
        &self,
        handler: &dyn Run,
        lease: &Lease,
        delivery: &Delivery,
        start: Start,
        stop: &Stop,
    ) -> Ended {
        let claim = &lease.claim;
        let may_start = async {
            let started = !claim.alone && !matches!(start, Start::NotYet);
            let company = match start {
                Start::WithClaim(company) if !claim.alone => company,
                // Alone until its outcome is stored: meanwhile another's crash would look like its own.
                Start::Before if lease.is_alone() => return Ok(None),
                start => {
                    // Let go of first: nobody is alone among others.
                    drop(start);
                    Company::new(claim.alone).await
                }
            };
            if !started {
                self.start(lease).await?;
            }
            if claim.alone {
                lease.stay_alone(company);
                return Ok(None);
            }
            Ok(Some(company))
        };
        let _company = tokio::select! {
            biased;
            stopped = stopped(&lease.lost, stop) => return Ended::Stopped(stopped),
            company = may_start => match company {
                Ok(company) => company,
                Err(unsettled) => return Ended::Stopped(unsettled),
            },
        };
        self.run_handler(handler, claim, delivery, &lease.lost, stop).await
    }

    /// Runs the handler, until `lost` or `stop` ask it to end.
    pub(crate) async fn run_handler(
        &self,
        handler: &dyn Run,
        claim: &Claim,
        delivery: &Delivery,
        lost: &CancellationToken,
        stop: &Stop,
    ) -> Ended {
        let context = Context::new(delivery.clone(), claim.clone(), lost.child_token());
        // However this ends before its handler does, work that the handler gave to other tasks is told.
        let cut_off = context.cancelled().clone().drop_guard();
        let span = self.spans.attempt(claim, delivery);
        let run = AssertUnwindSafe(Quiet::new(handler.run(context.clone(), claim)))
            .catch_unwind()
            .instrument(span.clone());
        metrics::counter!(names::RUNS, "scope" => self.scope_label.clone()).increment(1);
        let began = self.clock.monotonic();
        let ended = tokio::select! {
            biased;
            ended = timeout(&*self.clock, self.policy.max_run(), run) => ended,
            stopped = stopped(lost, stop) => return Ended::Stopped(stopped),
        };
        let seconds = self.clock.monotonic().saturating_sub(began).as_secs_f64();
        metrics::histogram!(names::HANDLER_SECONDS, "scope" => self.scope_label.clone()).record(seconds);
        let _in_span = span.enter();
        let ended = match ended {
            Some(Ok(Ok(effect))) => {
                cut_off.disarm();
                return Ended::Done(effect, context);
            }
            Some(Ok(Err(failure))) => self.failed(claim, failure),
            Some(Err(panic)) => {
                tracing::error!(panic = panic_text(&*panic), "the handler panicked");
                drop_quietly(panic);
                self.retry(claim, None)
            }
            None => {
                tracing::error!(max_run = ?self.policy.max_run(), "the handler ran too long and was cancelled");
                self.retry(claim, None)
            }
        };
        // A handler that fails because it was told to stop is not to blame.
        match (ended, stopped(lost, stop).now_or_never()) {
            (Ended::Failed { failing: Failing::Retry { .. }, .. }, Some(stopped)) => Ended::Stopped(stopped),
            (ended, _) => ended,
        }
    }

    /// Waits before a handler runs again whose transaction has met a conflict, from the second on and longer
    /// each time: those that fight for one key must not all try again at once.
    pub(crate) async fn after_conflict(&self, conflicts: u32) {
        if let Some(exponent) = conflicts.checked_sub(2) {
            let ceiling = CONFLICT_FIRST.saturating_mul(1 << exponent.min(10)).min(CONFLICT_MOST);
            let wait = ceiling.mul_f64(rand::rng().random::<f64>());
            self.clock.sleep(wait).await;
        }
    }

    async fn start(&self, lease: &Lease) -> Result<(), Unsettled> {
        match self.call(self.store.started(&lease.claim)).await {
            Ok(SettleAnswer::Applied(_)) => Ok(()),
            Ok(SettleAnswer::Refused(refusal)) => Err(self.refused(refusal)),
            Err(error) => Err(self.store_failed(error)),
        }
    }

    fn failed(&self, claim: &Claim, failure: Failure) -> Ended {
        // The handler's own calls to the store, in its transaction: the message can't help it.
        if let Some(error) = store_trouble(&failure) {
            return Ended::Stopped(self.store_failed(error));
        }
        let cause = failure.source.as_ref().and_then(|source| caught(|| source.to_string()));
        let cause = cause.as_deref().unwrap_or("not given");
        drop_quietly(failure.source);
        match failure.kind {
            FailureKind::Retry(delay) => {
                tracing::warn!(cause, "the handler failed");
                self.retry(claim, delay)
            }
            FailureKind::Reject(words) => {
                tracing::warn!(cause, reason = %words.escape_debug(), "the handler rejected the message");
                let failing = Failing::ForGood(FailReason::Rejected(words));
                Ended::Failed { failing, asked: None }
            }
            FailureKind::Park(words) => {
                tracing::warn!(cause, reason = %words.escape_debug(), "the handler parked the message");
                let failing = Failing::ForGood(FailReason::Parked(words));
                Ended::Failed { failing, asked: None }
            }
            FailureKind::Ignore => Ended::Ignored,
        }
    }

    fn retry(&self, claim: &Claim, asked: Option<Duration>) -> Ended {
        let failures = claim.counters.failures.saturating_add(1);
        let delay = asked.unwrap_or_else(|| self.policy.backoff().delay(failures));
        Ended::Failed { failing: Failing::Retry { delay }, asked }
    }
}

const CONFLICT_FIRST: Duration = Duration::from_millis(1);
const CONFLICT_MOST: Duration = Duration::from_millis(200);

fn store_trouble(failure: &Failure) -> Option<StoreError> {
    let error = failure.source.as_ref()?.downcast_ref::<StoreError>()?;
    Some(error.clone()).filter(|error| error.is_retryable() || error.is_fatal())
}
