//! The state of a key against a model of it, over any sequence of calls.
//!
//! The model below is written from the design's words, not from `claim/state.rs`: it keeps who owns the key,
//! what is owed and what was counted, and says what each call must be answered. Several owners claim, keep
//! their claims long after they ended, and send calls again; time passes, records are purged.

use std::time::Duration;

use bytes::Bytes;
use einmal::claim::{
    Claim, ClaimAnswer, ClaimRequest, Counters, Failing, Fence, ForceAnswer, ForgetAnswer, Record, Refusal,
    Rules, SettleAnswer, Stage, Standing, Token, Verb, state,
};
use einmal::{DedupKey, FailReason, Fingerprint, MessageId, Scope, StoredResult, Timestamp};
use proptest::prelude::*;
use proptest::sample::Index;

const MAX_RESULT: usize = 4;

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
    Rules { lease, retention, max_failures, max_crashes, max_delay }
}

// ---------------------------------------------------------------------------------------------------------
// The model

/// What a key has been through, and who has it.
#[derive(Clone, Debug)]
struct Operation {
    generation: u64,
    content: Option<u8>,
    failures: u32,
    interruptions: u32,
    crashes: u32,
    forgotten_at: Timestamp,
    place: Place,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Running { owner: Owner, until: Timestamp, started: bool, alone: bool },
    Waiting { not_before: Timestamp },
    OwedBy { owner: Owner, until: Timestamp, reason: FailReason },
    OwedByNobody { reason: FailReason },
    Done { result: StoredResult, attempt: u32 },
    Buried { reason: FailReason },
}

/// A claim, as a settle must prove it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    token: Token,
    fence: u64,
}

impl Owner {
    fn of(claim: &Claim) -> Self {
        Self { token: claim.token, fence: claim.fence.get() }
    }
}

#[derive(Debug, Default)]
struct Model {
    operation: Option<Operation>,
    highest_fence: u64,
    /// The settle that ended a claim last, as long as nobody else has touched the key since.
    last_end: Option<(Owner, Verb)>,
}

/// What the model expects of a claim.
#[derive(Debug, PartialEq)]
enum Expected {
    Acquired { owner: Owner, generation: u64, stage: Stage, counters: Counters, alone: bool },
    InProgress(Duration),
    Completed(StoredResult, u32),
    Failed(FailReason),
    Conflict,
    NotYet(Duration),
}

impl Model {
    fn live(&self, now: Timestamp) -> Option<Owner> {
        match self.operation.as_ref()?.place {
            Place::Running { owner, until, .. } | Place::OwedBy { owner, until, .. } if now < until => {
                Some(owner)
            }
            _ => None,
        }
    }

    /// A record that has ended is no record; a live claim keeps its own alive.
    fn forget_what_expired(&mut self, now: Timestamp) {
        let expired = self.operation.as_ref().is_some_and(|operation| operation.forgotten_at <= now);
        if expired && self.live(now).is_none() {
            (self.operation, self.last_end) = (None, None);
        }
    }

    fn claim(&mut self, request: &ClaimRequest, content: Option<u8>, now: Timestamp) -> Expected {
        self.forget_what_expired(now);
        let rules = &request.rules;
        let operation = self.operation.get_or_insert_with(|| Operation {
            generation: self.highest_fence + 1,
            content,
            failures: 0,
            interruptions: 0,
            crashes: 0,
            forgotten_at: now,
            place: Place::Waiting { not_before: now },
        });
        if content.is_some() && operation.content.is_some() && content != operation.content {
            return Expected::Conflict;
        }
        let mut owed = None;
        let mut again = None;
        match &operation.place {
            Place::Done { result, attempt } => return Expected::Completed(result.clone(), *attempt),
            Place::Buried { reason } => return Expected::Failed(reason.clone()),
            Place::Running { owner, .. } | Place::OwedBy { owner, .. } if owner.token == request.token => {
                again = Some(*owner);
            }
            Place::Running { until, .. } | Place::OwedBy { until, .. } if now < *until => {
                return Expected::InProgress(until.since(now).min(rules.lease));
            }
            Place::Running { started, alone, .. } => {
                operation.interruptions += u32::from(*started);
                operation.crashes += u32::from(*started && *alone);
            }
            Place::Waiting { not_before } if now < *not_before => {
                return Expected::NotYet(not_before.since(now).min(rules.max_delay));
            }
            Place::Waiting { .. } => {}
            Place::OwedBy { reason, .. } | Place::OwedByNobody { reason } => owed = Some(reason.clone()),
        }
        operation.content = operation.content.or(content);
        operation.forgotten_at = now.after(rules.retention.max(rules.lease));
        let until_when = now.after(rules.lease);
        if let Some(owner) = again {
            match &mut operation.place {
                Place::Running { until, .. } | Place::OwedBy { until, .. } => *until = until_when,
                _ => {}
            }
            return self.acquired(owner);
        }
        if operation.crashes >= rules.max_crashes {
            owed = owed.or(Some(FailReason::CrashLoop));
        } else if operation.failures >= rules.max_failures {
            owed = owed.or(Some(FailReason::Attempts));
        }
        self.highest_fence += 1;
        let owner = Owner { token: request.token, fence: self.highest_fence };
        operation.place = match owed {
            Some(reason) => Place::OwedBy { owner, until: until_when, reason },
            None => {
                let alone = operation.interruptions >= 2;
                Place::Running { owner, until: until_when, started: request.started, alone }
            }
        };
        self.last_end = None;
        self.acquired(owner)
    }

