//! Commits that fail, clients that fail, brokers that are away.

use std::time::Duration;

use einmal::worker::{Ack, Source};
use einmal_kafka::KafkaErrorKind;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Resp};

use crate::support::{Cluster, PATIENCE, offset, until};

#[tokio::test]
async fn scenario_15_a_failed_commit_is_computed_anew_and_never_sent_again_later() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..21);
    let mut member = cluster.start(cluster.config("g15").commit_trouble_after(Duration::from_secs(1)));
    let mut taken = member.take(21).await;

    let failed = Resp::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE;
    cluster.mock.request_errors(Api::OffsetCommit, &[failed]);
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    cluster.until_committed("g15", 5).await;
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    cluster.until_committed("g15", 10).await;

    cluster.mock.request_errors(Api::OffsetCommit, &[failed; 20]);
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    until("the health to say so", || !member.health.read().ready).await;
    assert!(member.health.read().live, "it passes");
    assert!(member.health.read().reasons[0].contains("no offset could be committed"));
    cluster.mock.clear_request_errors(Api::OffsetCommit);
    cluster.until_committed("g15", 15).await;
    until("the health to be good again", || member.health.read().ready).await;

    drop(taken);
    member.close().await;
    assert_eq!(cluster.committed("g15", 1).get(&0), Some(&15));
}

/// More is settled between the commit that fails and the one after it, which therefore names a later offset.
#[tokio::test]
async fn scenario_15_what_failed_to_be_committed_is_not_committed_after_something_later() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..21);
    let mut member = cluster.start(cluster.config("later").commit_trouble_after(Duration::from_secs(1)));
    let mut taken = member.take(21).await;
    cluster.mock.request_errors(Api::OffsetCommit, &[Resp::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE; 20]);
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    until("the health to say so", || !member.health.read().ready).await;
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    cluster.mock.clear_request_errors(Api::OffsetCommit);
    until("the health to be good again", || member.health.read().ready).await;
    drop(taken);
    // The thread that commits ends with everything that it has to do.
    member.close().await;
    assert_eq!(cluster.committed("later", 1).get(&0), Some(&10), "not 5, which failed before");
}

#[tokio::test]
async fn a_lost_assignment_moves_no_offset() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..21);
    let mut member = cluster.start(cluster.config("lost"));
    let mut old = member.take(21).await;
    assert!(!old[20].assignment.lost.is_cancelled());

    cluster.mock.request_errors(Api::OffsetCommit, &[Resp::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION]);
    old.remove(0).ack.settle();
    until("the loss", || old[0].assignment.lost.is_cancelled()).await;

    // The same client has the partition again, in another epoch. What is left of the old one is settled now.
    let new = member.take(5).await;
    assert_eq!(new.iter().map(offset).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    old.drain(4..).for_each(|incoming| incoming.ack.settle());
    new.into_iter().for_each(|incoming| incoming.ack.settle());
    cluster.until_committed("lost", 5).await;
    drop(old);
    member.close().await;
    assert_eq!(cluster.committed("lost", 1).get(&0), Some(&5), "5 to 20 were settled in the lost epoch only");
}

/// The client keeps the pause of a partition that it loses, and would never fetch from it again.
#[tokio::test]
async fn a_partition_that_was_lost_while_it_was_paused_goes_on_when_it_is_back() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..200);
    let config = cluster.config("lost-paused").queue(10, 1 << 20).pause_after(Duration::ZERO);
    let mut member = cluster.start(config);
    let first = member.next().await;
    let lost = first.assignment.lost.clone();
    // The queue is full and nobody takes anything, so that fetching is paused at the next look.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.mock.request_errors(Api::OffsetCommit, &[Resp::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION]);
    first.ack.settle();
    until("the loss", || lost.is_cancelled()).await;
    // What waited for the worker is gone with it: the next is of the new assignment.
    let again = member.next().await;
    assert!(!again.assignment.lost.is_cancelled());
    assert_eq!(offset(&again), 0);
    member.close().await;
}

#[tokio::test]
async fn a_fatal_error_ends_the_source_and_is_told() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..3);
    let mut member = cluster.start(cluster.config("fatal"));
    let taken = member.take(3).await;
    let lost = taken[0].assignment.lost.clone();
    // Another member has come under this one's `group.instance.id`.
    cluster.mock.request_errors(Api::OffsetCommit, &[Resp::RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
    taken.into_iter().for_each(|incoming| incoming.ack.settle());
    let end = tokio::time::timeout(PATIENCE, member.source.next()).await.expect("an end");
    assert!(end.is_none());
    assert!(lost.is_cancelled() && !member.health.read().live);
    let error = member.consumer.close().await.unwrap_err();
    assert_eq!(error.kind(), KafkaErrorKind::Fatal, "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn with_the_broker_away_closing_keeps_its_budget_and_blocks_nobody() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..21);
    let mut member = cluster.start(cluster.config("away").close(Duration::from_secs(2)));
    let mut taken = member.take(21).await;
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    cluster.until_committed("away", 5).await;
    cluster.mock.broker_down(-1).unwrap();
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    drop(taken);
    drop(member.source);

    // This test's runtime has one thread: if closing blocked it, nothing would tick.
    let mut ticks = 0;
    let mut ticking = tokio::time::interval(Duration::from_millis(10));
    let closing = member.consumer.close();
    tokio::pin!(closing);
    let closed = loop {
        tokio::select! {
            closed = &mut closing => break closed,
            _ = ticking.tick() => ticks += 1,
        }
        assert!(ticks < 4_000, "closing hangs");
    };
    assert!(ticks > 50, "{ticks} ticks");
    // It may have been left behind, and says so then.
    assert!(closed.is_ok() || closed.is_err_and(|error| error.kind() == KafkaErrorKind::NotClosed));
    cluster.mock.broker_up(-1).unwrap();
    assert!(cluster.committed("away", 1)[&0] <= 10);
}
