//! What the client says is wrong, and for how long the health says so.

use std::collections::BTreeMap;
use std::time::Duration;

use einmal::worker::HealthCell;
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::names;

/// A trouble of the client that is not heard of again for so long is taken for over.
const TROUBLE_FOR: Duration = Duration::from_secs(60);

const CLIENT: &str = "kafka client";
const SECURITY: &str = "kafka security";
const UNREADABLE: &str = "kafka unreadable messages";
const TOPICS: &str = "kafka topics";

/// How the client begins what it says of a topic that is not there, or that it may not read. It says it once.
const NOT_AVAILABLE: &str = "Subscribed topic not available: ";
/// So often it is asked whether such a topic is there now.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Of so many topics: asking holds up the thread that polls.
const ASK_AT_ONCE: usize = 3;

/// The errors of the client that are not fatal: it goes on trying by itself.
#[derive(Debug)]
pub(crate) struct Troubles {
    health: HealthCell,
    /// Anything is noted that a sign of work takes back.
    noted: bool,
    /// When the note of a passing error is over by itself.
    over_at: Option<Duration>,
    /// What the last connection that failed failed of.
    connection: Option<String>,
    /// What the client says of batches that it can't read, and when it said so last. It tries each again every
    /// half second, and names no partition.
    unreadable: BTreeMap<String, Duration>,
    /// Topics that can't be read, and what the client says of each. They stay until they can.
    topics: BTreeMap<String, String>,
    ask_at: Duration,
    /// The last one that was asked for: the next time it goes on behind it.
    asked: String,
    /// The error that the client's callback has just reported, in its words: polling returns it once more.
    said: Option<(Code, String)>,
}

impl Troubles {
    pub(crate) const fn new(health: HealthCell) -> Self {
        Self {
            health,
            noted: false,
            over_at: None,
            connection: None,
            unreadable: BTreeMap::new(),
            topics: BTreeMap::new(),
            ask_at: Duration::ZERO,
            asked: String::new(),
            said: None,
        }
    }

    /// Notes what the client's callback reports.
    pub(crate) fn reported(&mut self, code: Code, reason: &str, now: Duration) {
        self.said = Some((code, reason.to_owned()));
        metrics::counter!(names::CLIENT_ERRORS).increment(1);
        if let Some(why) = why_unreadable(code, reason) {
            return self.unreadable(why, reason, now);
        }
        if let Some((topic, _)) = reason.strip_prefix(NOT_AVAILABLE).and_then(|rest| rest.split_once(':')) {
            tracing::error!(%code, topic, "a topic can't be read");
            self.topics.insert(topic.to_owned(), code.to_string());
            self.ask_at = now + ASK_EVERY;
            return self.tell_topics();
        }
        let refused = matches!(code, Code::Authentication | Code::SSL | Code::SaslAuthenticationFailed);
        // With TLS 1.3 a broker refuses the client's certificate after the handshake: then it is the transport.
        if refused || reason.contains("SSL alert number") {
            // It stays until something works: a wrong password does not become right, and the client says the
            // same once in a while only.
            let sentence = format!("the broker and this client do not accept each other ({code}): {reason}");
            tracing::error!(%code, reason, "the broker and this client do not accept each other");
            self.noted = true;
            return self.health.trouble(SECURITY, sentence);
        }
        tracing::warn!(%code, reason, "the Kafka client reports an error");
        // Of one broker among many, which the client goes on trying; all of them down is another code.
        if matches!(code, Code::BrokerTransportFailure | Code::Resolve) {
            self.connection = Some(reason.to_owned());
            return;
        }
        // It is said once when all are down, and holds until something works again.
        let down = code == Code::AllBrokersDown;
        self.over_at = (!down).then(|| now + TROUBLE_FOR);
        self.noted = true;
        let cause = match &self.connection {
            Some(cause) if down => format!(" (the last: {cause})"),
            // A broker that expects TLS just hangs up on who speaks without it.
            None if down => " (a wrong security.protocol looks like this, too)".to_owned(),
            _ => String::new(),
        };
        self.health.trouble(CLIENT, format!("the Kafka client reports {code}: {reason}{cause}"));
    }

