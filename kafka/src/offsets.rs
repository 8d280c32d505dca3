//! Which offset may be committed: pure arithmetic, without a client.
//!
//! A committed offset says "everything before me is settled". So it is never one past an unfinished message,
//! in whatever order messages finish. The arithmetic counts only messages *received*: a log has holes, left
//! by compaction and by the markers of transactions, and no message will ever come for them.

use std::collections::VecDeque;

/// The offset to commit: that of the first message to read next, which is one more than the last settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NextOffset(i64);

impl NextOffset {
    /// To read `offset` next.
    const fn at(offset: i64) -> Self {
        Self(offset)
    }

    /// To read what follows `offset` next. The one place where the one is added.
    const fn after(offset: i64) -> Self {
        Self(offset.saturating_add(1))
    }

    pub(crate) const fn get(self) -> i64 {
        self.0
    }
}

/// What a received offset is to a tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// It follows all received before.
    New,
    /// It does not: the log was rewound, cut or made anew. A tracker counts one pass over a log only.
    Backwards,
}

/// What was received of one partition in one assignment, and how far it is settled.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// From the first unfinished on, by offset, each with whether it is done.
    window: VecDeque<(i64, bool)>,
    last: Option<i64>,
    /// Nothing below is asked for: the first offset received, later the last committed.
    floor: Option<NextOffset>,
    in_flight: Option<NextOffset>,
}

impl Tracker {
    /// Notes that `offset` was received.
    pub(crate) fn received(&mut self, offset: i64) -> Received {
        if self.last.is_some_and(|last| offset <= last) {
            return Received::Backwards;
        }
        self.last = Some(offset);
        self.floor.get_or_insert(NextOffset::at(offset));
        self.window.push_back((offset, false));
        Received::New
    }

    /// Notes that `offset` is settled. False when it was so already, or never received.
    pub(crate) fn done(&mut self, offset: i64) -> bool {
        let Ok(at) = self.window.binary_search_by_key(&offset, |(offset, _)| *offset) else { return false };
        let was_open = self.window.get_mut(at).is_some_and(|(_, done)| !std::mem::replace(done, true));
        while self.window.front().is_some_and(|(_, done)| *done) {
            self.window.pop_front();
        }
        was_open
    }

    /// Messages received from the first unfinished one on: what a slow one makes this tracker remember.
    pub(crate) fn span(&self) -> usize {
        self.window.len()
    }

    /// The low-water mark: the first unfinished message, or what follows the last one received.
    fn mark(&self) -> Option<NextOffset> {
        match self.window.front() {
            Some((first_unfinished, _)) => Some(NextOffset::at(*first_unfinished)),
            None => self.last.map(NextOffset::after),
        }
    }

    /// What to commit, if it is more than what is committed already. `None` while a commit is under way: a
    /// second one could overtake it, or be overtaken by its repetition.
    pub(crate) fn due(&self) -> Option<NextOffset> {
        if self.in_flight.is_some() { None } else { self.due_at_last() }
    }

    /// What to commit now or never, a commit under way or not: before the partition is given up.
    pub(crate) fn due_at_last(&self) -> Option<NextOffset> {
        let mark = self.mark().filter(|mark| Some(*mark) > self.floor)?;
        (Some(mark) > self.in_flight).then_some(mark)
    }

    /// Notes that a commit of `next` is under way.
    pub(crate) fn committing(&mut self, next: NextOffset) {
        self.in_flight = Some(next);
    }

    /// The commit under way.
    pub(crate) const fn in_flight(&self) -> Option<NextOffset> {
        self.in_flight
    }

    /// Notes how the commit of `next` ended. After a failure nothing is kept to be sent again: the mark is
    /// computed anew. False when this was not the commit under way, but one that it has replaced.
    pub(crate) fn committed(&mut self, next: NextOffset, ok: bool) -> bool {
        if ok && self.mark().is_some_and(|mark| next <= mark) {
            self.floor = self.floor.max(Some(next));
        }
        let ours = self.in_flight == Some(next);
        if ours {
            self.in_flight = None;
        }
        ours
    }

