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
