//! The services that tests talk to: their names, where they are, and whether they answer.
//!
//! `cargo xtask services` finds or starts them, and a test learns their address from the environment. It uses
//! no client library on purpose: a fault of the client under test must not hide in the check.

pub mod images;
pub mod probe;
mod skip;
mod url;

use std::fmt;
use std::str::FromStr;

pub use skip::{Exempt, address_or_skip, skip};
pub use url::{Url, shown};

/// A service that tests may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    RabbitMq,
    /// PostgreSQL.
    Postgres,
    /// Redis.
    Redis,
}

impl Service {
    /// All of them, in the order of the summary.
    pub const ALL: [Self; 4] = [Self::Kafka, Self::RabbitMq, Self::Postgres, Self::Redis];

    /// Its name on the command line and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::RabbitMq => "rabbitmq",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
        }
    }

    /// The environment variable that holds its address.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Kafka => "EINMAL_KAFKA_BROKERS",
            Self::RabbitMq => "EINMAL_AMQP_URL",
            Self::Postgres => "EINMAL_POSTGRES_URL",
            Self::Redis => "EINMAL_REDIS_URL",
        }
    }

    /// The address that the environment gives.
    #[must_use]
    pub fn address(self) -> Option<String> {
        std::env::var(self.variable()).ok().filter(|address| !address.trim().is_empty())
    }

    /// The address of one that we started: on `host`, with no secret.
    #[must_use]
    pub fn address_at(self, host: &str, port: u16) -> String {
        match self {
            Self::Kafka => format!("{host}:{port}"),
            // RabbitMQ's own user, which it lets in from loopback only.
            Self::RabbitMq => format!("amqp://guest:guest@{host}:{port}/%2f"),
            Self::Postgres => format!("postgres://einmal@{host}:{port}/postgres"),
            Self::Redis => format!("redis://{host}:{port}/0"),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|service| service.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no service `{name}`; there are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for service in Service::ALL {
            assert_eq!(service.name().parse(), Ok(service));
        }
        assert!("mysql".parse::<Service>().unwrap_err().contains("rabbitmq"));
    }

    #[test]
    fn our_own_addresses_can_be_read() {
        assert_eq!(Service::Kafka.address_at("127.0.0.1", 1), "127.0.0.1:1");
        for service in [Service::RabbitMq, Service::Postgres, Service::Redis] {
            let address = service.address_at("127.0.0.1", 17);
            let url = Url::parse(&address).unwrap();
            assert_eq!((url.host.as_str(), url.port), ("127.0.0.1", Some(17)), "{address}");
        }
    }
}
