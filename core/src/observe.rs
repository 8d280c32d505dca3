//! The path of one message in the modes that obey no answer of the store: `Observe` asks and counts, `Off`
//! does not ask.

mod counts;
mod run;

use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Commit, Company, Effect, Ended, Run};
use crate::claim::{
    Claim, ClaimAnswer, ClaimRequest, Counters, Failing, Fence, SettleAnswer, SettleRequest, Stage, Token,
    Verb,
};
use crate::clock::timeout;
use crate::delivery::{Delivery, Position};
use crate::engine::{Engine, no_answer};
use crate::error::{StoreError, StoreErrorKind};
use crate::id::{DedupKey, MessageId};
use crate::idempotent::Reached;
use crate::lease::Lease;
use crate::mode::Mode;
use crate::settle::{Disposition, Later, Settled, Unsettled};
use crate::stop::Stop;
use crate::store::DedupStoreExt;

pub use counts::Observed;
pub(crate) use counts::{Observer, Seen};

/// The longest that a handler is held up by asking the store.
const ASK_MOST: Duration = Duration::from_secs(1);
/// For so long a store that failed is not asked again.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// How a delivery is looked at.
pub(crate) struct Look<'a> {
    pub(crate) mode: Mode,
    /// Names the claim.
    pub(crate) token: Token,
    /// Whether this delivery has been counted: once, however often its handler is tried.
    pub(crate) counted: &'a mut bool,
    /// Where outcomes are put that the caller stores later; `None` stores them at once.
    pub(crate) later: Option<&'a mut Vec<Kept>>,
}

/// The outcome of a claimed run, to be stored.
pub(crate) struct Kept {
    pub(crate) lease: Lease,
    pub(crate) result: Option<Bytes>,
}

impl Engine {
    /// Runs the handler, whatever the store says, and settles by what it returns.
    pub(crate) async fn observe(
        &self,
        handler: &dyn Run,
        delivery: &Delivery,
        mut look: Look<'_>,
        stop: &Stop,
        mut reached: impl FnMut(Reached),
    ) -> Disposition {
        // Among others: who is suspected of crashes under `Enforce`, and runs alone, stays alone.
        let _company = tokio::select! {
            biased;
            () = stop.asked() => return Disposition::Unsettled(Unsettled::Cancelled),
            company = Company::new(false) => company,
        };
        // 1. Which operation is it?
        let key = self.identify(delivery);
        let known = look.mode == Mode::Observe && key.is_ok();
        // 2. Claim it, or learn that it is unclaimed.
        let mut lease = match (look.mode, &key) {
            (Mode::Observe, Ok(key)) => {
                let request = self.request(key, delivery, look.token, false, None);
                self.ask(request, Some(delivery.position()), look.counted).await
            }
            (Mode::Observe, Err(no_id)) => {
                tracing::debug!(position = %delivery.position(), problem = %no_id, "no usable id; it runs");
                self.saw(Seen::Rejected, look.counted);
                None
            }
            _ => None,
        };
        reached(Reached::Claimed);
        let unclaimed = self.unclaimed(key.ok(), delivery);
        let mut conflicts = 0;
        loop {
            // 3. Run the handler. A lost lease cancels nothing.
            let claim = lease.as_ref().map_or(&unclaimed, |lease| &lease.claim).clone();
            let never = CancellationToken::new();
            let ended = self.run_handler(handler, &claim, delivery, &never, stop).await;
            reached(Reached::Ran);
            // 4. Store what came of it, if it is claimed. 5. The caller settles by what the handler said.
            match self.end_observed(&mut lease, ended, known, &mut look.later).await {
                Some(disposition) => return disposition,
                None => conflicts += 1,
            }
            self.after_conflict(conflicts).await;
        }
    }

