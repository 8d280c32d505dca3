//! Which deliveries are processed in order, and the queues that keep it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Shared;
use super::item::Item;
use super::lane::Lane;
use super::source::Ack;
use crate::delivery::{Delivery, Position};

/// What is processed in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lanes {
    /// Each partition (or queue) on its own: all of its messages, one after the other. The default.
    #[default]
    Partition,
    /// The messages of each record key. Messages without a key need no order.
    Key,
    /// Nothing: all messages at once.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneId(Arc<str>, Option<i32>, Option<Bytes>);

impl Lanes {
    /// The lane of `delivery`; `None` when it needs no order.
    pub(crate) fn of(self, delivery: &Delivery) -> Option<LaneId> {
        let position: &Position = delivery.position();
        let lane = |key| LaneId(Arc::clone(position.source()), position.partition(), key);
        match self {
            Self::Partition => Some(lane(None)),
            Self::Key => delivery.key().map(|key| lane(Some(key.clone()))),
            Self::None => None,
        }
    }
}

/// The lanes that have something to do, each with its queue.
pub(crate) struct Queues<A: Ack>(Mutex<HashMap<LaneId, Queue<A>>>);

struct Queue<A: Ack> {
    items: VecDeque<Item<A>>,
    arrived: Arc<Notify>,
}

impl<A: Ack> Queues<A> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LaneId, Queue<A>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `item` behind the others of its lane; whether the lane must be started.
    pub(crate) fn push(&self, lane: &LaneId, item: Item<A>) -> bool {
        match self.lock().entry(lane.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().items.push_back(item);
                queue.get().arrived.notify_one();
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Queue { items: VecDeque::from([item]), arrived: Arc::default() });
                true
            }
        }
    }

    fn take(&self, lane: &LaneId, most: usize) -> VecDeque<Item<A>> {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(lane) else { return VecDeque::new() };
        let count = queue.items.len().min(most);
        queue.items.drain(..count).collect()
    }

    fn arrived(&self, lane: &LaneId) -> Arc<Notify> {
        self.lock().get(lane).map(|queue| Arc::clone(&queue.arrived)).unwrap_or_default()
    }

    /// Takes the lane away if nothing waits for it.
    fn end(&self, lane: &LaneId) -> bool {
        match self.lock().entry(lane.clone()) {
            Entry::Occupied(queue) if queue.get().items.is_empty() => {
                queue.remove();
                true
            }
            Entry::Occupied(_) => false,
            Entry::Vacant(_) => true,
        }
    }
}

/// Processes a lane until nothing waits for it.
pub(crate) async fn process<A: Ack>(shared: Arc<Shared>, queues: Arc<Queues<A>>, id: LaneId) {
    let mut lane = Lane::new(shared);
    let arrived = queues.arrived(&id);
    loop {
        lane.push(queues.take(&id, lane.room()));
        if lane.has_work() {
            lane.advance().await;
        } else if !lane.is_idle() {
            // Only the storing may be dropped half-way, and goes on where it was.
            let broken = tokio::select! {
                biased;
                () = arrived.notified() => None,
                stored = lane.store_done() => stored.err(),
            };
            if let Some(broken) = broken {
                lane.restart(broken).await;
            }
        } else if queues.end(&id) {
            return;
        }
    }
}
