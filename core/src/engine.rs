//! The steps of the flow: find the id, claim, store the outcome.
//!
//! [`idempotent`](crate::idempotent) puts them in their order for one message, the worker's lanes for many.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::attempt::{Company, Ended, Start};
use crate::claim::{
    Claim, ClaimAnswer, ClaimRequest, EndedBy, Refusal, SettleAnswer, SettleRequest, Stage, Standing, Token,
    Verb,
};
use crate::clock::{Clock, timeout};
use crate::dead_letter::{DeadLetterReason, DeadLetters};
use crate::delivery::Delivery;
use crate::error::{StoreError, StoreErrorKind};
use crate::fingerprint::FingerprintPolicy;
use crate::id::{DedupKey, Scope};
use crate::identify::{Identify, MissingIdPolicy, NoId};
use crate::lease::{Lease, Leases};
use crate::mode::ModeSwitch;
use crate::names;
use crate::observe::Observer;
use crate::policy::Policy;
use crate::settle::{Disposition, Later, Settled, Unsettled};
use crate::span::Spans;
use crate::stop::Stop;
use crate::store::transactional::TxAnswer;
use crate::store::{DedupStore, DedupStoreExt};

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn DedupStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) policy: Policy,
    pub(crate) leases: Leases,
    pub(crate) scope: Scope,
    pub(crate) scope_label: Arc<str>,
    pub(crate) identify: Identify,
    pub(crate) fingerprint: FingerprintPolicy,
    pub(crate) dead_letters: Option<Arc<dyn DeadLetters>>,
    pub(crate) spans: Spans,
    pub(crate) mode: ModeSwitch,
    pub(crate) observer: Observer,
}

/// What a claim came to.
#[allow(clippy::large_enum_variant, reason = "taken apart at once, where it is made")]
pub(crate) enum Claimed {
    /// The handler is to run.
    Run(Lease, Start),
    /// Decided without a run.
    Decided(Disposition),
}

/// What storing an outcome came to.
#[allow(clippy::large_enum_variant, reason = "taken apart at once, where it is made")]
pub(crate) enum Stored {
    As(Disposition),
    /// What the transaction had read has changed: run the handler again, under the same claim.
    RunAgain(Lease),
}

impl Engine {
    /// The key of `delivery`.
    pub(crate) fn identify(&self, delivery: &Delivery) -> Result<DedupKey, NoId> {
        self.identify.identify(delivery).map(|id| DedupKey::new(self.scope.clone(), id))
    }

    /// A message that has no key writes nothing to the store: its dead letter is named by its position.
    pub(crate) async fn without_id(&self, delivery: &Delivery, no_id: NoId) -> Disposition {
        tracing::warn!(position = %delivery.position(), problem = %no_id, "the message has no usable id");
        if self.identify.missing() == MissingIdPolicy::Fail {
            return Disposition::Unsettled(Unsettled::NoId(no_id));
        }
        self.put_aside(delivery, DeadLetterReason::BadId(no_id.to_string()), None).await
    }

    pub(crate) fn request(
        &self,
        key: &DedupKey,
        delivery: &Delivery,
        token: Token,
        started: bool,
        group: Option<u32>,
    ) -> ClaimRequest {
        let fingerprint = self.fingerprint.of(delivery);
        ClaimRequest { key: key.clone(), token, fingerprint, rules: self.policy.rules(), started, group }
    }

    /// Claims `key`. A call whose answer was lost is sent again under the same token, so that it finds its
    /// own claim.
    pub(crate) async fn claim(
        &self,
        key: &DedupKey,
        delivery: &Delivery,
        token: Token,
        stop: &Stop,
    ) -> Claimed {
        let company = tokio::select! {
            biased;
            () = stop.asked() => return Claimed::Decided(Disposition::Unsettled(Unsettled::Cancelled)),
            company = Company::new(false) => company,
        };
        let request = self.request(key, delivery, token, true, None);
        let sent_at = self.clock.monotonic();
        match self.call(self.store.claim(request)).await {
            Ok(ClaimAnswer::Acquired(claim)) if claim.stage == Stage::Run => {
                Claimed::Run(self.hold(claim, sent_at, delivery), Start::WithClaim(company))
            }
            answer => {
                drop(company);
                Claimed::Decided(self.decided(answer, sent_at, key, delivery).await)
            }
        }
    }

