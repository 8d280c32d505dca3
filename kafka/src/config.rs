//! Settings of a consumer, checked once, when they are built.

pub(crate) mod check;
pub(crate) mod features;

use std::fmt;
use std::time::Duration;

use einmal::InvalidSetting;
use rdkafka::ClientConfig;

/// Settings of a consumer. Made by [`KafkaConfig::builder`].
///
/// `Debug` shows the client's settings without passwords, keys and tokens.
#[derive(Clone)]
#[non_exhaustive]
pub struct KafkaConfig {
    pub(crate) client: ClientConfig,
    pub(crate) topics: Vec<String>,
    pub(crate) group: String,
    pub(crate) limits: Limits,
    pub(crate) max_poll_interval: Duration,
}

/// What is Einmal's own, beside the settings of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) drain: Duration,
    pub(crate) close: Duration,
    pub(crate) commit_every: Duration,
    pub(crate) commit_trouble_after: Duration,
    pub(crate) queue_len: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) pause_after: Duration,
    pub(crate) max_span: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            drain: Duration::from_secs(10),
            close: Duration::from_secs(20),
            commit_every: Duration::from_millis(100),
            commit_trouble_after: Duration::from_secs(30),
            queue_len: 256,
            queue_bytes: 16 * 1024 * 1024,
            pause_after: Duration::from_millis(500),
            max_span: 10_000,
        }
    }
}

impl KafkaConfig {
    /// Begins with the settings of librdkafka, among them `bootstrap.servers`, `group.id` and what the
    /// broker asks for as credentials.
    ///
    /// Forced, because they would commit offsets of messages that nobody has handled: `enable.auto.commit`
    /// and `enable.auto.offset.store` are false. Where nothing is set: `auto.offset.reset` is `earliest`,
    /// `isolation.level` is `read_committed`, `max.poll.interval.ms` is 600000, `queued.max.messages.kbytes`
    /// is 16384, `queued.min.messages` is 1000, `fetch.queue.backoff.ms` is 10, `allow.auto.create.topics` and
    /// `enable.partition.eof` are false.
    ///
    /// `group.instance.id` is allowed. A second member under the same one fences the first, which then ends
    /// with a fatal error: give one to each replica, never one to all.
    pub fn builder(client: ClientConfig) -> KafkaConfigBuilder {
        KafkaConfigBuilder { client, topics: Vec::new(), limits: Limits::default() }
    }

    /// The consumer group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The topics, or patterns of topics.
    #[must_use]
    pub fn topics(&self) -> &[String] {
        &self.topics
    }

    /// The settings of another client of the same cluster.
    pub(crate) fn without_group(&self) -> ClientConfig {
        check::without_group(&self.client)
    }

    /// Checks that a handler that may run for `max_run` ends before the broker gives its partition away.
    ///
    /// # Errors
    /// When `max_run` and the drain budget together reach `max.poll.interval.ms`.
    pub fn check_max_run(&self, max_run: Duration) -> Result<(), InvalidSetting> {
        let (drain, limit) = (self.limits.drain, self.max_poll_interval);
        if max_run.saturating_add(drain) < limit {
            return Ok(());
        }
        Err(InvalidSetting::new(
            "max_run",
            format!(
                "must, with the drain budget of {drain:?}, stay below max.poll.interval.ms of {limit:?}, \
                 and is {max_run:?}"
            ),
        ))
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("KafkaConfig");
        debug.field("client", &check::shown(&self.client));
        debug.field("topics", &self.topics).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Builds a [`KafkaConfig`].
#[derive(Clone)]
#[must_use]
pub struct KafkaConfigBuilder {
    client: ClientConfig,
    topics: Vec<String>,
    limits: Limits,
}

impl KafkaConfigBuilder {
    /// Consumes `topics`. One that begins with `^` is a pattern.
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// How long a partition that is taken away waits for the work that is under way in it: 10 s by default,
    /// 0 to below `session.timeout.ms`. All members wait for it. What doesn't end in time is cancelled and
    /// runs again elsewhere.
    pub const fn drain(mut self, budget: Duration) -> Self {
        self.limits.drain = budget;
        self
    }

    /// How long closing may take: the last commit, and leaving the group. 20 s by default, 1 s to 10 min.
    pub const fn close(mut self, budget: Duration) -> Self {
        self.limits.close = budget;
        self
    }

    /// The least time between two commits of a partition: 100 ms by default, 10 ms to 1 min. What is settled
    /// in between is delivered again after a crash, and answered by its outcome.
    pub const fn commit_every(mut self, interval: Duration) -> Self {
        self.limits.commit_every = interval;
        self
    }

    /// How long commits may fail until the health says so: 30 s by default, 1 s to 1 h.
    pub const fn commit_trouble_after(mut self, after: Duration) -> Self {
        self.limits.commit_trouble_after = after;
        self
    }

    /// The bounds of what waits for the worker: 256 messages and 16 MiB by default, 1 to 100,000 messages and
    /// 1 KiB to 1 GiB. At either bound the broker is held back; what the client has fetched ahead by then still
    /// comes, up to twice the bytes. A larger single message passes.
    pub const fn queue(mut self, messages: usize, bytes: usize) -> Self {
        self.limits.queue_len = messages;
        self.limits.queue_bytes = bytes;
        self
    }

    /// How long the worker may be at a bound until fetching is paused: 500 ms by default, 0 to 10 s. Until then
    /// what the client has fetched ahead waits in the client, where a rebalance waits too.
    pub const fn pause_after(mut self, after: Duration) -> Self {
        self.limits.pause_after = after;
        self
    }

    /// How many messages of a partition may be received from its first unfinished one on: 10,000 by default,
    /// 1 to 10 million. One message that doesn't end holds back its own partition at this bound, and no other.
    pub const fn max_span(mut self, messages: usize) -> Self {
        self.limits.max_span = messages;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// When one is missing or outside its bounds, when two contradict each other, when one would make offsets
    /// be committed before outcomes are stored, or when one needs a feature of this crate that is not turned
    /// on. The error names the field, and the feature.
    pub fn build(self) -> Result<KafkaConfig, InvalidSetting> {
        let Self { mut client, topics, limits } = self;
        check::limits(&limits)?;
        check::topics(&topics)?;
        let group = check::group(&client)?;
        check::brokers(&client)?;
        features::features(&client)?;
        check::forced(&mut client)?;
        check::defaults(&mut client);
        check::strategy(&client)?;
        let max_poll_interval = check::intervals(&client, &limits)?;
        Ok(KafkaConfig { client, topics, group, limits, max_poll_interval })
    }
}

impl fmt::Debug for KafkaConfigBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("KafkaConfigBuilder");
        debug.field("client", &check::shown(&self.client));
        debug.field("topics", &self.topics).field("limits", &self.limits).finish()
    }
}
