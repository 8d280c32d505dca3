//! How much a worker takes in before it makes its broker wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Limits;
use crate::delivery::Position;

/// What is in flight. Intake asks for room before it takes the next delivery.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    used: Mutex<Used>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Used {
    /// By order of arrival: when, from where, how many bytes.
    deliveries: BTreeMap<u64, (Duration, Position, usize)>,
    next: u64,
    bytes: usize,
    waiting: usize,
    held_up_by_store: usize,
    held_up_by_dead_letters: usize,
}

/// A delivery's place. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct Place {
    budget: Arc<Budget>,
    number: u64,
}

/// Counts something that keeps a delivery from being worked on.
#[derive(Debug)]
pub(crate) struct Hold {
    budget: Arc<Budget>,
    counter: fn(&mut Used) -> &mut usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut used = self.budget.lock();
        if let Some((_, _, size)) = used.deliveries.remove(&self.number) {
            used.bytes = used.bytes.saturating_sub(size);
        }
        drop(used);
        self.budget.freed.notify_one();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut used = self.budget.lock();
        let counter = (self.counter)(&mut used);
        *counter = counter.saturating_sub(1);
        drop(used);
        self.budget.freed.notify_one();
    }
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, used: Mutex::default(), freed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when one more delivery may be taken in. Only the intake waits here, so that one waker is enough.
    /// The bound on bytes is passed by at most one delivery, whose size nobody knows before.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }

    fn has_room(&self) -> bool {
        let used = self.lock();
        used.deliveries.len() < self.limits.deliveries
            && used.bytes < self.limits.bytes
            && used.waiting < self.limits.waiting
            && used.held_up_by_store == 0
    }

    pub(crate) fn take(self: &Arc<Self>, at: Duration, position: Position, size: usize) -> Place {
        let mut used = self.lock();
        let number = used.next;
        used.next += 1;
        used.bytes += size;
        used.deliveries.insert(number, (at, position, size));
        drop(used);
        Place { budget: Arc::clone(self), number }
    }

    fn hold(self: &Arc<Self>, counter: fn(&mut Used) -> &mut usize) -> Hold {
        *counter(&mut self.lock()) += 1;
        Hold { budget: Arc::clone(self), counter }
    }

    /// A delivery waits for its copy or its back-off.
    pub(crate) fn waiting(self: &Arc<Self>) -> Hold {
        self.hold(|used| &mut used.waiting)
    }

    /// A delivery waits for the store: until it is back, nothing more is taken in.
    pub(crate) fn held_up_by_store(self: &Arc<Self>) -> Hold {
        self.hold(|used| &mut used.held_up_by_store)
    }

    /// A delivery waits for its dead letter to be confirmed.
    pub(crate) fn held_up_by_dead_letters(self: &Arc<Self>) -> Hold {
        self.hold(|used| &mut used.held_up_by_dead_letters)
    }

    /// Whether a delivery is held up by the store, and whether one is by the dead letters.
    pub(crate) fn held_up(&self) -> (bool, bool) {
        let used = self.lock();
        (used.held_up_by_store > 0, used.held_up_by_dead_letters > 0)
    }

    /// The delivery that has been in flight for longest, and since when.
    pub(crate) fn oldest(&self) -> Option<(Duration, Position)> {
        self.lock().deliveries.first_key_value().map(|(_, (at, position, _))| (*at, position.clone()))
    }

    /// Deliveries, bytes, waiting.
    pub(crate) fn gauges(&self) -> (usize, usize, usize) {
        let used = self.lock();
        (used.deliveries.len(), used.bytes, used.waiting)
    }
}
