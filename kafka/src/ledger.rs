//! The partitions that are assigned now. Nothing of an assignment that has ended is counted here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use einmal::Delivery;
use einmal::worker::Incoming;

use crate::commit::Due;
use crate::names;
use crate::offsets::NextOffset;
use crate::partition::Partition;
use crate::source::{Epoch, KafkaAck, Ticket, TopicPartition, WayBack};

/// Partitions by topic and number.
pub(crate) type These = [(String, i32)];

#[derive(Debug)]
pub(crate) struct Ledger {
    partitions: HashMap<Arc<str>, BTreeMap<i32, Partition>>,
    last_epoch: Epoch,
    back: WayBack,
}

impl Ledger {
    pub(crate) fn new(back: WayBack) -> Self {
        Self { partitions: HashMap::new(), last_epoch: Epoch(0), back }
    }

    /// A partition was assigned: a new epoch of it begins.
    pub(crate) fn assign(&mut self, topic: &str, partition: i32) {
        self.end(topic, partition);
        self.last_epoch = Epoch(self.last_epoch.0 + 1);
        let topic = match self.partitions.get_key_value(topic) {
            Some((topic, _)) => topic.clone(),
            None => Arc::from(topic),
        };
        let at = Arc::new(TopicPartition { topic: topic.clone(), partition });
        let new = Partition::new(at, self.last_epoch);
        self.partitions.entry(topic).or_default().insert(partition, new);
    }

    /// The partition's epoch is over, and with it the right to settle what is out of it.
    pub(crate) fn end(&mut self, topic: &str, partition: i32) {
        let Some(of_topic) = self.partitions.get_mut(topic) else { return };
        if let Some(old) = of_topic.remove(&partition) {
            old.lose();
        }
        if of_topic.is_empty() {
            self.partitions.remove(topic);
        }
    }

    /// All epochs are over.
    pub(crate) fn end_all(&mut self) {
        for (_, partition) in self.partitions.drain().flat_map(|(_, partitions)| partitions) {
            partition.lose();
        }
    }

    /// The topic's name as it is kept here, if the partition has a live epoch.
    pub(crate) fn topic(&self, topic: &str, partition: i32) -> Option<Arc<str>> {
        let (name, partitions) = self.partitions.get_key_value(topic)?;
        partitions.contains_key(&partition).then(|| name.clone())
    }

    /// Takes a message in. What to hand out of it; `None` when its partition has no live epoch, or when it
    /// will be handed out later.
    pub(crate) fn receive(&mut self, delivery: Delivery) -> Option<Incoming<KafkaAck>> {
        let topic = delivery.position().source().clone();
        let number = delivery.position().partition()?;
        match self.get_mut(&topic, number)?.receive(delivery) {
            Ok(incoming) => incoming,
            Err(delivery) => {
                // The log was cut, made anew or rewound. Old offsets mean other messages now: what is out of
                // the old pass can't be settled, and the new one is counted from its own beginning.
                tracing::warn!(position = %delivery.position(), "offsets went backwards: a new pass begins");
                self.assign(&topic, number);
                self.get_mut(&topic, number)?.receive(delivery).ok().flatten()
            }
        }
    }

    fn get_mut(&mut self, topic: &str, partition: i32) -> Option<Receiving<'_>> {
        let found = self.partitions.get_mut(topic)?.get_mut(&partition)?;
        Some(Receiving(found, &self.back))
    }

    /// The partition, unless `epoch` of it has ended: then what was handed out in it is somebody else's by
    /// now, and settling that moves no offset.
    fn live(&mut self, at: &TopicPartition, epoch: Epoch) -> Option<&mut Partition> {
        let partition = self.partitions.get_mut(&at.topic)?.get_mut(&at.partition)?;
        (partition.epoch == epoch).then_some(partition)
    }

    /// Notes what has been settled meanwhile.
    pub(crate) fn note_settled(&mut self) {
        for ticket in self.back.take_settled() {
            self.settled(&ticket);
        }
    }

    fn settled(&mut self, ticket: &Ticket) {
        match self.live(&ticket.at, ticket.epoch) {
            Some(partition) => partition.settled(ticket.offset),
            None => metrics::counter!(names::STALE_SETTLES).increment(1),
        }
    }

    /// A delivery came back unsettled.
    pub(crate) fn dropped(&mut self, ticket: &Ticket, now: Duration, drain: Duration) {
        if self.live(&ticket.at, ticket.epoch).is_some_and(|partition| partition.dropped(now, drain)) {
            let TopicPartition { topic, partition } = &*ticket.at;
            tracing::warn!(
                topic = &**topic,
                partition,
                offset = ticket.offset,
                "a delivery came back unsettled; its partition is offered again from there"
            );
        }
    }

    /// What is to be offered again now.
    pub(crate) fn offer_again(&mut self, now: Duration) -> Vec<Incoming<KafkaAck>> {
        let Self { partitions, back, .. } = self;
        let all = partitions.values_mut().flat_map(BTreeMap::values_mut);
        all.flat_map(|partition| partition.offer_again(now, back)).collect()
    }

    /// Nothing more of `these` is to be started.
    pub(crate) fn close(&mut self, these: &These) {
        for (topic, number) in these {
            if let Some(Receiving(partition, _)) = self.get_mut(topic, *number) {
                partition.close();
            }
        }
    }

    /// How many deliveries of `these` are out.
    pub(crate) fn out(&self, these: &These) -> usize {
        these.iter().filter_map(|(topic, number)| self.get(topic, *number)).map(Partition::out).sum()
    }

    /// Whether a commit of one of `these` waits for its answer.
    pub(crate) fn is_committing(&self, these: &These) -> bool {
        these.iter().any(|(topic, number)| self.get(topic, *number).is_some_and(Partition::is_committing))
    }

    pub(crate) fn get(&self, topic: &str, partition: i32) -> Option<&Partition> {
        self.partitions.get(topic)?.get(&partition)
    }

    /// What may be committed of all partitions now.
    pub(crate) fn commit(&mut self, now: Duration, every: Duration) -> Vec<Due> {
        self.iter_mut().filter_map(|partition| partition.commit(now, every)).collect()
    }

    /// What is to be committed of `these` before they are given up.
    pub(crate) fn last_commit(&mut self, these: &These, now: Duration) -> Vec<Due> {
        let mut due = Vec::new();
        for (topic, number) in these {
            if let Some(Receiving(partition, _)) = self.get_mut(topic, *number) {
                due.extend(partition.last_commit(now));
            }
        }
        due
    }

    /// Notes how the commit of `next` ended. False when its epoch has.
    pub(crate) fn committed(
        &mut self,
        at: &TopicPartition,
        epoch: Epoch,
        next: NextOffset,
        ok: bool,
        retry_at: Duration,
    ) -> bool {
        let found = self.live(at, epoch);
        found.map(|partition| partition.committed(next, ok, retry_at)).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.partitions.values().flat_map(BTreeMap::values)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.partitions.values_mut().flat_map(BTreeMap::values_mut)
    }
}

/// A partition with the way back for what it hands out.
struct Receiving<'a>(&'a mut Partition, &'a WayBack);

impl Receiving<'_> {
    fn receive(self, delivery: Delivery) -> Result<Option<Incoming<KafkaAck>>, Delivery> {
        self.0.receive(delivery, self.1)
    }
}
