//! A worker that is slow, or stands still.

use std::collections::BTreeMap;
use std::time::Duration;

use einmal::worker::{Ack, Source};

use crate::support::{Cluster, PATIENCE, id, offset, place, until};

/// Messages in each partition.
const COUNT: i64 = 150;

#[tokio::test]
async fn bounds_hold_and_nothing_is_lost_or_doubled_by_them() {
    let cluster = Cluster::new(3);
    for partition in 0..3 {
        cluster.produce(partition, 0..COUNT);
    }
    tokio::join!(
        a_storm_of_pauses_leaves_no_gap_and_no_double(&cluster),
        scenario_40_one_slow_message_holds_back_its_own_partition_only(&cluster),
        paused_when_taken_away_it_goes_on_when_it_comes_back(&cluster),
    );
}

async fn a_storm_of_pauses_leaves_no_gap_and_no_double(cluster: &Cluster) {
    let mut member = cluster.start(cluster.config("storm").queue(4, 1 << 20).pause_after(Duration::ZERO));
    let mut got: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for taken in 0..3 * COUNT {
        let incoming = member.next().await;
        let (partition, offset) = place(&incoming);
        assert_eq!(id(&incoming.delivery), format!("{partition}:{offset}"));
        got.entry(partition).or_default().push(offset);
        incoming.ack.settle();
        // Long enough to be paused, again and again.
        if taken % 40 == 0 {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    for partition in 0..3 {
        assert_eq!(got[&partition], (0..COUNT).collect::<Vec<_>>(), "partition {partition}");
    }
    let all = BTreeMap::from([(0, COUNT), (1, COUNT), (2, COUNT)]);
    until("all is committed", || cluster.committed("storm", 3) == all).await;
    member.close().await;
}

async fn scenario_40_one_slow_message_holds_back_its_own_partition_only(cluster: &Cluster) {
    const SPAN: usize = 50;
    let mut member = cluster.start(cluster.config("slow").max_span(SPAN));
    let (mut slow, mut got) = (None, BTreeMap::<i32, i64>::new());
    while got.get(&1) != Some(&COUNT) || got.get(&2) != Some(&COUNT) {
        let incoming = member.next().await;
        let (partition, offset) = place(&incoming);
        assert_eq!(offset, *got.entry(partition).or_default());
        got.insert(partition, offset + 1);
        if (partition, offset) == (0, 0) {
            slow = Some(incoming);
        } else {
            incoming.ack.settle();
        }
    }
    // Whatever is still to come of the slow one's partition is within its bound, and memory with it.
    while let Ok(Some(incoming)) =
        tokio::time::timeout(Duration::from_millis(500), member.source.next()).await
    {
        assert_eq!(incoming.delivery.position().partition(), Some(0));
        got.entry(0).and_modify(|next| *next = offset(&incoming) + 1);
        incoming.ack.settle();
    }
    assert!(got[&0] <= i64::try_from(SPAN).unwrap(), "{} received past one that is not done", got[&0]);
    assert_eq!(cluster.committed("slow", 3).get(&0), None);
    slow.expect("partition 0 has a first message").ack.settle();
    while got[&0] < COUNT {
        let incoming = member.next().await;
        assert_eq!(offset(&incoming), got[&0]);
        got.entry(0).and_modify(|next| *next += 1);
        incoming.ack.settle();
    }
    member.close().await;
    assert_eq!(cluster.committed("slow", 3), BTreeMap::from([(0, COUNT), (1, COUNT), (2, COUNT)]));
}

async fn paused_when_taken_away_it_goes_on_when_it_comes_back(cluster: &Cluster) {
    let config = || cluster.config("moved").queue(1, 1 << 20).pause_after(Duration::ZERO);
    // It never takes anything, so that it is paused all the time.
    let mut first = cluster.start(config());
    let mut second = cluster.start(config());
    let held = second.next().await;
    let moved = held.delivery.position().partition().unwrap();
    drop(held);
    second.close().await;
    let mut next = BTreeMap::<i32, i64>::new();
    let take_all = async {
        // Each message costs a pause and a fetch here.
        while next.len() < 3 || next.values().any(|next| *next < 4) {
            let incoming = first.next().await;
            let (partition, offset) = place(&incoming);
            if incoming.assignment.closing.is_cancelled() {
                continue;
            }
            // Some can come again, as their commit can be refused while the group forms anew. None is left out.
            let expected = next.entry(partition).or_default();
            assert!(
                offset <= *expected,
                "{offset} for {expected} in partition {partition}; {moved} had moved"
            );
            *expected = (*expected).max(offset + 1);
            incoming.ack.settle();
        }
    };
    let taken = tokio::time::timeout(PATIENCE, take_all).await;
    assert!(taken.is_ok(), "nothing stays paused: {next:?}");
    first.close().await;
}
