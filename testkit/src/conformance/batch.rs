//! Batches, and the ordered groups in them.

use einmal::claim::{ClaimAnswer, ClaimRequest, Refusal, SettleAnswer, Standing, Verb};
use einmal::{DedupStore, StoreErrorKind};

use super::Harness;
use super::desk::*;

/// One answer an item, in the items' order; also of none.
pub async fn batch_answers_in_order<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    assert_eq!(desk.store.claim_many(vec![]).await.len(), 0);
    assert_eq!(desk.store.settle_many(vec![]).await.len(), 0);
    desk.done("completed", "r").await;
    desk.bury("failed").await;
    desk.start("live").await;
    let waiting = desk.start("waiting").await;
    desk.apply(&waiting, retry(desk.delay())).await;
    desk.send(desk.with_content("content", "mine")).await;
    let ids = ["new", "completed", "live", "failed", "waiting", "newer"];
    let mut requests: Vec<ClaimRequest> = ids.iter().map(|id| desk.request(id)).collect();
    requests.push(desk.with_content("content", "other"));
    let answers: Vec<ClaimAnswer> =
        desk.store.claim_many(requests).await.into_iter().map(Result::unwrap).collect();
    let [new, done, live, buried, waiting, newer, content] = answers.try_into().unwrap();
    let (new, newer) = (acquired(new), acquired(newer));
    assert_eq!((new.key.id().as_str(), newer.key.id().as_str()), ("new", "newer"));
    completed(done);
    in_progress(live);
    failed(buried);
    not_yet(waiting);
    assert_eq!(content, ClaimAnswer::Conflict);

    let settles = vec![
        settle_request(&newer, complete("r"), None),
        settle_request(&new, Verb::DeadLettered, None),
        settle_request(&new, retry(desk.delay()), None),
    ];
    let answers: Vec<SettleAnswer> =
        desk.store.settle_many(settles).await.into_iter().map(Result::unwrap).collect();
    let [first, second, third] = answers.try_into().unwrap();
    assert_eq!(applied(first), Standing::Completed);
    assert_eq!(refused(second), Refusal::AlreadyEnded);
    released(applied(third));
}

/// The same key twice in a batch is handled as two calls, in their order.
pub async fn same_key_twice_in_a_batch<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let request = desk.request("m");
    let batch = vec![request.clone(), desk.request("m"), request, desk.request("m")];
    let answers: Vec<ClaimAnswer> =
        desk.store.claim_many(batch).await.into_iter().map(Result::unwrap).collect();
    let [first, second, third, fourth] = answers.try_into().unwrap();
    let claim = acquired(first);
    in_progress(second);
    assert_eq!(acquired(third), claim, "the same call again");
    in_progress(fourth);

    let verbs = [Verb::Renew, complete("r"), complete("r"), retry(desk.delay()), Verb::Renew];
    let batch = verbs.into_iter().map(|verb| settle_request(&claim, verb, None)).collect();
    let answers: Vec<SettleAnswer> =
        desk.store.settle_many(batch).await.into_iter().map(Result::unwrap).collect();
    let ended = SettleAnswer::Refused(Refusal::AlreadyEnded);
    let done = SettleAnswer::Applied(Standing::Completed);
    let held = SettleAnswer::Applied(Standing::Held);
    assert_eq!(answers, [held, done.clone(), done, ended.clone(), ended]);
}

fn grouped(mut request: ClaimRequest, group: u32) -> ClaimRequest {
    request.group = Some(group);
    request
}

