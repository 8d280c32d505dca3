//! How far the answers of the store are obeyed: for a roll-out in stages, switchable while it runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far the answers of the store are obeyed.
///
/// `Observe` and `Off` leave the loop that you have as it is: every copy of a message runs, also while
/// another runs, and **a repeat's effect happens again**. What settles a message there is its handler alone:
///
/// | the handler | the message |
/// |---|---|
/// | returns `Ok` or `Failure::ignore` | is settled |
/// | returns another [`Failure`](crate::Failure), panics or runs past `max_run` | stays unsettled and is tried again, without limit, back-off or dead letter; after `retry_after` when it asked for that. The worker pauses up to a second in between |
///
/// So a message that the handler rejects, parks or always fails on holds its lane, as it would without
/// Einmal, until its handler ignores it or the mode is `Enforce`.
///
/// An unclaimed run's [`Context`](crate::Context) says attempt 1, not interrupted, fence 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// The store is not asked at all. With a [`TxHandler`](crate::TxHandler) only its own transaction is made.
    Off,
    /// The store is asked, and counted is what `Enforce` would have done ([`Observed`](crate::Observed)). The
    /// first copy to come is claimed and its outcome stored, so that it answers repeats once the mode is
    /// `Enforce`; the others write nothing. A store that fails is counted and stops nothing.
    Observe,
    /// All that Einmal promises. The default.
    #[default]
    Enforce,
}

impl Mode {
    /// Its name, as logs show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::Enforce => "enforce",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A [`Mode`] that can be set while messages are processed. Cloning gives another handle of the same.
///
/// Each attempt at a message is judged under one mode, read when it begins: what was claimed under `Enforce`
/// ends under `Enforce`, and what waits meets the new mode when it is tried again.
#[derive(Clone, Debug)]
pub struct ModeSwitch(Arc<AtomicU8>);

impl ModeSwitch {
    /// A switch that begins in `mode`.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self(Arc::new(AtomicU8::new(mode as u8)))
    }

    /// The mode of now.
    #[must_use]
    pub fn get(&self) -> Mode {
        mode_of(self.0.load(Ordering::Acquire))
    }

    /// Sets the mode, for all that is begun from now on.
    pub fn set(&self, mode: Mode) {
        let before = mode_of(self.0.swap(mode as u8, Ordering::AcqRel));
        if before != mode {
            tracing::warn!(%before, now = %mode, "the mode was switched");
        }
    }
}

const fn mode_of(number: u8) -> Mode {
    match number {
        0 => Mode::Off,
        1 => Mode::Observe,
        _ => Mode::Enforce,
    }
}

impl Default for ModeSwitch {
    fn default() -> Self {
        Self::new(Mode::default())
    }
}

impl From<Mode> for ModeSwitch {
    fn from(mode: Mode) -> Self {
        Self::new(mode)
    }
}
