//! How long a topic keeps its messages, against how long outcomes are remembered.
//!
//! A message that the broker delivers again after its outcome was forgotten is a new operation, and runs again.
//! That is worth a warning, and nothing else: a broker that does not tell holds nothing up.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::config::FromClientConfigAndContext;

use crate::context::Beside;

/// How long the broker may take to tell.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts the thread that asks for the topics that it is told of, each once. It ends when nobody can tell it of
/// more, and holds nothing up until then.
pub(crate) fn watch(client: ClientConfig, remembered: Duration) -> Option<Sender<String>> {
    let (topics, told) = channel();
    let watch = move || follow(&client, &told, remembered);
    match std::thread::Builder::new().name("einmal-kafka-retention".to_owned()).spawn(watch) {
        Ok(_) => Some(topics),
        Err(error) => {
            tracing::info!(%error, "no thread to read the topics' retention with");
            None
        }
    }
}

fn follow(client: &ClientConfig, told: &Receiver<String>, remembered: Duration) {
    let mut known = BTreeSet::new();
    while let Ok(first) = told.recv() {
        let all = std::iter::once(first).chain(told.try_iter());
        let new: Vec<String> = all.filter(|topic| known.insert(topic.clone())).collect();
        if new.is_empty() {
            continue;
        }
        if let Err(error) = look(client, &new, remembered) {
            untold(&new, &error);
        }
    }
}

/// A client of its own for each look, for the consumer's must not be held by anybody but its threads.
fn look(client: &ClientConfig, topics: &[String], remembered: Duration) -> Result<(), String> {
    let failed = |error: rdkafka::error::KafkaError| error.to_string();
    // Not the client's own text, which shows the value of a setting.
    let admin: AdminClient<Beside> =
        AdminClient::from_config_and_context(client, Beside).map_err(|_| "no client".to_owned())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let answers = runtime.block_on(admin.describe_configs(&resources, &options)).map_err(failed)?;
    for answer in answers {
        match answer {
            Ok(answer) => judge(&answer, remembered),
            Err(code) => untold(topics, &code.to_string()),
        }
    }
    Ok(())
}

fn untold(topics: &[String], error: &str) {
    tracing::info!(
        ?topics,
        error,
        "the broker does not tell how long the topics keep their messages: make sure that outcomes are \
         remembered for as long"
    );
}

fn judge(answer: &ConfigResource, remembered: Duration) {
    let OwnedResourceSpecifier::Topic(topic) = &answer.specifier else { return };
    let setting = |name: &str| answer.get(name).and_then(|entry| entry.value.as_deref());
    let (cleanup_policy, retention_ms) = (setting("cleanup.policy"), setting("retention.ms"));
    let kept = match kept(cleanup_policy, retention_ms) {
        Kept::Untold => return untold(std::slice::from_ref(topic), "no such setting in its answer"),
        Kept::For(time) if time <= remembered => {
            return tracing::debug!(
                topic,
                "topic {topic} keeps messages for {time:?}, and no longer than outcomes"
            );
        }
        Kept::For(time) => format!("for {time:?}"),
        Kept::Ever => "for ever".to_owned(),
    };
    tracing::warn!(
        topic,
        cleanup_policy,
        retention_ms,
        "topic {topic} keeps messages {kept}, but their outcomes are remembered for {remembered:?}: what is \
         delivered again after that, as when offsets are reset or expire, runs again. Give the worker's policy \
         a longer retention, or the topic a shorter one"
    );
}

#[derive(Debug, PartialEq, Eq)]
enum Kept {
    For(Duration),
    Ever,
    Untold,
}

/// How long a topic of these settings keeps its messages. A compacted one keeps the last of each key, unless it
/// deletes as well.
fn kept(cleanup_policy: Option<&str>, retention_ms: Option<&str>) -> Kept {
    let Some(policy) = cleanup_policy else { return Kept::Untold };
    if !policy.split(',').any(|part| part.trim() == "delete") {
        return Kept::Ever;
    }
    match retention_ms.map(|text| text.trim().parse::<i64>()) {
        // Below zero there is no limit.
        Some(Ok(millis)) => {
            u64::try_from(millis).map_or(Kept::Ever, |millis| Kept::For(Duration::from_millis(millis)))
        }
        Some(Err(_)) | None => Kept::Untold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_topic_keeps_its_messages() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(kept(Some("delete"), Some("3600000")), Kept::For(hour));
        assert_eq!(kept(Some("compact, delete"), Some("3600000")), Kept::For(hour));
        assert_eq!(kept(Some("compact"), Some("3600000")), Kept::Ever);
        assert_eq!(kept(Some("delete"), Some("-1")), Kept::Ever);
        // Neither: nothing is ever deleted.
        assert_eq!(kept(Some(""), Some("3600000")), Kept::Ever);
        assert_eq!(kept(Some("delete"), None), Kept::Untold);
        assert_eq!(kept(Some("delete"), Some("soon")), Kept::Untold);
        assert_eq!(kept(None, Some("3600000")), Kept::Untold);
    }
}