/// After the first item of a group that must wait, the rest of the group is not claimed and not looked at;
/// other groups, and items without one, go on.
pub async fn group_stops_claims<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.start("live").await;
    let waiting = desk.start("waiting").await;
    desk.apply(&waiting, retry(desk.delay())).await;
    let owing = desk.owe("owed").await;
    desk.apply(&owing, release()).await;
    for stop in ["live", "waiting", "owed"] {
        let id = |name: &str| format!("{stop} {name}");
        let batch = vec![
            grouped(desk.request(&id("a1")), 1),
            grouped(desk.request(stop), 1),
            grouped(desk.request(&id("b1")), 2),
            grouped(desk.request(&id("a2")), 1),
            desk.request(&id("free")),
            grouped(desk.request(&id("a3")), 1),
            grouped(desk.request(&id("b2")), 2),
        ];
        let answers: Vec<ClaimAnswer> =
            desk.store.claim_many(batch).await.into_iter().map(Result::unwrap).collect();
        let [a1, _, b1, a2, free, a3, b2] = answers.try_into().unwrap();
        for answer in [a1, b1, free, b2] {
            acquired(answer);
        }
        assert_eq!((a2, a3), (ClaimAnswer::Behind, ClaimAnswer::Behind), "{stop}");
        assert_eq!(desk.phase(&id("a2")).await, "absent", "{stop}");
    }
}

/// What is decided does not stop its group: a lane goes on past outcomes and conflicts.
pub async fn outcomes_do_not_stop_a_group<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.done("completed", "r").await;
    desk.bury("failed").await;
    let claim = acquired(desk.send(desk.with_content("content", "mine")).await);
    desk.apply(&claim, complete("r")).await;
    let batch = vec![
        grouped(desk.request("completed"), 1),
        grouped(desk.request("failed"), 1),
        grouped(desk.with_content("content", "other"), 1),
        grouped(desk.request("new"), 1),
    ];
    let mut answers: Vec<ClaimAnswer> =
        desk.store.claim_many(batch).await.into_iter().map(Result::unwrap).collect();
    acquired(answers.pop().unwrap());
    assert_eq!(answers.pop(), Some(ClaimAnswer::Conflict));
}

/// After the first settle of a group that is refused, the rest of the group is refused as `Behind` and not
/// applied.
pub async fn group_stops_settles<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let stale = desk.start("stale").await;
    desk.lapse().await;
    desk.start("stale").await;
    let [one, two, three, other, free] = [
        desk.start("1").await,
        desk.start("2").await,
        desk.start("3").await,
        desk.start("o").await,
        desk.start("f").await,
    ];
    let batch = vec![
        settle_request(&one, complete("r"), Some(1)),
        settle_request(&stale, complete("r"), Some(1)),
        settle_request(&two, complete("r"), Some(1)),
        settle_request(&other, complete("r"), Some(2)),
        settle_request(&free, complete("r"), None),
        settle_request(&three, retry(desk.delay()), Some(1)),
    ];
    let answers: Vec<SettleAnswer> =
        desk.store.settle_many(batch).await.into_iter().map(Result::unwrap).collect();
    let [first, second, third, fourth, fifth, sixth] = answers.try_into().unwrap();
    assert_eq!(refused(second), Refusal::TakenOver);
    assert_eq!((refused(third), refused(sixth)), (Refusal::Behind, Refusal::Behind));
    for answer in [first, fourth, fifth] {
        assert_eq!(applied(answer), Standing::Completed);
    }
    in_progress(desk.claim("2").await);
    assert_eq!(desk.record("3").await.unwrap().counters.failures, 0);
    assert_eq!(desk.apply(&two, complete("r")).await, Standing::Completed, "it is still held");
}

/// Scenario 32: a record that can't be read fails its own key, with a typed error, again and again; it stays,
/// and stops no other item of the batch, except those of its group.
pub async fn undecodable_record_fails_alone<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.done("bad", "r").await;
    desk.done("good", "r").await;
    if !harness.damage(&desk.store, &key("scope", "bad")).await {
        return;
    }
    for round in 0..2 {
        let id = |name: &str| format!("{name} {round}");
        let batch = vec![
            desk.request("good"),
            grouped(desk.request("bad"), 1),
            desk.request(&id("new")),
            grouped(desk.request(&id("behind")), 1),
        ];
        let [good, bad, new, behind] = desk.store.claim_many(batch).await.try_into().unwrap();
        completed(good.unwrap());
        assert_eq!(bad.unwrap_err().kind(), StoreErrorKind::Undecodable);
        acquired(new.unwrap());
        assert_eq!(behind.unwrap(), ClaimAnswer::Behind);
        let read = desk.store.get(&key("scope", "bad")).await;
        assert_eq!(read.unwrap_err().kind(), StoreErrorKind::Undecodable);
    }
}
