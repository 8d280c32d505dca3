//! A worker in one of the modes.

use bytes::Bytes;
use einmal::claim::{Claim, ClaimAnswer, ClaimRequest, Phase, Record, Token};
use einmal::worker::{Lanes, Summary};
use einmal::{Context, DedupStore, DedupStoreExt, Failure, Mode, ModeSwitch, Observed, Reply};
use einmal_testkit::{Fate, Handle, ManualClock};
use futures_util::future::BoxFuture;

use super::*;

/// A worker in a mode, and what it leaves behind.
pub struct Bench {
    pub clock: ManualClock,
    pub store: TestStore,
    pub letters: Letters,
    pub journal: Journal,
    pub doors: Doors,
    pub mode: ModeSwitch,
    pub running: Running,
    pub offset: i64,
}

impl Bench {
    pub fn new(lanes: Lanes, mode: Mode) -> Self {
        let (journal, doors) = (Journal::default(), Doors::default());
        let handler = numbered(&journal, &doors);
        let (clock, letters, mode) = (ManualClock::new(), Letters::default(), ModeSwitch::new(mode));
        let store = store(&clock);
        let settings = settings(&clock, &letters).mode(mode.clone());
        let running = start(store.clone(), handler, settings, config(lanes));
        Self { clock, store, letters, journal, doors, mode, running, offset: 0 }
    }

    /// A message of this id, which is its payload and its record's key too.
    pub fn push_to(&mut self, partition: i32, id: &str) -> Handle {
        self.offset += 1;
        let key = Bytes::copy_from_slice(id.as_bytes());
        self.running.hand.push(delivery_from(partition, self.offset, id).with_key(Some(key)))
    }

    pub fn push(&mut self, id: &str) -> Handle {
        self.push_to(0, id)
    }

    pub async fn settled(&mut self, id: &str) {
        let handle = self.push(id);
        assert_eq!(drive(&self.clock, handle.wait()).await, Fate::Settled, "{id}");
    }

    pub fn summary(&self) -> Summary {
        let summary = self.running.worker.summary();
        assert_adds_up(summary);
        summary
    }

    pub fn observed(&self) -> Observed {
        self.summary().observed
    }

    pub async fn record(&self, id: &str) -> Record {
        self.store.inner().get(&key(id)).await.unwrap().unwrap()
    }

    /// Another's claim.
    pub async fn claim(&self, id: &str) -> Claim {
        let request = ClaimRequest {
            key: key(id),
            token: Token::random(),
            fingerprint: None,
            rules: policy().build().unwrap().rules(),
            started: true,
            group: None,
        };
        let ClaimAnswer::Acquired(claim) = self.store.inner().claim(request).await.unwrap() else { panic!() };
        claim
    }
}

/// Notes its runs and waits at the door of its id. It does what the id says, and returns how often it ran.
pub fn numbered(
    journal: &Journal,
    doors: &Doors,
) -> impl Fn(Context) -> BoxFuture<'static, Result<Reply, Failure>> + Send + Sync + 'static {
    let (journal, doors) = (journal.clone(), doors.clone());
    move |context: Context| {
        let (journal, doors) = (journal.clone(), doors.clone());
        Box::pin(async move {
            let id = context.key().id().as_str().to_owned();
            journal.note(&id);
            let run = journal.count(&id);
            doors.pass(&id).await;
            match id.as_str() {
                "fails" => Err(Failure::retry("a cause")),
                "waits" => Err(Failure::retry_after(30 * SECOND)),
                "rejects" => Err(Failure::reject("a reason")),
                "parks" => Err(Failure::park("a reason")),
                "panics" => panic!("the handler's fault"),
                "ignores" => Err(Failure::ignore()),
                _ => Ok(Reply::bytes(format!("run {run}"))),
            }
        })
    }
}

pub fn result(record: &Record) -> &Bytes {
    let Phase::Completed(outcome) = &record.phase else { panic!("{record:?}") };
    outcome.result.bytes().unwrap()
}
