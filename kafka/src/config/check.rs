//! The checks, and what of the settings may be shown.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use einmal::InvalidSetting;
use rdkafka::ClientConfig;
use rdkafka::util::get_rdkafka_version;

use super::Limits;

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn limits(limits: &Limits) -> Result<(), InvalidSetting> {
    let millis = Duration::from_millis;
    within("close", &limits.close, SECOND..=SECOND * 600)?;
    within("commit_every", &limits.commit_every, millis(10)..=SECOND * 60)?;
    within("commit_trouble_after", &limits.commit_trouble_after, SECOND..=SECOND * 3_600)?;
    within("queue messages", &limits.queue_len, 1..=100_000)?;
    within("queue bytes", &limits.queue_bytes, 1 << 10..=1 << 30)?;
    within("pause_after", &limits.pause_after, Duration::ZERO..=SECOND * 10)?;
    within("max_span", &limits.max_span, 1..=10_000_000)
}

pub(crate) fn within<T: PartialOrd + Debug>(
    field: &'static str,
    value: &T,
    bounds: RangeInclusive<T>,
) -> Result<(), InvalidSetting> {
    if bounds.contains(value) {
        return Ok(());
    }
    let (low, high) = bounds.into_inner();
    Err(InvalidSetting::new(field, format!("must lie between {low:?} and {high:?}, not {value:?}")))
}

pub(super) fn topics(topics: &[String]) -> Result<(), InvalidSetting> {
    match topics.iter().find(|topic| topic.is_empty() || topic.contains('\0')) {
        Some(topic) => Err(InvalidSetting::new("topics", format!("must be names, not {topic:?}"))),
        None if topics.is_empty() => Err(InvalidSetting::new("topics", "must name at least one topic")),
        None => Ok(()),
    }
}

/// The client waits for ever, and in silence, for a broker whose address nobody gives it.
pub(super) fn brokers(client: &ClientConfig) -> Result<(), InvalidSetting> {
    let named = ["bootstrap.servers", "metadata.broker.list", "test.mock.num.brokers"];
    match named.iter().any(|field| client.get(field).is_some_and(|value| !value.trim().is_empty())) {
        true => Ok(()),
        false => Err(InvalidSetting::new("bootstrap.servers", "must name at least one broker, as host:port")),
    }
}

pub(super) fn group(client: &ClientConfig) -> Result<String, InvalidSetting> {
    match client.get("group.id").map(str::trim) {
        Some(group) if !group.is_empty() => Ok(group.to_owned()),
        _ => Err(InvalidSetting::new("group.id", "must be set: its offsets say what is settled")),
    }
}

/// What would commit offsets that nobody has settled. Refused and not overridden, because who sets it expects
/// what it does.
pub(super) fn forced(client: &mut ClientConfig) -> Result<(), InvalidSetting> {
    for field in ["enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"] {
        let off = |value: &str| ["false", "f", "0"].contains(&value.to_ascii_lowercase().as_str());
        if client.get(field).is_some_and(|value| !off(value)) {
            let problem = "must be false or left out: it would commit messages before they are settled";
            return Err(InvalidSetting::new(field, problem));
        }
    }
    // An alias of the first, for clients without a group.
    client.remove("auto.commit.enable");
    client.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");

    let (version, name) = get_rdkafka_version();
    let new_protocol = client.get("group.protocol").is_some_and(|p| p.eq_ignore_ascii_case("consumer"));
    if new_protocol && version < 0x020f_00ff {
        let problem = format!(
            "must be classic: the new protocol needs librdkafka 2.15, and this is {name}, which ends for good \
             when a member rejoins"
        );
        return Err(InvalidSetting::new("group.protocol", problem));
    }
    Ok(())
}

pub(super) fn defaults(client: &mut ClientConfig) {
    for (field, value) in [
        // librdkafka's own is `latest`, which passes over what a new partition got before it was found.
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_committed"),
        // Room for a handler of five minutes and its drain.
        ("max.poll.interval.ms", "600000"),
        ("queued.max.messages.kbytes", "16384"),
        ("queued.min.messages", "1000"),
        // At librdkafka's second, a partition that is ahead of its reader is fetched from once a second, however
        // soon that is read: so little fetched ahead is then all that a second brings.
        ("fetch.queue.backoff.ms", "10"),
        ("allow.auto.create.topics", "false"),
        ("enable.partition.eof", "false"),
    ] {
        if client.get(field).is_none() {
            client.set(field, value);
        }
    }
    let reset = client.get("auto.offset.reset").unwrap_or_default();
    if ["latest", "largest", "end"].contains(&reset) {
        tracing::warn!(
            "auto.offset.reset is {reset}: messages that arrive while the group has no valid offset, and those \
             of a new partition before it is found, are passed over and never handled"
        );
    }
}

