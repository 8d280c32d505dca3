//! Outcomes of one lane on their way to the disk, in order, while the next handler runs.
//!
//! One batch is under way at a time, as one ordered group, so that what is durable is always a prefix.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::Shared;
use super::budget::Hold;
use super::item::Item;
use super::source::Ack;
use super::wait::STORE;
use crate::claim::{Refusal, SettleAnswer, SettleRequest, Verb};
use crate::error::StoreError;
use crate::handler::{Context, Reply};
use crate::lease::Lease;
use crate::settle::{Settled, Unsettled};

/// A message whose handler is done and whose outcome is not durable yet.
pub(crate) struct Done<A: Ack> {
    pub(crate) item: Item<A>,
    pub(crate) lease: Lease,
    pub(crate) context: Context,
    pub(crate) reply: Reply,
}

/// An outcome of the lane was refused or is not known. The lane stops, and what is not durable is
/// processed again in its order.
pub(crate) struct Broken(pub(crate) Unsettled);

pub(crate) struct Pipeline<A: Ack> {
    shared: Arc<Shared>,
    done: VecDeque<Done<A>>,
    under_way: Option<BoxFuture<'static, Answers>>,
    retry_in: Duration,
    held_up: Option<Hold>,
}

type Answers = Vec<Result<SettleAnswer, StoreError>>;

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_secs(1);

impl<A: Ack> Pipeline<A> {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, done: VecDeque::new(), under_way: None, retry_in: Duration::ZERO, held_up: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.done.len() >= self.shared.engine.policy.pipeline()
    }

    pub(crate) fn push(&mut self, done: Done<A>) {
        self.done.push_back(done);
    }

    /// Takes out what is not durable. Its claims are given back where the store may still have them.
    pub(crate) fn take_back(&mut self) -> Vec<Done<A>> {
        self.under_way = None;
        self.retry_in = Duration::ZERO;
        self.held_up = None;
        self.done.drain(..).collect()
    }

    /// Stores outcomes until all are durable.
    ///
    /// # Cancel safety
    /// Dropped, it goes on where it was with the next call.
    pub(crate) async fn drain(&mut self) -> Result<(), Broken> {
        while !self.is_empty() {
            self.step().await?;
        }
        Ok(())
    }

    /// Stores outcomes, and ends only when one is refused or unknown: for doing something else meanwhile.
    pub(crate) async fn broken(&mut self) -> Broken {
        match self.drain().await {
            Err(broken) => broken,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Stores outcomes until there is room for one more.
    pub(crate) async fn make_room(&mut self) -> Result<(), Broken> {
        while self.is_full() {
            self.step().await?;
        }
        Ok(())
    }

    /// Sends what is done, or waits for what is under way.
    async fn step(&mut self) -> Result<(), Broken> {
        let Some(first) = self.done.front() else { return Ok(()) };
        let lost = first.lease.lost.clone();
        if self.under_way.is_none() {
            self.under_way = Some(self.send());
        }
        let Some(under_way) = &mut self.under_way else { return Ok(()) };
        let answers = tokio::select! {
            biased;
            answers = under_way => answers,
            () = lost.cancelled() => return Err(Broken(Unsettled::OutcomeUnknown(None))),
        };
        self.under_way = None;
        self.apply(answers)
    }

    fn send(&self) -> BoxFuture<'static, Answers> {
        let request = |done: &Done<A>| {
            let result = self.shared.engine.result_to_keep(&done.lease, done.reply.0.clone());
            let verb = Verb::Complete { result };
            SettleRequest { claim: done.lease.claim.clone(), verb, group: Some(0) }
        };
        let requests: Vec<_> = self.done.iter().map(request).collect();
        let (shared, wait) = (Arc::clone(&self.shared), self.retry_in);
        Box::pin(async move {
            if !wait.is_zero() {
                shared.engine.clock.sleep(wait).await;
            }
            let engine = &shared.engine;
            engine.call_many(requests.len(), engine.store.settle_many(requests)).await
        })
    }

    fn apply(&mut self, answers: Answers) -> Result<(), Broken> {
        for answer in answers {
            match answer {
                Ok(SettleAnswer::Applied(_)) => {
                    self.retry_in = Duration::ZERO;
                    self.held_up = None;
                    if let Some(done) = self.done.pop_front() {
                        done.settle(&self.shared);
                    }
                }
                Ok(SettleAnswer::Refused(Refusal::Behind)) => return Ok(()),
                Ok(SettleAnswer::Refused(refusal)) => {
                    return Err(Broken(self.shared.engine.refused(refusal)));
                }
                Err(error) if error.is_retryable() => {
                    let error = self.shared.engine.note_store_error(error);
                    if let Some(Done { item, lease, .. }) = self.done.front() {
                        let (key, attempt) = (&lease.claim.key, lease.claim.attempt());
                        let position = item.delivery.position();
                        tracing::warn!(%key, %position, attempt, %error, "an outcome could not be stored; sending it again");
                    }
                    self.held_up = Some(self.shared.budget.held_up_by_store());
                    self.shared.trouble(STORE, format!("the store failed: {error}"));
                    self.retry_in = (self.retry_in * 2).clamp(RETRY_FIRST, RETRY_MOST);
                    return Ok(());
                }
                Err(error) => {
                    let error = self.shared.engine.note_store_error(error);
                    return Err(Broken(Unsettled::OutcomeUnknown(Some(error))));
                }
            }
        }
        Ok(())
    }
}

impl<A: Ack> Done<A> {
    fn settle(self, shared: &Shared) {
        let Self { item, lease, context, reply } = self;
        drop(lease);
        context.take_after().into_iter().for_each(|future| drop(tokio::spawn(future)));
        let settled = Settled::Ran { result: reply.0 };
        shared.look_for_recovery();
        item.settle(&settled);
    }
}