    /// What a run means for its message; `None` when its transaction must run again.
    async fn end_observed(
        &self,
        lease: &mut Option<Lease>,
        ended: Ended,
        known: bool,
        later: &mut Option<&mut Vec<Kept>>,
    ) -> Option<Disposition> {
        let again = |retry_after| Disposition::Later { why: Later::FailedUncharged, retry_after };
        let disposition = match ended {
            Ended::Done(Effect { reply, commit }, context) => {
                let result = reply.0;
                match commit {
                    Some(tx) => match self.commit_observed(lease, tx, result.clone()).await {
                        Ok(true) => drop(lease.take()),
                        Ok(false) => return None,
                        Err(problem) => {
                            let (key, attempt) = (context.key(), context.attempt());
                            let position = context.delivery().position();
                            tracing::warn!(%key, %position, attempt, %problem, "the handler's transaction was not committed");
                            self.free(lease.take()).await;
                            return Some(again(Duration::ZERO));
                        }
                    },
                    None => {
                        let done = lease.take().map(|lease| Kept { lease, result: result.clone() });
                        match later {
                            Some(later) => later.extend(done),
                            None => self.keep(done.into_iter().collect()).await,
                        }
                    }
                }
                context.take_after().into_iter().for_each(|future| drop(tokio::spawn(future)));
                Disposition::Settle(if known { Settled::Ran { result } } else { Settled::Passed { result } })
            }
            Ended::Ignored => {
                Disposition::Settle(if known { Settled::Ignored } else { Settled::Passed { result: None } })
            }
            Ended::Failed { failing, asked } => {
                if lease.is_some() {
                    self.count(match failing {
                        Failing::Retry { .. } => Seen::Failed,
                        Failing::ForGood(_) => Seen::GivenUp,
                    });
                }
                again(asked.unwrap_or_default().min(self.policy.rules().max_delay))
            }
            // The store's own trouble in the handler's transaction: a failure like any other.
            Ended::Stopped(Unsettled::Store(_)) => again(Duration::ZERO),
            Ended::Stopped(unsettled) => Disposition::Unsettled(unsettled),
        };
        self.free(lease.take()).await;
        Some(disposition)
    }

    /// Commits a handler's transaction: with the outcome while the claim is held, else without. `false` when
    /// it must run again.
    async fn commit_observed(
        &self,
        lease: &mut Option<Lease>,
        tx: Box<dyn Commit>,
        result: Option<Bytes>,
    ) -> Result<bool, Unsettled> {
        match lease.as_ref().filter(|lease| !lease.lost.is_cancelled()) {
            Some(held) => match self.commit(held, tx, result).await {
                // The claim is another's by now. Nothing was written: once more, without it.
                Err(Unsettled::Refused(_)) => {
                    *lease = None;
                    Ok(false)
                }
                committed => committed,
            },
            None => {
                let limit = self.policy.rules().lease;
                let committed = timeout(&*self.clock, limit, tx.commit_alone()).await;
                let committed = committed.unwrap_or_else(|| Err(no_answer(limit)));
                committed.map_err(|error| Unsettled::OutcomeUnknown(Some(self.note_store_error(error))))
            }
        }
    }

