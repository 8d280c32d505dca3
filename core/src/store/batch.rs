//! The order inside a batch: a group stops at its first item that did not get what it asked for.

use std::collections::HashSet;

use crate::claim::{ClaimAnswer, SettleAnswer, Stage};
use crate::error::StoreError;

/// Which ordered groups of a batch have stopped. A store makes one a batch.
#[derive(Debug, Default)]
pub struct Groups {
    stopped: HashSet<u32>,
}

impl Groups {
    /// Whether an item of `group` is behind one that stopped the group.
    #[must_use]
    pub fn is_behind(&self, group: Option<u32>) -> bool {
        group.is_some_and(|group| self.stopped.contains(&group))
    }

    /// Notes the answer to a claim of `group`.
    ///
    /// What is decided (done, failed, conflicting) doesn't stop the group: its lane can go on past it. A
    /// dead letter's claim does, because the lane must publish before it goes on.
    pub fn saw_claim(&mut self, group: Option<u32>, answer: &Result<ClaimAnswer, StoreError>) {
        let goes_on = match answer {
            Ok(ClaimAnswer::Acquired(claim)) => claim.stage == Stage::Run,
            Ok(ClaimAnswer::Completed(_) | ClaimAnswer::Failed(_) | ClaimAnswer::Conflict) => true,
            Ok(ClaimAnswer::InProgress { .. } | ClaimAnswer::NotYet { .. } | ClaimAnswer::Behind)
            | Err(_) => false,
        };
        self.saw(group, goes_on);
    }

    /// Notes the answer to a settle of `group`.
    pub fn saw_settle(&mut self, group: Option<u32>, answer: &Result<SettleAnswer, StoreError>) {
        self.saw(group, matches!(answer, Ok(SettleAnswer::Applied(_))));
    }

    fn saw(&mut self, group: Option<u32>, goes_on: bool) {
        if let Some(group) = group
            && !goes_on
        {
            self.stopped.insert(group);
        }
    }
}
