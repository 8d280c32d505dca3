//! A source that is driven by hand, for tests of a worker without a broker.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use einmal::Delivery;
use einmal::worker::{Ack, Assignment, Incoming, Source};
use tokio::sync::{mpsc, watch};

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Not yet taken, or taken and still held.
    Pending,
    /// Settled.
    Settled,
    /// Settled although its assignment was lost before: a broker would refuse it, a worker must not do it.
    SettledTooLate,
    /// Given back unsettled: it will be delivered again.
    Dropped,
}

/// Makes a [`HandSource`] for a worker, and the [`Hand`] that drives it.
#[must_use]
pub fn hand_source() -> (Hand, HandSource) {
    let (push, queue) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared { state: Mutex::default(), changed: watch::Sender::new(()) });
    let source = HandSource { queue, shared: Arc::clone(&shared) };
    (Hand { push: Some(push), shared, assignment: Assignment::default(), pushed: 0 }, source)
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Sent after every change of the state.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    fates: Vec<Fate>,
    settled: Vec<usize>,
    taken: usize,
    waiting: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.send_replace(());
    }

    async fn until<T>(&self, look: impl Fn(&State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            let found = look(&self.lock());
            if let Some(found) = found {
                return found;
            }
            // It ends in an error only when the sender is gone, and `self` holds it.
            let _ = changed.changed().await;
        }
    }
}

/// Drives a [`HandSource`].
#[derive(Debug)]
pub struct Hand {
    push: Option<mpsc::UnboundedSender<Incoming<HandAck>>>,
    shared: Arc<Shared>,
    assignment: Assignment,
    pushed: usize,
}

impl Hand {
    /// Hands a delivery to the source, in the assignment of now. Without effect after [`end`](Hand::end):
    /// the delivery is dropped.
    pub fn push(&mut self, delivery: Delivery) -> Handle {
        let number = self.pushed;
        self.pushed += 1;
        self.shared.change(|state| state.fates.push(Fate::Pending));
        let assignment = self.assignment.clone();
        let ack = HandAck { number, shared: Arc::clone(&self.shared), assignment: assignment.clone() };
        if let Some(push) = &self.push {
            // A worker that is gone drops what it is sent; the acknowledgement tells so.
            let _ = push.send(Incoming { delivery, assignment, ack });
        }
        Handle { number, shared: Arc::clone(&self.shared) }
    }

    /// The assignment is about to end: nothing more should be started, what runs may be settled.
    pub fn close(&self) {
        self.assignment.closing.cancel();
    }

    /// The assignment has ended: nothing can be settled any more.
    pub fn lose(&self) {
        self.assignment.closing.cancel();
        self.assignment.lost.cancel();
    }

    /// What is pushed from now on belongs to a new assignment.
    pub fn reassign(&mut self) {
        self.assignment = Assignment::default();
    }

    /// There will be no more deliveries: the source ends after those pushed before.
    pub fn end(&mut self) {
        self.push = None;
    }

    /// The deliveries settled so far, by their number (from 0, in the order of pushes), in the order of
    /// settling. Those settled too late are not among them.
    #[must_use]
    pub fn settled(&self) -> Vec<usize> {
        self.shared.lock().settled.clone()
    }

    /// How many deliveries the worker has taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.shared.lock().taken
    }

    /// Waits until the worker has taken at least `count` deliveries.
    pub async fn wait_taken(&self, count: usize) {
        self.shared.until(|state| (state.taken >= count).then_some(())).await;
    }

    /// Waits until the worker asks for a delivery and there is none: it has taken all, and has room for
    /// more.
    pub async fn wait_idle(&self) {
        let pushed = self.pushed;
        self.shared.until(|state| (state.waiting && state.taken == pushed).then_some(())).await;
    }

    /// Waits until no delivery is pending, and says what became of each.
    pub async fn wait_all(&self) -> Vec<Fate> {
        let done = |state: &State| (!state.fates.contains(&Fate::Pending)).then(|| state.fates.clone());
        self.shared.until(done).await
    }
}

/// One pushed delivery. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Handle {
    number: usize,
    shared: Arc<Shared>,
}

