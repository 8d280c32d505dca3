//! The thread that commits.
//!
//! It exists because the client tells nobody how an asynchronous commit ended (rdkafka 0.39 calls
//! `commit_callback` for automatic commits only: fede1024/rust-rdkafka#856), and because a synchronous one can
//! block for as long as the broker is away, which the thread that polls must not. One commit is under way at a
//! time, so that an older one can't be repeated after a newer one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};
use tokio_util::sync::CancellationToken;

use crate::context::{Context, code};
use crate::offsets::NextOffset;
use crate::source::{Command, Epoch, TopicPartition};

/// What to commit of one partition.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) at: Arc<TopicPartition>,
    pub(crate) epoch: Epoch,
    pub(crate) next: NextOffset,
    /// Cancelled when the epoch has ended: then this must not be committed any more.
    pub(crate) ended: CancellationToken,
}

/// Commits what comes from `jobs` until nobody can send any more.
pub(crate) fn run(consumer: &BaseConsumer<Context>, jobs: &Receiver<Vec<Due>>, results: &Sender<Command>) {
    while let Ok(due) = jobs.recv() {
        // What has come in meanwhile goes with it. Of two for one partition only the later one counts.
        let all = due.into_iter().chain(jobs.try_iter().flatten());
        let last: BTreeMap<_, _> = all.map(|one| (one.at.clone(), one)).collect();
        commit(consumer, last.into_values().collect(), results);
    }
}

fn commit(consumer: &BaseConsumer<Context>, mut due: Vec<Due>, results: &Sender<Command>) {
    due.retain(|one| !one.ended.is_cancelled());
    let result = send(consumer, &due).map_err(|error| code(&error));
    match result {
        // The client names the error of one partition, not which. Alone, each gets its own.
        Err(code) if due.len() > 1 && is_of_one_partition(code) => {
            for one in due {
                commit(consumer, vec![one], results);
            }
        }
        result => {
            let error = result.err();
            for Due { at, epoch, next, .. } in due {
                let _ = results.send(Command::Committed { at, epoch, next, error });
            }
        }
    }
}

/// Only ever of a list: without one the client commits what it has itself seen.
fn send(consumer: &BaseConsumer<Context>, due: &[Due]) -> KafkaResult<()> {
    let mut list = TopicPartitionList::with_capacity(due.len());
    for Due { at, next, .. } in due {
        list.add_partition_offset(&at.topic, at.partition, Offset::Offset(next.get()))?;
    }
    if list.count() == 0 { Ok(()) } else { consumer.commit(&list, CommitMode::Sync) }
}

fn is_of_one_partition(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::UnknownTopicOrPartition
            | Code::OffsetMetadataTooLarge
            | Code::InvalidCommitOffsetSize
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use einmal::worker::HealthCell;
    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;

    use super::*;
    use crate::config::KafkaConfig;
    use crate::engine::Engine;
    use crate::ledger::Ledger;
    use crate::offsets::Tracker;
    use crate::source::{Queue, WayBack};

    fn due(partition: i32, ended: bool) -> Due {
        let mut tracker = Tracker::default();
        tracker.received(4);
        tracker.done(4);
        let at = Arc::new(TopicPartition { topic: Arc::from("topic"), partition });
        let due = Due { at, epoch: Epoch(1), next: tracker.due().unwrap(), ended: CancellationToken::new() };
        if ended {
            due.ended.cancel();
        }
        due
    }

    /// It can wait here while the group gives the partition to another and takes it back: then the broker would
    /// accept it, and go back to it.
    #[test]
    fn what_waits_for_its_commit_when_its_epoch_ends_is_not_committed() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("topic", 2, 1).unwrap();
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "group");
        let config = KafkaConfig::builder(client).topics(["topic"]).build().unwrap();
        let (commands, received) = channel();
        let (committer, jobs) = channel();
        let engine = Engine::new(
            Ledger::new(WayBack::new(commands.clone())),
            Arc::new(Queue::new(1, 1)),
            config.limits,
            received,
            committer.clone(),
            HealthCell::default(),
        );
        let consumer: BaseConsumer<Context> =
            config.client.create_with_context(Context::new(engine)).unwrap();
        committer.send(vec![due(0, true), due(1, false)]).unwrap();
        drop(committer);
        consumer.context().engine().committer = None;
        run(&consumer, &jobs, &commands);

        let mut list = TopicPartitionList::new();
        list.add_partition_range("topic", 0, 1);
        let committed = consumer.committed_offsets(list, std::time::Duration::from_secs(30)).unwrap();
        let offsets: Vec<_> = committed.elements().iter().map(|element| element.offset()).collect();
        assert_eq!(offsets, [Offset::Invalid, Offset::Offset(5)]);
    }
}
