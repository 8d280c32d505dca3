//! Messages that are given up: nothing is lost on the way, and the handler is not run again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::collections::HashSet;

use bytes::Bytes;
use common::*;
use einmal::claim::Phase;
use einmal::worker::{Lanes, WorkerError};
use einmal::{
    Context, DeadLetterReason, DedupStore, Delivery, FailReason, Failure, IdSource, Identify,
    MissingIdPolicy, Position, Reply, StoredResult, Unsettled,
};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use futures_util::future::BoxFuture;

/// Rejects what begins with `bad`.
fn strict(
    journal: &Journal,
) -> impl Fn(Context) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static {
    let journal = journal.clone();
    move |context: Context| {
        let journal = journal.clone();
        Box::pin(async move {
            let id = context.key().id().as_str().to_owned();
            journal.note(&id);
            if id.starts_with("bad") { Err(Failure::reject("not like this")) } else { Ok(()) }
        })
    }
}

#[tokio::test]
async fn scenario_36b_killed_around_the_publish_the_letter_arrives_under_one_id_and_nothing_runs_again() {
    // Where the first worker dies: before the letter is out, after it, or before its record is stored.
    for (lanes, death) in [Lanes::Partition, Lanes::None]
        .into_iter()
        .flat_map(|lanes| ["before", "after", "unrecorded", "not confirmed"].map(|death| (lanes, death)))
    {
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let store = store(&clock);
        match death {
            "before" => letters.hang(true),
            "after" => letters.hang_after(true),
            // `Fail` is the first settle, `DeadLettered` the second.
            "unrecorded" => store.faults().at(Method::SettleMany, 2, Fault::HangBefore),
            _ => letters.fail(1),
        }
        let mut first = start(store.clone(), strict(&journal), settings(&clock, &letters), config(lanes));
        let handle = first.hand.push(delivery(7, "bad"));
        until(|| letters.tried() > 0).await;
        settle_down().await;
        assert_eq!(handle.fate(), Fate::Pending, "not settled before it is recorded: {death}");
        first.kill().await;
        letters.hang(false);
        letters.hang_after(false);
        store.faults().clear();

        let mut second = start(store.clone(), strict(&journal), settings(&clock, &letters), config(lanes));
        let again = second.hand.push(delivery(7, "bad"));
        let next = second.hand.push(delivery(8, "good"));
        assert_eq!(drive(&clock, again.wait()).await, Fate::Settled, "{death}");
        assert_eq!(drive(&clock, next.wait()).await, Fate::Settled);
        assert_eq!(journal.count("bad"), 1, "not run again: {death}");
        let arrived = letters.arrived();
        let ids: HashSet<_> = arrived.iter().map(|letter| letter.id.as_str()).collect();
        assert_eq!(ids.len(), 1, "one id: {death}");
        for letter in &arrived {
            assert_eq!(letter.attempts, 1, "also when it was published later: {death}");
        }
        let record = store.inner().get(&key("bad")).await.unwrap().unwrap();
        assert!(matches!(record.phase, Phase::Failed(failed) if failed.attempts == 1));
        let summary = second.worker.summary();
        assert_adds_up(summary);
        assert_eq!((summary.dead_lettered_without_run, summary.ran_failed), (1, 0), "{death}");
    }
}

#[tokio::test]
async fn a_dead_letter_that_is_not_confirmed_is_never_settled() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let store = store(&clock);
        letters.fail(6);
        let mut running = start(store.clone(), strict(&journal), settings(&clock, &letters), config(lanes));
        let handle = running.hand.push(delivery(0, "bad"));
        let no_id = running.hand.push(Delivery::new(Position::in_log("topic", 1, 0), None));
        let tried = async {
            until(|| letters.tried() >= 4).await;
        };
        drive(&clock, tried).await;
        assert_eq!((handle.fate(), no_id.fate()), (Fate::Pending, Fate::Pending));
        assert!(!running.worker.health().read().ready);
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        assert_eq!(drive(&clock, no_id.wait()).await, Fate::Settled);
        assert_eq!((journal.count("bad"), letters.arrived().len()), (1, 2), "{lanes:?}");
        assert!(running.worker.health().read().ready, "{lanes:?}");
    }
}

#[tokio::test]
async fn scenario_37_a_payload_that_does_not_parse_is_put_aside_and_the_consumer_goes_on() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, letters) = (ManualClock::new(), Letters::default());
        let handler = |context: Context| async move {
            let _: serde::de::IgnoredAny = context.json()?;
            Ok::<_, Failure>(())
        };
        let mut running = start(store(&clock), handler, settings(&clock, &letters), config(lanes));
        let payload = |offset, id: &str, payload: &'static str| {
            Delivery::new(delivery(offset, "").position().clone(), Some(Bytes::from(payload)))
                .with_headers(vec![header("message-id", id)])
        };
        running.hand.push(payload(0, "broken", "{\"card\": \"4111"));
        running.hand.push(payload(1, "fine", "{}"));
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
        let arrived = letters.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].delivery.payload().unwrap().as_ref(), b"{\"card\": \"4111");
        assert_eq!(arrived[0].reason.code(), "rejected");
        let detail = arrived[0].reason.detail().unwrap();
        assert!(detail.contains("line 1") && !detail.contains("4111"), "{detail}");
        let summary = running.worker.summary();
        assert_eq!((summary.ran_ok, summary.ran_failed), (1, 1));
    }
}

