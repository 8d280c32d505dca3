//! Which image and version of each service. `compose.yaml` is tested against it.

use crate::Service;

/// The version of Apache Kafka, for the image and for the one from Maven.
pub const KAFKA_VERSION: &str = "4.3.1";

/// A container image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// What runs in it.
    pub service: Service,
    /// Without the tag.
    pub name: &'static str,
    /// The tag.
    pub tag: &'static str,
    /// The port that the service listens on, inside.
    pub port: u16,
    /// What the service writes when it is up, and how often.
    pub ready: (&'static str, usize),
}

/// One image for each service.
pub const IMAGES: [Image; 4] = [
    Image {
        service: Service::Kafka,
        name: "apache/kafka",
        tag: KAFKA_VERSION,
        port: 9092,
        ready: ("Kafka Server started", 1),
    },
    Image {
        service: Service::RabbitMq,
        name: "rabbitmq",
        tag: "4.3",
        port: 5672,
        ready: ("Server startup complete", 1),
    },
    Image {
        service: Service::Postgres,
        name: "postgres",
        tag: "17",
        port: 5432,
        // The first is of the server that only sets up the database.
        ready: ("database system is ready to accept connections", 2),
    },
    Image {
        service: Service::Redis,
        name: "redis",
        tag: "8.0",
        port: 6379,
        ready: ("Ready to accept connections", 1),
    },
];

impl Image {
    /// The image of a service.
    #[must_use]
    pub fn of(service: Service) -> Option<&'static Self> {
        IMAGES.iter().find(|image| image.service == service)
    }

    /// As Docker writes it.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("{}:{}", self.name, self.tag)
    }
}

/// What a test broker needs to be quick and small: one node, no wait before the first assignment, sessions that
/// time out within a test, and segments that roll and go within a test.
pub const KAFKA_SETTINGS: [(&str, &str); 19] = [
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "1000"),
    ("group.consumer.min.session.timeout.ms", "1000"),
    ("group.consumer.min.heartbeat.interval.ms", "100"),
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.num.partitions", "4"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("transaction.state.log.num.partitions", "4"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("share.coordinator.state.topic.num.partitions", "4"),
    // The least that Kafka 4 takes.
    ("log.segment.bytes", "1048576"),
    ("log.initial.task.delay.ms", "1000"),
    ("log.retention.check.interval.ms", "1000"),
    ("log.cleaner.backoff.ms", "1000"),
    ("log.segment.delete.delay.ms", "1000"),
    // 128 MB of a heap of 512 by default.
    ("log.cleaner.dedupe.buffer.size", "4194304"),
    ("num.recovery.threads.per.data.dir", "1"),
];
