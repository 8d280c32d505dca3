//! The model, written from the design's words: it keeps who owns the key, what is owed and what was counted,
//! and says what each call must be answered.

use std::time::Duration;

use einmal::claim::{
    Claim, ClaimRequest, Counters, Failing, Fence, ForceAnswer, ForgetAnswer, Refusal, Stage, Standing,
    Token, Verb,
};
use einmal::{FailReason, StoredResult, Timestamp};

/// The longest result that is kept in this test, in bytes.
pub(crate) const MAX_RESULT: usize = 4;

/// What a key has been through, and who has it.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) generation: u64,
    pub(crate) content: Option<u8>,
    pub(crate) failures: u32,
    pub(crate) interruptions: u32,
    pub(crate) crashes: u32,
    pub(crate) forgotten_at: Timestamp,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Running { owner: Owner, until: Timestamp, started: bool, alone: bool },
    Waiting { not_before: Timestamp },
    OwedBy { owner: Owner, until: Timestamp, reason: FailReason },
    OwedByNobody { reason: FailReason },
    Done { result: StoredResult, attempt: u32 },
    Buried { reason: FailReason },
}

/// A claim, as a settle must prove it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Owner {
    pub(crate) token: Token,
    pub(crate) fence: u64,
}

impl Owner {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self { token: claim.token, fence: claim.fence.get() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) operation: Option<Operation>,
    pub(crate) highest_fence: u64,
    /// The settle that ended a claim last, as long as nobody else has touched the key since.
    pub(crate) last_end: Option<(Owner, Verb)>,
}

/// What the model expects of a claim.
#[derive(Debug, PartialEq)]
pub(crate) enum Expected {
    Acquired { owner: Owner, generation: u64, stage: Stage, counters: Counters, alone: bool },
    InProgress(Duration),
    Completed(StoredResult, u32),
    Failed(FailReason),
    Conflict,
    NotYet(Duration),
}

impl Model {
    pub(crate) fn live(&self, now: Timestamp) -> Option<Owner> {
        match self.operation.as_ref()?.place {
            Place::Running { owner, until, .. } | Place::OwedBy { owner, until, .. } if now < until => {
                Some(owner)
            }
            _ => None,
        }
    }

    /// A record that has ended is no record; a live claim keeps its own alive.
    pub(crate) fn forget_what_expired(&mut self, now: Timestamp) {
        let expired = self.operation.as_ref().is_some_and(|operation| operation.forgotten_at <= now);
        if expired && self.live(now).is_none() {
            (self.operation, self.last_end) = (None, None);
        }
    }

    pub(crate) fn claim(&mut self, request: &ClaimRequest, content: Option<u8>, now: Timestamp) -> Expected {
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
                Place::Running { owner, until: until_when, started: request.started && !alone, alone }
            }
        };
        self.last_end = None;
        self.acquired(owner)
    }

    pub(crate) fn acquired(&self, owner: Owner) -> Expected {
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
    pub(crate) fn settle(&mut self, claim: &Claim, verb: &Verb, now: Timestamp) -> Result<Standing, Refusal> {
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

    pub(crate) fn forget(&mut self, now: Timestamp) -> ForgetAnswer {
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

    pub(crate) fn force(&mut self, now: Timestamp, retention: Duration) -> ForceAnswer {
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
    pub(crate) fn counters(&self) -> Counters {
        let (failures, interruptions, crashes) = (self.failures, self.interruptions, self.crashes);
        Counters { failures, interruptions, crashes }
    }

    /// How the place is told to the one who brought the key there; `None` while a handler holds it.
    pub(crate) fn standing(&self, now: Timestamp) -> Option<Standing> {
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
