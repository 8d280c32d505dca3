//! The loop of the one thread that talks to the broker: it polls, commits, pauses and resumes.
//!
//! The client must be polled all the time, or the group gives its partitions away. So nothing is ever awaited
//! here but the next command, and that for a short time: the client's events wake the thread as commands, and
//! what is settled is looked for.

use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::metadata::Metadata;

use crate::context::{Context, code};
use crate::engine::{LOOK_EVERY, now};
use crate::error::{KafkaError, KafkaErrorKind};
use crate::message::detach;
use crate::names;
use crate::partition::Partition;

/// The client is polled at least so often.
const TICK: Duration = Duration::from_millis(100);
/// Commits, pauses and what else goes over all partitions is done at most so often.
const CHORES_EVERY: Duration = LOOK_EVERY;
/// As many messages are taken from the client in a row.
const BATCH: usize = 256;
/// The client fetches so many messages of a partition ahead, and one fetch more.
const FETCHED_AHEAD: usize = 2_000;

pub(crate) struct Poller<'a> {
    consumer: &'a BaseConsumer<Context>,
    /// The worker is at its bound since then.
    no_room_since: Option<Duration>,
    /// It has been so for long: nothing is fetched until there is much room.
    held: bool,
    chores_at: Duration,
    checks_at: Duration,
}

/// What one poll gave.
enum Polled {
    Something,
    /// A message, after which nothing more should be fetched of its partition.
    Full,
    Nothing,
}

impl<'a> Poller<'a> {
    pub(crate) fn new(consumer: &'a BaseConsumer<Context>) -> Self {
        let at = Duration::ZERO;
        Self { consumer, no_room_since: None, held: false, chores_at: at, checks_at: at }
    }

    /// Runs until it is told to close, or until the client fails for good.
    pub(crate) fn run(&mut self) -> Result<(), KafkaError> {
        let mut wait = Duration::ZERO;
        loop {
            let close_by = {
                let mut engine = self.consumer.context().engine();
                engine.follow(wait);
                engine.close_by
            };
            if let Some(close_by) = close_by {
                self.close(close_by);
                return Ok(());
            }
            let more = self.intake()?;
            let now = now();
            let chores = now >= self.chores_at;
            if chores {
                self.chores_at = now + CHORES_EVERY;
                self.offer_again();
                self.pause_and_resume();
                self.commit();
                self.check(now)?;
            }
            wait = match (more, chores) {
                (true, _) => Duration::ZERO,
                (false, true) if self.is_any_out() => LOOK_EVERY,
                (false, true) => TICK,
                (false, false) => self.chores_at.saturating_sub(now),
            };
        }
    }

    fn is_any_out(&self) -> bool {
        self.consumer.context().engine().ledger.iter().any(|partition| partition.out() > 0)
    }

    /// Takes messages from the client while the worker has room. True when there may be more.
    fn intake(&mut self) -> Result<bool, KafkaError> {
        let (stopping, room, pause_after) = {
            let engine = self.consumer.context().engine();
            let room = engine.queue.has_room(if self.held { 2 } else { 1 });
            (engine.stopping, room && !engine.stopping, engine.limits.pause_after)
        };
        if room {
            self.no_room_since = None;
            if std::mem::take(&mut self.held) {
                self.pause_and_resume();
            }
            return self.poll_while(|poller| poller.consumer.context().engine().queue.has_room(1));
        }
        // A worker that is only briefly behind is waited for: what the client has fetched ahead stays where
        // it is.
        let now = now();
        let since = *self.no_room_since.get_or_insert(now);
        if !self.held && (stopping || now.saturating_sub(since) >= pause_after) {
            self.take_what_is_fetched()?;
            self.held = true;
            self.pause_and_resume();
        }
        if self.held {
            self.poll_while(|_| true)?;
        }
        Ok(false)
    }

    /// A pause throws away what the client has fetched ahead, and afterwards it begins with the same partition
    /// again: the others would never have their turn. So that is taken first; the client's own bounds, and
    /// twice ours, bound it.
    fn take_what_is_fetched(&self) -> Result<(), KafkaError> {
        let most = {
            let engine = self.consumer.context().engine();
            if engine.stopping {
                return Ok(());
            }
            engine.limits.queue_len + FETCHED_AHEAD * engine.ledger.iter().count()
        };
        let fits = |poller: &Self| {
            let queue = poller.consumer.context().engine().queue.clone();
            queue.len() < most && queue.bytes() < 2 * queue.max_bytes()
        };
        while fits(self) && self.poll_while(fits)? {}
        Ok(())
    }

