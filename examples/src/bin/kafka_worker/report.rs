//! What a worker has done, for people and for programs.

use einmal::worker::Summary;
use serde::Serialize;

/// The last line of `consume --json`. `received` is the sum of all others once nothing is in flight.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    received: u64,
    in_flight: u64,
    ran_ok: u64,
    ran_failed: u64,
    ignored: u64,
    duplicate: u64,
    conflict: u64,
    parked: u64,
    dead_lettered_without_run: u64,
    rejected_before_claim: u64,
    unsettled: u64,
}

impl From<Summary> for Report {
    fn from(summary: Summary) -> Self {
        Self {
            received: summary.received,
            in_flight: summary.in_flight,
            ran_ok: summary.ran_ok,
            ran_failed: summary.ran_failed,
            ignored: summary.ignored,
            duplicate: summary.duplicate,
            conflict: summary.conflict,
            parked: summary.parked,
            dead_lettered_without_run: summary.dead_lettered_without_run,
            rejected_before_claim: summary.rejected_before_claim,
            unsettled: summary.unsettled,
        }
    }
}

impl Report {
    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let rows = [
            ("received", self.received),
            ("  handled", self.ran_ok),
            ("  repeats, answered by the stored outcome", self.duplicate),
            ("  given up: a dead letter now", self.ran_failed + self.parked),
            ("  dead letters without a run", self.dead_lettered_without_run),
            ("  without a usable id: dead letters", self.rejected_before_claim),
            ("  same id, other content: dead letters", self.conflict),
            ("  ignored by the handler", self.ignored),
            ("  left unsettled: delivered again", self.unsettled),
        ];
        rows.iter().map(|(name, count)| format!("{name:<44}{count:>12}\n")).collect()
    }
}
