//! What survives when the process dies without a word. The child is this test binary again.
#![cfg(feature = "sled")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use einmal::claim::{
    Claim, ClaimAnswer, ClaimRequest, Rules, SettleAnswer, SettleRequest, Stage, Token, Verb,
};
use einmal::{
    DedupKey, DedupStore, DedupStoreExt, FailReason, MessageId, Scope, SledConfig, SledStore,
    TransactionalStore, TxAnswer,
};

const ROLE: &str = "EINMAL_TEST_ROLE";
const PATH: &str = "EINMAL_TEST_PATH";
const GROUP: u32 = 20;

fn key(id: impl ToString) -> DedupKey {
    DedupKey::new(Scope::new("orders").unwrap(), MessageId::new(id.to_string()).unwrap())
}

fn request(key: DedupKey) -> ClaimRequest {
    let hour = Duration::from_secs(3600);
    let rules = Rules {
        lease: hour,
        retention: 24 * hour,
        max_failures: 5,
        max_crashes: 2,
        max_delay: hour,
        max_result: 99,
    };
    ClaimRequest { key, token: Token::random(), fingerprint: None, rules, started: true, group: None }
}

async fn open(path: &Path) -> SledStore {
    SledStore::open(SledConfig::new(path).unwrap()).await.unwrap()
}

async fn acquire(store: &SledStore, id: impl ToString) -> Claim {
    match store.claim(request(key(id))).await.unwrap() {
        ClaimAnswer::Acquired(claim) => claim,
        other => panic!("{other:?}"),
    }
}

async fn is_completed(store: &SledStore, id: &str) -> bool {
    matches!(store.claim(request(key(id))).await.unwrap(), ClaimAnswer::Completed(_))
}

