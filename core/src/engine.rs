//! The steps of the flow: find the id, claim, store the outcome, put dead letters aside.
//!
//! [`idempotent`](crate::idempotent) puts them in their order for one message, the worker's lanes for many.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::attempt::Ended;
use crate::claim::{
    Claim, ClaimAnswer, ClaimRequest, EndedBy, Refusal, SettleAnswer, SettleRequest, Stage, Standing, Token,
    Verb,
};
use crate::clock::{Clock, timeout};
use crate::dead_letter::{DeadLetter, DeadLetterError, DeadLetterReason, DeadLetters};
use crate::delivery::Delivery;
use crate::error::{StoreError, StoreErrorKind};
use crate::fingerprint::FingerprintPolicy;
use crate::id::{DedupKey, Scope};
use crate::identify::{Identify, MissingIdPolicy, NoId};
use crate::lease::{Lease, Leases};
use crate::names;
use crate::outcome::FailReason;
use crate::policy::Policy;
use crate::settle::{Disposition, Later, Settled, Unsettled};
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
}

/// What a claim came to.
pub(crate) enum Claimed {
    /// The handler is to run.
    Run(Lease),
    /// Decided without a run.
    Decided(Disposition),
}

/// What storing an outcome came to.
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
        self.put_aside(delivery, DeadLetterReason::BadId(no_id.to_string())).await
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
    pub(crate) async fn claim(&self, key: &DedupKey, delivery: &Delivery, token: Token) -> Claimed {
        let request = self.request(key, delivery, token, true, None);
        let sent_at = self.clock.monotonic();
        let answer = self.store.claim(request).await;
        self.claimed(answer, sent_at, key, delivery).await
    }

    /// Judges the answer to a claim that was sent at `sent_at`.
    pub(crate) async fn claimed(
        &self,
        answer: Result<ClaimAnswer, StoreError>,
        sent_at: Duration,
        key: &DedupKey,
        delivery: &Delivery,
    ) -> Claimed {
        let disposition = match answer {
            Ok(ClaimAnswer::Acquired(claim)) => {
                if claim.interrupted {
                    metrics::counter!(names::TAKEN_OVER, "scope" => self.scope_label.clone()).increment(1);
                }
                let stage = claim.stage.clone();
                let lease = self.leases.keep(claim, sent_at);
                match stage {
                    Stage::Run => return Claimed::Run(lease),
                    Stage::DeadLetter(reason) => self.publish(lease, delivery, reason, false).await,
                }
            }
            Ok(ClaimAnswer::Completed(outcome)) => Disposition::Settle(Settled::Duplicate(outcome)),
            Ok(ClaimAnswer::Failed(failed)) => Disposition::Settle(Settled::FailedBefore(failed)),
            Ok(ClaimAnswer::Conflict) => {
                tracing::error!(%key, position = %delivery.position(), "the id came back with another content");
                self.put_aside(delivery, DeadLetterReason::Conflict).await
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
                tracing::error!(%key, %error, "the record can't be read; the message is put aside");
                self.put_aside(delivery, DeadLetterReason::Undecodable).await
            }
            Err(error) => Disposition::Unsettled(self.store_failed(error)),
        };
        Claimed::Decided(disposition)
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
                    Err(unsettled) => Disposition::Unsettled(unsettled),
                }
            }
            Ended::Failed(failing) => match self.settle(&lease, Verb::Fail(failing)).await {
                Ok(Standing::Owed(reason)) => self.publish(lease, delivery, reason, true).await,
                Ok(Standing::Released { retry_after, .. }) => {
                    Disposition::Later { why: Later::Failed, retry_after }
                }
                Ok(_) => Disposition::Later { why: Later::Failed, retry_after: Duration::ZERO },
                Err(unsettled) => Disposition::Unsettled(unsettled),
            },
            Ended::Ignored => match self.settle(&lease, Verb::Release { delay: Duration::ZERO }).await {
                Ok(_) => Disposition::Settle(Settled::Ignored),
                Err(unsettled) => Disposition::Unsettled(unsettled),
            },
            Ended::Stopped(unsettled) => {
                self.give_back(vec![lease.claim.clone()]).await;
                Disposition::Unsettled(unsettled)
            }
        };
        Stored::As(disposition)
    }

    /// Records that the operation is done, trying again until the lease is lost.
    pub(crate) async fn complete(&self, lease: &Lease, result: Option<Bytes>) -> Result<(), Unsettled> {
        let result = self.result_to_keep(&lease.claim, result);
        match self.settle(lease, Verb::Complete { result }).await {
            Ok(_) => Ok(()),
            Err(Unsettled::LeaseLost) => Err(Unsettled::OutcomeUnknown(None)),
            Err(Unsettled::Store(error)) => Err(Unsettled::OutcomeUnknown(Some(error))),
            Err(other) => Err(other),
        }
    }

    /// Commits the handler's transaction; `false` when it must run again.
    async fn commit(
        &self,
        lease: &Lease,
        tx: Box<dyn crate::attempt::Commit>,
        result: Option<Bytes>,
    ) -> Result<bool, Unsettled> {
        let result = self.result_to_keep(&lease.claim, result);
        match tx.commit(&lease.claim, result).await {
            Ok(TxAnswer::Settled(SettleAnswer::Applied(_))) => Ok(true),
            Ok(TxAnswer::Settled(SettleAnswer::Refused(refusal))) => Err(self.refused(refusal)),
            Ok(TxAnswer::Conflict) => {
                metrics::counter!(names::TX_CONFLICTS, "scope" => self.scope_label.clone()).increment(1);
                Ok(false)
            }
            // Committed or not? The record says: a re-read that shows this very outcome settles.
            Err(error) => match self.store.get(&lease.claim.key).await {
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

    pub(crate) fn result_to_keep(&self, claim: &Claim, result: Option<Bytes>) -> Option<Bytes> {
        let len = result.as_ref().map_or(0, Bytes::len);
        if len > self.policy.max_result() {
            let max = self.policy.max_result();
            tracing::error!(key = %claim.key, len, max, "the result is too long and is not kept for repeats");
        }
        result
    }

    /// Sends a settle until it is answered or the lease is lost.
    pub(crate) async fn settle(&self, lease: &Lease, verb: Verb) -> Result<Standing, Unsettled> {
        let mut wait = RETRY_FIRST;
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.store.settle(&lease.claim, verb.clone()) => answer,
                () = lease.lost.cancelled() => return Err(Unsettled::LeaseLost),
            };
            match answer {
                Ok(SettleAnswer::Applied(standing)) => return Ok(standing),
                Ok(SettleAnswer::Refused(refusal)) => return Err(self.refused(refusal)),
                Err(error) if error.is_retryable() => {
                    let error = self.note_store_error(error);
                    tracing::warn!(key = %lease.claim.key, %error, ?verb, "the store failed; sending it again");
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
    pub(crate) async fn give_back(&self, claims: Vec<Claim>) {
        let verb = Verb::Release { delay: Duration::ZERO };
        let release = |claim| SettleRequest { claim, verb: verb.clone(), group: None };
        let requests: Vec<_> = claims.into_iter().map(release).collect();
        if requests.is_empty() {
            return;
        }
        let count = requests.len();
        let release = self.store.settle_many(requests);
        let Some(answers) = timeout(&*self.clock, GIVE_BACK_MOST, release).await else {
            tracing::warn!(count, "claims could not be given back in time");
            return;
        };
        for error in answers.into_iter().filter_map(Result::err) {
            let error = self.note_store_error(error);
            tracing::warn!(%error, "a claim could not be given back");
        }
    }

    /// Publishes the dead letter that the store says is owed, and records it. Whatever goes wrong, it stays
    /// owed.
    async fn publish(&self, lease: Lease, delivery: &Delivery, reason: FailReason, ran: bool) -> Disposition {
        let claim = &lease.claim;
        let now = self.clock.wall();
        let letter = DeadLetter::of_operation(
            delivery.clone(),
            claim.key.clone(),
            claim.generation,
            reason.clone(),
            now,
        );
        let attempts = claim.counters.attempts().saturating_add(u32::from(ran));
        let published = tokio::select! {
            biased;
            published = self.send(letter.with_history(attempts, claim.first_at)) => published,
            () = lease.lost.cancelled() => return Disposition::Unsettled(Unsettled::LeaseLost),
        };
        if let Err(error) = published {
            self.give_back(vec![lease.claim.clone()]).await;
            return Disposition::Unsettled(Unsettled::DeadLetter(error));
        }
        match self.settle(&lease, Verb::DeadLettered).await {
            Ok(_) => {
                let reason = DeadLetterReason::Failed(reason);
                Disposition::Settle(Settled::DeadLettered { reason, ran })
            }
            Err(unsettled) => Disposition::Unsettled(unsettled),
        }
    }

    /// Publishes the dead letter of a message that has no operation of its own.
    async fn put_aside(&self, delivery: &Delivery, reason: DeadLetterReason) -> Disposition {
        let letter = DeadLetter::of_message(delivery.clone(), reason.clone(), self.clock.wall());
        match self.send(letter).await {
            Ok(()) => Disposition::Settle(Settled::DeadLettered { reason, ran: false }),
            Err(error) => Disposition::Unsettled(Unsettled::DeadLetter(error)),
        }
    }

    async fn send(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let (code, position) = (letter.reason.code(), letter.delivery.position().clone());
        let sent = match &self.dead_letters {
            Some(dead_letters) => dead_letters.publish(letter).await,
            None => Err(DeadLetterError::new("no destination for dead letters is set")),
        };
        match &sent {
            Ok(()) => {
                tracing::warn!(%position, reason = code, "dead letter published");
                metrics::counter!(names::DEAD_LETTERED, "scope" => self.scope_label.clone(), "reason" => code)
                    .increment(1);
            }
            Err(error) => {
                tracing::error!(%position, reason = code, %error, "dead letter not confirmed");
                metrics::counter!(names::DEAD_LETTER_ERRORS, "scope" => self.scope_label.clone())
                    .increment(1);
            }
        }
        sent
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

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_secs(1);
const GIVE_BACK_MOST: Duration = Duration::from_secs(1);
