//! What operators see: the counters add up, and what does not move is told.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::seen::mixed;
use common::*;
use einmal::worker::{Lanes, Limits, WorkerConfig};
use einmal::{Delivery, Position};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[tokio::test]
async fn scenario_41_the_counters_add_up() {
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let recorder = DebuggingRecorder::new();
        let seen = recorder.snapshotter();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let (clock, doors, letters) = (ManualClock::new(), Doors::default(), Letters::default());
        let store = store(&clock);
        store.faults().seeded(1, 0.1, &Fault::ALL);
        letters.fail(3);
        doors.close("held0");
        let limits = Limits { handlers: 4, deliveries: 40, ..Limits::default() };
        let settings_of = || settings(&clock, &letters);
        let mut running = start(store.clone(), mixed(&doors), settings_of(), with_limits(lanes, limits));
        let kinds = ["ok", "retry", "fails", "reject", "park", "ignore", "panic", "slow", "long", "ok"];
        let mut handles = Vec::new();
        for round in 0..2 {
            for (offset, kind) in (0..).zip(kinds) {
                let message = |id: &str, payload: &str| {
                    Delivery::new(
                        Position::in_log("topic", offset % 3, i64::from(offset + 20 * round)),
                        Some(Bytes::copy_from_slice(payload.as_bytes())),
                    )
                    .with_key(Some(Bytes::copy_from_slice(id.as_bytes())))
                    .with_headers(vec![header("message-id", id)])
                };
                let id = format!("{kind}{offset}");
                handles.push(running.hand.push(message(&id, "content")));
                if offset == 0 {
                    handles.push(running.hand.push(message(&id, "another content")));
                }
                if offset == 1 {
                    handles.push(running.hand.push(message("", "no id")));
                }
            }
        }
        for handle in &handles {
            drive(&clock, async {
                // At every moment, not only in the end.
                assert_adds_up(running.worker.summary());
                handle.wait().await
            })
            .await;
        }
        // A stop leaves the rest unsettled: one runs past the time to drain, others wait for it or behind it.
        store.faults().clear();
        let held = running.hand.push(delivery(100, "held0"));
        let copies = [running.hand.push(delivery(101, "held0")), running.hand.push(delivery(102, "held0"))];
        drive(&clock, running.hand.wait_taken(handles.len() + 3)).await;
        settle_down().await;
        running.shutdown.cancel();
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_adds_up(summary);
        assert_eq!((held.fate(), summary.in_flight), (Fate::Dropped, 0));
        assert!(copies.iter().all(|copy| copy.fate() == Fate::Dropped));
        assert_eq!((summary.received, summary.unsettled), (handles.len() as u64 + 3, 3), "{lanes:?}");
        assert_eq!((summary.conflict, summary.rejected_before_claim, summary.ignored), (2, 2, 2));
        // ok, retry, long, ok and, once it is not pending any more, slow.
        assert_eq!((summary.ran_ok, summary.duplicate), (5, 9), "{lanes:?}");
        let given_up = summary.ran_failed + summary.parked + summary.dead_lettered_without_run;
        assert_eq!(given_up, 4, "{summary:?}");

        // The metrics say the same.
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for (key, _, _, value) in seen.snapshot().into_vec() {
            if let DebugValue::Counter(count) = value {
                let answer = key.key().labels().find(|label| label.key() == "answer");
                let answer = answer.map(|label| label.value().to_owned()).unwrap_or_default();
                *counted.entry(format!("{}{answer}", key.key().name())).or_default() += count;
            }
        }
        assert_eq!(counted["einmal_received_total"], summary.received);
        assert_eq!(counted["einmal_answered_totalran_ok"], summary.ran_ok);
        assert_eq!(counted["einmal_answered_totalunsettled"], 3);
        let answered = counted.iter().filter(|(name, _)| name.starts_with("einmal_answered")).map(|(_, n)| n);
        assert_eq!(answered.sum::<u64>(), summary.received, "one final answer a delivery");
    }
}

/// Also while the store keeps whoever purges it waiting.
#[tokio::test]
async fn what_does_not_move_is_told_while_the_purge_hangs() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = store(&clock);
    (1..=100).for_each(|nth| store.faults().at(Method::PurgeExpired, nth, Fault::HangBefore));
    doors.close("stuck");
    let config = WorkerConfig { stalled_after: 60 * SECOND, ..config(Lanes::None) };
    let settings = settings(&clock, &Letters::default());
    let mut running = start(store.clone(), gated(&journal, &doors), settings, config);
    let handle = running.hand.push(delivery(7, "stuck"));
    journal.wait_count("run stuck", 1).await;
    pass(&clock, 50 * SECOND).await;
    assert!(running.worker.health().read().ready, "not yet");
    pass(&clock, 40 * SECOND).await;
    let health = running.worker.health().read();
    assert!(health.live && !health.ready, "{health:?}");
    assert!(health.reasons[0].contains("@7 has been in flight for"), "{health:?}");
    doors.open("stuck");
    assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
    pass(&clock, 30 * SECOND).await;
    assert!(running.worker.health().read().ready);
    assert!(store.faults().injected(Method::PurgeExpired, Fault::HangBefore) > 1, "it is asked again");
}
