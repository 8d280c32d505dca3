//! The state of a key against a model of it, over any sequence of calls.
//!
//! Several owners claim, keep their claims long after they ended, and send calls again; time passes, records
//! are purged. The model is independent of `claim/state.rs`: see there.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "state_model/model.rs"]
mod model;

use std::time::Duration;

use bytes::Bytes;
use einmal::claim::{
    Claim, ClaimAnswer, ClaimRequest, Counters, Failing, Fence, ForceAnswer, Record, Rules, SettleAnswer,
    Stage, Token, Verb, state,
};
use einmal::{DedupKey, FailReason, Fingerprint, MessageId, Scope, Timestamp};
use proptest::prelude::*;
use proptest::sample::Index;

use model::{Expected, MAX_RESULT, Model, Owner};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Three policies, as three versions of a program would bring them. In the last one the retention is shorter
/// than the lease.
fn rules(which: u8) -> Rules {
    let (lease, retention, max_failures, max_crashes, max_delay) = match which {
        0 => (30, 100, 3, 2, 20),
        1 => (10, 200, 2, 1, 5),
        _ => (30, 10, 3, 2, 20),
    };
    let [lease, retention, max_delay] = [lease, retention, max_delay].map(seconds);
    Rules { lease, retention, max_failures, max_crashes, max_delay, max_result: usize::MAX }
}

#[derive(Clone, Debug)]
enum Step {
    Claim {
        content: Option<u8>,
        rules: u8,
        started: bool,
    },
    ClaimAgain(Index),
    /// `recent` asks for one of the last claims, which more often still hold the key.
    Settle {
        which: Index,
        recent: bool,
        verb: Verb,
    },
    SettleAgain(Index),
    /// With the fence of a claim, and a token that no claim ever had.
    SettleWithAGuess {
        which: Index,
        verb: Verb,
    },
    Forget,
    Force,
    Purge,
    Wait(u64),
}