    /// Notes an error that polling returned.
    pub(crate) fn polled(&mut self, code: Code, now: Duration) {
        if self.words(code).is_none() {
            self.reported(code, "in place of a message", now);
            self.said = None;
        }
    }

    /// What the callback has just said of this error.
    pub(crate) fn words(&mut self, code: Code) -> Option<String> {
        self.said.take().filter(|(said, _)| *said == code).map(|(_, words)| words)
    }

    fn tell_topics(&self) {
        if self.topics.is_empty() {
            return self.health.clear(TOPICS);
        }
        let all: Vec<_> = self.topics.iter().map(|(topic, why)| format!("{topic} ({why})")).collect();
        self.health.trouble(TOPICS, format!("nothing can be read of {}", all.join(", ")));
    }

    /// Those that may be there by now, when it is time to ask.
    pub(crate) fn topics_to_ask_for(&mut self, now: Duration) -> Vec<String> {
        if self.topics.is_empty() || now < self.ask_at {
            return Vec::new();
        }
        self.ask_at = now + ASK_EVERY;
        let behind = self.topics.keys().filter(|topic| **topic > self.asked);
        let before = self.topics.keys().filter(|topic| **topic <= self.asked);
        let ask: Vec<String> = behind.chain(before).take(ASK_AT_ONCE).cloned().collect();
        ask.last().into_iter().for_each(|last| self.asked.clone_from(last));
        ask
    }

    /// Notes that a topic can be read: perhaps by another member.
    pub(crate) fn topic_is_there(&mut self, topic: &str) {
        if self.topics.remove(topic).is_some() {
            tracing::info!(topic, "the topic can be read now");
            self.tell_topics();
        }
    }

    fn unreadable(&mut self, why: String, reason: &str, now: Duration) {
        metrics::counter!(names::UNREADABLE).increment(1);
        if self.unreadable.insert(reason.to_owned(), now).is_none() {
            tracing::error!(reason, "{why}; nothing behind them in their partition is read");
        }
        let sentence = format!("{why}; nothing behind them in their partition is read ({reason})");
        self.health.trouble(UNREADABLE, sentence);
    }

    /// Notes a sign that the client works. It says nothing of a partition with messages that can't be read.
    pub(crate) fn works(&mut self) {
        self.connection = None;
        if std::mem::take(&mut self.noted) {
            self.over_at = None;
            self.health.clear(CLIENT);
            self.health.clear(SECURITY);
        }
    }

    /// Takes back what has not been heard of for long.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.over_at.is_some_and(|over| now >= over) {
            self.over_at = None;
            self.health.clear(CLIENT);
        }
        let before = self.unreadable.len();
        self.unreadable.retain(|_, said_at| now.saturating_sub(*said_at) < TROUBLE_FOR);
        if self.unreadable.is_empty() && before > 0 {
            self.health.clear(UNREADABLE);
        }
    }
}

