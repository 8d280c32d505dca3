//! What the thread that talks to the broker knows. Only that thread uses it: in its loop, and in the callbacks
//! that the client runs on it while it polls.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use einmal::worker::HealthCell;
use einmal::{Clock, SystemClock};
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::commit::Due;
use crate::config::Limits;
use crate::ledger::{Ledger, These};
use crate::names;
use crate::offsets::NextOffset;
use crate::source::{Command, Epoch, Queue, TopicPartition};
use crate::trouble::Troubles;

/// After a failed commit the next one waits so long.
const COMMIT_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// And so long when the broker says that the partition is not ours: either that is so, and a revocation is on
/// its way, or the client has just joined again, and the next commit carries its new generation.
const COMMIT_AGAIN_IF_LOST: Duration = Duration::from_secs(1);
/// Nothing says that a delivery is settled. As long as any is out, it is looked for this often.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long a partition that is taken away waits for its last commit.
const LAST_COMMIT_WITHIN: Duration = Duration::from_secs(5);

/// How long it pauses after each of its attempts, as long as the group refuses them because it forms anew.
const LAST_COMMIT_AGAIN: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::ZERO];

const COMMITS: &str = "kafka commits";

pub(crate) fn now() -> Duration {
    // The broker's deadlines run in real time, whatever a test's clock says.
    SystemClock.monotonic()
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) ledger: Ledger,
    pub(crate) queue: Arc<Queue>,
    pub(crate) limits: Limits,
    commands: Receiver<Command>,
    /// To the thread that commits, which ends when this is taken.
    pub(crate) committer: Option<Sender<Vec<Due>>>,
    health: HealthCell,
    /// Nothing more is handed out.
    pub(crate) stopping: bool,
    /// When closing must have ended, once it has been asked for.
    pub(crate) close_by: Option<Duration>,
    failing_since: Option<Duration>,
    /// What the client says is wrong.
    pub(crate) client: Troubles,
    /// To the thread that reads how long topics keep their messages, which ends when this is taken.
    pub(crate) retention: Option<Sender<String>>,
    /// A commit was refused because the group forms anew.
    refused_meanwhile: bool,
}

impl Engine {
    pub(crate) fn new(
        ledger: Ledger,
        queue: Arc<Queue>,
        limits: Limits,
        commands: Receiver<Command>,
        committer: Sender<Vec<Due>>,
        health: HealthCell,
    ) -> Self {
        let client = Troubles::new(health.clone());
        Self {
            ledger,
            queue,
            limits,
            commands,
            committer: Some(committer),
            health,
            stopping: false,
            close_by: None,
            failing_since: None,
            client,
            retention: None,
            refused_meanwhile: false,
        }
    }

    /// Follows all commands there are, waiting at most `wait` for the first, and notes what is settled.
    pub(crate) fn follow(&mut self, wait: Duration) {
        // It can't be disconnected: the ledger holds a sender, for what it hands out.
        let mut next = self.commands.recv_timeout(wait).ok();
        while let Some(command) = next {
            match command {
                Command::Dropped(ticket) => self.ledger.dropped(&ticket, now(), self.limits.drain),
                Command::Committed { at, epoch, next, error } => self.committed(&at, epoch, next, error),
                Command::Room | Command::Poll => {}
                Command::StopIntake => self.stopping = true,
                Command::Close(budget) => {
                    self.stopping = true;
                    self.close_by.get_or_insert(now().saturating_add(budget));
                }
            }
            next = self.commands.try_recv().ok();
        }
        self.ledger.note_settled();
        self.stopping |= self.queue.is_abandoned();
    }

    /// Stops starting what belongs to `these`, and waits, within the budget, until what runs has ended.
    pub(crate) fn drain(&mut self, these: &These) {
        let budget = now().saturating_add(self.limits.drain);
        let until = self.close_by.map_or(budget, |close_by| close_by.min(budget));
        self.call_in(these);
        self.follow(Duration::ZERO);
        while self.ledger.out(these) > 0 {
            let left = until.saturating_sub(now());
            if left.is_zero() {
                let out = self.ledger.out(these);
                tracing::warn!(out, "work under way did not end within the drain budget; it is cancelled");
                return;
            }
            self.follow(left.min(LOOK_EVERY));
        }
    }

    /// Starts nothing more of what belongs to `these`, and takes back what the worker has not taken.
    pub(crate) fn call_in(&mut self, these: &These) {
        self.ledger.close(these);
        let gone: HashSet<(&str, i32)> = these.iter().map(|(topic, number)| (&**topic, *number)).collect();
        self.queue.take_back(|position| {
            position.partition().is_some_and(|number| gone.contains(&(&**position.source(), number)))
        });
    }

    pub(crate) fn end(&mut self, these: &These) {
        for (topic, number) in these {
            self.ledger.end(topic, *number);
        }
        self.gauge();
    }