fn verbs() -> impl Strategy<Value = Verb> {
    let delay = prop_oneof![Just(0u64), 1..30u64].prop_map(seconds);
    let result = prop_oneof![Just(None), Just(Some("ok")), Just(Some("other")), Just(Some("too long"))];
    let reason = prop_oneof![
        Just(FailReason::Rejected("no".into())),
        Just(FailReason::Parked("later".into())),
        Just(FailReason::Rejected("x".into()))
    ];
    prop_oneof![
        3 => Just(Verb::Started),
        2 => Just(Verb::Renew),
        2 => result.prop_map(|result| Verb::Complete { result: result.map(|text| Bytes::from_static(text.as_bytes())) }),
        4 => delay.clone().prop_map(|delay| Verb::Fail(Failing::Retry { delay })),
        1 => reason.prop_map(|reason| Verb::Fail(Failing::ForGood(reason))),
        2 => delay.prop_map(|delay| Verb::Release { delay }),
        2 => Just(Verb::DeadLettered),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let content = prop_oneof![6 => Just(Some(0u8)), 1 => Just(None), 1 => Just(Some(1u8))];
    let which_rules = prop_oneof![5 => Just(0u8), 2 => Just(1u8), 1 => Just(2u8)];
    let claim = (content, which_rules, any::<bool>()).prop_map(|(content, rules, started)| Step::Claim {
        content,
        rules,
        started,
    });
    let settle = (any::<Index>(), prop::bool::weighted(0.7), verbs())
        .prop_map(|(which, recent, verb)| Step::Settle { which, recent, verb });
    let step = prop_oneof![
        10 => claim,
        2 => any::<Index>().prop_map(Step::ClaimAgain),
        12 => settle,
        3 => any::<Index>().prop_map(Step::SettleAgain),
        1 => (any::<Index>(), verbs()).prop_map(|(which, verb)| Step::SettleWithAGuess { which, verb }),
        1 => Just(Step::Forget),
        1 => Just(Step::Force),
        1 => Just(Step::Purge),
        8 => prop_oneof![4 => 0..12u64, 4 => Just(31u64), 1 => 90..210u64].prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 40)
}

/// The key under test, and everything that its owners remember.
struct Run {
    slot: Option<Record>,
    model: Model,
    now: Timestamp,
    claims: Vec<Claim>,
    requests: Vec<(ClaimRequest, Option<u8>)>,
    settles: Vec<(Claim, Verb)>,
    tokens: u8,
}

impl Run {
    fn new() -> Self {
        Self {
            slot: None,
            model: Model::default(),
            now: Timestamp::from_micros(4_000_000_000_000_000),
            claims: Vec::new(),
            requests: Vec::new(),
            settles: Vec::new(),
            tokens: 0,
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Claim { content, rules: which, started } => {
                self.tokens += 1;
                let request = ClaimRequest {
                    key: DedupKey::new(Scope::new("s").unwrap(), MessageId::new("m").unwrap()),
                    token: Token::from_bytes([self.tokens; 16]),
                    fingerprint: content.map(|content| Fingerprint::raw(Some(&[content]))),
                    rules: rules(which),
                    started,
                    group: None,
                };
                self.requests.push((request.clone(), content));
                self.claim(&request, content)?;
            }
            Step::ClaimAgain(which) if !self.requests.is_empty() => {
                let (request, content) = which.get(&self.requests).clone();
                self.claim(&request, content)?;
            }
            Step::Settle { which, recent, verb } if !self.claims.is_empty() => {
                let from = if recent { self.claims.len().saturating_sub(2) } else { 0 };
                let claim = which.get(&self.claims[from..]).clone();
                self.settles.push((claim.clone(), verb.clone()));
                self.settle(&claim, &verb)?;
            }
            Step::SettleAgain(which) if !self.settles.is_empty() => {
                let (claim, verb) = which.get(&self.settles).clone();
                self.settle(&claim, &verb)?;
            }
            Step::SettleWithAGuess { which, verb } if !self.claims.is_empty() => {
                let mut claim = which.get(&self.claims).clone();
                claim.token = Token::from_bytes([0; 16]);
                self.settle(&claim, &verb)?;
            }
            Step::Forget => {
                let (change, answer) = state::forget(self.slot.as_ref(), self.now);
                prop_assert_eq!(answer, self.model.forget(self.now));
                change.apply_to(&mut self.slot);
            }
            Step::Force => {
                let retention = seconds(50);
                let (change, answer) =
                    state::force(self.slot.as_ref(), self.now, self.next_fence(), retention);
                prop_assert_eq!(answer, self.model.force(self.now, retention));
                change.apply_to(&mut self.slot);
            }
            Step::Purge if self.slot.as_ref().is_some_and(|record| record.is_expired(self.now)) => {
                self.slot = None;
            }
            Step::Wait(time) => self.now = self.now.after(seconds(time)),
            _ => {}
        }
        self.check_record()
    }

    /// What a store would give: above every fence that it gave before.
    fn next_fence(&self) -> Fence {
        Fence::new(self.model.highest_fence + 1)
    }

    fn claim(&mut self, request: &ClaimRequest, content: Option<u8>) -> Result<(), TestCaseError> {
        let (now, next_fence) = (self.now, self.next_fence());
        let live_before = self.model.live(now);
        let highest_before = self.model.highest_fence;
        let (change, answer) = state::claim(self.slot.as_ref(), request, now, next_fence);
        let expected = self.model.claim(request, content, now);
        prop_assert_eq!(told(&answer), expected);

        match &answer {
            ClaimAnswer::Acquired(claim) => {
                let again = self.claims.iter().any(|old| Owner::of(old) == Owner::of(claim));
                let new = claim.fence.get() > highest_before;
                prop_assert!(again != new, "a claim is new with a higher fence, or the same one again");
                prop_assert!(
                    live_before.is_none_or(|owner| owner == Owner::of(claim)),
                    "two live claims for one key"
                );
                self.claims.push(claim.clone());
            }
            ClaimAnswer::InProgress { retry_after } => {
                prop_assert!(!retry_after.is_zero() && *retry_after <= request.rules.lease);
            }
            ClaimAnswer::NotYet { until, retry_after } => {
                prop_assert!(!retry_after.is_zero() && *retry_after <= request.rules.max_delay);
                prop_assert_eq!(*until, now.after(*retry_after));
            }
            ClaimAnswer::Completed(_) | ClaimAnswer::Failed(_) | ClaimAnswer::Conflict => {}
            ClaimAnswer::Behind => prop_assert!(false, "a single claim has nothing before it"),
        }
        if !matches!(answer, ClaimAnswer::Acquired(_)) {
            prop_assert_eq!(&change, &state::Change::Keep, "a claim that is not acquired writes nothing");
        }
        change.apply_to(&mut self.slot);
        Ok(())
    }

    fn settle(&mut self, claim: &Claim, verb: &Verb) -> Result<(), TestCaseError> {
        let (change, answer) = state::settle(self.slot.as_ref(), claim, verb, self.now, MAX_RESULT);
        match (self.model.settle(claim, verb, self.now), answer) {
            (Ok(expected), SettleAnswer::Applied(standing)) => prop_assert_eq!(standing, expected),
            (Err(expected), SettleAnswer::Refused(refusal)) => {
                prop_assert_eq!(refusal, expected);
                prop_assert_eq!(&change, &state::Change::Keep, "a refused owner changes nothing");
            }
            (expected, answer) => {
                return Err(TestCaseError::fail(format!("{answer:?} to {verb:?}, expected {expected:?}")));
            }
        }
        change.apply_to(&mut self.slot);
        if matches!(verb, Verb::Started | Verb::Renew) {
            return Ok(());
        }
        // Whatever it was answered: sent again at once, it must be answered the same and change nothing.
        let (change, again) = state::settle(self.slot.as_ref(), claim, verb, self.now, MAX_RESULT);
        let expected = self.model.settle(claim, verb, self.now);
        prop_assert_eq!(matches!(again, SettleAnswer::Applied(_)), expected.is_ok());
        prop_assert_eq!(change, state::Change::Keep, "a call that is sent again changes nothing");
        Ok(())
    }

    /// What must hold of every record at every time.
    fn check_record(&self) -> Result<(), TestCaseError> {
        let Some(record) = &self.slot else { return Ok(()) };
        prop_assert!(record.expires_at < Timestamp::MAX, "no record is without an expiry");
        prop_assert!(!(record.is_live(self.now) && record.is_expired(self.now)), "a live claim expired");
        prop_assert!(record.generation <= record.fence);
        prop_assert!(record.fence.get() <= self.model.highest_fence);
        prop_assert_eq!(record.is_live(self.now), self.model.live(self.now).is_some());
        if let Some(operation) = self.model.operation.as_ref().filter(|_| !record.is_expired(self.now)) {
            prop_assert_eq!(record.counters, operation.counters());
            prop_assert_eq!(record.expires_at, operation.forgotten_at);
            prop_assert!(record.counters.crashes <= record.counters.interruptions);
        }
        Ok(())
    }
}

/// An answer in the model's terms.
fn told(answer: &ClaimAnswer) -> Expected {
    match answer {
        ClaimAnswer::Acquired(claim) => {
            assert_eq!(claim.interrupted, claim.counters.interruptions > 0);
            Expected::Acquired {
                owner: Owner::of(claim),
                generation: claim.generation.get(),
                stage: claim.stage.clone(),
                counters: claim.counters,
                alone: claim.alone,
            }
        }
        ClaimAnswer::InProgress { retry_after } => Expected::InProgress(*retry_after),
        ClaimAnswer::Completed(outcome) => Expected::Completed(outcome.result.clone(), outcome.attempt),
        ClaimAnswer::Failed(failed) => Expected::Failed(failed.reason.clone()),
        ClaimAnswer::Conflict => Expected::Conflict,
        ClaimAnswer::NotYet { retry_after, .. } => Expected::NotYet(*retry_after),
        ClaimAnswer::Behind => panic!("a single claim has nothing before it"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_500, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_of_calls_is_answered_as_the_model_says(steps in steps()) {
        let mut run = Run::new();
        for step in steps {
            run.take(step)?;
        }
    }

    /// The store's counter may be behind a record's fence (a new epoch after a restore, a server whose clock
    /// was set back): the record's own fence holds then.
    #[test]
    fn a_low_fence_from_the_store_is_raised(given in 0..20u64, kept in 1..20u64) {
        let mut run = Run::new();
        run.model.highest_fence = kept - 1;
        run.take(Step::Claim { content: None, rules: 0, started: false })?;
        let mut request = run.requests[0].0.clone();
        request.token = Token::from_bytes([99; 16]);
        let later = run.now.after(seconds(31));
        let (_, answer) = state::claim(run.slot.as_ref(), &request, later, Fence::new(given));
        let ClaimAnswer::Acquired(claim) = answer else { panic!("{answer:?}") };
        prop_assert_eq!(claim.fence.get(), given.max(kept + 1));
        let (_, forced) = state::force(run.slot.as_ref(), later, Fence::new(given), seconds(1));
        prop_assert_eq!(forced, ForceAnswer::Forced(Fence::new(given.max(kept + 1))));
    }
}

/// The walk to a crash loop, told once in full: two interruptions in company, then each one alone counts, but
/// only once its handler has started, which who must run alone does not with its claim.
#[test]
fn two_interruptions_in_company_then_crashes_alone_up_to_the_limit() {
    let mut slot = None;
    let mut now = Timestamp::from_micros(1);
    let mut claim = |tell: bool| {
        let request = ClaimRequest {
            key: DedupKey::new(Scope::new("s").unwrap(), MessageId::new("m").unwrap()),
            token: Token::random(),
            fingerprint: None,
            rules: rules(0),
            started: true,
            group: None,
        };
        let (change, answer) = state::claim(slot.as_ref(), &request, now, Fence::new(1));
        change.apply_to(&mut slot);
        let ClaimAnswer::Acquired(claim) = answer else { panic!("{answer:?}") };
        if tell {
            let (change, _) = state::settle(slot.as_ref(), &claim, &Verb::Started, now, usize::MAX);
            change.apply_to(&mut slot);
        }
        now = now.after(request.rules.lease);
        claim
    };
    let company = [claim(false), claim(false)];
    assert!(company.iter().all(|claim| !claim.alone && claim.stage == Stage::Run));
    // Cut off while they wait for the others: nobody's fault.
    let waiting = [claim(false), claim(false), claim(false)];
    assert!(waiting.iter().all(|claim| claim.alone && claim.counters.crashes == 0));
    let alone = [claim(true), claim(true)];
    assert!(alone.iter().all(|claim| claim.alone && claim.interrupted && claim.stage == Stage::Run));
    let last = claim(false);
    assert_eq!(last.stage, Stage::DeadLetter(FailReason::CrashLoop));
    assert_eq!(last.counters, Counters { failures: 0, interruptions: 4, crashes: 2 });
}
