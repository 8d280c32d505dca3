//! One partition in one assignment: what was received, what is out, what may be committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use einmal::Delivery;
use einmal::worker::{Assignment, Incoming};
use tokio_util::sync::CancellationToken;

use crate::commit::Due;
use crate::offsets::{NextOffset, Received, Tracker};
use crate::source::{Epoch, KafkaAck, Ticket, TopicPartition, WayBack};

/// A delivery that came back unsettled is offered again after this time.
const OFFER_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// An answer to a commit that has not come by then will not come.
const UNANSWERED_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) at: Arc<TopicPartition>,
    pub(crate) epoch: Epoch,
    /// Cancelled with the epoch. Spans within it can end earlier.
    ended: CancellationToken,
    span: Assignment,
    stage: Stage,
    tracker: Tracker,
    /// Received and not settled, to be offered again if they come back.
    held: BTreeMap<i64, Delivery>,
    /// Of these, how many somebody still holds the right to settle.
    out: usize,
    /// What the client was told last.
    pub(crate) paused: bool,
    commit_from: Duration,
    commit_sent: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// A delivery came back unsettled though nothing was being closed. All that is out of this partition is
    /// called in, and then offered again from the first unfinished one on, so that its order holds.
    CallingIn {
        lost_at: Duration,
        again_at: Duration,
    },
    /// The partition is being given up.
    Closing,
}

impl Partition {
    pub(crate) fn new(at: Arc<TopicPartition>, epoch: Epoch) -> Self {
        Self {
            at,
            epoch,
            ended: CancellationToken::new(),
            span: Assignment::default(),
            stage: Stage::Open,
            tracker: Tracker::default(),
            held: BTreeMap::new(),
            out: 0,
            paused: false,
            commit_from: Duration::ZERO,
            commit_sent: None,
        }
    }

    /// Takes a message in. The incoming to hand out, if this is the time for it.
    ///
    /// # Errors
    /// Gives the message back when it does not follow those before.
    pub(crate) fn receive(
        &mut self,
        delivery: Delivery,
        back: &WayBack,
    ) -> Result<Option<Incoming<KafkaAck>>, Delivery> {
        let Some(offset) = delivery.position().offset() else { return Err(delivery) };
        if self.tracker.received(offset) == Received::Backwards {
            return Err(delivery);
        }
        self.held.insert(offset, delivery.clone());
        Ok((self.stage == Stage::Open).then(|| self.hand_out(offset, delivery, back)))
    }

    fn hand_out(&mut self, offset: i64, delivery: Delivery, back: &WayBack) -> Incoming<KafkaAck> {
        self.out += 1;
        let ticket = Ticket { at: self.at.clone(), epoch: self.epoch, offset };
        let assignment = self.span.clone();
        let ack = KafkaAck::new(ticket, assignment.closing.clone(), back.clone());
        Incoming { delivery, assignment, ack }
    }

    pub(crate) fn settled(&mut self, offset: i64) {
        if self.tracker.done(offset) {
            self.held.remove(&offset);
            self.out = self.out.saturating_sub(1);
        }
    }

    /// A delivery came back. True when all of this partition is now called in.
    pub(crate) fn dropped(&mut self, now: Duration, drain: Duration) -> bool {
        self.out = self.out.saturating_sub(1);
        if self.stage != Stage::Open {
            return false;
        }
        self.span.closing.cancel();
        self.stage = Stage::CallingIn { lost_at: now + drain, again_at: now + OFFER_AGAIN_AFTER };
        true
    }

    /// What is to be offered again now: all that was called in, in its order, in a new span.
    pub(crate) fn offer_again(&mut self, now: Duration, back: &WayBack) -> Vec<Incoming<KafkaAck>> {
        let Stage::CallingIn { lost_at, again_at } = self.stage else { return Vec::new() };
        if now >= lost_at {
            self.span.lost.cancel();
        }
        if self.out > 0 || now < again_at {
            return Vec::new();
        }
        self.span.lost.cancel();
        self.span = Assignment::default();
        self.stage = Stage::Open;
        let held: Vec<_> = self.held.iter().map(|(offset, delivery)| (*offset, delivery.clone())).collect();
        held.into_iter().map(|(offset, delivery)| self.hand_out(offset, delivery, back)).collect()
    }

    /// Nothing more of it is to be started; what runs may end.
    pub(crate) fn close(&mut self) {
        self.stage = Stage::Closing;
        self.span.closing.cancel();
    }

    /// Nothing of it can be settled any more.
    pub(crate) fn lose(&self) {
        self.ended.cancel();
        self.span.closing.cancel();
        self.span.lost.cancel();
    }

    pub(crate) const fn out(&self) -> usize {
        self.out
    }

    /// Whether nothing more should be fetched of it, whatever the others do.
    pub(crate) fn is_full(&self, max_span: usize) -> bool {
        self.stage != Stage::Open || self.tracker.span() >= max_span
    }

    /// What to commit now, marked as under way.
    pub(crate) fn commit(&mut self, now: Duration, every: Duration) -> Option<Due> {
        if self.commit_sent.is_some_and(|sent| now.saturating_sub(sent) >= UNANSWERED_AFTER) {
            self.tracker.unanswered();
        }
        let next = self.tracker.due().filter(|_| now >= self.commit_from)?;
        Some(self.sent(next, now, every))
    }

    /// The next commit need not keep its distance from the last one.
    pub(crate) fn hurry(&mut self) {
        self.commit_from = Duration::ZERO;
    }

    /// What to commit before the partition is given up.
    pub(crate) fn last_commit(&mut self, now: Duration) -> Option<Due> {
        let next = self.tracker.due_at_last()?;
        Some(self.sent(next, now, Duration::ZERO))
    }

    fn sent(&mut self, next: NextOffset, now: Duration, every: Duration) -> Due {
        self.tracker.committing(next);
        self.commit_sent = Some(now);
        self.commit_from = now + every;
        Due { at: self.at.clone(), epoch: self.epoch, next, ended: self.ended.clone() }
    }

    /// Notes how the commit of `next` ended; after a failure the next one not before `retry_at`.
    pub(crate) fn committed(&mut self, next: NextOffset, ok: bool, retry_at: Duration) {
        if self.tracker.committed(next, ok) {
            self.commit_sent = None;
            if !ok {
                self.commit_from = retry_at;
            }
        }
    }

    /// Whether a commit waits for its answer.
    pub(crate) const fn is_committing(&self) -> bool {
        self.tracker.in_flight().is_some()
    }

    /// Whether something settled is not known to be committed.
    pub(crate) fn owes_commit(&self) -> bool {
        self.tracker.in_flight().is_some() || self.tracker.due_at_last().is_some()
    }

    /// Since when a commit waits for its answer.
    pub(crate) const fn commit_sent(&self) -> Option<Duration> {
        self.commit_sent
    }
}
