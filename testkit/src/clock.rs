//! A clock that stands still until it is told to go on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use einmal::{Clock, Timestamp};
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};

/// 2100-01-01T00:00:00Z: later than any day on which the code under test was built, as a store believes no
/// wall time before that.
pub const START: Timestamp = Timestamp::from_micros(4_102_444_800_000_000);

/// A clock that stands still until it is told to go on. Cloning gives another handle of the same clock.
///
/// It starts at [`START`]. [`advance`](ManualClock::advance) moves both of its readings,
/// [`step_wall`](ManualClock::step_wall) the wall's only, as an administrator would.
#[derive(Clone, Debug)]
pub struct ManualClock {
    hands: Arc<Mutex<Hands>>,
    /// How many sleep. Sent by everything that changes it.
    sleepers: watch::Sender<usize>,
}

#[derive(Debug)]
struct Hands {
    wall: Timestamp,
    monotonic: Duration,
    /// By the time at which they wake, then by the order in which they fell asleep.
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    next: u64,
}

impl Default for ManualClock {
    fn default() -> Self {
        let (wall, monotonic) = (START, Duration::from_secs(1));
        let hands = Hands { wall, monotonic, sleepers: BTreeMap::new(), next: 0 };
        Self { hands: Arc::new(Mutex::new(hands)), sleepers: watch::Sender::new(0) }
    }
}

impl ManualClock {
    /// A clock at [`START`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A handle of this clock as stores and workers take it.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }

    /// Moves both readings on by `by`, and wakes who slept until then: first who was due first, and of two
    /// due at once who fell asleep first.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.lock();
        hands.monotonic = hands.monotonic.saturating_add(by);
        hands.wall = hands.wall.after(by);
        hands.wake(&self.sleepers);
    }

    /// Moves on to the time at which the next sleeper is due, and says by how much; `None` when nobody
    /// sleeps.
    #[allow(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn advance_to_next(&self) -> Option<Duration> {
        let mut hands = self.lock();
        let (due, _) = *hands.sleepers.keys().next()?;
        let by = due.saturating_sub(hands.monotonic);
        hands.monotonic = hands.monotonic.saturating_add(by);
        hands.wall = hands.wall.after(by);
        hands.wake(&self.sleepers);
        Some(by)
    }

    /// Sets the wall clock forth by `seconds`, or back if they are negative. No time passes.
    pub fn step_wall(&self, seconds: i64) {
        let mut hands = self.lock();
        let micros = seconds.saturating_mul(1_000_000);
        hands.wall = Timestamp::from_micros(hands.wall.as_micros().saturating_add_signed(micros));
    }

    /// Sets the wall clock. No time passes.
    pub fn set_wall(&self, to: Timestamp) {
        self.lock().wall = to;
    }

    /// How many sleep now.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.lock().sleepers.len()
    }

    /// Waits until at least `count` sleep. Whoever tests "it waits, and goes on after a second" waits for
    /// the sleeper here, and then advances: no real time is involved.
    pub async fn wait_for_sleepers(&self, count: usize) {
        let mut sleepers = self.sleepers.subscribe();
        // It ends in an error only when the clock is gone, and this is a handle of it.
        let _ = sleepers.wait_for(|now| *now >= count).await;
    }

    fn lock(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hands {
    fn wake(&mut self, count: &watch::Sender<usize>) {
        let later = self.sleepers.split_off(&(self.monotonic.saturating_add(Duration::from_nanos(1)), 0));
        for (_, due) in std::mem::replace(&mut self.sleepers, later) {
            // Who is not there any more needs no waking.
            let _ = due.send(());
        }
        count.send_replace(self.sleepers.len());
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.lock().wall
    }

    fn monotonic(&self) -> Duration {
        self.lock().monotonic
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration.is_zero() {
            return Box::pin(std::future::ready(()));
        }
        let (wake, woken) = oneshot::channel();
        let mut hands = self.lock();
        let place = (hands.monotonic.saturating_add(duration), hands.next);
        hands.next += 1;
        hands.sleepers.insert(place, wake);
        self.sleepers.send_replace(hands.sleepers.len());
        drop(hands);
        let bed = Bed { clock: self.clone(), place };
        Box::pin(async move {
            let _ = woken.await;
            drop(bed);
        })
    }
}

/// A sleeper that is dropped does not sleep any more.
struct Bed {
    clock: ManualClock,
    place: (Duration, u64),
}

impl Drop for Bed {
    fn drop(&mut self) {
        let mut hands = self.clock.lock();
        if hands.sleepers.remove(&self.place).is_some() {
            self.clock.sleepers.send_replace(hands.sleepers.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sleepers_wake_when_due_and_not_before() {
        let clock = ManualClock::new();
        let mut one = clock.sleep(SECOND);
        let mut three = clock.sleep(3 * SECOND);
        clock.advance(SECOND - Duration::from_nanos(1));
        assert_eq!((one.as_mut()).now_or_never(), None);
        clock.advance(Duration::from_nanos(1));
        assert_eq!((one.as_mut()).now_or_never(), Some(()));
        assert_eq!((three.as_mut()).now_or_never(), None);
        assert_eq!(clock.advance_to_next(), Some(2 * SECOND));
        assert_eq!((three.as_mut()).now_or_never(), Some(()));
        assert_eq!(clock.advance_to_next(), None);
    }

    #[test]
    fn a_dropped_sleeper_is_none() {
        let clock = ManualClock::new();
        let sleep = clock.sleep(SECOND);
        assert_eq!(clock.sleepers(), 1);
        drop(sleep);
        assert_eq!(clock.sleepers(), 0);
        assert_eq!(clock.wait_for_sleepers(1).now_or_never(), None);
        let _sleep = clock.sleep(SECOND);
        assert_eq!(clock.wait_for_sleepers(1).now_or_never(), Some(()));
    }

    #[test]
    fn a_step_of_the_wall_is_no_passing_of_time() {
        let clock = ManualClock::new();
        let before = clock.monotonic();
        let mut sleep = clock.sleep(SECOND);
        clock.step_wall(-300);
        assert_eq!(clock.wall(), Timestamp::from_micros(START.as_micros() - 300_000_000));
        clock.step_wall(300);
        assert_eq!((clock.wall(), clock.monotonic()), (START, before));
        assert_eq!((sleep.as_mut()).now_or_never(), None);
    }
}
