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
use super::recorder::Recorder;
use super::source::Ack;
use super::wait::{Again, Patience};
use crate::attempt::{Company, Effect, Ended, Start};
use crate::claim::{ClaimAnswer, Stage, Token};
use crate::delivery::Delivery;
use crate::engine::Stored;
use crate::error::StoreError;
use crate::lease::Lease;
use crate::mode::Mode;
use crate::observe::Look;
use crate::settle::{Disposition, Later, Unsettled};

pub(crate) struct Lane<A: Ack> {
    shared: Arc<Shared>,
    /// Taken from the lane's queue and not answered, in order.
    window: VecDeque<Item<A>>,
    pipeline: Pipeline<A>,
    recorder: Recorder,
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

/// What the claim of an item came to.
enum Next {
    Held { lease: Lease, start: Start },
    Answer(Result<ClaimAnswer, StoreError>),
}

impl<A: Ack> Lane<A> {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let pipeline = Pipeline::new(Arc::clone(&shared));
        let recorder = Recorder::new(Arc::clone(&shared.engine));
        Self { shared, window: VecDeque::new(), pipeline, recorder, patience: Patience::default() }
    }

    /// How many more items the lane can look at.
    pub(crate) fn room(&self) -> usize {
        self.shared.engine.policy.pipeline().saturating_sub(self.window.len())
    }

    pub(crate) fn push(&mut self, items: impl IntoIterator<Item = Item<A>>) {
        self.window.extend(items);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.window.is_empty() && self.pipeline.is_empty() && self.recorder.is_empty()
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.window.is_empty()
    }

    /// Stores what is done, with nothing else to do.
    ///
    /// # Cancel safety
    /// Dropped, it goes on where it was with the next call.
    pub(crate) async fn store_done(&mut self) -> Result<(), Broken> {
        self.recorder.drain().await;
        self.pipeline.drain().await
    }

    /// Processes a run of messages from the window's head.
    pub(crate) async fn advance(&mut self) {
        // A span that is closing starts nothing more; the broker delivers these to whoever has it next.
        self.window.retain(|item| !item.no_start().is_asked());
        let slot = match self.slot().await {
            Ok(Some(slot)) => slot,
            Ok(None) => return,
            Err(broken) => return self.restart(broken).await,
        };
        let (_slot, company) = slot;
        match self.run(company).await {
            Ok(()) => {}
            Err(Stopped::Broken(broken)) => self.restart(broken).await,
            Err(Stopped::Wait(disposition)) => self.wait(disposition).await,
        }
    }

    /// A slot to run in; claims nothing before it has one, and stores meanwhile what is done. `None` when it
    /// is not wanted any more.
    async fn slot(&mut self) -> Result<Option<(OwnedSemaphorePermit, Company)>, Broken> {
        let Some(head) = self.window.front() else { return Ok(None) };
        let no_start = head.no_start();
        let slots = Arc::clone(&self.shared.slots);
        let slot = async {
            let slot = slots.acquire_owned().await.ok()?;
            Some((slot, Company::new(false).await))
        };
        tokio::select! {
            biased;
            () = no_start.asked() => Ok(None),
            slot = slot => Ok(slot),
            broken = self.pipeline.broken() => Err(broken),
            never = self.recorder.go_on() => never,
        }
    }

    async fn run(&mut self, company: Company) -> Result<(), Stopped> {
        match self.shared.engine.mode.get() {
            Mode::Enforce => self.recorder.drain().await,
            mode => {
                drop(company);
                return self.observe_head(mode).await;
            }
        }
        let mut nexts = self.claim_run(company).await;
        if nexts.is_empty() {
            return self.without_id().await;
        }
        let mut stale = false;
        while let Some(next) = nexts.pop_front() {
            let runs = matches!(next, Next::Held { .. });
            let stopped = match self.one(next).await {
                Ok(()) => {
                    stale |= runs;
                    continue;
                }
                Err(stopped) => stopped,
            };
            // Claimed and not started: given back, uncharged, before the lane waits.
            let held = nexts.iter().filter_map(|next| match next {
                Next::Held { lease, .. } => Some(lease),
                Next::Answer(_) => None,
            });
            self.shared.engine.give_back(held.collect()).await;
            return match stopped {
                // A copy of what has just run, perhaps: it is asked for again as soon as that is stored.
                Stopped::Wait(Disposition::Later { why: Later::InProgress, .. })
                    if stale || !self.pipeline.is_empty() =>
                {
                    self.pipeline.drain().await.map_err(Stopped::Broken)
                }
                stopped => Err(stopped),
            };
        }
        Ok(())
    }

