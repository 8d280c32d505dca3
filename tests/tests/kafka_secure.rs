//! TLS, certificates of both sides, and passwords, on a real broker.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

use std::sync::Arc;

use einmal::{Context, Failure, MemoryStore};
use einmal_kafka::{DeadLetterTopic, KafkaWorker};
use einmal_services::{Service, address_or_skip, skip};
use einmal_tests::kafka::{Topic, until};
use einmal_tests::kafka_broker::OwnBroker;
use einmal_tests::kafka_secure::Secure;
use einmal_tests::kafka_worker::{Running, Runs, ids_of};
use einmal_tests::logs::Logs;
use rdkafka::ClientConfig;
use tokio_util::sync::CancellationToken;

const REFUSED: &str = "do not accept each other";

async fn broker(test: &str, secure: &Secure) -> Option<OwnBroker> {
    address_or_skip(Service::Kafka, test)?;
    let broker = OwnBroker::start_with(Some(secure)).await.unwrap();
    if broker.is_none() {
        let reason = ": one of its own needs `cargo xtask services up --from programs`";
        skip(test, Service::Kafka, reason);
    }
    broker
}

/// A topic with ten messages, of which none is read.
async fn topic(broker: &OwnBroker, name: &str) -> Topic {
    let topic = Topic::create(broker.proxy.address().to_string(), name, 1, &[]).await.unwrap();
    topic.produce(0..10).unwrap();
    topic
}

fn member(topic: &Topic, settings: impl FnOnce(&mut ClientConfig)) -> (Running, Runs) {
    let mut client = topic.member();
    client.set("debug", "security,broker,protocol,conf");
    settings(&mut client);
    Running::counting(KafkaWorker::builder(topic.config(client).build().unwrap())).unwrap()
}

async fn comes_through(broker: &OwnBroker, name: &str, settings: impl FnOnce(&mut ClientConfig)) {
    let topic = topic(broker, name).await;
    let (worker, runs) = member(&topic, settings);
    worker.until_committed(&topic, &[10]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of(0..10));
    worker.stop().await.unwrap();
}

/// The health says why nothing comes, the worker goes on trying, and nothing has run.
async fn is_refused(broker: &OwnBroker, name: &str, why: &str, settings: impl FnOnce(&mut ClientConfig)) {
    let topic = topic(broker, name).await;
    let (worker, runs) = member(&topic, settings);
    let said = worker.until_trouble(why).await.unwrap();
    println!("{name}: {said}");
    let health = worker.worker().health().read();
    assert!(health.live && !health.ready, "{health:?}");
    assert!(runs.once().unwrap().is_empty());
    worker.stop().await.unwrap();
    assert_eq!(topic.committed().unwrap(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_on_both_sides() {
    let logs = Logs::keep();
    let test = "certificates_are_checked_on_both_sides";
    let secure = Secure::new().unwrap();
    let Some(broker) = broker(test, &secure).await else { return };

    comes_through(&broker, "tls", |client| secure.over_tls(client)).await;
    comes_through(&broker, "mutual", |client| {
        secure.over_mutual_tls(client);
        secure.as_client(client, "client");
    })
    .await;

    let untrusted = "certificate verify failed";
    is_refused(&broker, "untrusted-broker", untrusted, |client| {
        secure.over_tls(client);
        secure.trusting(client, "stranger");
    })
    .await;
    is_refused(&broker, "no-certificate", REFUSED, |client| secure.over_mutual_tls(client)).await;
    is_refused(&broker, "untrusted-client", REFUSED, |client| {
        secure.over_mutual_tls(client);
        secure.as_client(client, "stranger-client");
    })
    .await;
    // Without TLS where the broker asks for it: the client can only guess.
    is_refused(&broker, "no-tls", "a wrong security.protocol", |client| {
        let mut over = client.clone();
        secure.over_tls(&mut over);
        client.set("bootstrap.servers", over.get("bootstrap.servers").unwrap());
    })
    .await;
    assert!(!logs.lines(&["ERROR", REFUSED, untrusted]).is_empty());
    assert_eq!(logs.lines(&["BEGIN", "KEY"]), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_asked_for_and_shown_nowhere() {
    let logs = Logs::keep();
    let test = "passwords_are_asked_for_and_shown_nowhere";
    let secure = Secure::new().unwrap();
    let Some(broker) = broker(test, &secure).await else { return };

    comes_through(&broker, "scram", |client| secure.over_sasl(client, "SCRAM-SHA-512")).await;
    comes_through(&broker, "plain", |client| secure.over_sasl(client, "PLAIN")).await;
    let wrong = format!("wrong-{}", secure.password());
    for mechanism in ["SCRAM-SHA-512", "PLAIN"] {
        is_refused(&broker, &format!("wrong-{mechanism}"), REFUSED, |client| {
            secure.over_sasl(client, mechanism);
            client.set("sasl.password", &wrong);
        })
        .await;
    }
    is_refused(&broker, "untrusted", "certificate verify failed", |client| {
        secure.over_sasl(client, "SCRAM-SHA-512");
        secure.trusting(client, "stranger");
    })
    .await;

    // What else talks to the broker does so with the same credentials.
    let (topic, letters) = (topic(&broker, "given-up").await, topic(&broker, "letters").await);
    let mut client = topic.member();
    secure.over_sasl(&mut client, "SCRAM-SHA-512");
    client.set("debug", "all");
    let builder = KafkaWorker::builder(topic.config(client).build().unwrap())
        .dead_letters(Some(DeadLetterTopic::Fixed(letters.name.clone())));
    let shown = format!("{builder:?}");
    let refuse = |_: Context| std::future::ready(Err::<(), _>(Failure::reject("no")));
    let worker = Arc::new(builder.build(MemoryStore::default(), refuse).unwrap());
    let shown = format!("{shown} {worker:?}");
    let (running, shutdown) = (worker.clone(), CancellationToken::new());
    let stop = shutdown.clone();
    let work = tokio::spawn(async move { running.run(stop).await });
    // Some of the ids are repeats.
    let all = 10 + ids_of(0..10).len();
    until("the letters", || Ok(letters.bounds(0)?.1 == all && topic.committed()? == [10])).await.unwrap();
    until("the retention", || Ok(!logs.lines(&["WARN", "keeps messages", &topic.name]).is_empty()))
        .await
        .unwrap();
    shutdown.cancel();
    work.await.unwrap().unwrap();

    // There is much to find it in.
    assert!(!logs.lines(&["librdkafka", "SASL"]).is_empty() && !logs.lines(&["ERROR", REFUSED]).is_empty());
    assert!(shown.contains("sasl.password"), "{shown}");
    for secret in [secure.password(), &wrong] {
        assert!(!shown.contains(secret));
        assert_eq!(logs.lines(&[secret]), Vec::<String>::new());
    }
}
