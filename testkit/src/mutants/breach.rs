//! The rules that a store can be made to break.

use std::time::Duration;

use einmal::FailReason;
use einmal::claim::{Claim, ClaimRequest, Failing, Phase, Record, Rules, Verb, state};
use einmal::{DedupKey, MessageId, Scope, Timestamp};

/// The rule that a [`Disk`](super::Disk) breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// None: the store keeps its contract.
    None,
    /// Whoever comes may settle a held key.
    ForgetsTheFence,
    /// A claim makes its key completed at once, as a plain "seen" set does.
    MarksBeforeTheHandler,
    /// No record ends.
    NeverExpires,
    /// No lease ends.
    NeverLapses,
    /// A record is absent only once it has been purged.
    ServesTheExpired,
    /// A purge takes all that it finds.
    PurgesWithoutLimit,
    /// The same key with other content is taken for a repeat.
    IgnoresTheFingerprint,
    /// Looks up, and writes later, as if nothing could have happened meanwhile.
    ClaimsInTwoSteps,
    /// Answers first and syncs later.
    AnswersBeforeTheSync,
    /// Answers after the sync, but lets readers see what is not synced yet.
    ShowsBeforeTheSync,
    /// Writes the outcomes of a group last to first.
    WritesTheLastFirst,
    /// Answers a completion as applied, and writes nothing.
    DropsCompletions,
    /// Does not know a settle again that it has applied.
    ForgetsItsSettles,
    /// Does not know a claim again that it has made.
    ForgetsItsClaims,
    /// After a restart, knows nothing of the claims of before.
    ForgetsClaimsAtARestart,
    /// Counts a key's fences from 1, whenever it has no record of it.
    RestartsItsFences,
    /// A failed attempt is taken for done, and its redelivery for a duplicate.
    TakesFailedForDone,
    /// A release begins the key's history anew.
    LosesCountersAtARelease,
    /// A lapse is an interruption though the handler had not started.
    ChargesInnocents,
    /// A dead letter is taken for published when it is owed.
    LosesDeadLetters,
    /// Keeps results that are longer than it says.
    KeepsAnyResult,
    /// Goes on in a group after an item that must wait.
    IgnoresGroups,
    /// Fails a batch for one record that it can't read.
    FailsAllForOne,
    /// Makes room by taking away what has not expired.
    EvictsTheLiving,
    /// One full scope shuts out all.
    LetsAScopeShutOutAll,
    /// Keys its records by the message id alone.
    MixesScopes,
    /// Cuts long ids.
    CutsLongIds,
    /// Answers a renewal, and writes nothing.
    RenewsNothing,
    /// Answers that the handler has started, and writes nothing.
    IgnoresTheStart,
    /// Runs nothing alone, so that it can't tell a crash from an interruption.
    RunsNothingAlone,
    /// Knows no limits of failures and crashes.
    NeverGivesUp,
    /// A key can be claimed at once, whatever back-off was asked for.
    IgnoresDelays,
    /// A settle doesn't move the time at which the record ends.
    TouchesNothing,
    /// Another completion replaces the first.
    KeepsTheLastResult,
    /// Forgets and forces live claims.
    InterferesWithTheLiving,
    /// Judges by its host's wall clock.
    TrustsTheWallClock,
}

