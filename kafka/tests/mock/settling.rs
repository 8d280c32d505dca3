//! What is committed is settled, and only that.

use std::time::Duration;

use einmal::worker::Ack;

use crate::support::{Cluster, id, offset, until};

/// One cluster, many groups.
#[tokio::test]
async fn only_what_is_settled_is_committed() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..21);
    tokio::join!(
        scenario_10_nothing_settled_nothing_committed(&cluster),
        scenario_11_a_stalled_message_holds_the_offset(&cluster),
        scenario_16_what_runs_when_the_partition_goes_may_end_and_is_committed(&cluster),
        scenario_17_settles_pending_at_the_stop(&cluster),
        one_settled_of_twenty_one_then_dropped(&cluster),
        given_back_it_is_offered_again_in_order(&cluster),
    );
}

async fn scenario_10_nothing_settled_nothing_committed(cluster: &Cluster) {
    let mut member = cluster.start(cluster.config("g10"));
    let taken = member.take(21).await;
    assert_eq!(taken.iter().map(offset).collect::<Vec<_>>(), (0..21).collect::<Vec<_>>());
    drop(taken);
    member.close().await;
    assert_eq!(cluster.committed("g10", 1).get(&0), None);

    let mut member = cluster.start(cluster.config("g10"));
    assert_eq!(offset(&member.next().await), 0, "all of it is delivered again");
    member.close().await;
}

async fn scenario_11_a_stalled_message_holds_the_offset(cluster: &Cluster) {
    let mut member = cluster.start(cluster.config("g11"));
    let mut taken = member.take(21).await;
    let stalled = taken.remove(10);
    taken.reverse();
    for incoming in taken {
        incoming.ack.settle();
    }
    cluster.until_committed("g11", 10).await;
    drop(stalled);
    member.close().await;
    assert_eq!(cluster.committed("g11", 1).get(&0), Some(&10), "neither past the stalled one nor before it");

    let mut member = cluster.start(cluster.config("g11"));
    let again = member.take(11).await;
    assert_eq!(again.iter().map(offset).collect::<Vec<_>>(), (10..21).collect::<Vec<_>>());
    for incoming in again {
        incoming.ack.settle();
    }
    member.close().await;
    assert_eq!(cluster.committed("g11", 1).get(&0), Some(&21));
}

async fn scenario_16_what_runs_when_the_partition_goes_may_end_and_is_committed(cluster: &Cluster) {
    let mut member = cluster.start(cluster.config("g16"));
    let mut taken = member.take(21).await;
    taken.drain(..5).for_each(|incoming| incoming.ack.settle());
    drop(member.source);
    let span = taken[0].assignment.clone();
    let end_what_runs = async {
        span.closing.cancelled().await;
        assert!(!span.lost.is_cancelled(), "it may end");
        taken.drain(..5).for_each(|incoming| incoming.ack.settle());
        drop(taken);
    };
    let (closed, ()) = tokio::join!(member.consumer.close(), end_what_runs);
    closed.unwrap();
    assert!(span.lost.is_cancelled(), "and then it is gone");
    assert_eq!(cluster.committed("g16", 1).get(&0), Some(&10));
}

async fn scenario_17_settles_pending_at_the_stop(cluster: &Cluster) {
    // No commit is due before the stop, so that all of it is left to the last one.
    let config = cluster.config("g17").commit_every(Duration::from_secs(60));
    let mut member = cluster.start(config);
    let mut taken = member.take(21).await;
    taken.remove(0).ack.settle();
    cluster.until_committed("g17", 1).await;
    member.consumer.stop_intake();
    for incoming in taken.drain(..14) {
        incoming.ack.settle();
    }
    drop(taken);
    member.close().await;
    assert_eq!(cluster.committed("g17", 1).get(&0), Some(&15), "all that was settled before the close");
}

/// A client that is dropped polls on, and throws away what it gets. None of it may be committed.
async fn one_settled_of_twenty_one_then_dropped(cluster: &Cluster) {
    let mut member = cluster.start(cluster.config("drop"));
    let first = member.next().await;
    assert_eq!(id(&first.delivery), "0:0");
    first.ack.settle();
    drop(member);
    // The group is free for another when the dropped one has left it.
    let mut member = cluster.start(cluster.config("drop"));
    let next = member.next().await;
    let committed = cluster.committed("drop", 1).get(&0).copied().unwrap_or(0);
    assert!(committed <= 1, "committed {committed} of 1 that was settled");
    assert_eq!(offset(&next), committed, "nothing is skipped");
    drop(next);
    member.close().await;
}

async fn given_back_it_is_offered_again_in_order(cluster: &Cluster) {
    let mut member = cluster.start(cluster.config("back"));
    let mut taken = member.take(8).await;
    // 0 is done, 1 comes back while 2 and 3 run on and 4 to 7 are done.
    for incoming in taken.drain(4..) {
        incoming.ack.settle();
    }
    let (third, second) = (taken.remove(3), taken.remove(2));
    let mut returned = taken.remove(1);
    taken.remove(0).ack.settle();
    let closing = returned.assignment.closing.clone();
    assert!(!closing.is_cancelled());
    returned.delivery = returned.delivery.with_attempt_hint(Some(1));
    drop(returned);
    until("the call for what is out", || closing.is_cancelled()).await;
    assert!(!third.assignment.lost.is_cancelled(), "what runs may end");
    second.ack.settle();
    drop(third);
    // Whatever of 8 to 20 had been handed out in the old span comes back by being dropped here.
    let mut offered = Vec::new();
    while offered.is_empty() || offered.len() < 15 {
        let incoming = member.next().await;
        if incoming.assignment.closing.is_cancelled() {
            continue;
        }
        offered.push(incoming);
    }
    let offsets: Vec<_> = offered.iter().map(offset).collect();
    assert_eq!(offsets, [1, 3].into_iter().chain(8..21).collect::<Vec<_>>());
    for incoming in offered {
        incoming.ack.settle();
    }
    cluster.until_committed("back", 21).await;
    member.close().await;
}

/// A loop of one's own that gives back what it can't do now: the partition's order holds.
#[tokio::test]
async fn what_was_given_back_comes_again_before_what_is_behind_it() {
    let cluster = Cluster::new(1);
    cluster.produce(0, 0..21);
    let mut member = cluster.start(cluster.config("given-back"));
    // All are waiting, so that the next ones could be had at once.
    let mut taken = member.take(6).await;
    let failed = taken.pop().unwrap();
    taken.into_iter().for_each(|incoming| incoming.ack.settle());
    assert_eq!(offset(&failed), 5);
    drop(failed);
    for expected in 5..21 {
        let incoming = member.next().await;
        assert_eq!(offset(&incoming), expected);
        incoming.ack.settle();
    }
    cluster.until_committed("given-back", 21).await;
    member.close().await;
}