    /// Claims from the window's head up to the first message without an id.
    async fn claim_run(&mut self, company: Company) -> VecDeque<Next> {
        let engine = Arc::clone(&self.shared.engine);
        let mut requests = Vec::new();
        for item in &self.window {
            let Ok(key) = engine.identify(&item.delivery) else { break };
            // Only the first is sure to start at once.
            let started = requests.is_empty() && !self.pipeline.is_full();
            requests.push(engine.request(&key, &item.delivery, item.token, started, Some(0)));
        }
        if requests.is_empty() {
            return VecDeque::new();
        }
        let sent_at = engine.clock.monotonic();
        let answers = engine.call_many(requests.len(), engine.store.claim_many(requests)).await;
        let behind = |answer: &Result<_, _>| matches!(answer, Ok(ClaimAnswer::Behind));
        let mut first = Some(company).filter(|_| !self.pipeline.is_full());
        let mut nexts = VecDeque::new();
        for (item, answer) in self.window.iter_mut().zip(answers.into_iter().take_while(|a| !behind(a))) {
            if answer.is_ok() {
                // A late call of this claim must not meet the next one under its token.
                item.token = Token::random();
            }
            if matches!(answer, Ok(ClaimAnswer::Acquired(_))) {
                self.patience.answered(&self.shared);
            }
            let start = first.take().map_or(Start::NotYet, Start::WithClaim);
            nexts.push_back(match answer {
                Ok(ClaimAnswer::Acquired(claim)) => {
                    Next::Held { lease: engine.hold(claim, sent_at, &item.delivery), start }
                }
                other => Next::Answer(other),
            });
        }
        nexts
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
        let Some(delivery) = self.head() else { return Ok(()) };
        let engine = Arc::clone(&self.shared.engine);
        match next {
            Next::Held { lease, start } => match lease.claim.stage.clone() {
                Stage::Run => self.run_head(lease, start).await,
                Stage::DeadLetter(reason) => {
                    drop(start);
                    self.drain_before(&lease).await?;
                    let disposition = engine.publish(lease, &delivery, reason, false).await;
                    self.answer_head(disposition)
                }
            },
            Next::Answer(answer) => {
                let Ok(key) = engine.identify(&delivery) else { return Ok(()) };
                // What was acquired is held, and no such answer.
                let disposition = engine.decided(answer, engine.clock.monotonic(), &key, &delivery).await;
                self.answer_head(disposition)
            }
        }
    }

    /// Stores what came before the holder of `lease`, whose own outcome must not be durable earlier.
    async fn drain_before(&mut self, lease: &Lease) -> Result<(), Stopped> {
        let drained = self.pipeline.drain().await;
        if drained.is_err() {
            self.shared.engine.give_back(vec![lease]).await;
        }
        drained.map_err(Stopped::Broken)
    }

