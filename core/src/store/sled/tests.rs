//! A disk that fails, waits and counts, and what the tests share.

mod durability;
mod expiry;
mod files;
mod inbox;
mod keys;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex as StdMutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sled::IVec;

use super::disk::{Batch, Disk, SledDisk};
use super::*;
use crate::claim::{Claim, Rules, Stage, Token};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::id::{MessageId, Scope};
use crate::store::DedupStoreExt;

const HOUR: Duration = Duration::from_secs(3600);

/// A clock that the test moves.
#[derive(Debug)]
struct Hands(StdMutex<(Timestamp, Duration)>);

impl Hands {
    fn new() -> Arc<Self> {
        Arc::new(Self(StdMutex::new((SystemClock.wall(), HOUR))))
    }

    fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = (now.0.after(by), now.1 + by);
    }
}

impl Clock for Hands {
    fn wall(&self) -> Timestamp {
        self.0.lock().unwrap().0
    }
    fn monotonic(&self) -> Duration {
        self.0.lock().unwrap().1
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// What the test does to the disk.
#[derive(Debug, Default)]
struct Hand {
    applies: AtomicUsize,
    syncs: AtomicUsize,
    fail_apply: AtomicBool,
    fail_sync: AtomicBool,
    fail_reads: AtomicBool,
    panic_in_sync: AtomicBool,
    slow_reads: AtomicBool,
    holding: StdMutex<bool>,
    let_go: Condvar,
}

impl Hand {
    /// From now on syncs don't return.
    fn hold(&self) {
        *self.holding.lock().unwrap() = true;
    }

    fn release(&self) {
        *self.holding.lock().unwrap() = false;
        self.let_go.notify_all();
    }

    fn syncs(&self) -> usize {
        self.syncs.load(Ordering::SeqCst)
    }

    fn applies(&self) -> usize {
        self.applies.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Held {
    disk: SledDisk,
    hand: Arc<Hand>,
}

fn broken() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "no space left")
        .with_source(std::io::Error::from_raw_os_error(28))
}

impl Disk for Held {
    fn get(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        if self.hand.fail_reads.load(Ordering::SeqCst) {
            return Err(broken());
        }
        let found = self.disk.get(key);
        if self.hand.slow_reads.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        found
    }
    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(IVec, IVec)>, StoreError> {
        self.disk.scan(prefix, after, limit)
    }
    fn apply(&self, batch: &Batch) -> Result<(), StoreError> {
        self.hand.applies.fetch_add(1, Ordering::SeqCst);
        if self.hand.fail_apply.load(Ordering::SeqCst) {
            return Err(broken());
        }
        self.disk.apply(batch)
    }
    fn sync(&self) -> Result<(), StoreError> {
        let mut holding = self.hand.holding.lock().unwrap();
        while *holding {
            holding = self.hand.let_go.wait(holding).unwrap();
        }
        drop(holding);
        assert!(!self.hand.panic_in_sync.load(Ordering::SeqCst), "the test asked for it");
        if self.hand.fail_sync.load(Ordering::SeqCst) {
            return Err(broken());
        }
        self.disk.sync()?;
        self.hand.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn size(&self) -> Option<u64> {
        self.disk.size()
    }
}

/// A store in `path` whose disk the test has a hand on.
fn open_held(
    path: &Path,
    configure: impl FnOnce(SledConfigBuilder) -> SledConfigBuilder,
) -> (SledStore, Arc<Hand>) {
    let hand = Arc::<Hand>::default();
    let (config, ours) = (configure(SledConfig::builder(path)).build().unwrap(), Arc::clone(&hand));
    let writer = open::open(config, move |disk| Arc::new(Held { disk, hand: ours })).unwrap();
    (SledStore::start(writer).unwrap(), hand)
}

async fn open(path: &Path) -> SledStore {
    SledStore::open(SledConfig::new(path).unwrap()).await.unwrap()
}

async fn open_at(path: &Path, clock: &Arc<Hands>) -> SledStore {
    let clock: Arc<Hands> = Arc::clone(clock);
    SledStore::open(SledConfig::builder(path).clock(clock).build().unwrap()).await.unwrap()
}

fn key(id: impl ToString) -> DedupKey {
    DedupKey::new(Scope::new("orders").unwrap(), MessageId::new(id.to_string()).unwrap())
}

fn request(key: &DedupKey) -> ClaimRequest {
    let rules = Rules {
        lease: Duration::from_secs(30),
        retention: HOUR,
        max_failures: 3,
        max_crashes: 2,
        max_delay: Duration::from_secs(300),
        max_result: usize::MAX,
    };
    let token = Token::random();
    ClaimRequest { key: key.clone(), token, fingerprint: None, rules, started: true, group: None }
}

async fn acquire(store: &SledStore, key: &DedupKey) -> Claim {
    match store.claim(request(key)).await.unwrap() {
        ClaimAnswer::Acquired(claim) => claim,
        other => panic!("not acquired: {other:?}"),
    }
}

async fn complete(store: &SledStore, id: impl ToString) {
    let claim = acquire(store, &key(id)).await;
    assert!(applied(&store.complete(&claim, Some(Bytes::from_static(b"ok"))).await.unwrap()));
}

fn applied(answer: &SettleAnswer) -> bool {
    matches!(answer, SettleAnswer::Applied(_))
}

async fn is_completed(store: &SledStore, key: &DedupKey) -> bool {
    matches!(store.claim(request(key)).await.unwrap(), ClaimAnswer::Completed(_))
}

/// Waits, on real time and never for long, until `done`.
async fn until(done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it did not happen");
}

/// How many entries of a kind the disk has.
fn entries(store: &SledStore, kind: u8) -> Vec<(IVec, IVec)> {
    store.handle.shared.disk().unwrap().scan(&[kind], &[], 100_000).unwrap()
}
