//! Completion: the outcome answers every repeat.

use bytes::Bytes;
use einmal::claim::{Refusal, Standing, Verb};
use einmal::{DedupStore, StoredResult};

use super::Harness;
use super::desk::*;

/// A repeat gets the result as it was, byte for byte, with the attempt that made it.
pub async fn completed_answers_with_its_result<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    let result = Bytes::from_static(b"\0\xff result\n");
    let verb = Verb::Complete { result: Some(result.clone()) };
    assert_eq!(desk.apply(&claim, verb).await, Standing::Completed);
    let outcome = completed(desk.claim("m").await);
    assert_eq!((outcome.result, outcome.attempt), (StoredResult::Kept(result), 1));
    assert!(outcome.at >= claim.first_at);
    assert_eq!(desk.phase("m").await, "completed");
}

/// No result is not the same as an empty one.
pub async fn no_result_and_an_empty_one_differ<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let none = desk.start("none").await;
    desk.apply(&none, Verb::Complete { result: None }).await;
    desk.done("empty", "").await;
    assert_eq!(completed(desk.claim("none").await).result, StoredResult::None);
    assert_eq!(completed(desk.claim("empty").await).result, StoredResult::Kept(Bytes::new()));
}

/// A completed key never runs again before its retention ends, whoever asks and however often.
pub async fn completed_never_runs_again<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.done("m", "r").await;
    for _ in 0..8 {
        completed(desk.claim("m").await);
        completed(desk.send(desk.starting("m")).await);
        desk.advance(desk.rules.retention / 10).await;
    }
    completed(desk.claim("m").await);
}

/// A settle that is sent again, because its answer was lost, is answered as the first, and has one effect.
pub async fn same_settle_again<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let delay = desk.delay();
    let verbs =
        [complete("r"), retry(delay), reject("no"), Verb::Release { delay }, release(), retry(delay / 2)];
    for (n, verb) in verbs.into_iter().enumerate() {
        let id = n.to_string();
        let claim = desk.start(&id).await;
        let first = desk.apply(&claim, verb.clone()).await;
        let before = desk.record(&id).await;
        let again = desk.apply(&claim, verb.clone()).await;
        assert_eq!(kind(&again), kind(&first), "{verb:?}");
        let after = desk.record(&id).await;
        assert_eq!(
            after.as_ref().map(|r| (r.counters, r.phase_name())),
            before.as_ref().map(|r| (r.counters, r.phase_name())),
            "{verb:?}"
        );
    }
    let claim = desk.bury("buried").await;
    assert_eq!(desk.apply(&claim, Verb::DeadLettered).await, Standing::DeadLettered);
    let claim = desk.owe("owed").await;
    desk.apply(&claim, release()).await;
    assert!(matches!(desk.apply(&claim, release()).await, Standing::OwedUnclaimed(_)));
}

/// Without the times, of which a server's have moved on.
fn kind(standing: &Standing) -> String {
    match standing {
        Standing::Released { until, .. } => format!("released until {until:?}"),
        other => format!("{other:?}"),
    }
}

/// The failure that reaches the limit, sent again, is counted once and answered as owed both times.
pub async fn last_failure_again<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = super::fail::fail_times(&desk, "m", desk.rules.max_failures - 1).await;
    let first = desk.apply(&claim, retry(desk.delay())).await;
    assert_eq!(desk.apply(&claim, retry(desk.delay())).await, first);
    assert_eq!(desk.record("m").await.unwrap().counters.failures, desk.rules.max_failures);
}

/// A second completion with another result is not the same call: it is refused, and the first result stays.
pub async fn other_completion_is_refused<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.done("m", "first").await;
    assert_eq!(desk.refuse(&claim, complete("second")).await, Refusal::AlreadyEnded);
    assert_eq!(desk.refuse(&claim, Verb::Complete { result: None }).await, Refusal::AlreadyEnded);
    assert_eq!(completed(desk.claim("m").await).result.bytes().unwrap(), "first");
}

/// A claim that has completed can do nothing else any more.
pub async fn completed_claim_has_ended<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.done("m", "r").await;
    let before = desk.record("m").await;
    for verb in [retry(desk.delay()), reject("no"), release(), Verb::Started, Verb::DeadLettered] {
        assert_eq!(desk.refuse(&claim, verb.clone()).await, Refusal::AlreadyEnded, "{verb:?}");
    }
    assert_eq!(desk.record("m").await, before);
}

/// Scenario 39: a result up to the store's bound is kept; a longer one is not, but the operation is done,
/// never run again, and the repeats are told.
pub async fn result_over_the_bound_is_not_kept<H: Harness>(harness: &H) {
    let mut desk = Desk::open(harness).await;
    let max = desk.store.capabilities().max_value;
    let (fits, too_long) = (Bytes::from(vec![7; max]), Bytes::from(vec![7; max + 1]));
    for (id, result) in [("fits", &fits), ("too long", &too_long)] {
        let claim = desk.start(id).await;
        let verb = Verb::Complete { result: Some(result.clone()) };
        assert_eq!(desk.apply(&claim, verb.clone()).await, Standing::Completed);
        assert_eq!(desk.apply(&claim, verb).await, Standing::Completed, "sent again");
    }
    assert_eq!(completed(desk.claim("fits").await).result, StoredResult::Kept(fits));
    let not_kept = StoredResult::NotKept { len: too_long.len() as u64 };
    assert_eq!(completed(desk.claim("too long").await).result, not_kept);

    // The rules' own bound counts too, where it is the lower one.
    desk.rules.max_result = 3;
    for (id, kept) in [("123", true), ("1234", false)] {
        let claim = desk.start(id).await;
        desk.apply(&claim, Verb::Complete { result: Some(Bytes::from(id)) }).await;
        assert_eq!(completed(desk.claim(id).await).result.bytes().is_some(), kept);
    }
}
