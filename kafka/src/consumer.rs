//! Starts the thread that talks to the broker, and ends it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use einmal::worker::HealthCell;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::sync::oneshot;

use crate::commit;
use crate::config::KafkaConfig;
use crate::context::Context;
use crate::engine::Engine;
use crate::error::{KafkaError, KafkaErrorKind};
use crate::ledger::Ledger;
use crate::poll::Poller;
use crate::retention;
use crate::source::{Command, KafkaSource, Queue, WayBack};

/// What closing may take beyond its budget, until the thread is left behind.
const GRACE: Duration = Duration::from_secs(1);

/// A running member of a consumer group: the handle by which it is stopped.
///
/// The member lives on a thread of its own. Dropping the handle asks it to close, and doesn't wait for it.
#[derive(Debug)]
pub struct KafkaConsumer {
    commands: Sender<Command>,
    /// How the loop ended; comes before the client is dropped.
    ended: oneshot::Receiver<Result<(), KafkaError>>,
    /// The client is dropped.
    gone: oneshot::Receiver<()>,
    budget: Duration,
}

impl KafkaConsumer {
    /// Joins the group, and returns at once with the source that its messages will come from.
    ///
    /// The source ends when the consumer is closed, or when it fails for good: then
    /// [`close`](KafkaConsumer::close) has the error, and `health` is not live any more.
    ///
    /// # Errors
    /// When the client can't be made of its settings, can't subscribe, or no thread can be had.
    pub fn start(config: &KafkaConfig, health: HealthCell) -> Result<(KafkaSource, Self), KafkaError> {
        Self::start_remembering(config, health, None)
    }

    /// The same, with a warning of topics that keep messages for longer than their outcomes are `remembered`.
    pub(crate) fn start_remembering(
        config: &KafkaConfig,
        health: HealthCell,
        remembered: Option<Duration>,
    ) -> Result<(KafkaSource, Self), KafkaError> {
        let setup =
            |doing: &'static str| move |error| KafkaError::of_client(KafkaErrorKind::Setup, doing, error);
        let (commands, received) = channel();
        let queue = Arc::new(Queue::new(config.limits.queue_len, config.limits.queue_bytes));
        let ledger = Ledger::new(WayBack::new(commands.clone()));
        let (committer, jobs) = channel();
        let mut engine =
            Engine::new(ledger, queue.clone(), config.limits, received, committer, health.clone());
        engine.retention = remembered.and_then(|time| retention::watch(config.without_group(), time));
        // What a pattern finds is known once it is assigned.
        engine.read_retention_of(config.topics.iter().filter(|topic| !topic.starts_with('^')));
        let mut consumer: BaseConsumer<Context> = config
            .client
            .create_with_context(Context::new(engine))
            .map_err(setup("the Kafka client could not be made"))?;
        let wake = commands.clone();
        // Called by the client's own threads: it must not wait.
        consumer.set_nonempty_callback(move || {
            let _ = wake.send(Command::Poll);
        });
        let topics: Vec<&str> = config.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(setup("the Kafka client could not subscribe"))?;

        let consumer = Arc::new(consumer);
        let (ended_tx, ended) = oneshot::channel();
        let (gone_tx, gone) = oneshot::channel();
        let (committing, results) = (consumer.clone(), commands.clone());
        let committer = spawn("einmal-kafka-commit", move || commit::run(&committing, &jobs, &results))?;
        let context = consumer.context().clone();
        let polling = spawn("einmal-kafka", move || {
            let _ = ended_tx.send(run(&consumer, &health));
            // A commit that the broker doesn't answer can hold this up. Nothing waits for it without a bound.
            let _ = committer.join();
            // The client leaves the group when it is dropped, and calls back meanwhile. Offsets are stored
            // nowhere but in explicit commits, so that it can't commit what it throws away here.
            let _ = catch_unwind(AssertUnwindSafe(move || drop(consumer)));
            let _ = gone_tx.send(());
        });
        // Else the other thread would wait for commits for ever.
        polling.inspect_err(|_| context.engine().committer = None)?;
        let source = KafkaSource { queue, commands: commands.clone() };
        Ok((source, Self { commands, ended, gone, budget: config.limits.close }))
    }

    /// Hands out nothing more. What has been handed out can still be settled, and the group is kept.
    pub fn stop_intake(&self) {
        let _ = self.commands.send(Command::StopIntake);
    }

    /// Commits what is settled, leaves the group and ends the source. Call it when the worker has ended.
    ///
    /// # Errors
    /// What had ended the consumer before, if anything had; or that it did not close within its budget and
    /// was left behind.
    ///
    /// # Cancel safety
    /// Closing goes on when the future is dropped; only its result is lost.
    pub async fn close(mut self) -> Result<(), KafkaError> {
        let _ = self.commands.send(Command::Close(self.budget));
        let left_behind = || {
            tracing::error!("the Kafka client did not close in time; its thread is left behind");
            let budget = self.budget;
            KafkaError::new(
                KafkaErrorKind::NotClosed,
                format!("the Kafka client did not close in {budget:?}"),
            )
        };
        let both = async {
            // A thread that is gone without a word can't be: its end is caught. Then there is nothing to say.
            (&mut self.ended).await.unwrap_or(Ok(()))?;
            let _ = (&mut self.gone).await;
            Ok(())
        };
        tokio::time::timeout(self.budget + GRACE, both).await.unwrap_or_else(|_| Err(left_behind()))
    }
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Close(self.budget));
    }
}

fn run(consumer: &BaseConsumer<Context>, health: &HealthCell) -> Result<(), KafkaError> {
    let loop_of = AssertUnwindSafe(|| Poller::new(consumer).run());
    let result = catch_unwind(loop_of).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(KafkaError::new(KafkaErrorKind::Panicked, format!("the Kafka thread panicked: {text}")))
    });
    if let Err(error) = &result {
        tracing::error!(%error, "the Kafka consumer has ended");
        health.fatal(error.to_string());
    }
    let mut engine = consumer.context().engine();
    engine.committer = None;
    engine.retention = None;
    engine.ledger.end_all();
    engine.queue.end();
    result
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, KafkaError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| {
        KafkaError::new(KafkaErrorKind::Setup, format!("no thread for the Kafka client: {error}"))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}
