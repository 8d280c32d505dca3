//! Sees from outside how far a cell is: what it has handled, and what its group has committed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use einmal_bench::now;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::Args;
use crate::cell::{Measured, REQUEST};
use crate::witness::Witness;

/// Without progress for so long, a cell ends as it is, and is void.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(5);

pub(crate) struct Observer {
    pub(crate) witness: Arc<Witness>,
    pub(crate) messages: u64,
    /// Never joins the group; it only asks.
    consumer: BaseConsumer,
    partitions: TopicPartitionList,
}

impl Observer {
    /// Connected to the broker.
    pub(crate) fn new(
        args: &Args,
        member: &ClientConfig,
        topic: &str,
        witness: Arc<Witness>,
    ) -> Result<Self> {
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_range(topic, 0, args.partitions - 1);
        let observer = Self { witness, messages: args.messages, consumer: member.create()?, partitions };
        observer.committed()?;
        Ok(observer)
    }

    fn committed(&self) -> Result<u64> {
        let since = now();
        let list = loop {
            match self.consumer.committed_offsets(self.partitions.clone(), REQUEST) {
                // A broker that has just started is still looking for who keeps this group.
                Err(error)
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NotCoordinator)
                        && since.elapsed() < REQUEST =>
                {
                    std::thread::sleep(ASK_EVERY);
                }
                other => break other?,
            }
        };
        let offset = |offset| match offset {
            Offset::Offset(offset) => u64::try_from(offset).unwrap_or_default(),
            _ => 0,
        };
        Ok(list.elements().into_iter().map(|element| offset(element.offset())).sum())
    }

    /// Waits until all messages are handled, or nothing happens any more.
    pub(crate) fn until_handled(&self) {
        let (mut handled, mut at) = (0, now());
        while handled < self.messages && at.elapsed() < PATIENCE {
            std::thread::sleep(ASK_EVERY);
            let before = std::mem::replace(&mut handled, self.witness.handled());
            if handled > before {
                at = now();
            }
        }
    }

    /// Waits until all messages are committed, and tells what it took from the first one handled on.
    pub(crate) fn until_committed(&self) -> Result<Measured> {
        let since = now();
        let mut committed = self.committed()?;
        while committed != self.messages && since.elapsed() < PATIENCE {
            std::thread::sleep(ASK_EVERY);
            committed = self.committed()?;
        }
        let (seconds, cpu_seconds) = self.witness.spent()?;
        let (handled, unique) = (self.witness.handled(), self.witness.unique());
        Ok(Measured { handled, unique, committed, ran_ok: 0, seconds, cpu_seconds, rss_growth_kib: None })
    }
}
