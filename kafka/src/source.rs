//! Both ends of what lies between the worker and the thread that talks to the broker.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use einmal::Position;
use einmal::worker::{Ack, Incoming, Source};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::offsets::NextOffset;

/// Which partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TopicPartition {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
}

/// One assignment of one partition: no two ever share a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(pub(crate) u64);

/// Which delivery.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) at: Arc<TopicPartition>,
    pub(crate) epoch: Epoch,
    pub(crate) offset: i64,
}

/// What the thread that talks to the broker is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A delivery was given back unsettled.
    Dropped(Ticket),
    /// How the commit of one partition ended.
    Committed { at: Arc<TopicPartition>, epoch: Epoch, next: NextOffset, error: Option<RDKafkaErrorCode> },
    /// The thread had waited for room, and the worker has made some.
    Room,
    /// The client has something to be polled for.
    Poll,
    /// Hand out nothing more.
    StopIntake,
    /// Commit, leave the group and end, within this budget.
    Close(Duration),
}

/// The way back from what is handed out. Cloning gives another handle of the same.
#[derive(Clone, Debug)]
pub(crate) struct WayBack(Arc<Back>);

#[derive(Debug)]
struct Back {
    settled: Mutex<Vec<Ticket>>,
    commands: Sender<Command>,
}

impl WayBack {
    pub(crate) fn new(commands: Sender<Command>) -> Self {
        Self(Arc::new(Back { settled: Mutex::default(), commands }))
    }

    fn settled(&self) -> MutexGuard<'_, Vec<Ticket>> {
        self.0.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been settled since the last call. Nothing wakes the thread for it, which would cost more than
    /// all else that is done for a message: it looks often enough for its commits.
    pub(crate) fn take_settled(&self) -> Vec<Ticket> {
        std::mem::take(&mut *self.settled())
    }
}

/// The right to settle one message: its offset may be committed once all before it are settled too.
#[derive(Debug)]
pub struct KafkaAck {
    ticket: Option<Ticket>,
    /// Of the span that the delivery is out in.
    closing: CancellationToken,
    back: WayBack,
}

impl KafkaAck {
    pub(crate) const fn new(ticket: Ticket, closing: CancellationToken, back: WayBack) -> Self {
        Self { ticket: Some(ticket), closing, back }
    }
}

impl Ack for KafkaAck {
    fn settle(mut self) {
        self.back.settled().extend(self.ticket.take());
    }
}

impl Drop for KafkaAck {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // At once: what comes behind it in its partition must not be handed out before it.
            self.closing.cancel();
            // No receiver: the consumer has ended, and the message will be delivered again.
            let _ = self.back.0.commands.send(Command::Dropped(ticket));
        }
    }
}

/// What waits for the worker. Unlike a channel's, its entries can be taken back when their partition is lost.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
    max_len: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    deliveries: VecDeque<Incoming<KafkaAck>>,
    bytes: usize,
    /// The thread wants to hear of room.
    asked_for_room: bool,
    /// Nothing will come any more.
    ended: bool,
    /// Nothing will be taken any more.
    abandoned: bool,
}

impl Waiting {
    fn uses_less_than(&self, len: usize, bytes: usize) -> bool {
        self.deliveries.len() < len && self.bytes < bytes
    }
}