#[tokio::test]
async fn scenario_38_a_dead_letter_tells_everything() {
    let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
    let policy = policy().max_failures(3).build().unwrap();
    let handler = {
        let journal = journal.clone();
        move |_: Context| {
            journal.note("run");
            async { Err::<(), _>(Failure::retry_after(10 * SECOND)) }
        }
    };
    let settings = settings(&clock, &letters).policy(policy);
    let mut running = start(store(&clock), handler, settings, config(Lanes::Partition));
    let headers =
        vec![header("message-id", "dead"), header("x", "1"), header("x", "2"), ("none".into(), None)];
    let message = Delivery::new(Position::in_log("topic", 3, 41), None)
        .with_key(Some(Bytes::from("the key")))
        .with_headers(headers.clone());
    let handle = running.hand.push(message);
    let began = einmal::Clock::wall(&clock);
    assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
    let letter = letters.arrived().pop().unwrap();
    assert_eq!(letter.delivery.payload(), None, "a null payload stays null");
    assert_eq!(letter.delivery.key().unwrap().as_ref(), b"the key");
    assert_eq!(letter.delivery.headers(), headers);
    assert_eq!(letter.delivery.position(), &Position::in_log("topic", 3, 41));
    assert_eq!(letter.key, Some(key("dead")));
    assert_eq!(letter.attempts, 3);
    assert_eq!(letter.reason, DeadLetterReason::Failed(FailReason::Attempts));
    assert_eq!(letter.first_at, Some(began));
    assert!(letter.last_at.since(began) >= 20 * SECOND);
}

#[tokio::test]
async fn scenario_39_a_result_over_the_bound_is_not_kept_and_its_message_not_run_again() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal) = (ManualClock::new(), Journal::default());
        let store = store(&clock);
        let handler = {
            let journal = journal.clone();
            move |_: Context| {
                journal.note("run");
                async { Ok::<_, Failure>(Reply::bytes(vec![b'x'; 8 * 1024 + 1])) }
            }
        };
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        running.hand.push(delivery(0, "a"));
        running.hand.push(delivery(1, "a"));
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
        assert_eq!(journal.count("run"), 1, "{lanes:?}");
        let record = store.inner().get(&key("a")).await.unwrap().unwrap();
        let not_kept = StoredResult::NotKept { len: 8 * 1024 + 1 };
        assert!(matches!(record.phase, Phase::Completed(outcome) if outcome.result == not_kept));
    }
}

#[tokio::test]
async fn rule_5_another_content_under_one_id_is_loud() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let mut running = start(store(&clock), strict(&journal), settings(&clock, &letters), config(lanes));
        let with = |offset, payload: &'static str| {
            Delivery::new(delivery(offset, "").position().clone(), Some(Bytes::from(payload)))
                .with_headers(vec![header("message-id", "good")])
        };
        for (offset, payload) in [(0, "pay 1"), (1, "pay 1000"), (2, "pay 1")] {
            let handle = running.hand.push(with(offset, payload));
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        }
        assert_eq!(journal.count("good"), 1);
        let arrived = letters.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!((arrived[0].reason.code(), &arrived[0].key), ("conflict", &None));
        assert_eq!(arrived[0].delivery.payload().unwrap().as_ref(), b"pay 1000");
        let summary = running.worker.summary();
        assert_eq!((summary.ran_ok, summary.conflict, summary.duplicate), (1, 1, 1), "{lanes:?}");
    }
}

#[tokio::test]
async fn rule_7_a_message_without_an_id_is_put_aside_and_writes_nothing() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let store = store(&clock);
        let mut running = start(store.clone(), strict(&journal), settings(&clock, &letters), config(lanes));
        let bare = || Delivery::new(Position::in_log("topic", 0, 5), Some(Bytes::from("x")));
        running.hand.push(bare());
        running.hand.push(bare().with_headers(vec![header("message-id", "")]));
        running.hand.push(bare().with_headers(vec![header("message-id", "line\nfeed")]));
        running.hand.push(delivery(6, "good"));
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 4]);
        let arrived = letters.arrived();
        assert_eq!(arrived.len(), 3);
        assert!(arrived.iter().all(|letter| letter.reason.code() == "bad_id" && letter.key.is_none()));
        assert_eq!(arrived[0].id, arrived[1].id, "made of the position");
        assert_eq!(store.inner().stats().await.unwrap().keys, 1, "{lanes:?}");
        assert_eq!(running.worker.summary().rejected_before_claim, 3);
    }
}

#[tokio::test]
async fn with_the_policy_fail_a_message_without_an_id_ends_the_worker() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal) = (ManualClock::new(), Journal::default());
        let identify = Identify::new([IdSource::header("message-id")]).or(MissingIdPolicy::Fail);
        let settings = settings(&clock, &Letters::default()).identify(identify);
        let mut running = start(store(&clock), strict(&journal), settings, config(lanes));
        let handle = running.hand.push(Delivery::new(Position::in_log("topic", 0, 5), None));
        let error = drive(&clock, running.ended()).await.unwrap_err();
        assert!(matches!(error, WorkerError::Fatal(Unsettled::NoId(_))), "{error:?}");
        assert_eq!(handle.fate(), Fate::Dropped);
    }
}