    /// Runs the handler of the window's head, while earlier outcomes go to the disk.
    async fn run_head(&mut self, mut lease: Lease, mut start: Start) -> Result<(), Stopped> {
        if let Err(broken) = self.pipeline.make_room().await {
            self.shared.engine.give_back(vec![&lease]).await;
            return Err(broken.into());
        }
        let mut conflicts = 0;
        loop {
            let ended = match self.attempt_head(&lease, start).await? {
                Ended::Done(Effect { reply, commit: None }, context) => {
                    if let Some(item) = self.window.pop_front() {
                        self.patience = Patience::default();
                        self.pipeline.push(Done { item, lease, context, reply });
                    }
                    return Ok(());
                }
                // Given back before anything else: there may be little time left.
                Ended::Stopped(unsettled) => {
                    let disposition = self.shared.engine.leave(&lease, unsettled).await;
                    return self.answer_head(disposition);
                }
                other => other,
            };
            // Anything else is stored after all that came before it.
            self.drain_before(&lease).await?;
            let Some(delivery) = self.head() else { return Ok(()) };
            match self.shared.engine.store_outcome(lease, ended, &delivery).await {
                Stored::As(disposition) => return self.answer_head(disposition),
                Stored::RunAgain(same) => (lease, start) = (same, Start::Before),
            }
            conflicts += 1;
            self.shared.engine.after_conflict(conflicts).await;
        }
    }

    async fn attempt_head(&mut self, lease: &Lease, start: Start) -> Result<Ended, Stopped> {
        let Some(item) = self.window.front() else { return Ok(Ended::Stopped(Unsettled::Cancelled)) };
        let shared = Arc::clone(&self.shared);
        let (delivery, no_start, no_more) = (item.delivery.clone(), item.no_start(), item.no_more());
        if no_start.is_asked() {
            return Ok(Ended::Stopped(Unsettled::Cancelled));
        }
        // The handler that is not wanted any more is dropped here, before its claim is given back.
        let broken = tokio::select! {
            biased;
            ended = shared.engine.attempt(&*shared.handler, lease, &delivery, start, &no_more) => {
                return Ok(ended);
            }
            broken = self.pipeline.broken() => broken,
        };
        shared.engine.give_back(vec![lease]).await;
        Err(Stopped::Broken(broken))
    }

    /// The window's head, in a mode that obeys no answer of the store.
    async fn observe_head(&mut self, mode: Mode) -> Result<(), Stopped> {
        // What was claimed under `Enforce` ends under it, and first.
        self.pipeline.drain().await?;
        self.patience.answered(&self.shared);
        let shared = Arc::clone(&self.shared);
        let engine = &shared.engine;
        self.recorder.make_room(engine.policy.pipeline()).await;
        let Some(item) = self.window.front_mut() else { return Ok(()) };
        if let Ok(key) = engine.identify(&item.delivery)
            && self.recorder.holds(&key)
        {
            self.recorder.drain().await;
        }
        if item.no_start().is_asked() {
            return Ok(());
        }
        let (mut done, no_more) = (Vec::new(), item.no_more());
        let token = std::mem::replace(&mut item.token, Token::random());
        let look = Look { mode, token, counted: &mut item.counted, later: Some(&mut done) };
        let disposition = tokio::select! {
            biased;
            disposition = engine.observe(&*shared.handler, &item.delivery, look, &no_more, |_| ()) => disposition,
            never = self.recorder.go_on() => never,
        };
        self.recorder.extend(done);
        self.answer_head(disposition)
    }

    fn answer_head(&mut self, disposition: Disposition) -> Result<(), Stopped> {
        match disposition {
            Disposition::Settle(settled) => {
                self.patience = Patience::default();
                self.shared.look_for_recovery();
                if let Some(item) = self.window.pop_front() {
                    item.settle(&settled);
                }
                Ok(())
            }
            other => Err(Stopped::Wait(other)),
        }
    }

    /// Puts back what is not durable, so that it is processed again in its order.
    pub(crate) async fn restart(&mut self, broken: Broken) {
        let back = self.pipeline.take_back();
        // Refused where the outcome is stored after all, which the next claim then tells.
        self.shared.engine.give_back(back.iter().map(|done| &done.lease).collect()).await;
        for Done { mut item, .. } in back.into_iter().rev() {
            item.token = Token::random();
            self.window.push_front(item);
        }
        self.wait(Disposition::Unsettled(broken.0)).await;
    }

    /// Waits for the head, which holds its lane.
    async fn wait(&mut self, disposition: Disposition) {
        self.recorder.drain().await;
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
