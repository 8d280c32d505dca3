//! The payments to produce, from a seed: the same seed makes the same ones, so that a second run repeats all.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::handler::Payment;

const ACCOUNTS: u64 = 500;

/// Payments, of which exactly the wanted share repeats an earlier one.
#[derive(Debug)]
pub(crate) struct Stream {
    seed: u64,
    bad: u8,
    random: StdRng,
    /// How many different ones were made.
    made: u64,
    left: u64,
    repeats_left: u64,
}

impl Stream {
    /// `repeats` and `bad` are percentages: of the messages those that repeat an earlier id, and of the ids those
    /// whose amount no handler takes.
    pub(crate) fn new(messages: u64, repeats: u8, bad: u8, seed: u64) -> Self {
        let repeats_left = messages / 100 * u64::from(repeats) + messages % 100 * u64::from(repeats) / 100;
        Self { seed, bad, random: StdRng::seed_from_u64(seed), made: 0, left: messages, repeats_left }
    }

    /// A payment is a function of seed and number, so that none must be kept to be repeated.
    fn payment(&self, number: u64) -> Payment {
        let mut random = StdRng::seed_from_u64(self.seed.rotate_left(32) ^ number);
        let account = random.random_range(0..ACCOUNTS);
        let cents = random.random_range(1..100_000);
        let bad = random.random_range(0..100) < self.bad;
        Payment {
            id: format!("pay-{:x}-{number:06}", self.seed),
            account,
            cents: if bad { 0 } else { cents },
        }
    }
}

impl Iterator for Stream {
    type Item = (Payment, bool);

    /// The next payment, and whether it repeats an earlier one.
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let repeat = self.made > 0 && self.random.random_range(0..self.left) < self.repeats_left;
        self.left -= 1;
        if !repeat {
            self.made += 1;
            return Some((self.payment(self.made - 1), false));
        }
        self.repeats_left -= 1;
        // Half of them at once, as a producer that timed out does; the others from any time before.
        let number =
            if self.random.random_bool(0.5) { self.made - 1 } else { self.random.random_range(0..self.made) };
        Some((self.payment(number), true))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_share_is_exact_and_a_repeat_is_equal() {
        let all: Vec<_> = Stream::new(10_000, 30, 2, 7).collect();
        let mut first: HashMap<&str, &Payment> = HashMap::new();
        for (payment, repeat) in &all {
            let seen = first.insert(&payment.id, payment);
            assert_eq!(seen.is_some(), *repeat, "{payment:?}");
            assert!(seen.is_none_or(|seen| seen == payment), "{payment:?}");
        }
        assert_eq!((all.len(), first.len()), (10_000, 7_000));
        let bad = first.values().filter(|payment| payment.cents == 0).count();
        assert!((70..280).contains(&bad), "{bad}");
        assert!(all.iter().eq(Stream::new(10_000, 30, 2, 7).collect::<Vec<_>>().iter()));
        assert_eq!(Stream::new(1, 90, 0, 1).count(), 1);
    }
}