    /// What becomes of a message by an answer to its claim, sent at `sent_at`, that runs no handler.
    pub(crate) async fn decided(
        &self,
        answer: Result<ClaimAnswer, StoreError>,
        sent_at: Duration,
        key: &DedupKey,
        delivery: &Delivery,
    ) -> Disposition {
        match answer {
            Ok(ClaimAnswer::Acquired(claim)) => {
                let lease = self.hold(claim, sent_at, delivery);
                match lease.claim.stage.clone() {
                    Stage::Run => self.leave(&lease, Unsettled::Cancelled).await,
                    Stage::DeadLetter(reason) => self.publish(lease, delivery, reason, false).await,
                }
            }
            Ok(ClaimAnswer::Completed(outcome)) => {
                self.repeat(key, delivery, outcome.attempt);
                Disposition::Settle(Settled::Duplicate(outcome))
            }
            Ok(ClaimAnswer::Failed(failed)) => {
                self.repeat(key, delivery, failed.attempts);
                Disposition::Settle(Settled::FailedBefore(failed))
            }
            Ok(ClaimAnswer::Conflict) => {
                tracing::error!(%key, position = %delivery.position(), "the id came back with another content");
                self.put_aside(delivery, DeadLetterReason::Conflict, Some(key)).await
            }
            Ok(ClaimAnswer::InProgress { retry_after }) => {
                Disposition::Later { why: Later::InProgress, retry_after }
            }
            Ok(ClaimAnswer::NotYet { retry_after, .. }) => {
                Disposition::Later { why: Later::NotYet, retry_after }
            }
            Ok(ClaimAnswer::Behind) => {
                Disposition::Later { why: Later::InProgress, retry_after: Duration::ZERO }
            }
            Err(error) if error.kind() == StoreErrorKind::Undecodable => {
                let position = delivery.position();
                tracing::error!(%key, %position, %error, "the record can't be read; the message is put aside");
                self.put_aside(delivery, DeadLetterReason::Undecodable, Some(key)).await
            }
            Err(error) => Disposition::Unsettled(self.store_failed(error)),
        }
    }

    fn repeat(&self, key: &DedupKey, delivery: &Delivery, answered_by_attempt: u32) {
        let span = self.spans.duplicate(key, delivery, answered_by_attempt);
        span.in_scope(|| tracing::debug!("answered by the stored outcome"));
    }

    /// Keeps a claim that was asked for at `sent_at`.
    pub(crate) fn hold(&self, claim: Claim, sent_at: Duration, delivery: &Delivery) -> Lease {
        if claim.interrupted {
            metrics::counter!(names::TAKEN_OVER, "scope" => self.scope_label.clone()).increment(1);
        }
        self.leases.keep(claim, Some(delivery.position().clone()), sent_at)
    }

    /// Makes the end of a run durable.
    pub(crate) async fn store_outcome(&self, lease: Lease, ended: Ended, delivery: &Delivery) -> Stored {
        let disposition = match ended {
            Ended::Done(effect, context) => {
                let result = effect.reply.0;
                let stored = match effect.commit {
                    Some(tx) => self.commit(&lease, tx, result.clone()).await,
                    None => self.complete(&lease, result.clone()).await.map(|()| true),
                };
                match stored {
                    Ok(true) => {
                        drop(lease);
                        context.take_after().into_iter().for_each(|future| drop(tokio::spawn(future)));
                        Disposition::Settle(Settled::Ran { result })
                    }
                    Ok(false) => return Stored::RunAgain(lease),
                    Err(unsettled) => self.leave(&lease, unsettled).await,
                }
            }
            Ended::Failed { failing, .. } => match self.settle(&lease, Verb::Fail(failing)).await {
                Ok(Standing::Owed(reason)) => self.publish(lease, delivery, reason, true).await,
                Ok(Standing::Released { retry_after, .. }) => {
                    Disposition::Later { why: Later::Failed, retry_after }
                }
                Ok(_) => Disposition::Later { why: Later::Failed, retry_after: Duration::ZERO },
                Err(unsettled) => self.leave(&lease, unsettled).await,
            },
            Ended::Ignored => match self.settle(&lease, Verb::Release { delay: Duration::ZERO }).await {
                Ok(_) => Disposition::Settle(Settled::Ignored),
                Err(unsettled) => self.leave(&lease, unsettled).await,
            },
            Ended::Stopped(unsettled) => self.leave(&lease, unsettled).await,
        };
        Stored::As(disposition)
    }

