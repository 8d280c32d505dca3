//! Rule 3: look-up, decision and write are one critical section.

use std::collections::BTreeMap;
use std::sync::Arc;

use einmal::claim::{ClaimAnswer, SettleAnswer, Standing, Verb};
use einmal::{DedupStore, DedupStoreExt};
use futures_util::future::{join_all, poll_immediate};
use tokio::sync::Barrier;

use super::Harness;
use super::desk::*;

const TASKS: usize = 16;
const IDS: usize = 32;
const ROUNDS: usize = 8;

/// Scenario 7: many tasks claim the same ids at once; each id is acquired once, and all others are told that
/// it is in progress.
pub async fn claim_is_atomic<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let rounds = (0..TASKS).map(|_| (0..IDS).map(|n| vec![desk.request(&n.to_string())]).collect());
    let rounds: Vec<Vec<_>> = rounds.collect();
    count_acquired(desk.store, rounds, IDS).await;
}

/// The same with batches, each task's in another order: each id is acquired once, and no two batches wait
/// for each other for ever.
pub async fn claim_of_a_batch_is_atomic<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let batch = |round: usize, task: usize| {
        let places = (0..IDS).map(|n| (n * (2 * task + 1) + task) % IDS);
        places.map(|n| desk.request(&format!("{round} {n}"))).collect()
    };
    let rounds = (0..TASKS).map(|task| (0..ROUNDS).map(|round| batch(round, task)).collect());
    let rounds: Vec<Vec<_>> = rounds.collect();
    count_acquired(desk.store, rounds, ROUNDS * IDS).await;
}

/// Each task sends its batches one after the other; all tasks begin each of theirs together.
async fn count_acquired<S: DedupStore>(
    store: S,
    tasks: Vec<Vec<Vec<einmal::claim::ClaimRequest>>>,
    ids: usize,
) -> Arc<S> {
    let store = Arc::new(store);
    let barrier = Arc::new(Barrier::new(tasks.len()));
    let tasks = tasks.into_iter().map(|batches| {
        let (store, barrier) = (Arc::clone(&store), Arc::clone(&barrier));
        tokio::spawn(async move {
            // No panic in here: the others would wait at the barrier for ever.
            let (mut acquired, mut wrong) = (Vec::new(), Vec::new());
            for batch in batches {
                barrier.wait().await;
                for answer in store.claim_many(batch).await {
                    match answer {
                        Ok(ClaimAnswer::Acquired(claim)) => acquired.push(claim.key),
                        Ok(ClaimAnswer::InProgress { .. }) => {}
                        other => wrong.push(other),
                    }
                }
            }
            (acquired, wrong)
        })
    });
    let mut times = BTreeMap::new();
    for task in join_all(tasks).await {
        let (acquired, wrong) = task.unwrap();
        assert!(wrong.is_empty(), "expected Acquired or InProgress, not {wrong:?}");
        for key in acquired {
            *times.entry(key).or_insert(0) += 1;
        }
    }
    assert_eq!(times.len(), ids);
    let more: Vec<_> = times.into_iter().filter(|(_, times)| *times != 1).collect();
    assert_eq!(more, [], "acquired more than once");
    store
}

/// A lapsed claim is taken over by one, and charged once.
pub async fn take_over_is_atomic<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let ids: Vec<String> = (0..IDS).map(|n| n.to_string()).collect();
    let claims = desk.store.claim_many(ids.iter().map(|id| desk.starting(id)).collect()).await;
    claims.into_iter().for_each(|claim| drop(acquired(claim.unwrap())));
    desk.lapse().await;
    let rounds = (0..TASKS).map(|_| ids.iter().map(|id| vec![desk.request(id)]).collect());
    let rounds: Vec<Vec<_>> = rounds.collect();
    let store = count_acquired(desk.store, rounds, IDS).await;
    for id in ids {
        let record = store.get(&key("scope", &id)).await.unwrap().unwrap();
        assert_eq!(record.counters.interruptions, 1);
    }
}

/// A completion sent many times at once is applied once and answered alike.
pub async fn same_settle_at_once<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claims = [desk.start("completed").await, desk.start("failed").await];
    let verbs = [complete("r"), retry(desk.delay())];
    let store = Arc::new(desk.store);
    for (claim, verb) in claims.iter().zip(verbs) {
        let tasks = (0..TASKS).map(|_| {
            let (store, claim, verb) = (Arc::clone(&store), claim.clone(), verb.clone());
            tokio::spawn(async move { store.settle(&claim, verb).await.unwrap() })
        });
        for answer in join_all(tasks).await {
            let standing = applied(answer.unwrap());
            assert!(matches!(standing, Standing::Completed | Standing::Released { .. }), "{standing:?}");
        }
    }
    let failed = store.get(&key("scope", "failed")).await.unwrap().unwrap();
    assert_eq!(failed.counters.failures, 1);
}

/// Of a completion and a release of one claim, sent at once, one is applied and the other refused.
pub async fn two_settles_at_once_have_one_winner<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    for n in 0..IDS {
        let claim = desk.start(&n.to_string()).await;
        let (done, free) = tokio::join!(desk.settle(&claim, complete("r")), desk.settle(&claim, release()));
        let applied = |answer: &SettleAnswer| matches!(answer, SettleAnswer::Applied(_));
        assert!(applied(&done) != applied(&free), "{done:?} and {free:?}");
        let phase = desk.phase(&n.to_string()).await;
        assert_eq!(phase, if applied(&done) { "completed" } else { "released" });
    }
}

/// Scenario 7, for stores that several processes share: what one has claimed is in progress for the other.
pub async fn two_processes_share_one_claim<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let another = harness.another(&desk.store).await;
    assert_eq!(another.is_some(), desk.store.capabilities().shared, "a shared store is opened twice");
    let Some(other) = another else { return };
    let claim = desk.start("m").await;
    in_progress(other.claim(desk.request("m")).await.unwrap());
    desk.apply(&claim, complete("r")).await;
    completed(other.claim(desk.request("m")).await.unwrap());
    let ids = 0..IDS;
    let batches = || ids.clone().map(|n| desk.request(&format!("both {n}"))).collect::<Vec<_>>();
    let (ours, theirs) = tokio::join!(desk.store.claim_many(batches()), other.claim_many(batches()));
    for (ours, theirs) in ours.into_iter().zip(theirs) {
        let got = |answer| matches!(answer, ClaimAnswer::Acquired(_));
        assert!(got(ours.unwrap()) != got(theirs.unwrap()));
    }
}

/// A call that is dropped at any point, as by a time-out, leaves no key that can't be claimed once the lease
/// has ended, and no half of a settle.
pub async fn dropped_call_leaves_no_stuck_key<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    for polls in 0..6 {
        let id = format!("claim {polls}");
        let mut call = desk.store.claim(desk.request(&id));
        for _ in 0..polls {
            if poll_immediate(&mut call).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        desk.lapse().await;
        let claim = desk.start(&id).await;

        let mut call = desk.store.settle(&claim, complete("r"));
        for _ in 0..polls {
            if poll_immediate(&mut call).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        // Sent again it is applied, whether or not it was before.
        assert_eq!(desk.apply(&claim, complete("r")).await, Standing::Completed);
        completed(desk.claim(&id).await);
        assert!(matches!(desk.settle(&claim, Verb::Renew).await, SettleAnswer::Refused(_)));
    }
}
