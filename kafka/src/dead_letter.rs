//! Dead letters as records of a Kafka topic.

mod letter;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use einmal::{DeadLetter, DeadLetterError, DeadLetters, InvalidSetting};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use crate::config::check::{millis, within, without_group};
use crate::config::features::features;
use crate::context::Beside;
use crate::error::{KafkaError, KafkaErrorKind};

type LetterProducer = FutureProducer<Beside>;

/// How long a full queue of the producer is waited for, between two looks at it.
const QUEUE_FULL: Duration = Duration::from_millis(50);
/// The client gives up on its own; this is for a client that doesn't.
const GRACE: Duration = Duration::from_secs(5);

/// The topic that dead letters of a topic go to. Make it yourself: Einmal does not, and a broker that makes
/// topics by itself (`auto.create.topics.enable`) gives it its defaults, and a mistyped one too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterTopic {
    /// The message's own topic with this behind it. The default, with `.dead-letter`.
    Suffix(String),
    /// The same for all.
    Fixed(String),
}

impl Default for DeadLetterTopic {
    fn default() -> Self {
        Self::Suffix(".dead-letter".to_owned())
    }
}

impl DeadLetterTopic {
    /// Whether letters would be consumed by who writes them, and become letters again, without end.
    pub(crate) fn check(&self, consumed: &[String]) -> Result<(), InvalidSetting> {
        let (Self::Suffix(name) | Self::Fixed(name)) = self;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 249 || !name.chars().all(allowed) {
            let problem =
                format!("must be of 1 to 249 letters, digits, dots, underscores and dashes, not {name:?}");
            return Err(InvalidSetting::new("dead_letters", problem));
        }
        let exact = || consumed.iter().filter(|topic| !topic.starts_with('^'));
        match exact().map(|topic| self.of(topic)).find(|letters| consumed.contains(letters)) {
            Some(letters) => {
                let problem =
                    format!("must not go to {letters:?}, which is consumed: each would become another one");
                Err(InvalidSetting::new("dead_letters", problem))
            }
            None => Ok(()),
        }
    }

    fn of(&self, source: &str) -> String {
        match self {
            Self::Suffix(suffix) => format!("{source}{suffix}"),
            Self::Fixed(topic) => topic.clone(),
        }
    }
}

/// Publishes dead letters to a topic of the same cluster.
///
/// A letter's payload, key and headers are those of its message, byte for byte, and no payload stays none.
/// Einmal's own headers come behind them: `einmal-letter-id` (equal when a letter is published twice),
/// `einmal-reason`, `einmal-detail`, `einmal-scope`, `einmal-id`, `einmal-topic`, `einmal-partition`,
/// `einmal-offset`, `einmal-attempts`, `einmal-sent-at`, `einmal-first-at` and `einmal-last-at` (microseconds
/// since 1970). Those that an earlier dead letter left in a message that was sent again are replaced. A header
/// whose name is not UTF-8 can't be read through the client, nor copied.
pub struct KafkaDeadLetters {
    config: ClientConfig,
    topic: DeadLetterTopic,
    /// With a pattern: the topics that are consumed by their own name.
    by_name: Option<Vec<String>>,
    timeout: Duration,
    /// Made anew when it fails for good, as an idempotent producer can.
    producer: Mutex<LetterProducer>,
}

impl KafkaDeadLetters {
    /// A publisher to the cluster that `client` names. Settings of a consumer in it are left out.
    ///
    /// `enable.idempotence` and `acks` are set, and `delivery.timeout.ms` is 30000 if it isn't: until then a
    /// letter is either confirmed or reported as not.
    ///
    /// # Errors
    /// When a setting contradicts that, or the client can't be made of them.
    pub fn new(client: &ClientConfig, topic: DeadLetterTopic) -> Result<Self, KafkaError> {
        let (config, timeout) = producer_settings(client)
            .map_err(|error| KafkaError::new(KafkaErrorKind::Setup, format!("dead letters: {error}")))?;
        let producer = Mutex::new(make(&config)?);
        Ok(Self { config, topic, by_name: None, timeout, producer })
    }

    /// Of a worker that consumes these: a pattern among them can find the topics of its own letters.
    pub(crate) fn consuming(mut self, topics: &[String]) -> Self {
        let (patterns, names): (Vec<_>, Vec<_>) =
            topics.iter().cloned().partition(|topic| topic.starts_with('^'));
        self.by_name = (!patterns.is_empty()).then_some(names);
        self
    }

    /// Whether a pattern has found a topic of letters.
    fn is_of_letters(&self, source: &str) -> bool {
        let is = match &self.topic {
            DeadLetterTopic::Suffix(suffix) => source.ends_with(suffix.as_str()),
            DeadLetterTopic::Fixed(topic) => source == topic,
        };
        is && self.by_name.as_ref().is_some_and(|names| !names.iter().any(|name| name == source))
    }

