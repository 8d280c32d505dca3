//! The same promise for any code: no delivery, no handler, a typed result.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::{ClaimAnswer, ClaimRequest, Stage, Token};
use crate::error::StoreError;
use crate::fingerprint::Fingerprint;
use crate::id::DedupKey;
use crate::idempotent::Idempotent;
use crate::mode::Mode;
use crate::outcome::{FailReason, StoredResult};
use crate::settle::Unsettled;
use crate::store::{DedupStore, DedupStoreExt};

/// What came of a [`run`](Idempotent::run).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer<T> {
    /// The work ran now, and its outcome is stored.
    Ran(T),
    /// It ran before, with this result.
    Replayed(T),
    /// It ran before; its result was longer than the store keeps.
    ReplayedWithoutResult,
    /// It is running elsewhere. Ask again.
    InProgress {
        /// When the other's lease ends at the latest.
        retry_after: Duration,
    },
    /// It may run again after this time.
    NotYet {
        /// From now.
        retry_after: Duration,
    },
    /// The key was used before with another fingerprint.
    Conflict,
    /// It was given up before, for this reason.
    GivenUp(FailReason),
}

/// Why a [`run`](Idempotent::run) has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The work failed. Its key is free, and no attempt is charged: the next call runs it again.
    #[error("the work failed")]
    Work(#[source] E),
    /// The store failed before the work ran.
    #[error("the store failed before the work ran: {0}")]
    Store(#[source] StoreError),
    /// The work was stopped, or its outcome was refused or is not known.
    #[error(transparent)]
    Unsettled(Unsettled),
    /// The result can't be written as JSON, or the stored one can't be read as `T`. In the first case the
    /// work has run and its key is free again.
    #[error("the result can't be written or read as JSON of this type ({0:?})")]
    Result(serde_json::error::Category),
}

impl<S: DedupStore, H> Idempotent<S, H> {
    /// Runs `work` once for `key`, and answers every other call with its stored result.
    ///
    /// An error of the work frees the key without charging an attempt: the caller decides about trying
    /// again. `work` is cancelled when its lease is lost; it may run for longer than the policy's `max_run`.
    ///
    /// In the modes [`Observe` and `Off`](Mode) the work always runs, and its result is the answer.
    ///
    /// # Errors
    /// See [`RunError`]. After a failing store the same call may be made again.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the key can be claimed again when the lease has ended.
    pub async fn run<T, E, F, Fut>(
        &self,
        key: &DedupKey,
        fingerprint: Option<Fingerprint>,
        work: F,
    ) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let engine = &self.engine;
        let request = ClaimRequest {
            key: key.clone(),
            token: Token::random(),
            fingerprint,
            rules: engine.policy.rules(),
            // Not charged with an interruption: a caller who goes away is no crash, and nothing here runs alone.
            started: false,
            group: None,
        };
        let mode = engine.mode.get();
        if mode != Mode::Enforce {
            return engine.observe_run(mode, request, work).await;
        }
        let sent_at = engine.clock.monotonic();
        let claim = match engine.call(engine.store.claim(request)).await.map_err(RunError::Store)? {
            ClaimAnswer::Acquired(claim) => claim,
            ClaimAnswer::Completed(outcome) => return replayed(&outcome.result),
            ClaimAnswer::Failed(failed) => return Ok(Answer::GivenUp(failed.reason)),
            ClaimAnswer::Conflict => return Ok(Answer::Conflict),
            ClaimAnswer::InProgress { retry_after } => return Ok(Answer::InProgress { retry_after }),
            ClaimAnswer::NotYet { retry_after, .. } => return Ok(Answer::NotYet { retry_after }),
            ClaimAnswer::Behind => return Ok(Answer::InProgress { retry_after: Duration::ZERO }),
        };
        let stage = claim.stage.clone();
        let lease = engine.leases.keep(claim, None, sent_at);
        if let Stage::DeadLetter(reason) = stage {
            // There is no message here to put aside: it stays owed to whoever has it.
            engine.give_back(vec![&lease]).await;
            return Ok(Answer::GivenUp(reason));
        }

        let ended = tokio::select! {
            biased;
            ended = AssertUnwindSafe(async { work().await }).catch_unwind() => ended,
            () = lease.lost.cancelled() => {
                engine.give_back(vec![&lease]).await;
                return Err(RunError::Unsettled(Unsettled::LeaseLost));
            }
        };
        let value = match ended {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                engine.give_back(vec![&lease]).await;
                return Err(RunError::Work(error));
            }
            Err(panic) => {
                engine.give_back(vec![&lease]).await;
                std::panic::resume_unwind(panic);
            }
        };
        let bytes = match serde_json::to_vec(&value) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => {
                engine.give_back(vec![&lease]).await;
                return Err(RunError::Result(error.classify()));
            }
        };
        if let Err(unsettled) = engine.complete(&lease, Some(bytes)).await {
            // Refused where the outcome is stored after all, which the next call then tells.
            engine.give_back(vec![&lease]).await;
            return Err(RunError::Unsettled(unsettled));
        }
        Ok(Answer::Ran(value))
    }
}

fn replayed<T: DeserializeOwned, E>(result: &StoredResult) -> Result<Answer<T>, RunError<E>> {
    let bytes: &[u8] = match result {
        StoredResult::NotKept { .. } => return Ok(Answer::ReplayedWithoutResult),
        StoredResult::Kept(bytes) => bytes,
        StoredResult::None => b"null",
    };
    let value = serde_json::from_slice(bytes).map_err(|error| RunError::Result(error.classify()))?;
    Ok(Answer::Replayed(value))
}