    /// Polls until there is nothing, or `go_on` says no. True when there may be more.
    fn poll_while(&self, go_on: impl Fn(&Self) -> bool) -> Result<bool, KafkaError> {
        let mut nothing = 0;
        for _ in 0..BATCH {
            match self.poll(Duration::ZERO)? {
                // The first can be an event that the client has served by itself, without a word.
                Polled::Nothing if nothing == 0 => {
                    nothing = 1;
                    continue;
                }
                Polled::Nothing => return Ok(false),
                Polled::Full => self.pause_and_resume(),
                Polled::Something => {}
            }
            nothing = 0;
            if !go_on(self) {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn poll(&self, wait: Duration) -> Result<Polled, KafkaError> {
        let context = self.consumer.context();
        let served = context.served();
        match self.consumer.poll(wait) {
            None if context.served() == served => return Ok(Polled::Nothing),
            // With `debug` set there are many lines before a message, or before an error that must be heard of.
            None => {}
            Some(Ok(message)) => return Ok(self.receive(&message)),
            Some(Err(ClientError::PartitionEOF(_))) => {}
            Some(Err(error @ ClientError::MessageConsumptionFatal(_))) => {
                return Err(KafkaError::of_client(
                    KafkaErrorKind::Fatal,
                    "the Kafka client has failed for good",
                    error,
                ));
            }
            // The client can't find its way in a batch whose checksum is wrong: it reads those before it again and
            // again, each time as a new pass.
            Some(Err(error)) if code(&error) == Code::BadMessage => {
                let words = context.engine().client.words(Code::BadMessage).unwrap_or_default();
                let message = format!("a batch of a partition is damaged, and is not passed over: {words}");
                return Err(KafkaError::new(KafkaErrorKind::Damaged, message));
            }
            Some(Err(error)) => {
                context.engine().client.polled(code(&error), now());
            }
        }
        Ok(Polled::Something)
    }

    fn receive(&self, message: &BorrowedMessage<'_>) -> Polled {
        let mut engine = self.consumer.context().engine();
        // The client can give out a message of a partition that it has just given up. Nobody may work on it.
        let Some(topic) = engine.ledger.topic(message.topic(), message.partition()) else {
            metrics::counter!(names::UNOWNED).increment(1);
            return Polled::Something;
        };
        // Passed over, and therefore counted as never received: it is not committed past.
        if engine.stopping {
            return Polled::Something;
        }
        engine.client.works();
        if let Some(incoming) = engine.ledger.receive(detach(topic, message)) {
            engine.queue.push(incoming);
        }
        let partition = engine.ledger.get(message.topic(), message.partition());
        match partition.is_some_and(|one| !one.paused && one.is_full(engine.limits.max_span)) {
            true => Polled::Full,
            false => Polled::Something,
        }
    }

    /// Offers again what came back unsettled.
    fn offer_again(&self) {
        let mut engine = self.consumer.context().engine();
        if engine.stopping {
            return;
        }
        for incoming in engine.ledger.offer_again(now()) {
            engine.queue.push(incoming);
        }
    }

    /// Tells the client which partitions to fetch from, where that differs from what it was told last.
    fn pause_and_resume(&self) {
        let mut engine = self.consumer.context().engine();
        let (all, max_span) = (self.held || engine.stopping, engine.limits.max_span);
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for partition in engine.ledger.iter() {
            let hold = all || partition.is_full(max_span);
            if hold != partition.paused {
                let list = if hold { &mut pause } else { &mut resume };
                list.add_partition(&partition.at.topic, partition.at.partition);
            }
        }
        let paused = pause.count() == 0 || told("pause", self.consumer.pause(&pause));
        let resumed = resume.count() == 0 || told("resume", self.consumer.resume(&resume));
        for partition in engine.ledger.iter_mut() {
            let hold = all || partition.is_full(max_span);
            if hold != partition.paused && if hold { paused } else { resumed } {
                partition.paused = hold;
            }
        }
    }

    fn commit(&self) {
        self.consumer.context().engine().commit();
    }

    fn check(&mut self, now: Duration) -> Result<(), KafkaError> {
        if now < self.checks_at {
            return Ok(());
        }
        self.checks_at = now + Duration::from_secs(1);
        self.consumer.context().engine().check_health();
        self.ask_for_topics(now);
        match self.consumer.client().fatal_error() {
            None => Ok(()),
            Some((code, reason)) => Err(KafkaError::new(
                KafkaErrorKind::Fatal,
                format!("the Kafka client has failed for good ({code}): {reason}"),
            )),
        }
    }

    /// The client does not say that a topic is there when that is another member's.
    fn ask_for_topics(&self, now: Duration) {
        let topics = self.consumer.context().engine().client.topics_to_ask_for(now);
        // It blocks, and never for long.
        for topic in &topics {
            let answer = self.consumer.fetch_metadata(Some(topic), TICK);
            let there =
                |all: &Metadata| all.topics().iter().any(|one| one.name() == topic && one.error().is_none());
            if answer.is_ok_and(|all| there(&all)) {
                self.consumer.context().engine().client.topic_is_there(topic);
            }
        }
    }

    /// Commits what is settled, then leaves the group: the client is polled until it has served the
    /// revocation, whose callback waits for nothing that the worker has given back by now.
    fn close(&self, close_by: Duration) {
        self.pause_and_resume();
        self.consumer.context().engine().ledger.iter_mut().for_each(Partition::hurry);
        // The group is told of the leaving even when nothing can be committed.
        let commit_by = now() + close_by.saturating_sub(now()).mul_f64(0.6);
        loop {
            self.consumer.context().engine().follow(Duration::ZERO);
            self.commit();
            let owing = self.consumer.context().engine().ledger.iter().filter(|p| p.owes_commit()).count();
            if owing == 0 {
                break;
            }
            if now() >= commit_by {
                tracing::warn!(
                    partitions = owing,
                    "settled offsets could not be committed while closing: their messages are delivered again \
                     and answered by their outcomes"
                );
                break;
            }
            // An error ends nothing here: what can still be done is done.
            let _ = self.poll(CHORES_EVERY);
        }
        self.consumer.unsubscribe();
        while !self.consumer.context().engine().ledger.is_empty() && now() < close_by {
            let _ = self.poll(CHORES_EVERY);
        }
    }
}

fn told(what: &str, result: Result<(), ClientError>) -> bool {
    result.inspect_err(|error| tracing::warn!(%error, "the client did not {what}")).is_ok()
}
