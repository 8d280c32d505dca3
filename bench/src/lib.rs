//! What the benchmarks share: how rates are told.

use std::time::Instant;

/// Median, lowest and highest of some values.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The middle one; of an even number the upper of the two.
    pub median: f64,
    /// The least.
    pub lowest: f64,
    /// The most.
    pub highest: f64,
}

impl Spread {
    /// Of these values; `None` when there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (lowest, highest) = (*values.first()?, *values.last()?);
        Some(Self { median: *values.get(values.len() / 2)?, lowest, highest })
    }

    /// As it is printed, with so many digits behind the point.
    #[must_use]
    pub fn text(self, digits: usize) -> String {
        let Self { median, lowest, highest } = self;
        format!("{median:.digits$} [{lowest:.digits$} to {highest:.digits$}]")
    }
}

/// How many a second.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a rate")]
pub fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

/// The time.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}