    /// Notes that nothing will be heard of the commit under way.
    pub(crate) fn unanswered(&mut self) {
        self.in_flight = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn received(offsets: impl IntoIterator<Item = i64>) -> Tracker {
        let mut tracker = Tracker::default();
        for offset in offsets {
            assert_eq!(tracker.received(offset), Received::New);
        }
        tracker
    }

    fn commit(tracker: &mut Tracker) -> Option<i64> {
        let next = tracker.due()?;
        tracker.committing(next);
        assert!(tracker.committed(next, true));
        Some(next.get())
    }

    /// Committed is the *next* offset: after one message of offset 5, a restart reads 6, not 5 and not 7.
    #[test]
    fn after_one_message_nothing_is_read_again_and_nothing_is_skipped() {
        let mut tracker = received([5]);
        assert_eq!(tracker.due(), None, "nothing is settled");
        assert!(tracker.done(5));
        assert_eq!(commit(&mut tracker), Some(6));
        assert_eq!(commit(&mut tracker), None, "nothing more");
    }

    #[test]
    fn an_unfinished_message_holds_the_mark() {
        let mut tracker = received(8..=20);
        for offset in [8, 9, 20, 15, 11, 12] {
            assert!(tracker.done(offset));
        }
        assert_eq!(commit(&mut tracker), Some(10));
        for offset in [13, 14, 16, 17, 18, 19] {
            tracker.done(offset);
        }
        assert_eq!((commit(&mut tracker), tracker.span()), (None, 11));
        assert!(tracker.done(10));
        assert_eq!((commit(&mut tracker), tracker.span()), (Some(21), 0));
    }

    #[test]
    fn holes_do_not_stop_it() {
        let mut tracker = received([3, 40, 41, 1_000_000]);
        tracker.done(3);
        assert_eq!(commit(&mut tracker), Some(40));
        tracker.done(1_000_000);
        tracker.done(40);
        tracker.done(41);
        assert_eq!(commit(&mut tracker), Some(1_000_001));
    }

    #[test]
    fn one_commit_at_a_time_and_a_failed_one_is_computed_anew() {
        let mut tracker = received(0..10);
        tracker.done(0);
        let first = tracker.due().unwrap();
        tracker.committing(first);
        tracker.done(1);
        assert_eq!(tracker.due(), None);
        assert_eq!(tracker.due_at_last().map(NextOffset::get), Some(2));
        assert!(!tracker.committed(NextOffset::at(7), true), "not ours, and past the mark");
        assert_eq!(tracker.due_at_last().map(NextOffset::get), Some(2));
        assert!(tracker.committed(first, false));
        assert_eq!(commit(&mut tracker), Some(2), "not the 1 that failed");
        assert!(!tracker.committed(first, true), "a late answer changes nothing");
        assert_eq!(tracker.due(), None);
    }

    #[test]
    fn what_was_never_received_or_is_done_already_is_not_done() {
        let mut tracker = received([5, 6, 9]);
        assert!(!tracker.done(7) && !tracker.done(4) && !tracker.done(10));
        assert!(tracker.done(6));
        assert!(!tracker.done(6));
        assert!(tracker.done(5));
        assert!(!tracker.done(5));
        assert_eq!(tracker.received(6), Received::Backwards);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Receive { hole: u8 },
        Finish { which: prop::sample::Index },
        Commit { ok: bool },
        Answer { ok: bool },
        Reassign,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => prop_oneof![4 => Just(0u8), 1 => 0..9u8].prop_map(|hole| Step::Receive { hole }),
            5 => any::<prop::sample::Index>().prop_map(|which| Step::Finish { which }),
            2 => any::<bool>().prop_map(|ok| Step::Commit { ok }),
            2 => any::<bool>().prop_map(|ok| Step::Answer { ok }),
            1 => Just(Step::Reassign),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Against a model that remembers everything: whatever the broker has been told never lies past an
        /// unfinished message and never goes back in one assignment; and when all is done, a commit brings it
        /// to the end.
        #[test]
        fn scenario_13_any_order_with_any_holes(steps in proptest::collection::vec(step(), 0..120)) {
            let mut log_end = 0i64;
            // What this assignment received, and whether it is done.
            let mut model = BTreeMap::<i64, bool>::new();
            let mut tracker = Tracker::default();
            let (mut broker, mut told) = (0i64, 0i64);
            let mut answer = None;
            for step in steps {
                match step {
                    Step::Receive { hole } => {
                        log_end += i64::from(hole);
                        prop_assert_eq!(tracker.received(log_end), Received::New);
                        model.insert(log_end, false);
                        log_end += 1;
                    }
                    Step::Finish { which } => {
                        let open: Vec<i64> = model.iter().filter(|(_, d)| !**d).map(|(o, _)| *o).collect();
                        if !open.is_empty() {
                            let offset = *which.get(&open);
                            prop_assert!(tracker.done(offset));
                            model.insert(offset, true);
                        }
                    }
                    Step::Commit { ok } => {
                        if let Some(next) = tracker.due() {
                            prop_assert!(answer.is_none(), "one commit at a time");
                            let unfinished = model.iter().find(|(_, done)| !**done).map(|(o, _)| *o);
                            prop_assert!(unfinished.is_none_or(|first| next.get() <= first));
                            let last = model.keys().next_back().copied();
                            prop_assert!(last.is_some_and(|last| next.get() <= last + 1));
                            prop_assert!(next.get() > told, "backwards or for nothing");
                            tracker.committing(next);
                            // A commit can be applied and its answer be lost.
                            broker = if ok { next.get() } else { broker };
                            answer = Some(next);
                        }
                    }
                    Step::Answer { ok } => {
                        if let Some(next) = answer.take() {
                            let ok = ok && broker == next.get();
                            prop_assert!(tracker.committed(next, ok));
                            told = if ok { next.get() } else { told };
                        }
                    }
                    Step::Reassign => {
                        tracker = Tracker::default();
                        model.clear();
                        answer = None;
                        told = broker;
                        log_end = broker;
                    }
                }
            }
            let open: Vec<i64> = model.iter().filter(|(_, done)| !**done).map(|(o, _)| *o).collect();
            for offset in open {
                prop_assert!(tracker.done(offset));
            }
            tracker.unanswered();
            if let Some(next) = tracker.due() {
                tracker.committing(next);
                prop_assert!(tracker.committed(next, true));
                told = next.get();
            }
            prop_assert_eq!(model.keys().next_back().map_or(told, |last| last + 1), told);
            prop_assert_eq!((tracker.due(), tracker.span()), (None, 0));
        }
    }
}
