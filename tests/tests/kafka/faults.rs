//! A broker that stands still, is stopped, is killed, and a network that breaks, under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, MemoryStore};
use einmal_kafka::KafkaWorker;
use einmal_services::{Service, address_or_skip, skip};
use einmal_tests::kafka::Topic;
use einmal_tests::kafka_broker::{NONE_OF_ITS_OWN, OwnBroker};
use einmal_tests::kafka_worker::{Running, Runs, ids_of};
use einmal_tests::log_broker::id_of;
use einmal_tests::proxy::{Direction, Flow};
use rustix::process::Signal;

const MESSAGES: usize = 10_000;
const PARTITIONS: usize = 4;

/// One broker, one fault after the other, and one worker through all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_fails_under_load_loses_and_doubles_nothing() {
    let test = "a_broker_that_fails_under_load_loses_and_doubles_nothing";
    if address_or_skip(Service::Kafka, test).is_none() {
        return;
    }
    let Some(mut broker) = OwnBroker::start().await.unwrap() else {
        return skip(test, Service::Kafka, NONE_OF_ITS_OWN);
    };
    let topic = Topic::create(broker.proxy.address().to_string(), test, PARTITIONS, &[]).await.unwrap();
    topic.produce(0..MESSAGES).unwrap();

    let runs = Runs::default();
    let calm = Arc::new(AtomicBool::new(false));
    let handler = {
        let (runs, calm) = (runs.clone(), calm.clone());
        move |context: Context| {
            let (runs, calm) = (runs.clone(), calm.clone());
            async move {
                // Long enough for all the faults to come under load; afterwards there is no need.
                if !calm.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(40)).await;
                }
                runs.note(context.key().id().as_str());
                Ok::<(), Failure>(())
            }
        }
    };
    let mut client = topic.member();
    // A broker that stands still is given up soon.
    client.set("socket.timeout.ms", "3000").set("reconnect.backoff.max.ms", "1000");
    let worker = KafkaWorker::builder(
        topic.config(client).commit_trouble_after(Duration::from_secs(2)).build().unwrap(),
    )
    .worker(WorkerConfig { lanes: Lanes::Partition, ..WorkerConfig::default() })
    .dead_letters(None)
    .build(MemoryStore::default(), handler)
    .unwrap();
    let running = Running::start(worker);
    let done = || topic.committed().map(|all| all.iter().sum::<usize>()).unwrap_or_default();
    let mut floor = 0;
    for fault in ["stop", "cut", "stall", "swallow", "term", "kill"] {
        // At work, after the fault before.
        running.until("work", || Ok(runs.ids() > floor + 50 && done() > 0)).await.unwrap();
        let health = running.worker().health();
        let away = || running.until("a word that the broker is away", || Ok(!health.read().ready));
        match fault {
            "stop" => {
                broker.signal(Signal::STOP).unwrap();
                away().await.unwrap();
                broker.signal(Signal::CONT).unwrap();
            }
            "cut" => broker.proxy.cut(),
            "stall" => {
                broker.proxy.stall();
                away().await.unwrap();
                broker.proxy.resume();
            }
            "swallow" => {
                broker.proxy.set(Direction::ToClient, Flow::Swallow);
                away().await.unwrap();
                broker.proxy.cut();
                broker.proxy.resume();
            }
            signal => {
                broker.signal(if signal == "term" { Signal::TERM } else { Signal::KILL }).unwrap();
                broker.wait().unwrap();
                away().await.unwrap();
                broker.run().await.unwrap();
            }
        }
        println!("{fault}: {} ids ran, {} messages are committed", runs.ids(), done());
        floor = runs.ids();
    }
    calm.store(true, Ordering::SeqCst);
    running.until("the commit of everything", || Ok(done() == MESSAGES)).await.unwrap();
    running.stop().await.unwrap();
    for number in 0..MESSAGES {
        assert_eq!(runs.of(&id_of(number)), 1, "message {number}");
    }
}

/// With `check.crcs` the client says that a batch is damaged, and goes on behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_batch_ends_the_worker_and_is_not_passed() {
    let test = "a_damaged_batch_ends_the_worker_and_is_not_passed";
    if address_or_skip(Service::Kafka, test).is_none() {
        return;
    }
    let Some(mut broker) = OwnBroker::start().await.unwrap() else {
        return skip(test, Service::Kafka, NONE_OF_ITS_OWN);
    };
    let topic = Topic::create(broker.proxy.address().to_string(), test, 1, &[]).await.unwrap();
    (0..3).for_each(|batch| topic.produce(batch * 10..batch * 10 + 10).unwrap());
    broker.signal(Signal::TERM).unwrap();
    broker.wait().unwrap();
    broker.damage(&topic.name, 15).unwrap();
    broker.run().await.unwrap();

    let mut client = topic.member();
    client.set("check.crcs", "true");
    let config = topic.config(client).build().unwrap();
    let (running, runs) = Running::counting(KafkaWorker::builder(config)).unwrap();
    let error = running.end().await.unwrap_err();
    println!("{error:?}");
    assert!(error.to_string().contains("damaged"), "{error:?}");
    let committed = topic.committed().unwrap()[0];
    assert!(committed <= 15, "{committed}");
    assert!(runs.once().unwrap().iter().all(|id| ids_of(0..15).contains(id)));
}
