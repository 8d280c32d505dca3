//! Named points of a message's path, at which a process kills itself with SIGKILL.

use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The claim was acquired; the handler has not started.
    AfterClaim,
    /// The handler has started; nothing has been written.
    InHandler,
    /// The handler's effect is done; its outcome is not on its way yet.
    AfterEffect,
    /// The outcome waits in the writer.
    BeforeFlush,
    /// The outcome is with the operating system, and not synced.
    AfterFlush,
    /// The outcome is synced; nobody has been told.
    AfterSync,
    /// The outcome was answered; the message is not settled.
    BeforeSettle,
    /// The message is settled.
    AfterSettle,
    /// A dead letter is owed, durably, and not on its way yet.
    BeforePublish,
    /// The dead letter is confirmed, and nobody has written it down.
    AfterPublish,
}

impl Point {
    /// Those on the path of a message that is handled, in their order.
    pub const ALL: [Self; 8] = [
        Self::AfterClaim,
        Self::InHandler,
        Self::AfterEffect,
        Self::BeforeFlush,
        Self::AfterFlush,
        Self::AfterSync,
        Self::BeforeSettle,
        Self::AfterSettle,
    ];

    /// Those on the path of a dead letter.
    pub const OF_LETTERS: [Self; 2] = [Self::BeforePublish, Self::AfterPublish];
}

impl FromStr for Point {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let found = Self::ALL.into_iter().chain(Self::OF_LETTERS).find(|point| format!("{point:?}") == name);
        found.ok_or_else(|| anyhow::anyhow!("there is no point {name}"))
    }
}

/// Kills this process when a point is passed for the n-th time.
#[derive(Debug)]
pub struct Killer {
    at: Option<Point>,
    left: AtomicI64,
}

impl Killer {
    /// At the `nth` time, from 1, that `at` is passed; never when `at` is `None`.
    #[must_use]
    pub const fn new(at: Option<Point>, nth: i64) -> Self {
        Self { at, left: AtomicI64::new(nth) }
    }

    /// Passes a point. Does not return when it is the one.
    pub fn pass(&self, point: Point) {
        if self.at == Some(point) && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            die();
        }
    }
}

fn die() -> ! {
    // It takes effect before the call returns; should it fail, an abort is a death as well, which the parent
    // tells from a kill.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