    /// Leaves a message unsettled, and its claim to whoever comes next: a lapse would be charged to it.
    pub(crate) async fn leave(&self, lease: &Lease, unsettled: Unsettled) -> Disposition {
        if !matches!(unsettled, Unsettled::Refused(_)) {
            self.give_back(vec![lease]).await;
        }
        Disposition::Unsettled(unsettled)
    }

    /// Records that the operation is done, trying again until the lease is lost.
    pub(crate) async fn complete(&self, lease: &Lease, result: Option<Bytes>) -> Result<(), Unsettled> {
        let result = self.result_to_keep(lease, result);
        match self.settle(lease, Verb::Complete { result }).await {
            Ok(_) => Ok(()),
            Err(Unsettled::LeaseLost) => Err(Unsettled::OutcomeUnknown(None)),
            Err(Unsettled::Store(error)) => Err(Unsettled::OutcomeUnknown(Some(error))),
            Err(other) => Err(other),
        }
    }

    /// Commits the handler's transaction; `false` when it must run again.
    pub(crate) async fn commit(
        &self,
        lease: &Lease,
        tx: Box<dyn crate::attempt::Commit>,
        result: Option<Bytes>,
    ) -> Result<bool, Unsettled> {
        let result = self.result_to_keep(lease, result);
        let answer = tokio::select! {
            biased;
            answer = tx.commit(&lease.claim, result) => answer,
            // Longer than other calls may: it can hold much. Dropped, it is as good as failed.
            () = async { self.clock.sleep(self.policy.rules().lease).await } => Err(no_answer(self.policy.rules().lease)),
            () = lease.lost.cancelled() => return Err(Unsettled::OutcomeUnknown(None)),
        };
        match answer {
            Ok(TxAnswer::Settled(SettleAnswer::Applied(_))) => Ok(true),
            Ok(TxAnswer::Settled(SettleAnswer::Refused(refusal))) => Err(self.refused(refusal)),
            Ok(TxAnswer::Conflict) => {
                metrics::counter!(names::TX_CONFLICTS, "scope" => self.scope_label.clone()).increment(1);
                Ok(false)
            }
            // Committed or not? The record says: a re-read that shows this very outcome settles.
            Err(error) => match self.call(self.store.get(&lease.claim.key)).await {
                Ok(Some(record))
                    if record.ended.is_some_and(|ended| {
                        ended.token == lease.claim.token && ended.by == EndedBy::Complete
                    }) =>
                {
                    Ok(true)
                }
                _ => Err(Unsettled::OutcomeUnknown(Some(self.note_store_error(error)))),
            },
        }
    }

    pub(crate) fn result_to_keep(&self, lease: &Lease, result: Option<Bytes>) -> Option<Bytes> {
        let len = result.as_ref().map_or(0, Bytes::len);
        if len > self.policy.max_result() {
            let max = self.policy.max_result();
            let (key, attempt) = (&lease.claim.key, lease.claim.attempt());
            let position = lease.position.as_ref().map(tracing::field::display);
            tracing::error!(%key, position, attempt, len, max, "the result is too long and is not kept for repeats");
        }
        result
    }

