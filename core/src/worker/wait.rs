//! What a delivery does that can't be answered now: it waits, holding no slot and no claim.

use std::time::Duration;

use rand::RngExt;

use super::Shared;
use super::budget::Hold;
use super::item::Item;
use super::source::Ack;
use crate::claim::Token;
use crate::names;
use crate::settle::{Later, Unsettled};
use crate::stop::Stop;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(1);
const STORE_MOST: Duration = Duration::from_secs(10);

/// How one delivery, or the head of a lane, has waited so far.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    rounds: u32,
    waited_for_copy: Duration,
    timed_out: bool,
    /// What holds it up, also while it is tried again: until that has worked, nothing more is taken in.
    held_up: Option<Hold>,
    /// It waits, also while it asks whether it still must.
    waiting: Option<Hold>,
}

/// Whether to process the delivery again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Yes,
    No,
}

impl Patience {
    /// Growing, with jitter: what waits together must not come back together.
    fn pause(&mut self, most: Duration) -> Duration {
        let ceiling = FIRST.saturating_mul(1 << self.rounds.min(10)).min(most);
        self.rounds = self.rounds.saturating_add(1);
        ceiling.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    /// It is claimed: nothing holds it up any more, however long its handler takes.
    pub(crate) fn answered(&mut self, shared: &Shared) {
        self.waiting = None;
        if self.held_up.take().is_some() {
            shared.look_for_recovery();
        }
    }

    /// Waits until asking again makes sense.
    pub(crate) async fn later<A: Ack>(
        &mut self,
        shared: &Shared,
        item: &mut Item<A>,
        why: Later,
        retry_after: Duration,
    ) -> Again {
        self.held_up = None;
        shared.look_for_recovery();
        item.token = Token::random();
        self.waiting.get_or_insert_with(|| shared.budget.waiting());
        if why == Later::FailedUncharged {
            // No back-off, and yet no spinning.
            let pause = self.pause(MOST).max(retry_after);
            return sleep(shared, pause, &item.no_start()).await;
        }
        if why != Later::InProgress {
            self.rounds = 0;
            return sleep(shared, retry_after, &item.no_start()).await;
        }
        let (began, stop) = (shared.engine.clock.monotonic(), item.no_start());
        let here = shared.engine.identify(&item.delivery).ok();
        let here = here.and_then(|key| shared.engine.leases.let_go(&key));
        let again = match here {
            // A copy in this process: it says when it is done.
            Some(let_go) => tokio::select! {
                () = let_go.cancelled() => Again::Yes,
                again = sleep(shared, retry_after.max(FIRST), &stop) => again,
            },
            None => {
                let pause = self.pause(MOST).min(retry_after.max(FIRST));
                sleep(shared, pause, &stop).await
            }
        };
        self.waited_for_copy += shared.engine.clock.monotonic().saturating_sub(began);
        if self.waited_for_copy >= shared.engine.policy.max_wait() && !self.timed_out {
            self.timed_out = true;
            let (key, position) = (item.key(), item.delivery.position());
            tracing::warn!(key, %position, "a copy still runs after the longest wait");
            let scope = shared.engine.scope_label.clone();
            metrics::counter!(names::WAIT_TIMED_OUT, "scope" => scope).increment(1);
        }
        again
    }

    /// Waits until what went wrong may have passed. Fatal troubles stop the worker.
    pub(crate) async fn unsettled<A: Ack>(
        &mut self,
        shared: &Shared,
        item: &mut Item<A>,
        unsettled: Unsettled,
    ) -> Again {
        let (key, position) = (item.key(), item.delivery.position());
        if unsettled.is_fatal() {
            tracing::error!(key, %position, "the message stays unsettled");
            shared.fail(unsettled);
            return Again::No;
        }
        match unsettled {
            Unsettled::Cancelled => return Again::No,
            Unsettled::Store(error) => {
                tracing::warn!(key, %position, %error, "the store failed; the message waits for it");
                self.held_up = Some(shared.budget.held_up_by_store());
                shared.trouble(STORE, format!("the store failed: {error}"));
                return sleep(shared, self.pause(STORE_MOST), &item.no_start()).await;
            }
            Unsettled::DeadLetter(error) => {
                self.held_up = Some(shared.budget.held_up_by_dead_letters());
                shared.trouble(DEAD_LETTERS, error.to_string());
                self.waiting.get_or_insert_with(|| shared.budget.waiting());
                let pause = self.pause(STORE_MOST);
                item.token = Token::random();
                return sleep(shared, pause, &item.no_start()).await;
            }
            other => {
                tracing::warn!(key, %position, problem = %other, "not settled; it is processed again");
                // Most often it is the store that could not be reached: that shows with the next claim.
                let store = matches!(other, Unsettled::LeaseLost | Unsettled::OutcomeUnknown(_));
                self.held_up = store.then(|| shared.budget.held_up_by_store());
            }
        }
        shared.look_for_recovery();
        item.token = Token::random();
        self.waiting.get_or_insert_with(|| shared.budget.waiting());
        sleep(shared, self.pause(MOST), &item.no_start()).await
    }
}

/// Names of troubles in the worker's health.
pub(crate) const STORE: &str = "store";
pub(crate) const DEAD_LETTERS: &str = "dead letters";

async fn sleep(shared: &Shared, duration: Duration, stop: &Stop) -> Again {
    tokio::select! {
        biased;
        () = stop.asked() => Again::No,
        () = shared.engine.clock.sleep(duration) => Again::Yes,
    }
}