    fn acquired(&self, owner: Owner) -> Expected {
        let operation = self.operation.as_ref().unwrap();
        let (stage, alone) = match &operation.place {
            Place::OwedBy { reason, .. } => (Stage::DeadLetter(reason.clone()), false),
            Place::Running { alone, .. } => (Stage::Run, *alone),
            other => panic!("{other:?} is held by nobody"),
        };
        let counters = operation.counters();
        Expected::Acquired { owner, generation: operation.generation, stage, counters, alone }
    }

    /// `Ok` with the standing, or `Err` when it must be refused.
    fn settle(&mut self, claim: &Claim, verb: &Verb, now: Timestamp) -> Result<Standing, Refusal> {
        self.forget_what_expired(now);
        let me = Owner::of(claim);
        let Some(operation) = &mut self.operation else { return Err(Refusal::Superseded) };
        if operation.generation != claim.generation.get() {
            return Err(Refusal::Superseded);
        }
        if self.last_end.as_ref().is_some_and(|(owner, last)| *owner == me && same_call(last, verb))
            && let Some(standing) = operation.standing(now)
        {
            return Ok(standing);
        }
        let rules = &claim.rules;
        let held_until = now.after(rules.lease);
        let free_from = |delay: &Duration| now.after((*delay).min(rules.max_delay));
        let mut kept_for = rules.retention.max(rules.lease);
        let mut ends = true;
        let place = match (&operation.place, verb) {
            (Place::Running { owner, started, alone, .. }, _) if *owner == me => match verb {
                Verb::Started | Verb::Renew => {
                    ends = false;
                    let started = *started || *verb == Verb::Started;
                    Place::Running { owner: me, until: held_until, started, alone: *alone }
                }
                Verb::Complete { result } => Place::Done {
                    result: StoredResult::within(result.clone(), MAX_RESULT),
                    attempt: operation.failures + operation.interruptions + 1,
                },
                Verb::Fail(Failing::ForGood(reason)) => {
                    Place::OwedBy { owner: me, until: held_until, reason: reason.clone() }
                }
                Verb::Fail(Failing::Retry { delay }) => {
                    operation.failures += 1;
                    if operation.failures >= rules.max_failures {
                        Place::OwedBy { owner: me, until: held_until, reason: FailReason::Attempts }
                    } else {
                        Place::Waiting { not_before: free_from(delay) }
                    }
                }
                Verb::Release { delay } => Place::Waiting { not_before: free_from(delay) },
                Verb::DeadLettered => return Err(Refusal::AlreadyEnded),
            },
            (Place::OwedBy { owner, reason, .. }, _) if *owner == me => match verb {
                Verb::Renew => {
                    ends = false;
                    Place::OwedBy { owner: me, until: held_until, reason: reason.clone() }
                }
                Verb::DeadLettered => Place::Buried { reason: reason.clone() },
                Verb::Release { .. } => Place::OwedByNobody { reason: reason.clone() },
                Verb::Started | Verb::Complete { .. } | Verb::Fail(_) => {
                    return Err(Refusal::AlreadyEnded);
                }
            },
            _ if me.fence < self.highest_fence => return Err(Refusal::TakenOver),
            _ => return Err(Refusal::AlreadyEnded),
        };
        if !matches!(place, Place::Running { .. } | Place::OwedBy { .. }) {
            kept_for = rules.retention;
        }
        operation.place = place;
        operation.forgotten_at = now.after(kept_for);
        if !ends {
            return Ok(Standing::Held);
        }
        self.last_end = Some((me, verb.clone()));
        Ok(operation.standing(now).unwrap_or(Standing::Held))
    }

