//! How a key's record changes: pure functions of record, request and time.
//!
//! Every store runs these, or their translation, atomically: look-up, decision and write are one critical
//! section. They touch neither clock nor disk, so a small model can check them over any sequence of calls.

use std::time::Duration;

use super::{
    Claim, ClaimAnswer, ClaimRequest, Ended, EndedBy, Failing, Fence, ForceAnswer, ForgetAnswer, Phase,
    Record, Refusal, SettleAnswer, Stage, Standing, Token, Verb,
};
use crate::clock::Timestamp;
use crate::outcome::{FailReason, Failed, Outcome, StoredResult};

/// How often a key may be interrupted among others before it runs alone.
const INTERRUPTIONS_IN_COMPANY: u32 = 2;

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays as it was.
    Keep,
    /// It is replaced, or made.
    Put(Box<Record>),
    /// It is taken away.
    Remove,
}

impl Change {
    /// Applies the change to a slot.
    pub fn apply_to(self, slot: &mut Option<Record>) {
        match self {
            Self::Keep => {}
            Self::Put(record) => *slot = Some(*record),
            Self::Remove => *slot = None,
        }
    }
}

fn put(record: Record) -> Change {
    Change::Put(Box::new(record))
}

/// The claim of a key.
///
/// `next_fence` is used only when the key is acquired, and raised above the record's own fence if it is
/// not already.
#[must_use]
pub fn claim(
    record: Option<&Record>,
    request: &ClaimRequest,
    now: Timestamp,
    next_fence: Fence,
) -> (Change, ClaimAnswer) {
    let Some(old) = record.filter(|record| !record.is_expired(now)) else {
        let fence = record.map_or(next_fence, |record| next_fence.max(record.fence.next()));
        return acquire(fresh(request, now, fence), request, now, Stage::Run);
    };
    if let (Some(kept), Some(brought)) = (&old.fingerprint, &request.fingerprint)
        && kept.conflicts_with(brought)
    {
        return (Change::Keep, ClaimAnswer::Conflict);
    }

    let mut record = old.clone();
    record.fingerprint = record.fingerprint.or(request.fingerprint);
    let stage = match &old.phase {
        Phase::Completed(outcome) => return (Change::Keep, ClaimAnswer::Completed(outcome.clone())),
        Phase::Failed(failed) => return (Change::Keep, ClaimAnswer::Failed(failed.clone())),
        Phase::InProgress { token, .. } if *token == request.token => {
            return same_claim_again(record, request, now);
        }
        Phase::InProgress { lease_until, .. } if now < *lease_until => {
            let retry_after = lease_until.since(now).min(request.rules.lease);
            return (Change::Keep, ClaimAnswer::InProgress { retry_after });
        }
        Phase::InProgress { stage: Stage::DeadLetter(reason), .. } => Stage::DeadLetter(reason.clone()),
        Phase::InProgress { started, alone, .. } => {
            charge_interruption(&mut record, *started, *alone);
            stage_to_run(&record, request)
        }
        Phase::Released { not_before } => {
            let until = (*not_before).min(now.after(request.rules.max_delay));
            if now < until {
                return (Change::Keep, ClaimAnswer::NotYet { until, retry_after: until.since(now) });
            }
            stage_to_run(&record, request)
        }
        Phase::Owed(reason) => Stage::DeadLetter(reason.clone()),
    };
    record.fence = next_fence.max(record.fence.next());
    acquire(record, request, now, stage)
}

fn fresh(request: &ClaimRequest, now: Timestamp, fence: Fence) -> Record {
    Record {
        phase: Phase::Released { not_before: now },
        fingerprint: request.fingerprint,
        counters: super::Counters::default(),
        generation: fence,
        fence,
        first_at: now,
        expires_at: now,
        ended: None,
    }
}

const fn charge_interruption(record: &mut Record, started: bool, alone: bool) {
    if started {
        record.counters.interruptions = record.counters.interruptions.saturating_add(1);
        if alone {
            record.counters.crashes = record.counters.crashes.saturating_add(1);
        }
    }
}

fn stage_to_run(record: &Record, request: &ClaimRequest) -> Stage {
    if record.counters.crashes >= request.rules.max_crashes {
        Stage::DeadLetter(FailReason::CrashLoop)
    } else if record.counters.failures >= request.rules.max_failures {
        Stage::DeadLetter(FailReason::Attempts)
    } else {
        Stage::Run
    }
}

fn acquire(
    mut record: Record,
    request: &ClaimRequest,
    now: Timestamp,
    stage: Stage,
) -> (Change, ClaimAnswer) {
    let runs = stage == Stage::Run;
    let alone = runs && record.counters.interruptions >= INTERRUPTIONS_IN_COMPANY;
    let phase = Phase::InProgress {
        token: request.token,
        lease_until: now.after(request.rules.lease),
        stage,
        // Who must run alone waits until the others have ended, and starts after that only.
        started: runs && request.started && !alone,
        alone,
    };
    hold(&mut record, request, now, phase);
    let answer = acquired(&record, request);
    (put(record), answer)
}

