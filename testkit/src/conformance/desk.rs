//! Short words for what the cases do and expect.

use std::time::Duration;

use bytes::Bytes;
use einmal::claim::{
    Claim, ClaimAnswer, ClaimRequest, Failing, Phase, Record, Refusal, Rules, SettleAnswer, SettleRequest,
    Standing, Token, Verb,
};
use einmal::{
    DedupKey, DedupStore, DedupStoreExt, FailReason, Failed, Fingerprint, MessageId, Outcome, Scope, Stats,
};

use super::{Bounds, Harness};

/// A store under test, with its harness.
pub(super) struct Desk<'h, H: Harness> {
    pub(super) harness: &'h H,
    pub(super) store: H::Store,
    pub(super) rules: Rules,
}

pub(super) fn key(scope: &str, id: &str) -> DedupKey {
    DedupKey::new(Scope::new(scope).unwrap(), MessageId::new(id).unwrap())
}

pub(super) fn print_of(content: &str) -> Fingerprint {
    Fingerprint::raw(Some(content.as_bytes()))
}

pub(super) fn retry(delay: Duration) -> Verb {
    Verb::Fail(Failing::Retry { delay })
}

pub(super) fn reject(words: &str) -> Verb {
    Verb::Fail(Failing::ForGood(FailReason::Rejected(words.to_owned())))
}

pub(super) fn complete(result: &str) -> Verb {
    Verb::Complete { result: Some(Bytes::copy_from_slice(result.as_bytes())) }
}

pub(super) const fn release() -> Verb {
    Verb::Release { delay: Duration::ZERO }
}

impl<'h, H: Harness> Desk<'h, H> {
    pub(super) async fn open(harness: &'h H) -> Self {
        Self::open_bounded(harness, Bounds::default()).await
    }

    pub(super) async fn open_bounded(harness: &'h H, bounds: Bounds) -> Self {
        Self { harness, store: harness.open(bounds).await, rules: harness.rules() }
    }

    /// The same store after a kill of its process; `None` when nothing of it is durable.
    pub(super) async fn crash(self) -> Option<Self> {
        let durable = self.store.capabilities().durable;
        let store = self.harness.crash(self.store).await;
        assert_eq!(store.is_some(), durable, "a durable store, and only that, can be opened again");
        Some(Self { harness: self.harness, store: store?, rules: self.rules })
    }

    /// The same store after a restart of its program; `None` when nothing of it is durable.
    pub(super) async fn reopen(self) -> Option<Self> {
        let durable = self.store.capabilities().durable;
        let store = self.harness.reopen(self.store).await;
        assert_eq!(store.is_some(), durable, "a durable store, and only that, can be opened again");
        Some(Self { harness: self.harness, store: store?, rules: self.rules })
    }

    pub(super) fn request(&self, id: &str) -> ClaimRequest {
        ClaimRequest {
            key: key("scope", id),
            token: Token::random(),
            fingerprint: None,
            rules: self.rules,
            started: false,
            group: None,
        }
    }

    pub(super) fn request_in(&self, scope: &str, id: &str) -> ClaimRequest {
        ClaimRequest { key: key(scope, id), ..self.request(id) }
    }

    /// A claim whose handler starts at once.
    pub(super) fn starting(&self, id: &str) -> ClaimRequest {
        ClaimRequest { started: true, ..self.request(id) }
    }

    pub(super) fn with_content(&self, id: &str, content: &str) -> ClaimRequest {
        ClaimRequest { fingerprint: Some(print_of(content)), ..self.request(id) }
    }

    pub(super) async fn send(&self, request: ClaimRequest) -> ClaimAnswer {
        self.store.claim(request).await.unwrap()
    }

    pub(super) async fn claim(&self, id: &str) -> ClaimAnswer {
        self.send(self.request(id)).await
    }

    pub(super) async fn acquire(&self, id: &str) -> Claim {
        acquired(self.claim(id).await)
    }

    pub(super) async fn start(&self, id: &str) -> Claim {
        let claim = acquired(self.send(self.starting(id)).await);
        if claim.alone {
            // The claim itself does not start what has to wait for others.
            assert_eq!(self.apply(&claim, Verb::Started).await, Standing::Held);
        }
        claim
    }

    pub(super) async fn settle(&self, claim: &Claim, verb: Verb) -> SettleAnswer {
        self.store.settle(claim, verb).await.unwrap()
    }

    /// Settles, and must not be refused.
    pub(super) async fn apply(&self, claim: &Claim, verb: Verb) -> Standing {
        applied(self.settle(claim, verb).await)
    }