pub(super) fn strategy(client: &ClientConfig) -> Result<(), InvalidSetting> {
    const FIELD: &str = "partition.assignment.strategy";
    let names = client.get(FIELD).unwrap_or_default().split(',').map(str::trim);
    let (cooperative, eager): (Vec<_>, Vec<_>) =
        names.filter(|name| !name.is_empty()).partition(|name| name.starts_with("cooperative"));
    if cooperative.is_empty() || eager.is_empty() {
        return Ok(());
    }
    Err(InvalidSetting::new(
        FIELD,
        "must not mix cooperative and eager strategies. To change a group from one to the other, stop all of \
         its members first",
    ))
}

pub(super) fn intervals(client: &ClientConfig, limits: &Limits) -> Result<Duration, InvalidSetting> {
    let session = millis(client, "session.timeout.ms", 45_000)?;
    let max_poll = millis(client, "max.poll.interval.ms", 600_000)?;
    if session >= max_poll {
        let problem = format!("must be below max.poll.interval.ms of {max_poll:?}, and is {session:?}");
        return Err(InvalidSetting::new("session.timeout.ms", problem));
    }
    if limits.drain >= session {
        let problem = format!("must be below session.timeout.ms of {session:?}, and is {:?}", limits.drain);
        return Err(InvalidSetting::new("drain", problem));
    }
    Ok(max_poll)
}

pub(crate) fn millis(
    client: &ClientConfig,
    field: &'static str,
    default: u64,
) -> Result<Duration, InvalidSetting> {
    match client.get(field).map(|value| value.trim().parse()) {
        None => Ok(Duration::from_millis(default)),
        Some(Ok(millis)) => Ok(Duration::from_millis(millis)),
        Some(Err(_)) => Err(InvalidSetting::new(field, "must be a whole number of milliseconds")),
    }
}

/// The settings of a client of the same cluster that joins no group.
pub(crate) fn without_group(client: &ClientConfig) -> ClientConfig {
    let mut config = client.clone();
    for field in CONSUMERS {
        config.remove(field);
    }
    config
}

/// Settings that mean nothing to a client without a group, which would warn of each.
const CONSUMERS: [&str; 25] = [
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "check.crcs",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "fetch.error.backoff.ms",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "session.timeout.ms",
    "statistics.interval.ms",
];

/// The client's settings, with secrets left out.
pub(crate) fn shown(client: &ClientConfig) -> BTreeMap<&str, &str> {
    let settings = client.config_map().into_iter();
    settings.map(|(field, value)| (field, if is_secret(field) { "(hidden)" } else { value })).collect()
}

fn is_secret(field: &str) -> bool {
    let harmless = ["sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.method"].contains(&field);
    let secret = ["sasl.", "ssl.key", "ssl_key"].iter().any(|prefix| field.starts_with(prefix))
        || ["password", "secret", "token", "jaas", "credential"].iter().any(|part| field.contains(part));
    secret && !harmless
}

#[cfg(test)]
mod tests {
    use super::super::KafkaConfig;
    use super::*;

    fn build(settings: &[(&str, &str)]) -> Result<KafkaConfig, InvalidSetting> {
        let mut client = ClientConfig::new();
        client.set("group.id", "g").set("bootstrap.servers", "localhost:9092");
        for (field, value) in settings {
            client.set(*field, *value);
        }
        KafkaConfig::builder(client).topics(["t"]).build()
    }

