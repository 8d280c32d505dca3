//! What was seen, and whether it is what was promised.

use serde::Serialize;

/// The numbers of a run. The names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Times that a message was given to a worker process.
    pub(crate) deliveries: usize,
    /// Different ids that were produced.
    pub(crate) distinct: usize,
    /// Handler runs.
    pub(crate) handled: usize,
    /// Rows of the ledger.
    pub(crate) effects: usize,
    /// Deliveries answered by a stored outcome, as far as the killed workers could tell.
    pub(crate) duplicates: u64,
    /// Deliveries that an earlier process had been given already.
    pub(crate) redelivered: usize,
    /// Workers killed with work in flight.
    pub(crate) kills: usize,
    /// Ids without a row.
    pub(crate) lost: usize,
    /// Rows beyond an id's first.
    pub(crate) doubled: usize,
    /// Messages settled a second, without the waits for the group.
    pub(crate) msgs_per_s: u64,
    /// Runs repeated under one claim, because what their transaction had read had changed.
    pub(crate) mismatch_reruns: usize,
    /// Handlers that had started and left no row when their process was killed.
    pub(crate) in_flight_at_kills: usize,
    /// Accounts whose balance is not the sum of their rows.
    pub(crate) wrong_balances: usize,
    pub(crate) seed: u64,
}

impl Report {
    /// What is not as promised, each in one sentence.
    pub(crate) fn broken_promises(&self, kills_asked: usize) -> Vec<String> {
        let runs_to_explain = self.handled.saturating_sub(self.distinct + self.mismatch_reruns);
        let checks = [
            (self.lost == 0, format!("{} messages left no effect", self.lost)),
            (self.doubled == 0, format!("{} effects happened twice", self.doubled)),
            (self.wrong_balances == 0, format!("{} balances are wrong", self.wrong_balances)),
            (
                self.kills >= kills_asked,
                format!("only {} of {kills_asked} kills had work in flight", self.kills),
            ),
            (kills_asked == 0 || self.redelivered > 0, "nothing was redelivered after the kills".to_owned()),
            (
                runs_to_explain <= self.in_flight_at_kills,
                format!(
                    "{runs_to_explain} handler runs too many, but only {} were cut off by the kills",
                    self.in_flight_at_kills
                ),
            ),
        ];
        checks.into_iter().filter(|(kept, _)| !kept).map(|(_, words)| words).collect()
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let rows: [(&str, String); 11] = [
            ("deliveries", self.deliveries.to_string()),
            ("distinct ids", self.distinct.to_string()),
            ("handler runs", self.handled.to_string()),
            ("  of these cut off by a kill", self.in_flight_at_kills.to_string()),
            ("ledger rows", self.effects.to_string()),
            ("duplicates answered", format!("{} or more", self.duplicates)),
            ("redelivered after the kills", self.redelivered.to_string()),
            ("workers killed", self.kills.to_string()),
            ("lost", self.lost.to_string()),
            ("doubled", self.doubled.to_string()),
            ("msg/s without the waits", self.msgs_per_s.to_string()),
        ];
        rows.iter().map(|(name, value)| format!("  {name:<30}{value:>12}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Report {
        Report {
            deliveries: 30,
            distinct: 20,
            handled: 22,
            effects: 20,
            duplicates: 8,
            redelivered: 3,
            kills: 2,
            lost: 0,
            doubled: 0,
            msgs_per_s: 1,
            mismatch_reruns: 0,
            in_flight_at_kills: 2,
            wrong_balances: 0,
            seed: 1,
        }
    }

    #[test]
    fn each_broken_promise_is_told() {
        assert!(clean().broken_promises(2).is_empty());
        assert_eq!(Report { lost: 1, ..clean() }.broken_promises(2).len(), 1);
        assert_eq!(Report { doubled: 1, ..clean() }.broken_promises(2).len(), 1);
        assert_eq!(Report { kills: 1, ..clean() }.broken_promises(2).len(), 1);
        assert_eq!(Report { redelivered: 0, ..clean() }.broken_promises(2).len(), 1);
        assert_eq!(Report { handled: 23, ..clean() }.broken_promises(2).len(), 1);
        assert_eq!(Report { wrong_balances: 1, ..clean() }.broken_promises(2).len(), 1);
    }
}
