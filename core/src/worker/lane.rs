//! Deliveries that are processed in order.
//!
//! A lane claims a run of messages from its head and stops at the first that must wait: it holds no claim
//! behind one that waits, so that two lanes with copies of each other's messages can't block each other. It
//! runs one handler after the other; an outcome may be on its way to the disk while the next handler runs.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::item::Item;
use super::pipeline::{Broken, Done, Pipeline};
use super::source::Ack;
use super::wait::{Again, Patience};
use crate::attempt::{Effect, Ended};
use crate::claim::{ClaimAnswer, Stage, Token};
use crate::delivery::Delivery;
use crate::engine::{Claimed, Stored};
use crate::error::StoreError;
use crate::lease::Lease;
use crate::settle::{Disposition, Unsettled};

pub(crate) struct Lane<A: Ack> {
    shared: Arc<Shared>,
    /// Taken from the lane's queue and not answered, in order.
    window: VecDeque<Item<A>>,
    pipeline: Pipeline<A>,
    patience: Patience,
}

/// Why a run of messages ended before its last.
enum Stopped {
    /// The message at the window's head must wait.
    Wait(Disposition),
    /// An outcome was refused or is not known.
    Broken(Broken),
}

impl From<Broken> for Stopped {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// An item with what its claim came to.
enum Next {
    Run(Lease),
    Answer(Result<ClaimAnswer, StoreError>),
}

impl<A: Ack> Lane<A> {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let pipeline = Pipeline::new(Arc::clone(&shared));
        Self { shared, window: VecDeque::new(), pipeline, patience: Patience::default() }
    }

    /// How many more items the lane can look at.
    pub(crate) fn room(&self) -> usize {
        self.shared.engine.policy.pipeline().saturating_sub(self.window.len())
    }

    pub(crate) fn push(&mut self, items: impl IntoIterator<Item = Item<A>>) {
        self.window.extend(items);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.window.is_empty() && self.pipeline.is_empty()
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.window.is_empty()
    }

    /// Stores what is done, with nothing else to do.
    pub(crate) async fn settle_done(&mut self) {
        if let Err(broken) = self.pipeline.drain().await {
            self.restart(broken).await;
        }
    }

    /// Processes a run of messages from the window's head.
    pub(crate) async fn advance(&mut self) {
        // A span that is closing starts nothing more; the broker delivers these to whoever has it next.
        self.window.retain(|item| !item.no_start().is_asked());
        let Some(slot) = self.slot().await else { return };
        match self.run(slot).await {
            Ok(()) => {}
            Err(Stopped::Broken(broken)) => self.restart(broken).await,
            Err(Stopped::Wait(disposition)) => self.wait(disposition).await,
        }
    }

    /// A slot to run in; claims nothing before it has one. `None` when it is not wanted any more.
    async fn slot(&mut self) -> Option<OwnedSemaphorePermit> {
        let no_start = self.window.front()?.no_start();
        let slots = Arc::clone(&self.shared.slots);
        let slot = tokio::select! {
            biased;
            () = no_start.asked() => None,
            slot = slots.acquire_owned() => slot.ok(),
        };
        slot
    }

    async fn run(&mut self, _slot: OwnedSemaphorePermit) -> Result<(), Stopped> {
        let mut nexts = self.claim_run().await;
        if nexts.is_empty() {
            return self.without_id().await;
        }
        while let Some(next) = nexts.pop_front() {
            let stopped = match self.one(next).await {
                Ok(()) => continue,
                Err(stopped) => stopped,
            };
            // Claimed and not started: given back, uncharged, before the lane waits.
            let held = nexts.iter().filter_map(|next| match next {
                Next::Run(lease) => Some(lease.claim.clone()),
                Next::Answer(_) => None,
            });
            self.shared.engine.give_back(held.collect()).await;
            return Err(stopped);
        }
        Ok(())
    }

    /// Claims from the window's head up to the first message without an id.
    async fn claim_run(&mut self) -> VecDeque<Next> {
        let engine = &self.shared.engine;
        let mut requests = Vec::new();
        for item in &self.window {
            let Ok(key) = engine.identify(&item.delivery) else { break };
            // Only the first is sure to start at once.
            let started = requests.is_empty() && self.pipeline.is_empty();
            requests.push(engine.request(&key, &item.delivery, item.token, started, Some(0)));
        }
        if requests.is_empty() {
            return VecDeque::new();
        }
        let sent_at = engine.clock.monotonic();
        let answers = engine.store.claim_many(requests).await;
        let keep = |answer| match answer {
            Ok(ClaimAnswer::Acquired(claim)) if claim.stage == Stage::Run => {
                Next::Run(engine.leases.keep(claim, sent_at))
            }
            other => Next::Answer(other),
        };
        let behind = |answer: &Result<_, _>| matches!(answer, Ok(ClaimAnswer::Behind));
        answers.into_iter().take_while(|answer| !behind(answer)).map(keep).collect()
    }

    fn head(&self) -> Option<Delivery> {
        self.window.front().map(|item| item.delivery.clone())
    }