    fn refused(settings: &[(&str, &str)]) -> &'static str {
        build(settings).unwrap_err().field()
    }

    #[test]
    fn what_would_commit_early_is_refused_and_forced_off() {
        for value in ["true", "True", "1", "t", "yes"] {
            assert_eq!(refused(&[("enable.auto.commit", value)]), "enable.auto.commit");
            assert_eq!(refused(&[("auto.commit.enable", value)]), "auto.commit.enable");
            assert_eq!(refused(&[("enable.auto.offset.store", value)]), "enable.auto.offset.store");
        }
        let config = build(&[("enable.auto.commit", "FALSE")]).unwrap();
        for field in ["enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof"] {
            assert_eq!(config.client.get(field), Some("false"));
        }
    }

    #[test]
    fn defaults_are_safe_and_can_be_changed() {
        let config = build(&[("auto.offset.reset", "latest"), ("queued.min.messages", "7")]).unwrap();
        assert_eq!(config.client.get("auto.offset.reset"), Some("latest"));
        assert_eq!(config.client.get("queued.min.messages"), Some("7"));
        let config = build(&[]).unwrap();
        assert_eq!(config.client.get("auto.offset.reset"), Some("earliest"));
        assert_eq!(config.client.get("isolation.level"), Some("read_committed"));
        assert_eq!(config.client.get("queued.max.messages.kbytes"), Some("16384"));
        assert_eq!(config.client.get("fetch.queue.backoff.ms"), Some("10"));
        assert_eq!(config.client.get("allow.auto.create.topics"), Some("false"));
        assert!(config.client.create_native_config().is_ok(), "the client takes them");
    }

    #[test]
    fn contradictions_are_named() {
        assert_eq!(
            KafkaConfig::builder(ClientConfig::new()).topics(["t"]).build().unwrap_err().field(),
            "group.id"
        );
        assert_eq!(refused(&[("group.id", " ")]), "group.id");
        assert_eq!(refused(&[("bootstrap.servers", " ")]), "bootstrap.servers");
        assert_eq!(refused(&[("group.protocol", "Consumer")]), "group.protocol");
        let strategy = "partition.assignment.strategy";
        assert_eq!(refused(&[(strategy, "cooperative-sticky, range")]), strategy);
        assert!(build(&[(strategy, "range,roundrobin")]).is_ok());
        assert!(build(&[(strategy, "cooperative-sticky")]).is_ok());
        assert_eq!(refused(&[("session.timeout.ms", "600000")]), "session.timeout.ms");
        assert_eq!(refused(&[("session.timeout.ms", "soon")]), "session.timeout.ms");
        assert_eq!(refused(&[("session.timeout.ms", "10000")]), "drain");
        assert!(build(&[("group.instance.id", "replica-1")]).is_ok());

        let mut client = ClientConfig::new();
        client.set("group.id", "g");
        let nowhere = KafkaConfig::builder(client.clone()).topics(["t"]).build().unwrap_err();
        assert_eq!(nowhere.field(), "bootstrap.servers");
        client.set("metadata.broker.list", "localhost:9092");
        let builder = || KafkaConfig::builder(client.clone()).topics(["t"]);
        assert_eq!(KafkaConfig::builder(client.clone()).build().unwrap_err().field(), "topics");
        assert_eq!(builder().queue(0, 1 << 20).build().unwrap_err().field(), "queue messages");
        assert_eq!(builder().max_span(0).build().unwrap_err().field(), "max_span");
        assert_eq!(builder().close(Duration::ZERO).build().unwrap_err().field(), "close");
        let config = builder().build().unwrap();
        assert!(config.check_max_run(Duration::from_secs(300)).is_ok());
        let error = config.check_max_run(Duration::from_secs(590)).unwrap_err();
        assert!(error.to_string().contains("max.poll.interval.ms of 600s"), "{error}");
    }

    #[test]
    fn debug_shows_no_secret() {
        let secrets = [
            ("sasl.password", "hush-1"),
            ("sasl.username", "hush-2"),
            ("sasl.oauthbearer.client.secret", "hush-3"),
            ("ssl.key.pem", "hush-4"),
            ("ssl.key.password", "hush-5"),
            ("ssl.keystore.password", "hush-6"),
        ];
        let mut config = build(&[("sasl.mechanisms", "PLAIN")]).unwrap();
        // Not every build would take them.
        for (field, value) in secrets {
            config.client.set(field, value);
        }
        let builder = KafkaConfig::builder(config.client.clone());
        let shown = format!("{config:?} {builder:?}");
        assert!(!shown.contains("hush") && shown.contains("PLAIN") && shown.contains("\"sasl.password\""));
    }
}