/// The call that made this claim, sent again because its answer was lost: the same claim, its lease from
/// now.
fn same_claim_again(mut record: Record, request: &ClaimRequest, now: Timestamp) -> (Change, ClaimAnswer) {
    if let Phase::InProgress { stage, started, alone, .. } = record.phase.clone() {
        let lease_until = now.after(request.rules.lease);
        let phase = Phase::InProgress { token: request.token, lease_until, stage, started, alone };
        hold(&mut record, request, now, phase);
    }
    let answer = acquired(&record, request);
    (put(record), answer)
}

fn hold(record: &mut Record, request: &ClaimRequest, now: Timestamp, phase: Phase) {
    record.phase = phase;
    record.expires_at = now.after(request.rules.retention.max(request.rules.lease));
}

fn acquired(record: &Record, request: &ClaimRequest) -> ClaimAnswer {
    let (stage, alone) = match &record.phase {
        Phase::InProgress { stage, alone, .. } => (stage.clone(), *alone),
        _ => (Stage::Run, false),
    };
    ClaimAnswer::Acquired(Claim {
        key: request.key.clone(),
        token: request.token,
        fence: record.fence,
        generation: record.generation,
        stage,
        counters: record.counters,
        interrupted: record.counters.interruptions > 0,
        alone,
        first_at: record.first_at,
        rules: request.rules,
    })
}

/// A settle by the holder of `claim`. `max_result` is the longest result that the store keeps, in bytes.
#[must_use]
pub fn settle(
    record: Option<&Record>,
    claim: &Claim,
    verb: &Verb,
    now: Timestamp,
    max_result: usize,
) -> (Change, SettleAnswer) {
    let refuse = |refusal| (Change::Keep, SettleAnswer::Refused(refusal));
    let max_result = max_result.min(claim.rules.max_result);
    let Some(old) = record.filter(|record| !record.is_expired(now)) else {
        return refuse(Refusal::Superseded);
    };
    if old.generation != claim.generation {
        return refuse(Refusal::Superseded);
    }
    if let Some(ended) = old.ended.filter(|ended| ended.token == claim.token && ended.fence == claim.fence)
        && let Some(standing) = applied_before(old, ended.by, verb, now, max_result)
    {
        return (Change::Keep, SettleAnswer::Applied(standing));
    }
    match &old.phase {
        Phase::InProgress { token, stage, started, alone, .. }
            if *token == claim.token && old.fence == claim.fence =>
        {
            let held = Held { token: *token, stage, started: *started, alone: *alone };
            match transition(old, &held, claim, verb, now, max_result) {
                Some((record, standing)) => (put(record), SettleAnswer::Applied(standing)),
                None => refuse(Refusal::AlreadyEnded),
            }
        }
        _ if claim.fence < old.fence => refuse(Refusal::TakenOver),
        _ => refuse(Refusal::AlreadyEnded),
    }
}

/// How the key stands if `verb` is the very call that ended the claim before.
fn applied_before(
    record: &Record,
    by: EndedBy,
    verb: &Verb,
    now: Timestamp,
    max_result: usize,
) -> Option<Standing> {
    let still_held = record.ended.is_some_and(|ended| ended.fence == record.fence);
    match (&record.phase, by, verb) {
        (Phase::Completed(outcome), EndedBy::Complete, Verb::Complete { result })
            if outcome.result == StoredResult::within(result.clone(), max_result) =>
        {
            Some(Standing::Completed)
        }
        (Phase::Failed(_), EndedBy::DeadLettered, Verb::DeadLettered) => Some(Standing::DeadLettered),
        (Phase::Released { not_before }, EndedBy::Retry, Verb::Fail(Failing::Retry { .. }))
        | (Phase::Released { not_before }, EndedBy::Release, Verb::Release { .. }) => {
            Some(Standing::Released { until: *not_before, retry_after: not_before.since(now) })
        }
        (Phase::Owed(reason), EndedBy::Release, Verb::Release { .. }) => {
            Some(Standing::OwedUnclaimed(reason.clone()))
        }
        // Said only to the one who goes on holding the key: after a take-over the dead letter is another's.
        (
            Phase::InProgress { stage: Stage::DeadLetter(reason), .. },
            EndedBy::Retry,
            Verb::Fail(Failing::Retry { .. }),
        )
        | (
            Phase::InProgress { stage: Stage::DeadLetter(reason), .. },
            EndedBy::ForGood,
            Verb::Fail(Failing::ForGood(_)),
        ) if still_held => Some(Standing::Owed(reason.clone())),
        _ => None,
    }
}

struct Held<'a> {
    token: Token,
    stage: &'a Stage,
    started: bool,
    alone: bool,
}

