//! Settings of librdkafka, from flags and from a file. Their values can be secrets, and are shown nowhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// Addresses of brokers, between commas.
    #[arg(long, env = "EINMAL_KAFKA_BROKERS", value_name = "HOST:PORT", default_value = "localhost:9092")]
    brokers: String,
    /// A further setting of librdkafka, as often as needed. Other users of the machine can see it: put passwords
    /// into a file, see --properties. TLS needs a build with `--features tls`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Property>,
    /// A file of such settings, one a line; `#` begins a comment. --set goes before it.
    #[arg(long, env = "EINMAL_KAFKA_PROPERTIES", value_name = "FILE")]
    properties: Option<PathBuf>,
}

/// A setting that can't be used. It tells where it stands, and not what it says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadProperty(String);

impl fmt::Display for BadProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadProperty {}

/// A name and its value; or neither, which is told later: clap would repeat the text, and it can be a password.
#[derive(Clone, PartialEq, Eq)]
struct Property(Option<(String, String)>);

impl FromStr for Property {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let halves = text.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let halves = halves.filter(|(name, _)| !name.is_empty());
        Ok(Self(halves.map(|(name, value)| (name.to_owned(), value.to_owned()))))
    }
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Property({:?})", self.0.as_ref().map(|(name, _)| name))
    }
}

impl Property {
    fn put(&self, client: &mut ClientConfig, place: &str) -> Result<(), BadProperty> {
        let Some((name, value)) = &self.0 else {
            return Err(BadProperty(format!("{place} is not NAME=VALUE")));
        };
        let flag = match name.as_str() {
            "bootstrap.servers" | "metadata.broker.list" => "--brokers",
            "group.id" => "--group",
            _ => {
                client.set(name, value);
                return Ok(());
            }
        };
        Err(BadProperty(format!("{place} sets {name}: use {flag}")))
    }
}

impl ClientArgs {
    /// The settings of a client, without a group.
    pub(crate) fn config(&self) -> Result<ClientConfig> {
        let mut client = ClientConfig::new();
        if let Some(path) = &self.properties {
            read(path, &mut client)?;
        }
        for (number, property) in self.set.iter().enumerate() {
            property.put(&mut client, &format!("--set number {}", number + 1))?;
        }
        client.set("bootstrap.servers", &self.brokers);
        Ok(client)
    }
}

fn read(path: &Path, client: &mut ClientConfig) -> Result<()> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("the properties in {shown}"))?;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Ok(property) = line.parse::<Property>();
        property.put(client, &format!("line {} of {shown}", number + 1))?;
    }
    Ok(())
}

/// An error of making a client, without the value that the client's own text shows.
pub(crate) fn without_values(error: KafkaError) -> anyhow::Error {
    match error {
        KafkaError::ClientConfig(_, _, name, _) => {
            BadProperty(format!("librdkafka refuses the setting `{name}` or its value")).into()
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(set: &[&str], file: Option<&Path>) -> ClientArgs {
        ClientArgs {
            brokers: "b:1".to_owned(),
            set: set.iter().map(|text| text.parse().unwrap()).collect(),
            properties: file.map(Path::to_owned),
        }
    }

    #[test]
    fn flags_go_before_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "# ours\n\nsasl.password = a=b \nacks=1\n").unwrap();
        let client = args(&["acks=all"], Some(file.path())).config().unwrap();
        let get = |name| client.get(name);
        assert_eq!((get("sasl.password"), get("acks")), (Some("a=b"), Some("all")));
        assert_eq!(get("bootstrap.servers"), Some("b:1"));
    }

    #[test]
    fn what_can_not_be_used_is_told_without_its_text() {
        let refused = |args: &ClientArgs| {
            let error = args.config().unwrap_err();
            assert!(error.is::<BadProperty>());
            let shown = format!("{error:#} {error:?} {args:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            error.to_string()
        };
        assert_eq!(refused(&args(&["a=hunter2", "hunter2"], None)), "--set number 2 is not NAME=VALUE");
        assert_eq!(refused(&args(&["group.id=hunter2"], None)), "--set number 1 sets group.id: use --group");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "a=hunter2\nsasl.password hunter2\n").unwrap();
        assert!(refused(&args(&[], Some(file.path()))).starts_with("line 2 of "));

        let client = args(&["sasl.pasword=hunter2"], None).config().unwrap();
        let made = client.create::<rdkafka::producer::BaseProducer>();
        let error = without_values(made.map(drop).unwrap_err());
        assert_eq!(format!("{error:#}"), "librdkafka refuses the setting `sasl.pasword` or its value");
    }
}
