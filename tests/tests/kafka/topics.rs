//! Topics whose logs are not simply one message after the other, on the real broker.

use std::time::Duration;

use einmal::{Context, Failure, IdSource, Identify, MemoryStore};
use einmal_kafka::{KafkaConfig, KafkaWorker};
use einmal_tests::kafka::{PATIENCE, Special, Topic, options, send, until};
use einmal_tests::kafka_worker::{Running, Runs, ids_of, sorted};
use rdkafka::admin::NewPartitions;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Message, Offset, TopicPartitionList};

fn start(topic: &Topic, identify: Identify) -> (Running, Runs) {
    let config = topic.config(topic.member()).build().unwrap();
    Running::counting(KafkaWorker::builder(config).identify(identify)).unwrap()
}

fn by_header(topic: &Topic) -> (Running, Runs) {
    Running::by_header(topic).unwrap()
}

#[tokio::test]
async fn scenario_13_the_holes_of_a_compacted_topic_are_passed() {
    let settings = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("segment.ms", "200"),
        ("delete.retention.ms", "0"),
    ];
    let test = "scenario_13_the_holes_of_a_compacted_topic_are_passed";
    let Some(topic) = Topic::for_test(test, 1, &settings).await.unwrap() else { return };
    // One batch a send, so that a segment can end between them.
    let mut sent = 0;
    until("holes", || {
        let producer: ThreadedProducer<DefaultProducerContext> = topic.client().create()?;
        // What is there once stays where it is, and what is written again leaves holes between.
        let once = format!("once-{sent}");
        for key in ["a", "b", "c", "d", &once] {
            let payload = format!("{key}{sent}");
            let record = BaseRecord::to(&topic.name).partition(0).key(key).payload(&payload);
            producer.send(record).map_err(|(error, _)| error)?;
            sent += 1;
        }
        producer.flush(PATIENCE)?;
        let left: Vec<_> = topic.read(&topic.name)?.iter().map(Message::offset).collect();
        Ok(sent >= 40 && left.len() + 20 < sent && left.windows(2).any(|two| two[1] > two[0] + 1))
    })
    .await
    .unwrap();
    let (worker, runs) = start(&topic, Identify::new([IdSource::Position]));
    worker.until_committed(&topic, &[sent]).await.unwrap();
    let ran = runs.once().unwrap().len();
    assert!(ran < sent, "{ran} of {sent}");
    println!("{ran} of {sent} messages were left, and all is committed");
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn scenario_13_aborted_transactions_are_not_seen_and_markers_are_passed() {
    let test = "scenario_13_aborted_transactions_are_not_seen_and_markers_are_passed";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let mut client = topic.client();
    client.set("transactional.id", &topic.name);
    let producer: ThreadedProducer<DefaultProducerContext> = client.create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    let transaction = |numbers: std::ops::Range<usize>, commit: bool| {
        producer.begin_transaction().unwrap();
        for number in numbers {
            send(&producer, &topic.name, 0, number, "").unwrap();
        }
        // Else an abort would take them out of the producer's queue.
        producer.flush(PATIENCE).unwrap();
        let end =
            if commit { producer.commit_transaction(PATIENCE) } else { producer.abort_transaction(PATIENCE) };
        end.unwrap();
    };
    // No two of these numbers have one id: their originals are aborted, or are none.
    transaction(0..3, true);
    transaction(100..103, false);
    transaction(200..203, true);
    let (worker, runs) = by_header(&topic);
    // 3 and a marker, 3 aborted and a marker, 3 and a marker.
    worker.until_committed(&topic, &[11]).await.unwrap();
    transaction(300..303, false);
    transaction(400..403, true);
    worker.until_committed(&topic, &[19]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of((0..3).chain(200..203).chain(400..403)));
    assert_eq!(topic.bounds(0).unwrap(), (0, 20), "the last is a marker, which nobody delivers");
    worker.stop().await.unwrap();
    // Nothing but markers is left: a new member of the group finds no work and does not move the offset.
    let (worker, runs) = by_header(&topic);
    transaction(500..503, true);
    worker.until_committed(&topic, &[23]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of(500..503));
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn partitions_that_are_added_are_read_from_their_beginning() {
    let test = "partitions_that_are_added_are_read_from_their_beginning";
    let Some(mut topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..10).unwrap();
    let (worker, runs) = by_header(&topic);
    worker.until_committed(&topic, &[10]).await.unwrap();
    let more = NewPartitions::new(&topic.name, 4);
    topic.admin().unwrap().create_partitions([&more], &options()).await.unwrap();
    topic.partitions = 4;
    // They get messages before the member knows of them.
    topic.produce(100..200).unwrap();
    worker.until_committed(&topic, &[35, 25, 25, 25]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of((0..10).chain(100..200)));
    worker.stop().await.unwrap();
}

async fn delete_before(topic: &Topic, offset: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic.name, 0, Offset::Offset(offset)).unwrap();
    topic.admin().unwrap().delete_records(&list, &options()).await.unwrap();
}

#[tokio::test]
async fn scenario_12_a_committed_offset_below_the_log_start() {
    let test = "scenario_12_a_committed_offset_below_the_log_start";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..10).unwrap();
    let (worker, _) = by_header(&topic);
    worker.until_committed(&topic, &[10]).await.unwrap();
    worker.stop().await.unwrap();
    topic.produce(10..100).unwrap();
    delete_before(&topic, 50).await;
    assert_eq!(topic.bounds(0).unwrap(), (50, 100));

    let (worker, runs) = by_header(&topic);
    worker.until_committed(&topic, &[100]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of(50..100));
    // And while it reads.
    delete_before(&topic, 100).await;
    topic.produce(100..110).unwrap();
    worker.until_committed(&topic, &[110]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of(50..110));
    worker.stop().await.unwrap();
}

