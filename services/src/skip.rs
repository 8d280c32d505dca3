//! A test without its service: it says so, or it fails.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::Service;

/// What may be missing even where services are required: the list in `EINMAL_ALLOW_SKIP`, with names of services
/// or of tests between commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt(Vec<String>);

impl Exempt {
    /// From the environment.
    #[must_use]
    pub fn from_env() -> Self {
        Self::parse(&env::var("EINMAL_ALLOW_SKIP").unwrap_or_default())
    }

    /// From a list.
    #[must_use]
    pub fn parse(list: &str) -> Self {
        Self(list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Whether the service may be missing.
    #[must_use]
    pub fn service(&self, service: Service) -> bool {
        self.0.iter().any(|name| name == service.name())
    }

    /// Whether this line of the file of skipped tests, `name: reason`, is exempt.
    #[must_use]
    pub fn line(&self, line: &str) -> bool {
        let (test, reason) = line.split_once(": ").unwrap_or((line, ""));
        let missing = reason.strip_prefix("no ").and_then(|rest| rest.split_whitespace().next());
        self.0.iter().any(|name| name == test || missing == Some(name))
    }

    /// The list, for the summary.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

/// The address of the service, or `None` after the skipped test was written down: then return.
///
/// # Panics
/// When the service is missing, is required, and is not exempt.
#[must_use]
pub fn address_or_skip(service: Service, test: &str) -> Option<String> {
    let address = service.address();
    if address.is_none() {
        skip(test, service, &format!(": set {}, or run `cargo xtask test`", service.variable()));
    }
    address
}

/// Writes down that a test is skipped since it has not what it needs of a service: then return.
///
/// # Panics
/// When services are required, and neither the test nor the service is exempt.
pub fn skip(test: &str, service: Service, hint: &str) {
    let line = format!("{test}: no {service}");
    let required = env::var("EINMAL_REQUIRE_SERVICES").is_ok_and(|value| value == "1");
    assert!(!required || Exempt::from_env().line(&line), "{line}, and EINMAL_REQUIRE_SERVICES=1{hint}");
    // libtest would call it passed.
    eprintln!("SKIPPED {line}");
    let file = env::var_os("EINMAL_SKIPPED_TESTS").map_or_else(default_file, PathBuf::from);
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = appended {
        eprintln!("{}: {error}", file.display());
    }
}

fn default_file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/skipped-tests.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_exempt() {
        let exempt = Exempt::parse(" kafka, some_test,,");
        assert_eq!(exempt.names(), ["kafka", "some_test"]);
        assert!(exempt.service(Service::Kafka));
        assert!(!exempt.service(Service::Redis));
        assert!(exempt.line("any: no kafka"));
        assert!(exempt.line("any: no kafka (it did not start)"));
        assert!(exempt.line("some_test: no redis"));
        assert!(!exempt.line("any: no redis"));
        assert!(!exempt.line("any: kafka is slow"));
        assert!(!exempt.line("kafkaesque: no time"));
        assert_eq!(Exempt::parse(""), Exempt::default());
    }
}
