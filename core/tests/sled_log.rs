//! What the stores must say in the log. One subscriber for this process: the writer has a thread of its own.
#![cfg(feature = "sled")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Mutex, Once};
use std::time::Duration;

use einmal::claim::{ClaimAnswer, ClaimRequest, ForceAnswer, Rules, Token};
use einmal::{
    DedupKey, DedupStore, DedupStoreExt, MemoryStore, MessageId, Scope, SledConfig, SledStore, StoreErrorKind,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const HOUR: Duration = Duration::from_secs(3600);

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Listener;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("einmal")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        WARNINGS.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
}

/// The warnings that hold `what`, which is one test's own.
fn warnings(what: &str) -> Vec<String> {
    WARNINGS.lock().unwrap().iter().filter(|line| line.contains(what)).cloned().collect()
}

fn key(id: &str) -> DedupKey {
    DedupKey::new(Scope::new("orders").unwrap(), MessageId::new(id).unwrap())
}

async fn complete(store: &dyn DedupStore, key: &DedupKey) {
    let rules = Rules {
        lease: HOUR,
        retention: HOUR,
        max_failures: 5,
        max_crashes: 2,
        max_delay: HOUR,
        max_result: 99,
    };
    let token = Token::random();
    let request =
        ClaimRequest { key: key.clone(), token, fingerprint: None, rules, started: true, group: None };
    let ClaimAnswer::Acquired(claim) = store.claim(request).await.unwrap() else { panic!("not acquired") };
    assert_eq!(store.force(key, HOUR).await.unwrap(), ForceAnswer::RefusedLive);
    store.complete(&claim, None).await.unwrap();
}

/// Rule 7: what runs a message again on purpose leaves a trace, and what doesn't leaves none.
async fn a_forced_run_is_logged(store: &dyn DedupStore, id: &str) {
    listen();
    let key = key(id);
    assert_eq!(store.force(&key, HOUR).await.unwrap(), ForceAnswer::Absent);
    complete(store, &key).await;
    assert_eq!(warnings(id), [""; 0]);
    let ForceAnswer::Forced(generation) = store.force(&key, HOUR).await.unwrap() else {
        panic!("not forced")
    };
    let said = warnings(id);
    assert_eq!(said.len(), 1, "{said:?}");
    let generation = format!("generation={generation} ");
    assert!(said.iter().all(|line| line.contains("forced") && line.contains(&generation)), "{said:?}");
}

async fn open(path: &Path) -> SledStore {
    SledStore::open(SledConfig::new(path).unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_forced_run_is_logged_by_the_store_in_memory() {
    a_forced_run_is_logged(&MemoryStore::default(), "in-memory").await;
}

#[tokio::test]
async fn a_forced_run_is_logged_by_the_store_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    a_forced_run_is_logged(&open(dir.path()).await, "on-disk").await;
}

#[tokio::test]
async fn a_forced_run_that_was_not_made_is_not_logged() {
    listen();
    let dir = tempfile::tempdir().unwrap();
    let fail = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let probe = {
        let fail = std::sync::Arc::clone(&fail);
        move |_| assert!(!fail.load(std::sync::atomic::Ordering::SeqCst), "the test asked for it")
    };
    let store = SledStore::open(SledConfig::builder(dir.path()).probe(probe).build().unwrap()).await.unwrap();
    let key = key("not-made");
    complete(&store, &key).await;
    fail.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(store.force(&key, HOUR).await.unwrap_err().kind(), StoreErrorKind::Poisoned);
    assert_eq!(warnings("not-made"), [""; 0]);
}

#[tokio::test]
async fn what_is_set_aside_or_gone_without_is_logged() {
    listen();
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.close().await.unwrap();
    let path = dir.path().to_str().unwrap();
    assert_eq!(warnings(path), [""; 0]);
    std::fs::write(dir.path().join("snap.0FFFFFFFFFFFFFFF.generating"), "").unwrap();
    std::fs::write(dir.path().join("einmal.started"), "").unwrap();
    open(dir.path()).await;
    let said = warnings(path);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("aside=einmal.aside.snap.0FFFFFFFFFFFFFFF.generating"), "{said:?}");
    assert!(said[1].contains("einmal.started is empty"), "{said:?}");
}