const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Breach {
    /// All but [`None`](Breach::None).
    pub const ALL: [Self; 36] = [
        Self::ForgetsTheFence,
        Self::MarksBeforeTheHandler,
        Self::NeverExpires,
        Self::NeverLapses,
        Self::ServesTheExpired,
        Self::PurgesWithoutLimit,
        Self::IgnoresTheFingerprint,
        Self::ClaimsInTwoSteps,
        Self::AnswersBeforeTheSync,
        Self::ShowsBeforeTheSync,
        Self::WritesTheLastFirst,
        Self::DropsCompletions,
        Self::ForgetsItsSettles,
        Self::ForgetsItsClaims,
        Self::ForgetsClaimsAtARestart,
        Self::RestartsItsFences,
        Self::TakesFailedForDone,
        Self::LosesCountersAtARelease,
        Self::ChargesInnocents,
        Self::LosesDeadLetters,
        Self::KeepsAnyResult,
        Self::IgnoresGroups,
        Self::FailsAllForOne,
        Self::EvictsTheLiving,
        Self::LetsAScopeShutOutAll,
        Self::MixesScopes,
        Self::CutsLongIds,
        Self::RenewsNothing,
        Self::IgnoresTheStart,
        Self::RunsNothingAlone,
        Self::NeverGivesUp,
        Self::IgnoresDelays,
        Self::TouchesNothing,
        Self::KeepsTheLastResult,
        Self::InterferesWithTheLiving,
        Self::TrustsTheWallClock,
    ];

    /// Where the record of `key` is kept.
    pub(super) fn slot(self, key: &DedupKey) -> DedupKey {
        let (mut scope, mut id) = (key.scope().clone(), key.id().clone());
        if self == Self::MixesScopes {
            scope = Scope::new("all").unwrap_or(scope);
        }
        if self == Self::CutsLongIds
            && let Some(start) = id.as_str().get(..200)
        {
            id = MessageId::new(start).unwrap_or(id);
        }
        DedupKey::new(scope, id)
    }

    /// The rules that hold instead.
    pub(super) const fn rules(self, mut rules: Rules) -> Rules {
        match self {
            Self::NeverExpires => rules.retention = FOR_EVER,
            Self::NeverLapses => rules.lease = FOR_EVER,
            Self::NeverGivesUp => (rules.max_failures, rules.max_crashes) = (u32::MAX, u32::MAX),
            Self::IgnoresDelays => rules.max_delay = Duration::ZERO,
            _ => {}
        }
        rules
    }

    /// What is made of a claim's request.
    pub(super) fn request(self, mut request: ClaimRequest) -> ClaimRequest {
        request.rules = self.rules(request.rules);
        if self == Self::IgnoresTheFingerprint {
            request.fingerprint = None;
        }
        request
    }

    /// The record that is seen instead of the one that is there.
    pub(super) fn seen(self, mut record: Record, now: Timestamp) -> Record {
        if self == Self::ServesTheExpired && record.is_expired(now) {
            record.expires_at = Timestamp::MAX;
        }
        if self == Self::ChargesInnocents
            && record.is_lapsed(now)
            && let Phase::InProgress { started, .. } = &mut record.phase
        {
            *started = true;
        }
        if self == Self::ForgetsItsSettles {
            record.ended = None;
        }
        record
    }

    /// The record that `forget` and `force` see.
    pub(super) fn idle(self, mut record: Record) -> Record {
        if self == Self::InterferesWithTheLiving
            && let Phase::InProgress { lease_until, .. } = &mut record.phase
        {
            *lease_until = Timestamp::MIN;
        }
        record
    }

    /// What is written instead of the record of a key that was just acquired.
    pub(super) fn acquired(self, mut record: Record, claim: &mut Claim, now: Timestamp) -> Record {
        if self == Self::MarksBeforeTheHandler {
            return settled(record, claim, &Verb::Complete { result: None }, now);
        }
        if self == Self::RunsNothingAlone {
            claim.alone = false;
            if let Phase::InProgress { alone, .. } = &mut record.phase {
                *alone = false;
            }
        }
        record
    }

    /// The claim that a settle is judged by.
    pub(super) fn owner(self, mut claim: Claim, held: Option<&Record>) -> Claim {
        claim.rules = self.rules(claim.rules);
        if self == Self::ForgetsTheFence
            && let Some(Record { phase: Phase::InProgress { token, .. }, fence, generation, .. }) = held
        {
            (claim.token, claim.fence, claim.generation) = (*token, *fence, *generation);
        }
        claim
    }

    /// The record that `verb` meets.
    pub(super) fn met(self, mut record: Record, claim: &Claim, verb: &Verb, now: Timestamp) -> Record {
        let own = record.ended.is_some_and(|ended| ended.token == claim.token);
        if self == Self::KeepsTheLastResult
            && own
            && !record.is_expired(now)
            && matches!((&record.phase, verb), (Phase::Completed(_), Verb::Complete { .. }))
        {
            record.phase = Phase::InProgress {
                token: claim.token,
                lease_until: Timestamp::MAX,
                stage: claim.stage.clone(),
                started: true,
                alone: false,
            };
        }
        record
    }

    /// What is written instead of `new`, to which `verb` turned `old`.
    pub(super) fn written(
        self,
        old: Option<&Record>,
        mut new: Record,
        claim: &Claim,
        verb: &Verb,
        now: Timestamp,
    ) -> Record {
        let Some(old) = old.cloned() else { return new };
        match (self, verb) {
            (Self::DropsCompletions, Verb::Complete { .. })
            | (Self::RenewsNothing, Verb::Renew)
            | (Self::IgnoresTheStart, Verb::Started) => old,
            (Self::TouchesNothing, _) => Record { expires_at: old.expires_at, ..new },
            (Self::TakesFailedForDone, Verb::Fail(Failing::Retry { .. })) => {
                settled(old, claim, &Verb::Complete { result: None }, now)
            }
            (Self::LosesDeadLetters, Verb::Fail(Failing::ForGood(FailReason::Rejected(_)))) => {
                settled(new, claim, &Verb::DeadLettered, now)
            }
            (Self::LosesCountersAtARelease, Verb::Release { .. }) => {
                new.counters = einmal::claim::Counters::default();
                new
            }
            _ => new,
        }
    }
}

/// `record` after a settle.
fn settled(record: Record, claim: &Claim, verb: &Verb, now: Timestamp) -> Record {
    let (change, _) = state::settle(Some(&record), claim, verb, now, usize::MAX);
    let mut slot = Some(record.clone());
    change.apply_to(&mut slot);
    slot.unwrap_or(record)
}