    fn forget(&mut self, now: Timestamp) -> ForgetAnswer {
        self.forget_what_expired(now);
        if self.live(now).is_some() {
            return ForgetAnswer::RefusedLive;
        }
        match self.operation.as_ref().map(|operation| &operation.place) {
            None => ForgetAnswer::Absent,
            Some(Place::OwedBy { .. } | Place::OwedByNobody { .. }) => ForgetAnswer::RefusedOwed,
            Some(_) => {
                (self.operation, self.last_end) = (None, None);
                ForgetAnswer::Forgotten
            }
        }
    }

    fn force(&mut self, now: Timestamp, retention: Duration) -> ForceAnswer {
        self.forget_what_expired(now);
        if self.live(now).is_some() {
            return ForceAnswer::RefusedLive;
        }
        let Some(operation) = &mut self.operation else { return ForceAnswer::Absent };
        self.highest_fence += 1;
        *operation = Operation {
            generation: self.highest_fence,
            content: operation.content,
            failures: 0,
            interruptions: 0,
            crashes: 0,
            forgotten_at: now.after(retention),
            place: Place::Waiting { not_before: now },
        };
        self.last_end = None;
        ForceAnswer::Forced(Fence::new(self.highest_fence))
    }
}

impl Operation {
    fn counters(&self) -> Counters {
        let (failures, interruptions, crashes) = (self.failures, self.interruptions, self.crashes);
        Counters { failures, interruptions, crashes }
    }

    /// How the place is told to the one who brought the key there; `None` while a handler holds it.
    fn standing(&self, now: Timestamp) -> Option<Standing> {
        Some(match &self.place {
            Place::Running { .. } => return None,
            Place::Waiting { not_before } => {
                Standing::Released { until: *not_before, retry_after: not_before.since(now) }
            }
            Place::OwedBy { reason, .. } => Standing::Owed(reason.clone()),
            Place::OwedByNobody { reason } => Standing::OwedUnclaimed(reason.clone()),
            Place::Done { .. } => Standing::Completed,
            Place::Buried { .. } => Standing::DeadLettered,
        })
    }
}

/// Whether a call is another one sent again. A delay or a reason that differs makes no other call of it: it
/// is answered with what holds.
fn same_call(one: &Verb, other: &Verb) -> bool {
    match (one, other) {
        (Verb::Complete { result: one }, Verb::Complete { result: other }) => {
            StoredResult::within(one.clone(), MAX_RESULT) == StoredResult::within(other.clone(), MAX_RESULT)
        }
        (Verb::Fail(one), Verb::Fail(other)) => std::mem::discriminant(one) == std::mem::discriminant(other),
        (Verb::Started | Verb::Renew, _) => false,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

// ---------------------------------------------------------------------------------------------------------
// The calls

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

/// The walk to a crash loop, told once in full: two interruptions in company, then each one alone counts.
#[test]
fn two_interruptions_in_company_then_crashes_alone_up_to_the_limit() {
    let mut run = Run::new();
    let start = |run: &mut Run| {
        run.take(Step::Claim { content: Some(0), rules: 0, started: true }).unwrap();
        run.take(Step::Wait(31)).unwrap();
        run.claims.last().unwrap().clone()
    };
    let company = [start(&mut run), start(&mut run)];
    assert!(company.iter().all(|claim| !claim.alone && claim.stage == Stage::Run));
    let alone = [start(&mut run), start(&mut run)];
    assert!(alone.iter().all(|claim| claim.alone && claim.interrupted && claim.stage == Stage::Run));
    let last = start(&mut run);
    assert_eq!(last.stage, Stage::DeadLetter(FailReason::CrashLoop));
    assert_eq!(last.counters, Counters { failures: 0, interruptions: 4, crashes: 2 });
}
