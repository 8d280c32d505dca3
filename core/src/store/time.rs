//! An embedded store's time: it goes on where it stopped, and no step of the machine's clock moves it.
//!
//! A device may boot in 1970 and learn the date an hour later, or be set back. If records were judged by
//! its wall clock, such a step would expire all of them at once or freeze them for years. So the store
//! keeps its own time: what it last wrote, plus what the monotonic clock has counted since it was opened.
//! At opening it adds how long it was closed, as far as the wall clock can be believed.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Timestamp};

/// No true time lies before the program was built.
fn build_date() -> Timestamp {
    let seconds = env!("EINMAL_BUILD_DATE").parse().unwrap_or(0u64);
    Timestamp::from_micros(seconds.saturating_mul(1_000_000))
}

/// What a durable store writes down of its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeMark {
    /// The store's time.
    pub store_time: Timestamp,
    /// The highest wall time that was ever believed.
    pub highest_wall: Timestamp,
}

/// An embedded store's time. Cloning gives another reader of the same time.
#[derive(Clone, Debug)]
pub struct StoreTime {
    clock: Arc<dyn Clock>,
    base: TimeMark,
    opened_at: Duration,
}

impl StoreTime {
    /// The time of a store that has never been open before.
    #[must_use]
    pub fn begin(clock: Arc<dyn Clock>) -> Self {
        let start = believed(&*clock).unwrap_or_else(build_date);
        Self::from_mark(clock, TimeMark { store_time: start, highest_wall: start })
    }

    /// The time of a store that wrote `mark` when it was open last.
    #[must_use]
    pub fn resume(clock: Arc<dyn Clock>, mark: TimeMark) -> Self {
        let wall = believed(&*clock).unwrap_or(mark.highest_wall);
        let closed_for = wall.since(mark.highest_wall);
        let base = TimeMark {
            store_time: mark.store_time.after(closed_for),
            highest_wall: wall.max(mark.highest_wall),
        };
        Self::from_mark(clock, base)
    }

    fn from_mark(clock: Arc<dyn Clock>, base: TimeMark) -> Self {
        let opened_at = clock.monotonic();
        Self { clock, base, opened_at }
    }

    /// The store's time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.base.store_time.after(self.clock.monotonic().saturating_sub(self.opened_at))
    }

    /// What to write down, with any change that is written anyway.
    #[must_use]
    pub fn mark(&self) -> TimeMark {
        let wall = believed(&*self.clock).unwrap_or_default();
        TimeMark { store_time: self.now(), highest_wall: wall.max(self.base.highest_wall) }
    }

    /// The clock below.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

fn believed(clock: &dyn Clock) -> Option<Timestamp> {
    Some(clock.wall()).filter(|wall| *wall >= build_date())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::BoxFuture;

    use super::*;

    #[derive(Debug)]
    struct Hands(Mutex<(Timestamp, Duration)>);

    impl Clock for Hands {
        fn wall(&self) -> Timestamp {
            self.0.lock().unwrap().0
        }
        fn monotonic(&self) -> Duration {
            self.0.lock().unwrap().1
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);
    const YEAR_1970: Timestamp = Timestamp::MIN;

    fn clock(wall: Timestamp) -> Arc<Hands> {
        Arc::new(Hands(Mutex::new((wall, HOUR))))
    }

    fn today() -> Timestamp {
        build_date().after(24 * HOUR)
    }

    #[test]
    fn steps_while_running_are_ignored() {
        let clock = clock(today());
        let time = StoreTime::begin(Arc::<Hands>::clone(&clock));
        *clock.0.lock().unwrap() = (today().after(1000 * HOUR), 2 * HOUR);
        assert_eq!(time.now(), today().after(HOUR));
        *clock.0.lock().unwrap() = (YEAR_1970, 3 * HOUR);
        assert_eq!(time.now(), today().after(2 * HOUR));
    }

    #[test]
    fn the_time_closed_is_added_when_the_wall_clock_can_be_believed() {
        let mark = TimeMark { store_time: today(), highest_wall: today() };
        let open = |wall| StoreTime::resume(clock(wall), mark).now();
        assert_eq!(open(today().after(5 * HOUR)), today().after(5 * HOUR));
        assert_eq!(open(YEAR_1970), today(), "before the build date nothing is believed");
        assert_eq!(open(build_date()), today(), "a clock set back takes nothing away");
    }

    #[test]
    fn a_step_seen_while_running_is_not_added_at_the_next_opening() {
        let clock = clock(YEAR_1970);
        let time = StoreTime::begin(Arc::<Hands>::clone(&clock));
        assert_eq!(time.now(), build_date());
        assert_eq!(time.mark().highest_wall, build_date(), "1970 is not stored");
        *clock.0.lock().unwrap() = (today().after(9000 * HOUR), 2 * HOUR);
        let mark = time.mark();
        assert_eq!(mark.store_time, build_date().after(HOUR));
        *clock.0.lock().unwrap() = (today().after(9001 * HOUR), HOUR);
        assert_eq!(StoreTime::resume(clock, mark).now(), build_date().after(2 * HOUR));
    }
}
