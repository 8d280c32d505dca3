//! What the user writes: a handler of one message.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::claim::{Claim, Fence};
use crate::delivery::Delivery;
use crate::error::InvalidSetting;
use crate::id::DedupKey;
use crate::store::transactional::TransactionalStore;

/// Does the work of one message. Plain async functions of a [`Context`] are handlers too.
///
/// Returning `Ok` means *done*: the outcome is stored, and the handler is not run again for this key until
/// the retention ends. Returning a [`Failure`] says what is to happen instead. A panic is a failure that is
/// tried again.
///
/// # Cancel safety
///
/// The future is dropped when the lease is lost, when `max_run` is over, when the partition is taken away or
/// the worker's time to drain is over. What it had done by then may be done again. Work handed to other
/// tasks goes on unless it watches [`Context::cancelled`].
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles one message.
    ///
    /// # Errors
    /// See [`Failure`].
    async fn handle(&self, context: Context) -> Result<Reply, Failure>;
}

#[async_trait]
impl<F, Fut, R, E> Handler for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Reply>,
    E: Into<Failure>,
{
    async fn handle(&self, context: Context) -> Result<Reply, Failure> {
        self(context).await.map(Into::into).map_err(Into::into)
    }
}

/// A handler whose own writes go into the outcome's transaction: inside that database its effect happens
/// exactly once.
///
/// It may be run again, uncharged, when something that it read has changed before its commit: nothing that
/// it does outside the transaction is covered.
#[async_trait]
pub trait TxHandler<S: TransactionalStore>: Send + Sync + 'static {
    /// Handles one message, reading and writing through `tx`.
    ///
    /// # Errors
    /// See [`Failure`]; nothing that was written to `tx` stays.
    async fn handle(&self, context: Context, tx: &mut S::Tx) -> Result<Reply, Failure>;
}

/// What a handler leaves for the repeats.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Reply(pub(crate) Option<Bytes>);

impl Reply {
    /// Nothing: repeats are told "done".
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// These bytes.
    #[must_use]
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self(Some(bytes.into()))
    }

    /// `value` as JSON.
    ///
    /// # Errors
    /// When it can't be written as JSON, which will not change: the message is rejected.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, Failure> {
        match serde_json::to_vec(value) {
            Ok(bytes) => Ok(Self::bytes(bytes)),
            Err(error) => Err(Failure::reject(format!("the result is no JSON ({:?})", error.classify()))),
        }
    }
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Self::none()
    }
}

impl From<Bytes> for Reply {
    fn from(bytes: Bytes) -> Self {
        Self(Some(bytes))
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} bytes)", self.0.as_ref().map_or(0, Bytes::len))
    }
}

/// Why a handler is not done, and what is to happen.
///
/// Every error converts into one that is tried again, so that `?` works; it is deliberately no `Error`
/// itself. Its text goes into logs: keep payloads and secrets out of your errors.
#[derive(Debug)]
pub struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) source: Option<Box<dyn Error + Send + Sync>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Retry(Option<Duration>),
    Reject(String),
    Park(String),
    Ignore,
}

impl Failure {
    const fn of(kind: FailureKind) -> Self {
        Self { kind, source: None }
    }

    /// To be tried again after the policy's back-off. Charged: at the policy's limit the operation is given
    /// up and its message becomes a dead letter.
    pub fn retry(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind: FailureKind::Retry(None), source: Some(source.into()) }
    }

    /// To be tried again after `delay`, which is clamped to the longer of 5 min and the back-off's maximum.
    /// Charged.
    #[must_use]
    pub const fn retry_after(delay: Duration) -> Self {
        Self::of(FailureKind::Retry(Some(delay)))
    }

    /// Never to be tried again: the message becomes a dead letter with this reason (cut at 512 bytes).
    #[must_use]
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::of(FailureKind::Reject(reason.into()))
    }

    /// To be put aside for a person to look at: a dead letter with the reason `parked`.
    #[must_use]
    pub fn park(reason: impl Into<String>) -> Self {
        Self::of(FailureKind::Park(reason.into()))
    }

    /// Not to be handled here: the message is settled and the key released, so that a later delivery of it
    /// is handled anew.
    #[must_use]
    pub const fn ignore() -> Self {
        Self::of(FailureKind::Ignore)
    }

    /// With its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

/// What a handler is given. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

struct Inner {
    delivery: Delivery,
    claim: Claim,
    cancelled: CancellationToken,
    after: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Inner");
        debug.field("delivery", &self.delivery).field("claim", &self.claim).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(delivery: Delivery, claim: Claim, cancelled: CancellationToken) -> Self {
        Self(Arc::new(Inner { delivery, claim, cancelled, after: Mutex::default() }))
    }

    pub(crate) fn take_after(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut *self.0.after.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The message as it was delivered.
    #[must_use]
    pub fn delivery(&self) -> &Delivery {
        &self.0.delivery
    }

    /// The message's bytes; empty when it has none (see [`Delivery::payload`] for the difference).
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.delivery.payload().map(AsRef::as_ref).unwrap_or_default()
    }

    /// The payload read as JSON.
    ///
    /// # Errors
    /// A rejection when it is no JSON of this type: reading it again would not help. The reason tells where,
    /// and none of the content.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(self.payload()).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let what = error.classify();
            Failure::reject(format!(
                "the payload can't be read: {what:?} error at line {line} column {column}"
            ))
        })
    }

    /// The producer's trace context: see [`Delivery::traceparent`].
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.0.delivery.traceparent()
    }

    /// Scope and message id: the same on every attempt.
    #[must_use]
    pub fn key(&self) -> &DedupKey {
        &self.0.claim.key
    }

    /// Which attempt this is, from 1. Always 1 for a run without a claim, in [`Observe` and
    /// `Off`](crate::Mode).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.claim.attempt()
    }

    /// Whether an earlier attempt had started and was cut off, so that its effect may have happened. A store
    /// may not know: the embedded one can lose such a note with the power.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.0.claim.interrupted
    }

    /// This attempt's fence: a callee that remembers the highest it has seen can refuse an older owner. Not
    /// for an idempotency key: it differs on every attempt. 0, which no claim has, for a run without one in
    /// [`Observe` and `Off`](crate::Mode).
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.claim.fence
    }

    /// An idempotency key for a call that this handler makes: the same on every attempt of this message, and
    /// another for every `label`. At most `max_len` hexadecimal digits of a SHA-256 over key and label.
    ///
    /// # Errors
    /// When `max_len` is below 32, which would leave less than 128 bits.
    pub fn downstream_key(&self, label: &str, max_len: usize) -> Result<String, InvalidSetting> {
        if max_len < 32 {
            return Err(InvalidSetting::new("max_len", format!("must be at least 32, not {max_len}")));
        }
        // The encoded key says how long it is, so the label can't be taken for a part of it.
        let hash = Sha256::new().chain_update(self.0.claim.key.encode()).chain_update(label).finalize();
        let mut text = crate::dead_letter::hex(&hash);
        text.truncate(max_len);
        Ok(text)
    }

    /// Runs `future` once the outcome is durable: a notification, a cache to be dropped. Never for a
    /// duplicate. Lost when the process dies first, so nothing that must happen belongs here. In
    /// [`Observe` and `Off`](crate::Mode) it is run once the handler of any copy is done.
    pub fn after_completion(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.0.after.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(future));
    }

    /// Cancelled when this attempt is: for work handed to other tasks.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.0.cancelled
    }
}
