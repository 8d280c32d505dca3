//! Why a consumer of Kafka can't start, or can't go on.

use std::error::Error;
use std::fmt;

use rdkafka::error::KafkaError as ClientError;

/// What kind of thing went wrong, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KafkaErrorKind {
    /// The client could not be made of its settings, or could not subscribe. Change the settings.
    Setup,
    /// The client has failed for good: it was fenced, or its group protocol broke down. What was not settled
    /// is delivered again, to another member or to this one after a restart.
    Fatal,
    /// The broker has a batch that is damaged: with `check.crcs` its checksum is wrong. Nothing behind it in its
    /// partition is read, and a restart meets it again. Restore it from another replica, or move the group past
    /// it: what it held is lost then.
    Damaged,
    /// The thread that talks to the broker panicked: a fault of this crate. As for [`Self::Fatal`], nothing
    /// unsettled is lost.
    Panicked,
    /// The client did not close within its budget and was left behind. Offsets of settled messages may not
    /// have been committed: these are delivered again and answered by their stored outcomes.
    NotClosed,
}

/// A consumer's failure. No message is lost by it: what was not settled is delivered again.
pub struct KafkaError {
    kind: KafkaErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl KafkaError {
    pub(crate) fn new(kind: KafkaErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Of an error of the client, whose text names the value of a bad setting: that could be a password, so
    /// that only the setting's name is kept.
    pub(crate) fn of_client(kind: KafkaErrorKind, doing: &str, error: ClientError) -> Self {
        match error {
            ClientError::ClientConfig(_, _, field, _) => {
                Self::new(kind, format!("{doing}: the client refuses the setting `{field}` or its value"))
            }
            error => Self { kind, message: format!("{doing}: {error}"), source: Some(Box::new(error)) },
        }
    }

    /// What kind of thing went wrong.
    #[must_use]
    pub const fn kind(&self) -> KafkaErrorKind {
        self.kind
    }

    /// Whether the same consumer, started again in the same process, can succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, KafkaErrorKind::Fatal)
    }
}

impl fmt::Display for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        f.write_str(match self.kind {
            KafkaErrorKind::Setup => "; change the settings",
            KafkaErrorKind::Damaged => "; restore it from another replica, or move the group past it",
            KafkaErrorKind::Fatal => "; start a new consumer, unless another was meant to replace this one",
            KafkaErrorKind::Panicked => "; restart the process and report this",
            KafkaErrorKind::NotClosed => "; end the process",
        })
    }
}

impl fmt::Debug for KafkaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KafkaError({:?}: {self})", self.kind)
    }
}

impl Error for KafkaError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::producer::BaseProducer;

    use super::*;

    #[test]
    fn the_value_of_a_refused_setting_is_not_shown() {
        let mut config = ClientConfig::new();
        config.set("sasl.mechanisms", "PLAIN").set("sasl.passwort", "hunter2");
        let error = config.create::<BaseProducer>().map(drop).unwrap_err();
        assert!(error.to_string().contains("hunter2"), "the client's own text shows it: {error}");
        let error = KafkaError::of_client(KafkaErrorKind::Setup, "could not make the client", error);
        let shown = format!("{error} {error:?} {:?}", error.source().map(ToString::to_string));
        assert!(shown.contains("`sasl.passwort`") && !shown.contains("hunter2"), "{shown}");
    }
}