fn child(role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_child", "--nocapture"]).env(ROLE, role).env(PATH, path);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Runs a child that aborts by itself.
fn run_to_its_death(role: &str, path: &Path) -> Vec<String> {
    let output = child(role, path).output().unwrap();
    assert!(!output.status.success(), "it was to die");
    acknowledged(output.stdout.lines().map(Result::unwrap))
}

/// Kills a child once it has acknowledged `enough`, and gives everything that it did acknowledge.
fn run_and_kill(role: &str, path: &Path, enough: usize) -> Vec<String> {
    let mut child = child(role, path).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    while said.len() < enough {
        said.push(lines.next().expect("it goes on until it is killed"));
    }
    child.kill().unwrap();
    said.extend(lines);
    child.wait().unwrap();
    acknowledged(said.into_iter())
}

fn acknowledged(lines: impl Iterator<Item = String>) -> Vec<String> {
    lines.filter_map(|line| line.strip_prefix("did ").map(str::to_owned)).collect()
}

fn acknowledge(what: &str) {
    let mut out = std::io::stdout().lock();
    // One write: the last line must not be half a line.
    out.write_all(format!("did {what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_child() {
    let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(PATH)) else { return };
    println!();
    let store = open(Path::new(&path)).await;
    match role.as_str() {
        "complete one" => {
            let claim = acquire(&store, "one").await;
            store.complete(&claim, None).await.unwrap();
            std::process::abort();
        }
        "start and die" => {
            let claim = acquire(&store, "poison").await;
            if claim.alone {
                store.started(&claim).await.unwrap();
            }
            acknowledge(&format!("{} {}", claim.counters.interruptions, claim.alone));
            std::process::abort();
        }
        "complete many" => {
            forever(move |id| {
                let store = store.clone();
                async move {
                    let claim = acquire(&store, &id).await;
                    assert!(matches!(store.complete(&claim, None).await, Ok(SettleAnswer::Applied(_))));
                }
            })
            .await;
        }
        "commit many" => {
            forever(move |id| {
                let store = store.clone();
                async move {
                    let claim = acquire(&store, &id).await;
                    let mut tx = store.begin(&claim).await.unwrap();
                    tx.put("by id", id.as_bytes(), "done").unwrap();
                    tx.append("log", id).unwrap();
                    let answer = store.commit(tx, &claim, None).await.unwrap();
                    assert!(matches!(answer, TxAnswer::Settled(SettleAnswer::Applied(_))));
                }
            })
            .await;
        }
        "complete groups" => {
            forever(move |id| {
                let store = store.clone();
                async move {
                    let grouped = |at| ClaimRequest { group: Some(1), ..request(key(format!("{id}-{at}"))) };
                    let claims = store.claim_many((0..GROUP).map(grouped).collect()).await;
                    let complete = |answer| match answer {
                        Ok(ClaimAnswer::Acquired(claim)) => {
                            SettleRequest { claim, verb: Verb::Complete { result: None }, group: Some(1) }
                        }
                        other => panic!("{other:?}"),
                    };
                    let answers = store.settle_many(claims.into_iter().map(complete).collect()).await;
                    assert!(answers.iter().all(|answer| matches!(answer, Ok(SettleAnswer::Applied(_)))));
                }
            })
            .await;
        }
        other => panic!("{other}"),
    }
}

/// 16 tasks, each of which does one thing after the other and says what it did.
async fn forever<F: Future<Output = ()> + Send>(one: impl Fn(String) -> F + Clone + Send + 'static) {
    let run = std::process::id();
    let tasks = (0..16).map(|task| {
        let one = one.clone();
        tokio::spawn(async move {
            for number in 0u64.. {
                let id = format!("{run}-{task}-{number}");
                one(id.clone()).await;
                acknowledge(&id);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_completion_survives_an_abort_right_after_its_answer() {
    let dir = tempfile::tempdir().unwrap();
    run_to_its_death("complete one", dir.path());
    assert!(is_completed(&open(dir.path()).await, "one").await);
}

#[tokio::test]
async fn every_answered_completion_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(run_and_kill("complete many", dir.path(), 500));
        let store = open(dir.path()).await;
        for id in &all {
            assert!(is_completed(&store, id).await, "{id}");
        }
        assert!(store.stats().await.unwrap().keys >= all.len() as u64);
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn effect_and_outcome_survive_a_kill_together_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(run_and_kill("commit many", dir.path(), 300));
        let store = open(dir.path()).await;
        let (by_id, log) = (store.view("by id").unwrap(), store.view("log").unwrap());
        let (effects, appended) = (by_id.scan(None, 10_000).unwrap(), log.scan(None, 10_000).unwrap());
        assert!(effects.len() >= all.len() && effects.len() < 10_000);
        let mut logged: Vec<_> = appended.into_iter().map(|(_, id)| id).collect();
        logged.sort();
        assert_eq!(logged, effects.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
        for (id, _) in &effects {
            assert!(
                is_completed(&store, std::str::from_utf8(id).unwrap()).await,
                "an effect without outcome"
            );
        }
        for id in &all {
            assert!(by_id.get(id.as_bytes()).unwrap().is_some(), "an outcome without effect: {id}");
        }
        store.close().await.unwrap();
    }
}

/// Rule 9: the outcomes of an ordered lane are durable as a prefix.
#[tokio::test]
async fn a_group_is_durable_as_a_prefix_across_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let groups = run_and_kill("complete groups", dir.path(), 100);
        let store = open(dir.path()).await;
        // Those that were answered, and those that were on their way.
        let run = groups[0].split('-').next().unwrap().to_owned();
        let last = |task: u32| {
            let of_task = groups.iter().filter_map(|id| id.strip_prefix(&format!("{run}-{task}-")));
            of_task.map(|number| number.parse().unwrap()).max().map_or(0, |last: u64| last + 1)
        };
        let on_their_way: Vec<_> = (0..16).map(|task| format!("{run}-{task}-{}", last(task))).collect();
        for id in &groups {
            assert!(is_completed(&store, &format!("{id}-{}", GROUP - 1)).await, "{id} was answered");
        }
        for id in groups.iter().chain(&on_their_way) {
            let mut durable = Vec::new();
            for at in 0..GROUP {
                durable.push(is_completed(&store, &format!("{id}-{at}")).await);
            }
            assert!(durable.is_sorted_by(|a, b| a >= b), "{id} has a gap: {durable:?}");
        }
        store.close().await.unwrap();
    }
}

/// Rule 6: a message that takes its process with it is found out, though its claim is in memory only.
#[tokio::test]
async fn a_message_that_kills_its_process_ends_as_a_crash_loop() {
    let dir = tempfile::tempdir().unwrap();
    let runs: Vec<_> = (0..4).map(|_| run_to_its_death("start and die", dir.path()).join("")).collect();
    assert_eq!(runs, ["0 false", "1 false", "2 true", "3 true"]);
    let store = open(dir.path()).await;
    assert_eq!(store.expired_claims(9).await.unwrap().len(), 1);
    let claim = acquire(&store, "poison").await;
    assert_eq!(claim.stage, Stage::DeadLetter(FailReason::CrashLoop));
    assert_eq!((claim.counters.interruptions, claim.counters.crashes), (4, 2));
}
