//! Members that come and go while work is under way.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use einmal::worker::{Ack, Source};
use einmal_kafka::{KafkaConfigBuilder, KafkaConsumer, KafkaSource};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{Cluster, id, until};

const PARTITIONS: i32 = 4;

/// What the handlers of all members have done, by id.
#[derive(Default)]
struct Done {
    runs: BTreeMap<String, u32>,
    by: BTreeMap<&'static str, usize>,
    /// Handlers that were under way when their partition was gone.
    cut: u32,
    /// Done before they are settled, so that whatever is committed must be in here.
    offsets: HashSet<(i32, i64)>,
}

/// One cluster, two groups, at the same time: one of each kind.
///
/// The mock refuses every commit while a group forms anew (a broker takes it until the members have joined
/// again), so that the last commit of what is taken away comes to nothing here, and its work can be repeated.
/// That it is made is shown where the whole group leaves: scenario 16 in `settling`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_14_members_join_and_leave_under_load() {
    let cluster = Cluster::new(PARTITIONS);
    let mut produced = 0;
    let (eager, cooperative) = (Arc::<Mutex<Done>>::default(), Arc::<Mutex<Done>>::default());
    let groups = [("eager", "range", &eager), ("cooperative", "cooperative-sticky", &cooperative)];
    let mut more = |cluster: &Cluster, count| {
        (0..PARTITIONS).for_each(|partition| cluster.produce(partition, produced..produced + count));
        produced += count;
    };
    more(&cluster, 50);
    let first: Vec<_> = groups.map(|group| start(&cluster, "first", group)).into_iter().collect();
    wait(&cluster, &groups, || more(&cluster, 1), |done| done.by.contains_key("first")).await;

    let second: Vec<_> = groups.map(|group| start(&cluster, "second", group)).into_iter().collect();
    let joined = |done: &Done| done.by.get("second").is_some_and(|count| *count > 20);
    wait(&cluster, &groups, || more(&cluster, 1), joined).await;

    for (consumer, work) in second {
        consumer.stop_intake();
        work.abort();
        let _ = work.await;
        consumer.close().await.unwrap();
    }
    let total = usize::try_from(i64::from(PARTITIONS) * produced).unwrap();
    wait(&cluster, &groups, || (), |done| done.runs.len() == total).await;
    // All is done, and not all is committed: who stays gets back what the mock refused to commit at the last
    // rebalance, does it again, and commits it.
    let end: BTreeMap<i32, i64> = (0..PARTITIONS).map(|partition| (partition, produced)).collect();
    until("the commit of everything", || {
        groups.iter().all(|(group, _, _)| cluster.committed(group, PARTITIONS) == end)
    })
    .await;
    for (consumer, work) in first {
        work.abort();
        let _ = work.await;
        consumer.close().await.unwrap();
    }
    for (group, _, _) in groups {
        assert_eq!(cluster.committed(group, PARTITIONS), end, "{group}: closing took something back");
    }
    // What was under way when partitions were taken away was waited for.
    assert_eq!((eager.lock().unwrap().cut, cooperative.lock().unwrap().cut), (0, 0));
}

type Group<'a> = (&'static str, &'static str, &'a Arc<Mutex<Done>>);

fn start(
    cluster: &Cluster,
    name: &'static str,
    (group, strategy, done): Group<'_>,
) -> (KafkaConsumer, JoinHandle<()>) {
    let mut client = cluster.client();
    client.set("group.id", group).set("partition.assignment.strategy", strategy);
    client.set("session.timeout.ms", "4000").set("heartbeat.interval.ms", "500");
    let config: KafkaConfigBuilder =
        einmal_kafka::KafkaConfig::builder(client).topics([crate::support::TOPIC]);
    let member = cluster.start(config.drain(Duration::from_secs(3)));
    (member.consumer, tokio::spawn(work(name, member.source, done.clone())))
}

/// Handlers of 20 to 120 ms, many at once, in no order.
async fn work(name: &'static str, mut source: KafkaSource, done: Arc<Mutex<Done>>) {
    let mut running = JoinSet::new();
    while let Some(incoming) = source.next().await {
        if incoming.assignment.closing.is_cancelled() {
            continue;
        }
        let done = done.clone();
        running.spawn(async move {
            let position = incoming.delivery.position();
            let place = (position.partition().unwrap(), position.offset().unwrap());
            tokio::time::sleep(Duration::from_millis(20 + place.1.unsigned_abs() * 37 % 100)).await;
            let mut done = done.lock().unwrap();
            if incoming.assignment.lost.is_cancelled() {
                done.cut += 1;
                return;
            }
            *done.runs.entry(id(&incoming.delivery)).or_default() += 1;
            *done.by.entry(name).or_default() += 1;
            done.offsets.insert(place);
            drop(done);
            incoming.ack.settle();
        });
    }
}

/// Produces, and holds what is committed against what is done, until all groups are `ready`.
async fn wait(
    cluster: &Cluster,
    groups: &[Group<'_>],
    mut produce: impl FnMut(),
    ready: impl Fn(&Done) -> bool,
) {
    let what = "all groups to get so far";
    until(what, || {
        produce();
        for (group, _, done) in groups {
            let committed = cluster.committed(group, PARTITIONS);
            let done = done.lock().unwrap();
            for (partition, next) in committed {
                let unsettled = (0..next).find(|offset| !done.offsets.contains(&(partition, *offset)));
                assert_eq!(unsettled, None, "{group}: committed {next} in partition {partition}");
            }
        }
        groups.iter().all(|(_, _, done)| ready(&done.lock().unwrap()))
    })
    .await;
}
