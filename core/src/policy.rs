//! Times, limits and bounds, checked when they are set.

use std::time::Duration;

use rand::RngExt;

use crate::claim::Rules;
use crate::error::{InvalidSetting, within};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long to leave a failed operation alone: longer each time, and a random part of it, so that what
/// failed together does not come back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub initial: Duration,
    /// What each further failure multiplies it by.
    pub factor: f64,
    /// Where it stops growing.
    pub max: Duration,
}

impl Default for Backoff {
    /// 1 s, doubled each time, up to 5 min.
    fn default() -> Self {
        Self { initial: SECOND, factor: 2.0, max: Duration::from_secs(300) }
    }
}

impl Backoff {
    /// The longest wait after `failures` failures, from 1.
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.factor.powi(exponent);
        Duration::try_from_secs_f64(seconds).unwrap_or(self.max).min(self.max)
    }

    /// A wait between nothing and the [ceiling](Backoff::ceiling): full jitter.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        self.ceiling(failures).mul_f64(rand::rng().random::<f64>())
    }
}

/// Times and limits of an idempotent handler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    rules: Rules,
    max_run: Duration,
    backoff: Backoff,
    max_wait: Duration,
    pipeline: usize,
}

impl Default for Policy {
    fn default() -> Self {
        let backoff = Backoff::default();
        Self {
            rules: Rules {
                lease: Duration::from_secs(30),
                retention: 24 * HOUR,
                max_failures: 5,
                max_crashes: 5,
                max_delay: backoff.max,
                max_result: 8 * 1024,
            },
            max_run: Duration::from_secs(300),
            backoff,
            max_wait: Duration::from_secs(5),
            pipeline: 64,
        }
    }
}

impl Policy {
    /// The defaults, to be changed.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder(Self::default())
    }

    /// What claims are judged by.
    #[must_use]
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// The longest that a handler may run.
    #[must_use]
    pub const fn max_run(&self) -> Duration {
        self.max_run
    }

    /// The waits between attempts.
    #[must_use]
    pub const fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// The longest that a copy waits for the one that runs.
    #[must_use]
    pub const fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// The most outcomes of a lane that are on their way to the disk: the number of effects of a lane that
    /// can repeat after a crash.
    #[must_use]
    pub const fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// The longest result that is kept, in bytes.
    #[must_use]
    pub const fn max_result(&self) -> usize {
        self.rules.max_result
    }
}

/// Changes a [`Policy`]. Every bound is checked by [`build`](PolicyBuilder::build).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PolicyBuilder(Policy);

