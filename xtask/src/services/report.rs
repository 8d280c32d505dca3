//! Which service was real, its version, and from where.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use einmal_services::{Exempt, Service, shown};

/// A service that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(super) address: String,
    pub(super) version: String,
    pub(super) origin: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Real(Found),
    /// It can't be had here.
    Missing(String),
    /// It could be had, but something went wrong.
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report(BTreeMap<Service, Outcome>);

impl Report {
    pub(super) fn add(&mut self, service: Service, outcome: Outcome) {
        self.0.insert(service, outcome);
    }

    /// For people, so to standard error.
    pub(crate) fn print(&self) {
        let exempt = Exempt::from_env();
        if self.0.is_empty() && exempt.names().is_empty() {
            return;
        }
        eprintln!("\nservices:");
        for line in self.lines() {
            eprintln!("    {line}");
        }
        if !exempt.names().is_empty() {
            eprintln!("    may be missing (EINMAL_ALLOW_SKIP): {}", exempt.names().join(", "));
        }
    }

    fn lines(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(service, outcome)| match outcome {
                Outcome::Real(Found { address, version, origin }) => {
                    format!("{service:<9} real, {version}, from {origin}, at {}", shown(address))
                }
                Outcome::Missing(reason) => format!("{service:<9} MISSING: {reason}"),
                Outcome::Failed(reason) => format!("{service:<9} FAILED: {reason}"),
            })
            .collect()
    }

    /// The variable and the address of each that answers.
    pub(crate) fn addresses(&self) -> Vec<(&'static str, &str)> {
        self.0
            .iter()
            .filter_map(|(service, outcome)| match outcome {
                Outcome::Real(found) => Some((service.variable(), found.address.as_str())),
                _ => None,
            })
            .collect()
    }

    /// For a shell: `eval "$(cargo xtask services up)"`. Addresses from the environment are known there.
    pub(super) fn exports(&self) {
        for (variable, address) in self.addresses() {
            if std::env::var(variable).as_deref() != Ok(address) {
                println!("export {variable}='{address}'");
            }
        }
    }

    /// What failed is an error. What can't be had is one only where services are required.
    pub(crate) fn judge(&self, exempt: &Exempt) -> Result<()> {
        let bad = self.bad(exempt, required());
        if !bad.is_empty() {
            let names: Vec<_> = bad.iter().map(|service| service.name()).collect();
            bail!("without {}", names.join(", "));
        }
        Ok(())
    }

    fn bad(&self, exempt: &Exempt, required: bool) -> Vec<Service> {
        self.0
            .iter()
            .filter(|(service, outcome)| match outcome {
                Outcome::Real(_) => false,
                Outcome::Missing(_) => required && !exempt.service(**service),
                Outcome::Failed(_) => !exempt.service(**service),
            })
            .map(|(service, _)| *service)
            .collect()
    }
}

/// Whether a missing service, or a skipped test, is a failure.
pub(crate) fn required() -> bool {
    let ci = std::env::var("CI").ok();
    let require = std::env::var("EINMAL_REQUIRE_SERVICES").ok();
    required_by(ci.as_deref(), require.as_deref())
}

fn required_by(ci: Option<&str>, require_services: Option<&str>) -> bool {
    ci == Some("true") || require_services == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.add(Service::Redis, Outcome::Missing("no apt-get".to_owned()));
        report.add(Service::Kafka, Outcome::Failed("it ended".to_owned()));
        report.add(
            Service::RabbitMq,
            Outcome::Real(Found {
                address: "amqp://me:secret@localhost:1/v".to_owned(),
                version: "3.10.8".to_owned(),
                origin: "EINMAL_AMQP_URL".to_owned(),
            }),
        );
        report
    }

    #[test]
    fn says_what_was_real_and_never_a_password() {
        assert_eq!(
            report().lines(),
            [
                "kafka     FAILED: it ended",
                "rabbitmq  real, 3.10.8, from EINMAL_AMQP_URL, at amqp://me:***@localhost:1/v",
                "redis     MISSING: no apt-get",
            ]
        );
        assert_eq!(report().addresses(), [("EINMAL_AMQP_URL", "amqp://me:secret@localhost:1/v")]);
    }

    #[test]
    fn what_is_missing_fails_only_where_it_is_required() {
        let none = Exempt::default();
        assert_eq!(report().bad(&none, false), [Service::Kafka]);
        assert_eq!(report().bad(&none, true), [Service::Kafka, Service::Redis]);
        assert_eq!(report().bad(&Exempt::parse("redis"), true), [Service::Kafka]);
        assert_eq!(report().bad(&Exempt::parse("redis,kafka"), true), []);
    }

    #[test]
    fn services_are_required_only_where_they_are_promised() {
        assert!(!required_by(None, None));
        assert!(!required_by(Some("false"), Some("0")));
        assert!(!required_by(Some(""), Some("")));
        assert!(required_by(Some("true"), None));
        assert!(required_by(None, Some("1")));
    }
}