/// A batch that the client can't decompress is neither passed over nor given out: it fetches it again and again.
/// The number of the codec is only in its text.
fn why_unreadable(code: Code, reason: &str) -> Option<String> {
    let codec = reason.split_once("codec 0x").map(|(_, rest)| rest.split(')').next().unwrap_or_default());
    match (code, codec) {
        (Code::NotImplemented, Some("4")) => Some(
            "messages are compressed with zstd, which this build can't read: turn on the feature `zstd` of \
             einmal-kafka"
                .to_owned(),
        ),
        (Code::NotImplemented, Some(codec)) => {
            Some(format!("messages are compressed with codec {codec}, which this build can't read"))
        }
        (Code::BadCompression, _) => Some("messages can't be decompressed: their data is damaged".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ZSTD: &str = "Decompression (codec 0x4) of message at 7 of 81 bytes failed: Local: Not implemented";

    fn new() -> (HealthCell, Troubles) {
        let health = HealthCell::default();
        (health.clone(), Troubles::new(health))
    }

    fn only_reason(health: &HealthCell) -> String {
        let health = health.read();
        assert!(!health.ready && health.live && health.reasons.len() == 1, "{health:?}");
        health.reasons[0].clone()
    }

    #[test]
    fn what_can_not_be_read_is_said_until_it_is_not_met_any_more() {
        let (health, mut troubles) = new();
        troubles.reported(Code::NotImplemented, ZSTD, SECOND);
        troubles.polled(Code::NotImplemented, SECOND);
        assert!(only_reason(&health).contains("the feature `zstd`"));
        // Other partitions go on.
        troubles.works();
        assert!(only_reason(&health).contains("at 7"));
        troubles.reported(Code::NotImplemented, ZSTD, 50 * SECOND);
        troubles.expire(109 * SECOND);
        assert!(only_reason(&health).contains("at 7"));
        troubles.expire(110 * SECOND);
        assert!(health.read().ready);
        let damaged =
            "Decompression (codec 0x1) of message at 9 of 80 bytes failed: Local: Invalid compressed data";
        troubles.reported(Code::BadCompression, damaged, SECOND);
        assert!(only_reason(&health).contains("damaged"));
    }

    #[test]
    fn a_topic_that_is_not_there_is_said_until_it_is() {
        let (health, mut troubles) = new();
        let said = "Subscribed topic not available: typo: Broker: Unknown topic or partition";
        troubles.reported(Code::UnknownTopicOrPartition, said, SECOND);
        troubles.polled(Code::UnknownTopicOrPartition, SECOND);
        // The client says it once, and other topics go on.
        troubles.works();
        troubles.expire(1_000 * SECOND);
        troubles.topic_is_there("orders");
        assert!(only_reason(&health).contains("nothing can be read of typo"));
        assert_eq!(troubles.topics_to_ask_for(2 * SECOND), Vec::<String>::new());
        assert_eq!(troubles.topics_to_ask_for(6 * SECOND), ["typo"]);
        troubles.topic_is_there("typo");
        assert!(health.read().ready);
    }

    #[test]
    fn each_of_many_topics_is_asked_for_in_its_turn() {
        let (_, mut troubles) = new();
        for topic in ["a", "b", "c", "d"] {
            let said = format!("{NOT_AVAILABLE}{topic}: Broker: Unknown topic or partition");
            troubles.reported(Code::UnknownTopicOrPartition, &said, Duration::ZERO);
        }
        assert_eq!(troubles.topics_to_ask_for(10 * SECOND), ["a", "b", "c"]);
        assert_eq!(troubles.topics_to_ask_for(20 * SECOND), ["d", "a", "b"]);
    }

    #[test]
    fn a_wrong_password_is_said_until_something_works() {
        let (health, mut troubles) = new();
        troubles.reported(Code::Authentication, "SASL authentication error", SECOND);
        troubles.expire(1_000 * SECOND);
        assert!(only_reason(&health).contains("SASL authentication error"));
        // What follows from it does not hide it.
        troubles.reported(Code::AllBrokersDown, "1/1 brokers are down", SECOND);
        assert_eq!(health.read().reasons.len(), 2);
        troubles.works();
        assert!(health.read().ready);
        troubles.reported(Code::BrokerTransportFailure, "Receive failed: SSL alert number 42", SECOND);
        assert!(only_reason(&health).contains("alert number 42"));
    }

    #[test]
    fn why_all_brokers_are_away_is_said_too() {
        let (health, mut troubles) = new();
        troubles.reported(Code::BrokerTransportFailure, "connecting to a SSL listener?", SECOND);
        assert!(health.read().ready, "one among many");
        troubles.reported(Code::AllBrokersDown, "1/1 brokers are down", SECOND);
        troubles.expire(1_000 * SECOND);
        assert!(only_reason(&health).contains("SSL listener?"));
        troubles.works();
        assert!(health.read().ready);
        troubles.reported(Code::AllBrokersDown, "1/1 brokers are down", SECOND);
        assert!(only_reason(&health).contains("security.protocol"));
        troubles.works();
        troubles.reported(Code::UnknownTopicOrPartition, "gone", SECOND);
        assert!(only_reason(&health).contains("gone"));
        troubles.expire(61 * SECOND);
        assert!(health.read().ready);
    }
}