    /// Settles, and must be refused.
    pub(super) async fn refuse(&self, claim: &Claim, verb: Verb) -> Refusal {
        refused(self.settle(claim, verb).await)
    }

    /// A key that was given up and whose dead letter is still owed, held by the claim that gave it up.
    pub(super) async fn owe(&self, id: &str) -> Claim {
        let claim = self.start(id).await;
        owed(self.apply(&claim, reject("no")).await);
        claim
    }

    /// A key that was completed with this result.
    pub(super) async fn done(&self, id: &str, result: &str) -> Claim {
        let claim = self.start(id).await;
        assert_eq!(self.apply(&claim, complete(result)).await, Standing::Completed);
        claim
    }

    /// A key that was given up and dead-lettered.
    pub(super) async fn bury(&self, id: &str) -> Claim {
        let claim = self.owe(id).await;
        assert_eq!(self.apply(&claim, Verb::DeadLettered).await, Standing::DeadLettered);
        claim
    }

    pub(super) async fn record(&self, id: &str) -> Option<Record> {
        self.store.get(&key("scope", id)).await.unwrap()
    }

    pub(super) async fn phase(&self, id: &str) -> &'static str {
        self.record(id).await.map_or("absent", |record| record.phase_name())
    }

    pub(super) async fn stats(&self) -> Stats {
        self.store.stats().await.unwrap()
    }

    pub(super) async fn advance(&self, by: Duration) {
        self.harness.advance(by).await;
    }

    /// Lets every lease end that is not renewed.
    pub(super) async fn lapse(&self) {
        self.advance(self.rules.lease).await;
    }

    /// Lets every record end that is not touched.
    pub(super) async fn outlive(&self) {
        self.advance(self.rules.retention.max(self.rules.lease)).await;
    }

    /// A delay well below the longest.
    pub(super) fn delay(&self) -> Duration {
        self.rules.max_delay / 2
    }
}

pub(super) fn settle_request(claim: &Claim, verb: Verb, group: Option<u32>) -> SettleRequest {
    SettleRequest { claim: claim.clone(), verb, group }
}

#[track_caller]
pub(super) fn acquired(answer: ClaimAnswer) -> Claim {
    match answer {
        ClaimAnswer::Acquired(claim) => claim,
        other => panic!("expected Acquired, not {other:?}"),
    }
}

#[track_caller]
pub(super) fn in_progress(answer: ClaimAnswer) -> Duration {
    match answer {
        ClaimAnswer::InProgress { retry_after } => retry_after,
        other => panic!("expected InProgress, not {other:?}"),
    }
}

#[track_caller]
pub(super) fn not_yet(answer: ClaimAnswer) -> Duration {
    match answer {
        ClaimAnswer::NotYet { retry_after, .. } => retry_after,
        other => panic!("expected NotYet, not {other:?}"),
    }
}

#[track_caller]
pub(super) fn completed(answer: ClaimAnswer) -> Outcome {
    match answer {
        ClaimAnswer::Completed(outcome) => outcome,
        other => panic!("expected Completed, not {other:?}"),
    }
}

#[track_caller]
pub(super) fn failed(answer: ClaimAnswer) -> Failed {
    match answer {
        ClaimAnswer::Failed(failed) => failed,
        other => panic!("expected Failed, not {other:?}"),
    }
}

#[track_caller]
pub(super) fn applied(answer: SettleAnswer) -> Standing {
    match answer {
        SettleAnswer::Applied(standing) => standing,
        SettleAnswer::Refused(refusal) => panic!("expected Applied, not Refused({refusal:?})"),
    }
}

#[track_caller]
pub(super) fn refused(answer: SettleAnswer) -> Refusal {
    match answer {
        SettleAnswer::Refused(refusal) => refusal,
        SettleAnswer::Applied(standing) => panic!("expected Refused, not Applied({standing:?})"),
    }
}

#[track_caller]
pub(super) fn owed(standing: Standing) -> FailReason {
    match standing {
        Standing::Owed(reason) => reason,
        other => panic!("expected Owed, not {other:?}"),
    }
}

/// How long until a released key can be claimed.
#[track_caller]
pub(super) fn released(standing: Standing) -> Duration {
    match standing {
        Standing::Released { retry_after, .. } => retry_after,
        other => panic!("expected Released, not {other:?}"),
    }
}

pub(super) const fn is_released(record: &Record) -> bool {
    matches!(record.phase, Phase::Released { .. })
}