/// The new topic has more messages than the old one, so that an offset of the old one lies within it.
///
/// The member must have seen that the topic is gone: one that is made again between two looks of the client is
/// read on from the old offset, without a word of the client.
#[tokio::test]
async fn a_topic_that_was_seen_to_go_is_read_from_the_beginning_of_the_next_one() {
    let test = "a_topic_that_was_seen_to_go_is_read_from_the_beginning_of_the_next_one";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..20).unwrap();
    let (worker, runs) = by_header(&topic);
    worker.until_committed(&topic, &[20]).await.unwrap();
    topic.admin().unwrap().delete_topics(&[&topic.name], &options()).await.unwrap();
    until("a word of the client", || Ok(!worker.worker().health().read().ready)).await.unwrap();
    println!("{:?}", worker.worker().health().read());
    topic.make(&[]).await.unwrap();
    topic.produce(1_000..1_050).unwrap();
    worker.until_committed(&topic, &[50]).await.unwrap();
    assert_eq!(runs.once().unwrap(), sorted(ids_of(0..20).into_iter().chain(ids_of(1_000..1_050))));
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_topic_that_is_made_again_while_no_member_runs_is_read_from_its_beginning() {
    let test = "a_topic_that_is_made_again_while_no_member_runs_is_read_from_its_beginning";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..20).unwrap();
    let (worker, _) = by_header(&topic);
    worker.until_committed(&topic, &[20]).await.unwrap();
    worker.stop().await.unwrap();
    topic.admin().unwrap().delete_topics(&[&topic.name], &options()).await.unwrap();
    topic.make(&[]).await.unwrap();
    topic.produce(1_000..1_050).unwrap();
    let (worker, runs) = by_header(&topic);
    worker.until_committed(&topic, &[50]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of(1_000..1_050));
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn messages_of_one_mebibyte_come_through() {
    let settings = [("max.message.bytes", "2000000"), ("segment.bytes", "16000000")];
    let test = "messages_of_one_mebibyte_come_through";
    let Some(topic) = Topic::for_test(test, 2, &settings).await.unwrap() else { return };
    let more = "x".repeat(1 << 20);
    topic.produce_with(&topic.client(), 0..40, &more).unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |context: Context| {
            assert!(context.payload().len() > 1 << 20);
            runs.note(context.key().id().as_str());
            std::future::ready(Ok::<(), Failure>(()))
        }
    };
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap()).dead_letters(None);
    let worker = Running::start(worker.build(MemoryStore::default(), handler).unwrap());
    worker.until_committed(&topic, &[20, 20]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of(0..40));
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn compressed_messages_come_through() {
    let test = "compressed_messages_come_through";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let codecs = ["gzip", "snappy", "lz4"];
    for (turn, codec) in codecs.iter().enumerate() {
        let mut client = topic.client();
        client.set("compression.type", *codec).set("linger.ms", "20");
        topic.produce_with(&client, turn * 1_000..turn * 1_000 + 500, &" as before".repeat(20)).unwrap();
    }
    let (worker, runs) = by_header(&topic);
    worker.until_committed(&topic, &[1_500]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of((0..500).chain(1_000..1_500).chain(2_000..2_500)));
    worker.stop().await.unwrap();
}

/// Beside one that is, and for longer than the client speaks of it.
#[tokio::test]
async fn a_topic_that_is_not_there_is_said_until_it_is() {
    let test = "a_topic_that_is_not_there_is_said_until_it_is";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let missing = Topic::create(topic.brokers.clone(), test, 1, &[]).await.unwrap();
    missing.admin().unwrap().delete_topics(&[&missing.name], &options()).await.unwrap();
    until("the end of the other topic", || Ok(missing.bounds(0).is_err())).await.unwrap();
    topic.produce(0..10).unwrap();
    let config = topic.config(topic.member()).topics([&missing.name]).build().unwrap();
    let (worker, runs) = Running::counting(KafkaWorker::builder(config)).unwrap();
    worker.until_committed(&topic, &[10]).await.unwrap();
    let said = worker.until_trouble(&missing.name).await.unwrap();
    println!("{said}");
    // What works says nothing of what does not.
    topic.produce(10..20).unwrap();
    worker.until_committed(&topic, &[20]).await.unwrap();
    worker.until_trouble(&missing.name).await.unwrap();
    missing.make(&[]).await.unwrap();
    missing.produce(1_000..1_010).unwrap();
    worker.until("good health", || Ok(worker.worker().health().read().ready)).await.unwrap();
    let all = ids_of((0..20).chain(1_000..1_010));
    worker.until("the other topic", || Ok(runs.once()? == all)).await.unwrap();
    worker.stop().await.unwrap();
}

/// The letters' own topic has a name that the pattern likes.
#[tokio::test]
async fn letters_that_a_pattern_finds_do_not_become_letters_again() {
    let test = "letters_that_a_pattern_finds_do_not_become_letters_again";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let letters = topic.dead_letters().await.unwrap();
    topic.send(&[Special { payload: Some(b"no id"), ..Special::default() }]).unwrap();
    let pattern = format!("^{}.*", topic.name);
    let config = KafkaConfig::builder(topic.member()).topics([pattern]).drain(Duration::from_secs(3));
    let handler = |_: Context| std::future::ready(Ok::<(), Failure>(()));
    let worker = KafkaWorker::builder(config.build().unwrap()).build(MemoryStore::default(), handler);
    let worker = Running::start(worker.unwrap());
    worker.until_trouble("leave it out of the pattern").await.unwrap();
    worker.until_committed(&topic, &[1]).await.unwrap();
    assert_eq!(topic.read(&letters).unwrap().len(), 1);
    worker.stop().await.unwrap();
}