    async fn without_id(&mut self) -> Result<(), Stopped> {
        let Some(delivery) = self.head() else { return Ok(()) };
        let Err(no_id) = self.shared.engine.identify(&delivery) else { return Ok(()) };
        let disposition = self.shared.engine.without_id(&delivery, no_id).await;
        self.answer_head(disposition)
    }

    /// Processes the message at the window's head.
    async fn one(&mut self, next: Next) -> Result<(), Stopped> {
        match next {
            Next::Run(lease) => self.run_head(lease).await,
            Next::Answer(answer) => {
                let Some(delivery) = self.head() else { return Ok(()) };
                let engine = &self.shared.engine;
                let Ok(key) = engine.identify(&delivery) else { return Ok(()) };
                let sent_at = engine.clock.monotonic();
                match engine.claimed(answer, sent_at, &key, &delivery).await {
                    Claimed::Run(lease) => self.run_head(lease).await,
                    Claimed::Decided(disposition) => self.answer_head(disposition),
                }
            }
        }
    }

    /// Runs the handler of the window's head, while earlier outcomes go to the disk.
    async fn run_head(&mut self, mut lease: Lease) -> Result<(), Stopped> {
        if let Err(broken) = self.pipeline.make_room().await {
            self.shared.engine.give_back(vec![lease.claim.clone()]).await;
            return Err(broken.into());
        }
        loop {
            let ended = self.attempt_head(&lease).await?;
            let ended = match ended {
                Ended::Done(Effect { reply, commit: None }, context) => {
                    if let Some(item) = self.window.pop_front() {
                        self.pipeline.push(Done { item, lease, context, reply });
                        self.patience = Patience::default();
                    }
                    return Ok(());
                }
                other => other,
            };
            // Anything else is stored after all that came before it.
            if let Err(broken) = self.pipeline.drain().await {
                self.shared.engine.give_back(vec![lease.claim.clone()]).await;
                return Err(broken.into());
            }
            let Some(delivery) = self.head() else { return Ok(()) };
            match self.shared.engine.store_outcome(lease, ended, &delivery).await {
                Stored::As(disposition) => return self.answer_head(disposition),
                Stored::RunAgain(same) => lease = same,
            }
        }
    }

    async fn attempt_head(&mut self, lease: &Lease) -> Result<Ended, Stopped> {
        let Some(item) = self.window.front() else { return Ok(Ended::Stopped(Unsettled::Cancelled)) };
        let shared = Arc::clone(&self.shared);
        let (delivery, no_start, no_more) = (item.delivery.clone(), item.no_start(), item.no_more());
        if no_start.is_asked() {
            return Ok(Ended::Stopped(Unsettled::Cancelled));
        }
        let attempt = shared.engine.attempt(&*shared.handler, lease, &delivery, false, &no_more);
        tokio::pin!(attempt);
        let pipeline = &mut self.pipeline;
        let broken = tokio::select! {
            biased;
            ended = &mut attempt => return Ok(ended),
            broken = async {
                match pipeline.drain().await {
                    Err(broken) => broken,
                    Ok(()) => std::future::pending().await,
                }
            } => broken,
        };
        // Dropping the attempt cancels the handler.
        shared.engine.give_back(vec![lease.claim.clone()]).await;
        Err(Stopped::Broken(broken))
    }

    fn answer_head(&mut self, disposition: Disposition) -> Result<(), Stopped> {
        match disposition {
            Disposition::Settle(settled) => {
                if let Some(item) = self.window.pop_front() {
                    self.shared.note_success();
                    item.settle(&settled);
                }
                self.patience = Patience::default();
                Ok(())
            }
            other => Err(Stopped::Wait(other)),
        }
    }

    /// Puts back what is not durable, so that it is processed again in its order.
    async fn restart(&mut self, broken: Broken) {
        let back = self.pipeline.take_back();
        // Refused where the outcome is stored after all, which the next claim then tells.
        self.shared.engine.give_back(back.iter().map(|done| done.lease.claim.clone()).collect()).await;
        for Done { mut item, .. } in back.into_iter().rev() {
            item.token = Token::random();
            self.window.push_front(item);
        }
        self.wait(Disposition::Unsettled(broken.0)).await;
    }

    /// Waits for the head, which holds its lane.
    async fn wait(&mut self, disposition: Disposition) {
        if let Err(broken) = self.pipeline.drain().await {
            return Box::pin(self.restart(broken)).await;
        }
        let Some(mut head) = self.window.pop_front() else { return };
        let again = match disposition {
            Disposition::Settle(_) => Again::Yes,
            Disposition::Later { why, retry_after } => {
                self.patience.later(&self.shared, &mut head, why, retry_after).await
            }
            Disposition::Unsettled(unsettled) => {
                self.patience.unsettled(&self.shared, &mut head, unsettled).await
            }
        };
        // Not wanted any more: dropped, and with it what is behind it, at the next look.
        if again == Again::Yes {
            self.window.push_front(head);
        }
    }
}