    /// Asks for a claim, and counts what `Enforce` would have made of the answer. A lease only when the
    /// handler is to run by it. Nothing is said to have started: no crash here is charged to anybody.
    pub(crate) async fn ask(
        &self,
        request: ClaimRequest,
        position: Option<&Position>,
        counted: &mut bool,
    ) -> Option<Lease> {
        let (key, sent_at) = (request.key.clone(), self.clock.monotonic());
        if self.observer.leaves_alone(sent_at) {
            self.saw(Seen::Unknown, counted);
            return None;
        }
        let limit = ASK_MOST.min(self.longest_call());
        let answer = timeout(&*self.clock, limit, self.store.claim(request)).await;
        let (seen, lease) = match answer.unwrap_or_else(|| Err(no_answer(limit))) {
            Ok(ClaimAnswer::Acquired(claim)) => {
                let stage = claim.stage.clone();
                let lease = self.leases.keep(claim, position.cloned(), sent_at);
                match stage {
                    Stage::Run => (Seen::Run, Some(lease)),
                    Stage::DeadLetter(_) => {
                        self.free(Some(lease)).await;
                        (Seen::DeadLetter, None)
                    }
                }
            }
            Ok(ClaimAnswer::Completed(_) | ClaimAnswer::Failed(_)) => (Seen::Duplicate, None),
            Ok(ClaimAnswer::Conflict) => {
                let position = position.map(tracing::field::display);
                tracing::warn!(%key, position, "the id came back with another content; it runs");
                (Seen::Conflict, None)
            }
            Ok(ClaimAnswer::InProgress { .. } | ClaimAnswer::Behind) => (Seen::InProgress, None),
            Ok(ClaimAnswer::NotYet { .. }) => (Seen::NotYet, None),
            Err(error) => {
                let undecodable = error.kind() == StoreErrorKind::Undecodable;
                self.leave_alone(error);
                (if undecodable { Seen::DeadLetter } else { Seen::Unknown }, None)
            }
        };
        self.saw(seen, counted);
        lease
    }

    /// Stores that claimed runs are done, so that they answer repeats under `Enforce`.
    pub(crate) async fn keep(&self, done: Vec<Kept>) {
        if done.is_empty() {
            return;
        }
        if self.observer.leaves_alone(self.clock.monotonic()) {
            return done.iter().for_each(|_| self.count(Seen::NotStored));
        }
        let complete = |Kept { lease, result }: &Kept| {
            let result = self.result_to_keep(lease, result.clone());
            SettleRequest { claim: lease.claim.clone(), verb: Verb::Complete { result }, group: None }
        };
        let requests: Vec<_> = done.iter().map(complete).collect();
        let answers = self.call_many(requests.len(), self.store.settle_many(requests)).await;
        for answer in answers {
            match answer {
                Ok(SettleAnswer::Applied(_)) => continue,
                Ok(SettleAnswer::Refused(refusal)) => drop(self.refused(refusal)),
                Err(error) => self.leave_alone(error),
            }
            self.count(Seen::NotStored);
        }
    }

    /// Gives a claim back, uncharged.
    pub(crate) async fn free(&self, lease: Option<Lease>) {
        if let Some(lease) = &lease {
            self.give_back(vec![lease]).await;
        }
    }

    /// Notes an error of the store. When it is the store's and not its message's, the store is left alone for
    /// a while: no message waits for it, and the log does not fill.
    fn leave_alone(&self, error: StoreError) {
        let error = self.note_store_error(error);
        if error.kind() == StoreErrorKind::Unavailable || error.is_fatal() {
            tracing::warn!(%error, "the store failed; messages run without it");
            self.observer.leave_alone(self.clock.monotonic().saturating_add(LEFT_ALONE));
        }
    }

    /// What a handler is told that runs without a claim.
    pub(crate) fn unclaimed(&self, key: Option<DedupKey>, delivery: &Delivery) -> Claim {
        let stand_in = || DedupKey::new(self.scope.clone(), stand_in(delivery.position()));
        Claim {
            key: key.unwrap_or_else(stand_in),
            token: Token::random(),
            fence: Fence::default(),
            generation: Fence::default(),
            stage: Stage::Run,
            counters: Counters::default(),
            interrupted: false,
            alone: false,
            first_at: self.clock.wall(),
            rules: self.policy.rules(),
        }
    }
}

/// For the context of a message that has no id: made of its place, so that it is the same on every attempt;
/// random where a place is no name. It begins as no id from outside can.
fn stand_in(position: &Position) -> MessageId {
    let place = match position.offset() {
        Some(_) => Sha256::digest(position.to_string()).to_vec(),
        None => Token::random().as_bytes().to_vec(),
    };
    MessageId::stand_in(&crate::dead_letter::hex(&place))
}
