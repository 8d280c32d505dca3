//! Time enters Einmal here and nowhere else, so that a test can hold it still or push it on.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// A point of a store's time: microseconds since 1970-01-01T00:00:00Z.
///
/// Arithmetic saturates: a broken clock can make a time wrong, never a panic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The first and the last point that can be told.
    pub const MIN: Self = Self(0);
    /// See [`Timestamp::MIN`].
    pub const MAX: Self = Self(u64::MAX);

    /// The point `micros` microseconds after 1970.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This point, `by` later.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// How long from `earlier` to this point; zero when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The source of time.
///
/// Two readings, because they answer two questions: [`wall`](Clock::wall) may be set forth and back by
/// its administrator and says what date it is; [`monotonic`](Clock::monotonic) never goes back and says
/// how long something took.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// What the machine believes the date to be. It may be wrong and may step either way.
    fn wall(&self) -> Timestamp;

    /// Time since some fixed moment of this process. Never goes back.
    fn monotonic(&self) -> Duration;

    /// Ends when [`monotonic`](Clock::monotonic) has advanced by `duration`. Dropping it is safe.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clock, sleeping on Tokio's timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[allow(clippy::disallowed_methods, reason = "this is the one place")]
impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(micros(since.unwrap_or_default()))
    }

    fn monotonic(&self) -> Duration {
        static START: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        START.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Ends with `None` when `future` has not ended within `limit` of `clock`.
pub(crate) async fn timeout<F: Future>(clock: &dyn Clock, limit: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        // Made only when it is needed: most calls end at once.
        () = async { clock.sleep(limit).await } => None,
    }
}
