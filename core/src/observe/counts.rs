//! What `Observe` counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::names;

/// What [`Observe`](crate::Mode::Observe) has seen: what [`Enforce`](crate::Mode::Enforce) would have done.
///
/// The first eight count deliveries: each comes into one of them, by the first look at it. The others count
/// what came after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// Would have run: these were claimed.
    pub would_run: u64,
    /// Would have been answered by the stored outcome.
    pub would_duplicate: u64,
    /// Would have been put aside: the id came with another content before.
    pub would_conflict: u64,
    /// Would have waited for a copy that runs, and most often have become a duplicate of it.
    pub would_in_progress: u64,
    /// Would have waited for the back-off of an earlier failure.
    pub would_not_yet: u64,
    /// Would have become a dead letter without a run: given up before, or the record can't be read.
    pub would_dead_letter: u64,
    /// Would have been rejected: no usable id.
    pub would_reject: u64,
    /// Not known: the store failed, or was left alone for a while because it had failed.
    pub unknown: u64,
    /// A claimed run that failed, which would have been charged and delayed.
    pub would_fail: u64,
    /// A claimed run that rejected or parked its message, which would have become a dead letter.
    pub would_give_up: u64,
    /// A claimed run was done, and its outcome could not be stored.
    pub not_stored: u64,
}

/// One thing to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Run,
    Duplicate,
    Conflict,
    InProgress,
    NotYet,
    DeadLetter,
    Rejected,
    Unknown,
    Failed,
    GivenUp,
    NotStored,
}

impl Seen {
    const ALL: [(Self, &'static str); 11] = [
        (Self::Run, "run"),
        (Self::Duplicate, "duplicate"),
        (Self::Conflict, "conflict"),
        (Self::InProgress, "in_progress"),
        (Self::NotYet, "not_yet"),
        (Self::DeadLetter, "dead_letter"),
        (Self::Rejected, "reject"),
        (Self::Unknown, "unknown"),
        (Self::Failed, "fail"),
        (Self::GivenUp, "give_up"),
        (Self::NotStored, "not_stored"),
    ];
}

/// The counts, and until when the store is left alone.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    counts: [AtomicU64; Seen::ALL.len()],
    /// Nanoseconds of the monotonic clock.
    alone_until: AtomicU64,
}

impl Observer {
    pub(crate) fn leaves_alone(&self, now: Duration) -> bool {
        nanos(now) < self.alone_until.load(Ordering::Relaxed)
    }

    pub(crate) fn leave_alone(&self, until: Duration) {
        self.alone_until.store(nanos(until), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Engine {
    /// Counts a delivery, unless it has been.
    pub(crate) fn saw(&self, seen: Seen, counted: &mut bool) {
        if !std::mem::replace(counted, true) {
            self.count(seen);
        }
    }

    pub(crate) fn count(&self, seen: Seen) {
        for (count, (kind, would)) in self.observer.counts.iter().zip(Seen::ALL) {
            if kind == seen {
                count.fetch_add(1, Ordering::Relaxed);
                metrics::counter!(names::OBSERVED, "scope" => self.scope_label.clone(), "would" => would)
                    .increment(1);
            }
        }
    }

    pub(crate) fn observed(&self) -> Observed {
        let at = |seen| {
            let found = self.observer.counts.iter().zip(Seen::ALL).find(|(_, (kind, _))| *kind == seen);
            found.map_or(0, |(count, _)| count.load(Ordering::Relaxed))
        };
        Observed {
            would_run: at(Seen::Run),
            would_duplicate: at(Seen::Duplicate),
            would_conflict: at(Seen::Conflict),
            would_in_progress: at(Seen::InProgress),
            would_not_yet: at(Seen::NotYet),
            would_dead_letter: at(Seen::DeadLetter),
            would_reject: at(Seen::Rejected),
            unknown: at(Seen::Unknown),
            would_fail: at(Seen::Failed),
            would_give_up: at(Seen::GivenUp),
            not_stored: at(Seen::NotStored),
        }
    }
}