impl PolicyBuilder {
    /// How long a claim lives without renewal; it is renewed every third of it. 1 s to 12 h, default 30 s.
    ///
    /// After a worker has died, a shared store holds its keys for this long.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.0.rules.lease = lease;
        self
    }

    /// How long an outcome answers repeats. From the lease to 10 years, default 24 h. Take more than your broker or
    /// its operators can redeliver: after it a repeat is a new operation.
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.0.rules.retention = retention;
        self
    }

    /// The failures at which an operation is given up. 1 to 1,000, default 5.
    pub const fn max_failures(mut self, failures: u32) -> Self {
        self.0.rules.max_failures = failures;
        self
    }

    /// The crashes at which an operation is given up. 1 to 1,000, default 5.
    pub const fn max_crashes(mut self, crashes: u32) -> Self {
        self.0.rules.max_crashes = crashes;
        self
    }

    /// The longest that a handler may run before it is cancelled, which counts as a failure. 1 ms to 12 h,
    /// default 5 min. Must stay below the broker's own deadline.
    pub const fn max_run(mut self, max_run: Duration) -> Self {
        self.0.max_run = max_run;
        self
    }

    /// The waits between attempts, see [`Backoff`]. Up to 24 h.
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.backoff = backoff;
        self
    }

    /// The longest that a copy waits for the one that runs before it is given back to its broker (or, where
    /// there is nowhere to give it to, is counted as timed out and goes on waiting). Up to 5 min, default 5 s.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.0.max_wait = max_wait;
        self
    }

    /// The most outcomes of an ordered lane that are on their way to the disk while the next handler runs.
    /// 1 to 4,096, default 64. It is the number of effects of a lane that can repeat after a crash.
    pub const fn pipeline(mut self, depth: usize) -> Self {
        self.0.pipeline = depth;
        self
    }

    /// The longest result that is kept for repeats, in bytes; a longer one is stored as "done, result not
    /// kept". Default 8 KiB; must not be above what the store takes.
    pub const fn max_result(mut self, bytes: usize) -> Self {
        self.0.rules.max_result = bytes;
        self
    }

    /// The policy.
    ///
    /// # Errors
    /// Names the first setting that is out of its bounds, and the bounds.
    pub fn build(self) -> Result<Policy, InvalidSetting> {
        let Policy { rules, max_run, backoff, max_wait, pipeline, .. } = &self.0;
        within("lease", &rules.lease, SECOND..=12 * HOUR)?;
        within("retention", &rules.retention, rules.lease..=10 * YEAR)?;
        within("max_failures", &rules.max_failures, 1..=1000)?;
        within("max_crashes", &rules.max_crashes, 1..=1000)?;
        within("max_run", max_run, Duration::from_millis(1)..=12 * HOUR)?;
        within("backoff.initial", &backoff.initial, Duration::ZERO..=24 * HOUR)?;
        within("backoff.factor", &backoff.factor, 1.0..=100.0)?;
        within("backoff.max", &backoff.max, backoff.initial..=24 * HOUR)?;
        within("max_wait", max_wait, Duration::ZERO..=Duration::from_secs(300))?;
        within("pipeline", pipeline, 1..=4096)?;
        let mut policy = self.0;
        policy.rules.max_delay = backoff.max.max(max_delay_of_handlers());
        Ok(policy)
    }
}

/// A handler may ask for a longer wait than the back-off's, but not for one that outlives every patience.
const fn max_delay_of_handlers() -> Duration {
    Duration::from_secs(300)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_2_a_lease_of_zero_or_beyond_the_maximum_is_an_error() {
        let lease = |lease| Policy::builder().lease(lease).build().map(|policy| policy.rules().lease);
        let error = lease(Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "lease must lie between 1s and 43200s, not 0ns");
        assert!(lease(Duration::from_millis(999)).is_err());
        assert!(lease(12 * HOUR + SECOND).is_err());
        assert_eq!(lease(12 * HOUR).unwrap(), 12 * HOUR);
    }

    #[test]
    fn every_bound_names_its_field() {
        let field = |builder: PolicyBuilder| builder.build().unwrap_err().field();
        assert_eq!(field(Policy::builder().retention(Duration::ZERO)), "retention");
        assert_eq!(field(Policy::builder().max_failures(0)), "max_failures");
        assert_eq!(field(Policy::builder().max_crashes(0)), "max_crashes");
        assert_eq!(field(Policy::builder().max_run(Duration::ZERO)), "max_run");
        assert_eq!(field(Policy::builder().pipeline(0)), "pipeline");
        let backoff = |factor| Backoff { factor, ..Backoff::default() };
        assert_eq!(field(Policy::builder().backoff(backoff(f64::NAN))), "backoff.factor");
        assert_eq!(field(Policy::builder().backoff(backoff(0.5))), "backoff.factor");
        assert!(Policy::builder().build().is_ok());
    }

    #[test]
    fn waits_grow_to_their_ceiling_and_are_spread() {
        let backoff = Backoff::default();
        assert_eq!(backoff.ceiling(1), SECOND);
        assert_eq!(backoff.ceiling(4), 8 * SECOND);
        assert_eq!(backoff.ceiling(u32::MAX), 300 * SECOND);
        let delays: Vec<_> = (0..64).map(|_| backoff.delay(3)).collect();
        assert!(delays.iter().all(|delay| *delay <= 4 * SECOND));
        assert!(delays.iter().any(|delay| *delay != delays[0]));
    }
}