    pub(crate) fn assign(&mut self, these: &These) {
        for (topic, number) in these {
            self.ledger.assign(topic, *number);
            self.client.topic_is_there(topic);
        }
        self.read_retention_of(these.iter().map(|(topic, _)| topic));
        self.gauge();
        self.client.works();
    }

    /// Has the retention of these topics read, unless it has been before.
    pub(crate) fn read_retention_of<'a>(&self, topics: impl Iterator<Item = &'a String>) {
        if let Some(retention) = &self.retention {
            for topic in topics.collect::<HashSet<_>>() {
                let _ = retention.send(topic.clone());
            }
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a count of partitions")]
    fn gauge(&self) {
        metrics::gauge!(names::ASSIGNED).set(self.ledger.iter().count() as f64);
    }

    /// Has committed what is due now.
    pub(crate) fn commit(&mut self) {
        let due = self.ledger.commit(now(), self.limits.commit_every);
        self.send(due);
    }

    /// Has committed what is settled of `these`, and waits for the answer within a bound.
    pub(crate) fn last_commit(&mut self, these: &These) {
        let until = now().saturating_add(LAST_COMMIT_WITHIN);
        let until = self.close_by.map_or(until, |close_by| close_by.min(until));
        for pause in LAST_COMMIT_AGAIN {
            self.refused_meanwhile = false;
            let due = self.ledger.last_commit(these, now());
            self.send(due);
            while self.ledger.is_committing(these) {
                let left = until.saturating_sub(now());
                if left.is_zero() {
                    tracing::warn!(
                        "the last commit of partitions that are taken away was not answered in time"
                    );
                    return;
                }
                self.follow(left);
            }
            // The group forms anew, and takes commits again as soon as all its members know their partitions.
            // It waits for this one, so that nothing has been given away yet.
            if !self.refused_meanwhile {
                return;
            }
            let over = now() + pause;
            while now() < over {
                self.follow(over.saturating_sub(now()));
            }
        }
    }

    fn send(&mut self, due: Vec<Due>) {
        if let Some(committer) = self.committer.as_ref().filter(|_| !due.is_empty()) {
            let _ = committer.send(due);
        }
    }

    /// Notes how the commit of `next` ended.
    fn committed(&mut self, at: &TopicPartition, epoch: Epoch, next: NextOffset, error: Option<Code>) {
        let lost = error.is_some_and(is_ownership_lost);
        let retry_at = now() + if lost { COMMIT_AGAIN_IF_LOST } else { COMMIT_AGAIN_AFTER };
        self.refused_meanwhile |= error == Some(Code::RebalanceInProgress);
        let live = self.ledger.committed(at, epoch, next, error.is_none(), retry_at);
        let result = if error.is_none() {
            "ok"
        } else if lost {
            "lost"
        } else {
            "error"
        };
        metrics::counter!(names::COMMITS, "result" => result).increment(1);
        let Some(code) = error else {
            self.failing_since = None;
            return self.client.works();
        };
        if live {
            self.failing_since.get_or_insert(now());
        }
        let (topic, partition, next) = (&*at.topic, at.partition, next.get());
        if lost {
            tracing::debug!(topic, partition, next, %code, "a commit came when the group had moved on");
        } else {
            tracing::warn!(topic, partition, next, %code, "a commit failed; what is due is computed anew");
        }
    }

    /// Brings the health up to date.
    pub(crate) fn check_health(&mut self) {
        let now = now();
        self.client.expire(now);
        let mut owing = self.ledger.iter().filter(|partition| partition.owes_commit()).peekable();
        if owing.peek().is_none() {
            self.failing_since = None;
        }
        let unanswered = owing.filter_map(|partition| partition.commit_sent()).min();
        let since = [self.failing_since, unanswered].into_iter().flatten().min();
        let failing_for = since.map(|since| now.saturating_sub(since));
        if failing_for.is_some_and(|failing| failing >= self.limits.commit_trouble_after) {
            let after = self.limits.commit_trouble_after;
            self.health.trouble(COMMITS, format!("no offset could be committed for {after:?}"));
        } else {
            self.health.clear(COMMITS);
        }
    }
}

/// Whether a commit failed because the partition is not this member's any more. Nothing is wrong then.
fn is_ownership_lost(code: Code) -> bool {
    matches!(
        code,
        Code::State
            | Code::AssignmentLost
            | Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::RebalanceInProgress
            | Code::FencedInstanceId
            | Code::FencedMemberEpoch
            | Code::StaleMemberEpoch
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_ownership_is_told_from_failure() {
        let lost = [
            Code::State,
            Code::AssignmentLost,
            Code::IllegalGeneration,
            Code::UnknownMemberId,
            Code::RebalanceInProgress,
            Code::FencedInstanceId,
            Code::FencedMemberEpoch,
            Code::StaleMemberEpoch,
        ];
        assert!(lost.into_iter().all(is_ownership_lost));
        let failed =
            [Code::NotCoordinator, Code::RequestTimedOut, Code::WaitingForCoordinator, Code::NoOffset];
        assert!(!failed.into_iter().any(is_ownership_lost));
    }
}