    /// Sends a settle until it is answered or the lease is lost.
    pub(crate) async fn settle(&self, lease: &Lease, verb: Verb) -> Result<Standing, Unsettled> {
        let mut wait = RETRY_FIRST;
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.call(self.store.settle(&lease.claim, verb.clone())) => answer,
                () = lease.lost.cancelled() => return Err(Unsettled::LeaseLost),
            };
            match answer {
                Ok(SettleAnswer::Applied(standing)) => return Ok(standing),
                Ok(SettleAnswer::Refused(refusal)) => return Err(self.refused(refusal)),
                Err(error) if error.is_retryable() => {
                    let error = self.note_store_error(error);
                    let (key, attempt) = (&lease.claim.key, lease.claim.attempt());
                    let position = lease.position.as_ref().map(tracing::field::display);
                    tracing::warn!(%key, position, attempt, %error, ?verb, "the store failed; sending it again");
                }
                Err(error) => return Err(self.store_failed(error)),
            }
            tokio::select! {
                () = self.clock.sleep(wait) => wait = (wait * 2).min(RETRY_MOST),
                () = lease.lost.cancelled() => return Err(Unsettled::LeaseLost),
            }
        }
    }

    /// Gives claims back that were stopped through no fault of their messages: uncharged, and once. Should
    /// it fail, the leases end by themselves; where the claim has been ended or lost, nothing happens.
    pub(crate) async fn give_back(&self, leases: Vec<&Lease>) {
        if leases.is_empty() {
            return;
        }
        let verb = Verb::Release { delay: Duration::ZERO };
        let release =
            |lease: &&Lease| SettleRequest { claim: lease.claim.clone(), verb: verb.clone(), group: None };
        let release = self.store.settle_many(leases.iter().map(release).collect());
        let answers = timeout(&*self.clock, GIVE_BACK_MOST, release).await;
        let mut answers = answers.into_iter().flatten();
        for lease in leases {
            let problem = match answers.next() {
                Some(Ok(SettleAnswer::Applied(_))) => continue,
                Some(Ok(SettleAnswer::Refused(refusal))) => {
                    self.refused(refusal);
                    continue;
                }
                Some(Err(error)) => self.note_store_error(error).to_string(),
                None => format!("no answer within {GIVE_BACK_MOST:?}"),
            };
            let (key, attempt) = (&lease.claim.key, lease.claim.attempt());
            let position = lease.position.as_ref().map(tracing::field::display);
            tracing::warn!(%key, position, attempt, problem, "a claim could not be given back");
        }
    }

    /// A call of the store. One that is not answered in time is one whose answer is lost.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.longest_call();
        timeout(&*self.clock, limit, call).await.unwrap_or_else(|| Err(no_answer(limit)))
    }

    /// The same for a batch of `count` items.
    pub(crate) async fn call_many<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<T, StoreError>>>,
    ) -> Vec<Result<T, StoreError>> {
        let limit = self.longest_call();
        let answers = timeout(&*self.clock, limit, call).await;
        answers.unwrap_or_else(|| (0..count).map(|_| Err(no_answer(limit))).collect())
    }

    /// Longer, and what is claimed or settled would no longer be worth much.
    pub(crate) fn longest_call(&self) -> Duration {
        self.policy.rules().lease / 3
    }

    pub(crate) fn refused(&self, refusal: Refusal) -> Unsettled {
        metrics::counter!(names::REFUSED, "scope" => self.scope_label.clone(), "refusal" => refusal.to_string())
            .increment(1);
        Unsettled::Refused(refusal)
    }

    pub(crate) fn store_failed(&self, error: StoreError) -> Unsettled {
        Unsettled::Store(self.note_store_error(error))
    }

    pub(crate) fn note_store_error(&self, error: StoreError) -> StoreError {
        let kind = format!("{:?}", error.kind());
        metrics::counter!(names::STORE_ERRORS, "scope" => self.scope_label.clone(), "kind" => kind)
            .increment(1);
        error
    }
}

pub(crate) fn no_answer(limit: Duration) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("the store did not answer within {limit:?}"))
}

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_secs(1);
const GIVE_BACK_MOST: Duration = Duration::from_secs(1);
