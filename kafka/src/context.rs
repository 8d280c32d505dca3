//! What the client calls while it is polled: rebalances, errors, log lines.
//!
//! All of it runs on the thread that polls, so nothing here may poll, and waiting is bounded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};

use crate::engine::{Engine, now};
use crate::names;

#[derive(Debug)]
pub(crate) struct Context {
    engine: Mutex<Engine>,
    served: AtomicU64,
}

impl Context {
    pub(crate) const fn new(engine: Engine) -> Self {
        Self { engine: Mutex::new(engine), served: AtomicU64::new(0) }
    }

    /// How many lines of its log and errors the client has handed out. They stand in one queue with the messages,
    /// and a poll that serves one returns as if there were nothing.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Never held while the client is polled, for it may call back into here.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        // A panic ends the thread's loop; what is left then is to give everything up, which any state allows.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn revoked(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let these = names(list);
        // Lost partitions may be somebody else's already: no waiting, no commit.
        let lost = consumer.assignment_lost();
        tracing::info!(partitions = ?these, lost, "partitions are taken away");
        let mut engine = self.engine();
        if lost {
            engine.call_in(&these);
        } else {
            engine.drain(&these);
            engine.last_commit(&these);
        }
        engine.end(&these);
        metrics::counter!(names::REBALANCES, "kind" => if lost { "lost" } else { "revoked" }).increment(1);
    }
}

fn names(list: &TopicPartitionList) -> Vec<(String, i32)> {
    list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}

pub(crate) fn code(error: &ClientError) -> Code {
    error.rdkafka_error_code().unwrap_or(Code::Unknown)
}

impl ClientContext for Context {
    fn log(&self, level: Level, facility: &str, line: &str) {
        self.served.fetch_add(1, Ordering::Relaxed);
        log_line(level, facility, line);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: ClientError, reason: &str) {
        self.served.fetch_add(1, Ordering::Relaxed);
        self.engine().client.reported(code(&error), reason, now());
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(_) => {}
            Rebalance::Revoke(list) => self.revoked(consumer, list),
            // The client gives everything up after this.
            Rebalance::Error(error) => {
                tracing::warn!(%error, "a rebalance failed");
                self.engine().ledger.end_all();
            }
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // Eager groups list everything here, cooperative ones what is added: either way these are new epochs,
        // and nothing follows for the others.
        if let Rebalance::Assign(list) = rebalance {
            let these = names(list);
            tracing::info!(partitions = ?these, "partitions are assigned");
            // A pause outlives the assignment in which it was made, however that ended.
            if let Err(error) = consumer.resume(list) {
                tracing::error!(%error, "partitions that may be paused could not be resumed");
            }
            self.engine().assign(&these);
            metrics::counter!(names::REBALANCES, "kind" => "assigned").increment(1);
        }
    }
}

/// Of a client beside the consumer: its lines go where the consumer's go, and not to another logger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside;

impl ClientContext for Beside {
    fn log(&self, level: Level, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    /// The consumer says the same, and to the health.
    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!(%error, reason, "a client beside the consumer reports an error");
    }
}

fn log_line(level: Level, facility: &str, line: &str) {
    match level {
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: "librdkafka", facility, "{line}");
        }
        Level::Warning => tracing::warn!(target: "librdkafka", facility, "{line}"),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{line}"),
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{line}"),
    }
}