impl Handle {
    /// Which delivery this is, from 0, in the order of pushes.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// What has become of it by now.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.shared.lock().fates.get(self.number).copied().unwrap_or(Fate::Pending)
    }

    /// Waits until it is pending no more, and says what became of it.
    pub async fn wait(&self) -> Fate {
        let look = |state: &State| {
            let fate = state.fates.get(self.number).copied()?;
            (fate != Fate::Pending).then_some(fate)
        };
        self.shared.until(look).await
    }
}

/// A source for a worker, driven by a [`Hand`].
pub struct HandSource {
    queue: mpsc::UnboundedReceiver<Incoming<HandAck>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for HandSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandSource").field("waiting", &self.queue.len()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Source for HandSource {
    type Ack = HandAck;

    async fn next(&mut self) -> Option<Incoming<HandAck>> {
        // Unset also when this future is dropped while it waits.
        let asking = Asking(Arc::clone(&self.shared));
        let incoming = match self.queue.try_recv() {
            Ok(incoming) => Some(incoming),
            Err(_) => {
                self.shared.change(|state| state.waiting = true);
                self.queue.recv().await
            }
        };
        drop(asking);
        if incoming.is_some() {
            self.shared.change(|state| state.taken += 1);
        }
        incoming
    }
}

struct Asking(Arc<Shared>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.change(|state| state.waiting = false);
    }
}

/// The right to settle one delivery of a [`HandSource`].
#[derive(Debug)]
pub struct HandAck {
    number: usize,
    shared: Arc<Shared>,
    assignment: Assignment,
}

impl HandAck {
    fn meet(&self, fate: Fate) {
        self.shared.change(|state| {
            if let Some(slot) = state.fates.get_mut(self.number).filter(|slot| **slot == Fate::Pending) {
                *slot = fate;
                if fate == Fate::Settled {
                    state.settled.push(self.number);
                }
            }
        });
    }
}

impl Ack for HandAck {
    fn settle(self) {
        let lost = self.assignment.lost.is_cancelled();
        self.meet(if lost { Fate::SettledTooLate } else { Fate::Settled });
    }
}

impl Drop for HandAck {
    fn drop(&mut self) {
        self.meet(Fate::Dropped);
    }
}

#[cfg(test)]
mod tests {
    use einmal::Position;
    use futures_util::FutureExt;

    use super::*;

    fn delivery() -> Delivery {
        Delivery::new(Position::in_queue("q"), None)
    }

    #[tokio::test]
    async fn fates_and_their_order_are_told() {
        let (mut hand, mut source) = hand_source();
        let handles = [hand.push(delivery()), hand.push(delivery()), hand.push(delivery())];
        assert_eq!(hand.taken(), 0);
        let first = source.next().await.unwrap();
        let second = source.next().await.unwrap();
        let third = source.next().await.unwrap();
        third.ack.settle();
        first.ack.settle();
        drop(second);
        assert_eq!(hand.settled(), [2, 0]);
        assert_eq!(handles[1].wait().await, Fate::Dropped);
        assert_eq!(hand.wait_all().await, [Fate::Settled, Fate::Dropped, Fate::Settled]);
        assert_eq!(hand.wait_idle().now_or_never(), None, "nobody asks");
        let mut next = source.next();
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(hand.wait_idle().now_or_never(), Some(()));
        hand.end();
        assert!(next.await.is_none());
    }

    #[tokio::test]
    async fn settling_after_the_loss_is_told_apart() {
        let (mut hand, mut source) = hand_source();
        let (old, new);
        old = hand.push(delivery());
        hand.close();
        let incoming = source.next().await.unwrap();
        assert!(incoming.assignment.closing.is_cancelled() && !incoming.assignment.lost.is_cancelled());
        hand.lose();
        hand.reassign();
        new = hand.push(delivery());
        incoming.ack.settle();
        source.next().await.unwrap().ack.settle();
        assert_eq!((old.wait().await, new.wait().await), (Fate::SettledTooLate, Fate::Settled));
        assert_eq!(hand.settled(), [1]);
    }

    #[tokio::test]
    async fn what_a_gone_worker_had_not_taken_is_dropped() {
        let (mut hand, source) = hand_source();
        let handle = hand.push(delivery());
        drop(source);
        assert_eq!(handle.wait().await, Fate::Dropped);
        assert_eq!(hand.push(delivery()).wait().await, Fate::Dropped);
    }
}