    fn producer(&self) -> LetterProducer {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace_if_dead(&self, used: &LetterProducer) {
        if used.client().fatal_error().is_none() {
            return;
        }
        let mut current = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if current.client().fatal_error().is_some() {
            match make(&self.config) {
                Ok(new) => *current = new,
                Err(error) => tracing::error!(%error, "the producer of dead letters could not be made anew"),
            }
        }
    }

    async fn send(&self, producer: &LetterProducer, letter: &DeadLetter) -> Result<(), ClientError> {
        let delivery = &letter.delivery;
        let topic = self.topic.of(delivery.position().source());
        loop {
            let mut record: FutureRecord<'_, [u8], [u8]> =
                FutureRecord::to(&topic).headers(letter::headers(letter));
            record.key = delivery.key().map(AsRef::as_ref);
            record.payload = delivery.payload().map(AsRef::as_ref);
            // Not the timestamp: by an old one the topic's retention could delete the letter at once.
            let sent = match producer.send_result(record) {
                Ok(sent) => sent,
                Err((ClientError::MessageProduction(Code::QueueFull), _)) => {
                    tokio::time::sleep(QUEUE_FULL).await;
                    continue;
                }
                Err((error, _)) => return Err(error),
            };
            return match sent.await {
                Ok(delivered) => delivered.map(drop).map_err(|(error, _)| error),
                Err(_) => Err(ClientError::Canceled),
            };
        }
    }
}

#[async_trait]
impl DeadLetters for KafkaDeadLetters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let source = letter.delivery.position().source();
        if self.is_of_letters(source) {
            // Each letter would be consumed, and become another, without end.
            let problem =
                format!("{source} holds dead letters itself: leave it out of the pattern that found it");
            return Err(DeadLetterError::new(problem));
        }
        let producer = self.producer();
        let limit = self.timeout + GRACE;
        match tokio::time::timeout(limit, self.send(&producer, &letter)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                self.replace_if_dead(&producer);
                let topic = self.topic.of(letter.delivery.position().source());
                Err(DeadLetterError::new(format!("{error} (topic {topic})")).with_source(error))
            }
            Err(_) => Err(DeadLetterError::new(format!("no answer of the broker in {limit:?}"))),
        }
    }
}

impl Drop for KafkaDeadLetters {
    /// What somebody awaits is confirmed to them. Whatever else is on its way gets a little time, on another
    /// thread, for dropping a producer throws it away.
    fn drop(&mut self) {
        let producer = self.producer();
        if producer.in_flight_count() > 0 {
            let flush = move || {
                let _ = producer.flush(GRACE);
            };
            let _ = std::thread::Builder::new().name("einmal-kafka-flush".to_owned()).spawn(flush);
        }
    }
}

impl fmt::Debug for KafkaDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaDeadLetters").field("topic", &self.topic).finish_non_exhaustive()
    }
}

fn make(config: &ClientConfig) -> Result<LetterProducer, KafkaError> {
    let doing = "the producer of dead letters could not be made";
    config
        .create_with_context(Beside)
        .map_err(|error| KafkaError::of_client(KafkaErrorKind::Setup, doing, error))
}

fn producer_settings(client: &ClientConfig) -> Result<(ClientConfig, Duration), InvalidSetting> {
    features(client)?;
    let mut config = without_group(client);
    let is = |field: &str, allowed: &[&str]| {
        config.get(field).is_none_or(|value| allowed.contains(&value.to_ascii_lowercase().as_str()))
    };
    if !is("enable.idempotence", &["true", "t", "1"]) {
        return Err(InvalidSetting::new("enable.idempotence", "must be true or left out"));
    }
    for field in ["acks", "request.required.acks"] {
        if !is(field, &["all", "-1"]) {
            return Err(InvalidSetting::new(field, "must be all or left out"));
        }
    }
    let field =
        ["message.timeout.ms", "delivery.timeout.ms"].into_iter().find(|field| client.get(field).is_some());
    let timeout = millis(client, field.unwrap_or("delivery.timeout.ms"), 30_000)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(300);
    within("delivery.timeout.ms", &timeout, bounds)?;
    config.remove("message.timeout.ms");
    config.set("delivery.timeout.ms", timeout.as_millis().to_string());
    config.set("enable.idempotence", "true").set("acks", "all");
    config.remove("request.required.acks");
    Ok((config, timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(field: &str, value: &str) -> &'static str {
        let mut client = ClientConfig::new();
        client.set(field, value);
        producer_settings(&client).unwrap_err().field()
    }

    #[test]
    fn a_letter_is_confirmed_by_all_and_within_a_bound() {
        assert_eq!(refused("acks", "1"), "acks");
        assert_eq!(refused("request.required.acks", "0"), "request.required.acks");
        assert_eq!(refused("enable.idempotence", "false"), "enable.idempotence");
        assert_eq!(refused("delivery.timeout.ms", "0"), "delivery.timeout.ms");
        assert_eq!(refused("message.timeout.ms", "86400000"), "delivery.timeout.ms");

        let mut client = ClientConfig::new();
        client.set("group.id", "g").set("session.timeout.ms", "6000").set("message.timeout.ms", "7000");
        let (config, timeout) = producer_settings(&client).unwrap();
        assert_eq!(timeout, Duration::from_secs(7));
        assert_eq!((config.get("group.id"), config.get("acks")), (None, Some("all")));
        assert!(make(&config).is_ok());
    }

    #[test]
    fn topics() {
        assert_eq!(DeadLetterTopic::default().of("orders"), "orders.dead-letter");
        assert_eq!(DeadLetterTopic::Fixed("all".to_owned()).of("orders"), "all");
    }
}