impl Queue {
    pub(crate) fn new(max_len: usize, max_bytes: usize) -> Self {
        Self { waiting: Mutex::default(), filled: Notify::new(), max_len, max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it holds the lock, so there is no half-done change to be afraid of.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the end, past the bounds if need be: it is for the caller to look at them first.
    pub(crate) fn push(&self, incoming: Incoming<KafkaAck>) {
        let mut waiting = self.lock();
        if waiting.ended || waiting.abandoned {
            return;
        }
        waiting.bytes += incoming.delivery.size();
        waiting.deliveries.push_back(incoming);
        drop(waiting);
        self.filled.notify_one();
    }

    /// Whether less than `1 / parts` of each bound is used. If not, [`Command::Room`] is sent as soon as less
    /// than half is: sent with the next taking, it would wake the thread for each single message.
    pub(crate) fn has_room(&self, parts: usize) -> bool {
        let mut waiting = self.lock();
        let room = waiting.uses_less_than(self.max_len.div_ceil(parts), self.max_bytes.div_ceil(parts));
        waiting.asked_for_room = !room;
        room
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().deliveries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(crate) const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Takes back what `belongs` says belongs to a lost partition.
    pub(crate) fn take_back(&self, belongs: impl Fn(&Position) -> bool) {
        let mut waiting = self.lock();
        let all = std::mem::take(&mut waiting.deliveries);
        let (back, kept): (VecDeque<_>, _) = all.into_iter().partition(|i| belongs(i.delivery.position()));
        waiting.bytes = kept.iter().map(|incoming: &Incoming<_>| incoming.delivery.size()).sum();
        waiting.deliveries = kept;
        drop(waiting);
        drop(back);
    }

    /// Ends the source, and takes back what still waits.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.take_back(|_| true);
        self.filled.notify_one();
    }

    /// Whether nobody takes anything any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().abandoned
    }
}

/// The deliveries of a consumer, for the worker.
#[derive(Debug)]
pub struct KafkaSource {
    pub(crate) queue: Arc<Queue>,
    pub(crate) commands: Sender<Command>,
}

impl KafkaSource {
    /// The next that is wanted still. What is called in is given back instead, and comes again in its order.
    fn take(&self) -> Option<Option<Incoming<KafkaAck>>> {
        let Queue { max_len, max_bytes, .. } = &*self.queue;
        let mut called_in = Vec::new();
        let mut waiting = self.queue.lock();
        let incoming = loop {
            let Some(incoming) = waiting.deliveries.pop_front() else {
                return waiting.ended.then_some(None);
            };
            waiting.bytes = waiting.bytes.saturating_sub(incoming.delivery.size());
            if !incoming.assignment.closing.is_cancelled() {
                break incoming;
            }
            called_in.push(incoming);
        };
        let half_empty = waiting.uses_less_than(max_len.div_ceil(2), max_bytes.div_ceil(2));
        if half_empty && std::mem::take(&mut waiting.asked_for_room) {
            let _ = self.commands.send(Command::Room);
        }
        Some(Some(incoming))
    }
}

#[async_trait]
impl Source for KafkaSource {
    type Ack = KafkaAck;

    async fn next(&mut self) -> Option<Incoming<KafkaAck>> {
        loop {
            // Nothing is taken that is not returned at once, so that nothing is lost when this is dropped.
            match self.take() {
                Some(answer) => return answer,
                None => self.queue.filled.notified().await,
            }
        }
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.queue.lock().abandoned = true;
        self.queue.take_back(|_| true);
        let _ = self.commands.send(Command::Room);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use einmal::Delivery;
    use einmal::worker::Assignment;

    use super::*;

    fn incoming(offset: i64, back: &WayBack) -> Incoming<KafkaAck> {
        let at = Arc::new(TopicPartition { topic: "t".into(), partition: 0 });
        let ticket = Ticket { at, epoch: Epoch(1), offset };
        let delivery = Delivery::new(Position::in_log("t", 0, offset), None);
        Incoming {
            delivery,
            assignment: Assignment::default(),
            ack: KafkaAck::new(ticket, CancellationToken::new(), back.clone()),
        }
    }

    fn source(len: usize) -> (KafkaSource, WayBack, Receiver<Command>) {
        let (commands, received) = channel();
        let queue = Arc::new(Queue::new(len, 1024));
        (KafkaSource { queue, commands: commands.clone() }, WayBack::new(commands), received)
    }

    #[test]
    fn what_is_settled_wakes_nobody_and_is_found() {
        let (_source, back, received) = source(1);
        incoming(7, &back).ack.settle();
        drop(incoming(8, &back));
        assert!(matches!(received.try_recv(), Ok(Command::Dropped(ticket)) if ticket.offset == 8));
        assert!(received.try_recv().is_err());
        let settled: Vec<_> = back.take_settled().into_iter().map(|ticket| ticket.offset).collect();
        assert_eq!(settled, [7]);
        assert!(back.take_settled().is_empty());
    }

    #[test]
    fn room_that_was_asked_for_is_announced_once_and_not_for_each_message() {
        for (len, taken_until_room) in [(1, 1), (2, 2), (4, 3), (5, 3)] {
            let (source, back, received) = source(len);
            let is_told = || matches!(received.try_recv(), Ok(Command::Room));
            (0..5).take(len).for_each(|offset| source.queue.push(incoming(offset, &back)));
            assert!(!source.queue.has_room(1));
            let mut kept = Vec::new();
            for taken in 1..=len {
                kept.extend(source.take().unwrap());
                assert_eq!(is_told(), taken == taken_until_room, "{taken} of {len}");
            }
            assert!(source.queue.has_room(1) && source.take().is_none() && !is_told());
        }
    }
}