/// The change that the holder asks for; `None` when the claim's stage does not allow it.
///
/// A lease that has ended without a take-over does not matter here: nobody else has run meanwhile.
fn transition(
    old: &Record,
    held: &Held<'_>,
    claim: &Claim,
    verb: &Verb,
    now: Timestamp,
    max_result: usize,
) -> Option<(Record, Standing)> {
    let mut record = old.clone();
    let rules = &claim.rules;
    let holding = |stage: Stage, started: bool| Phase::InProgress {
        token: held.token,
        lease_until: now.after(rules.lease),
        alone: held.alone && stage == Stage::Run,
        stage,
        started,
    };
    let free_from = |delay: Duration| now.after(delay.min(rules.max_delay));
    let (phase, standing, ended_by) = match (verb, held.stage) {
        (Verb::Started, Stage::Run) => (holding(Stage::Run, true), Standing::Held, None),
        (Verb::Renew, stage) => (holding(stage.clone(), held.started), Standing::Held, None),
        (Verb::Complete { result }, Stage::Run) => {
            let result = StoredResult::within(result.clone(), max_result);
            let attempt = record.counters.attempts().saturating_add(1);
            let outcome = Outcome { result, at: now, attempt };
            (Phase::Completed(outcome), Standing::Completed, Some(EndedBy::Complete))
        }
        (Verb::Fail(Failing::Retry { delay }), Stage::Run) => {
            record.counters.failures = record.counters.failures.saturating_add(1);
            if record.counters.failures >= rules.max_failures {
                let stage = Stage::DeadLetter(FailReason::Attempts);
                (holding(stage, false), Standing::Owed(FailReason::Attempts), Some(EndedBy::Retry))
            } else {
                let until = free_from(*delay);
                let standing = Standing::Released { until, retry_after: until.since(now) };
                (Phase::Released { not_before: until }, standing, Some(EndedBy::Retry))
            }
        }
        (Verb::Fail(Failing::ForGood(reason)), Stage::Run) => {
            let reason = reason.clone().cut();
            let stage = Stage::DeadLetter(reason.clone());
            (holding(stage, false), Standing::Owed(reason), Some(EndedBy::ForGood))
        }
        (Verb::DeadLettered, Stage::DeadLetter(reason)) => {
            // The attempt that ended in these words is in no counter: it was not charged.
            let uncounted = u32::from(matches!(reason, FailReason::Rejected(_) | FailReason::Parked(_)));
            let attempts = record.counters.attempts().saturating_add(uncounted);
            let failed = Failed { reason: reason.clone(), at: now, attempts };
            (Phase::Failed(failed), Standing::DeadLettered, Some(EndedBy::DeadLettered))
        }
        (Verb::Release { delay }, Stage::Run) => {
            let until = free_from(*delay);
            let standing = Standing::Released { until, retry_after: until.since(now) };
            (Phase::Released { not_before: until }, standing, Some(EndedBy::Release))
        }
        (Verb::Release { .. }, Stage::DeadLetter(reason)) => {
            let standing = Standing::OwedUnclaimed(reason.clone());
            (Phase::Owed(reason.clone()), standing, Some(EndedBy::Release))
        }
        (Verb::Started | Verb::Complete { .. } | Verb::Fail(_), Stage::DeadLetter(_))
        | (Verb::DeadLettered, Stage::Run) => return None,
    };
    let held_on = matches!(phase, Phase::InProgress { .. });
    record.phase = phase;
    record.expires_at = now.after(if held_on { rules.retention.max(rules.lease) } else { rules.retention });
    if let Some(by) = ended_by {
        record.ended = Some(Ended { token: claim.token, fence: claim.fence, by });
    }
    Some((record, standing))
}

/// Takes a key's record away, unless that could double an effect or lose a dead letter.
#[must_use]
pub fn forget(record: Option<&Record>, now: Timestamp) -> (Change, ForgetAnswer) {
    let Some(old) = record.filter(|record| !record.is_expired(now)) else {
        let change = if record.is_some() { Change::Remove } else { Change::Keep };
        return (change, ForgetAnswer::Absent);
    };
    match &old.phase {
        Phase::InProgress { .. } if old.is_live(now) => (Change::Keep, ForgetAnswer::RefusedLive),
        Phase::Owed(_) | Phase::InProgress { stage: Stage::DeadLetter(_), .. } => {
            (Change::Keep, ForgetAnswer::RefusedOwed)
        }
        _ => (Change::Remove, ForgetAnswer::Forgotten),
    }
}

/// Makes a key ready to run again as a new generation: done or failed, owed or waiting.
///
/// The fingerprint stays: a forced run is of the same operation.
#[must_use]
pub fn force(
    record: Option<&Record>,
    now: Timestamp,
    next_fence: Fence,
    retention: Duration,
) -> (Change, ForceAnswer) {
    let Some(old) = record.filter(|record| !record.is_expired(now)) else {
        return (Change::Keep, ForceAnswer::Absent);
    };
    if old.is_live(now) {
        return (Change::Keep, ForceAnswer::RefusedLive);
    }
    let fence = next_fence.max(old.fence.next());
    let record = Record {
        phase: Phase::Released { not_before: now },
        fingerprint: old.fingerprint,
        counters: super::Counters::default(),
        generation: fence,
        fence,
        first_at: now,
        expires_at: now.after(retention),
        ended: None,
    };
    (put(record), ForceAnswer::Forced(fence))
}
