//! Turns a list of messages into what an at-least-once broker may make of it.

use std::collections::HashSet;
use std::hash::Hash;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Turns a list of messages into a redelivered stream of them, the same one for the same seed.
///
/// Three kinds of repeats, each with its own rate: *adjacent* (a producer's retry: the copy follows at
/// once), *far* (a rebalance: the copy comes up to `distance` messages later) and *repeated* (a consumer
/// that never acknowledges: many copies in a row). First arrivals keep their order, and nothing is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Duplicator {
    seed: u64,
    adjacent: f64,
    far: (f64, usize),
    repeated: (f64, usize),
}

/// What a [`Duplicator`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redelivered<T, I> {
    /// The messages as they arrive.
    pub stream: Vec<T>,
    /// Their distinct ids, in the order of their first arrival: what must have run once each.
    pub distinct: Vec<I>,
}

impl<T, I> Redelivered<T, I> {
    /// How many arrivals are repeats.
    #[must_use]
    pub const fn repeats(&self) -> usize {
        self.stream.len().saturating_sub(self.distinct.len())
    }
}

impl Duplicator {
    /// One that repeats nothing yet.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, adjacent: 0.0, far: (0.0, 0), repeated: (0.0, 0) }
    }

    /// A message in `rate` (0 to 1) of all cases is followed by its copy.
    #[must_use]
    pub const fn adjacent(mut self, rate: f64) -> Self {
        self.adjacent = rate;
        self
    }

    /// A message in `rate` of all cases comes again 1 to `distance` messages later.
    #[must_use]
    pub const fn far(mut self, rate: f64, distance: usize) -> Self {
        self.far = (rate, distance);
        self
    }

    /// A message in `rate` of all cases is followed by `times` copies.
    #[must_use]
    pub const fn repeated(mut self, rate: f64, times: usize) -> Self {
        self.repeated = (rate, times);
        self
    }

    /// The redelivered stream of `messages`. `id` tells which of them are the same operation.
    pub fn apply<T: Clone, I: Eq + Hash + Clone>(
        &self,
        messages: impl IntoIterator<Item = T>,
        id: impl Fn(&T) -> I,
    ) -> Redelivered<T, I> {
        let mut random = StdRng::seed_from_u64(self.seed);
        // A rate outside 0 to 1 is taken as the nearest one inside.
        let mut happens = |rate: f64| random.random::<f64>() < rate;
        let mut places = StdRng::seed_from_u64(self.seed.wrapping_add(1));
        let (mut stream, mut distinct, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut waiting: Vec<(usize, T)> = Vec::new();
        for (at, message) in messages.into_iter().enumerate() {
            let id = id(&message);
            if seen.insert(id.clone()) {
                distinct.push(id);
            }
            let copies = usize::from(happens(self.adjacent))
                + if happens(self.repeated.0) { self.repeated.1 } else { 0 };
            let far = happens(self.far.0) && self.far.1 > 0;
            stream.extend(std::iter::repeat_n(message.clone(), 1 + copies));
            waiting.extend(waiting_until(at, far, self.far.1, &mut places).map(|due| (due, message)));
            let (due, later) = waiting.into_iter().partition(|(due, _)| *due <= at);
            waiting = later;
            stream.extend(Vec::into_iter(due).map(|(_, message)| message));
        }
        stream.extend(waiting.into_iter().map(|(_, message)| message));
        Redelivered { stream, distinct }
    }
}

fn waiting_until(at: usize, far: bool, distance: usize, random: &mut StdRng) -> Option<usize> {
    far.then(|| at + random.random_range(1..=distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_kinds(seed: u64) -> Duplicator {
        Duplicator::new(seed).adjacent(0.1).far(0.2, 50).repeated(0.02, 5)
    }

    #[test]
    fn a_seed_gives_one_stream_and_another_seed_another() {
        let stream = |seed| all_kinds(seed).apply(0..1000, |n| *n).stream;
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
    }

    #[test]
    fn nothing_is_lost_and_first_arrivals_keep_their_order() {
        let made = all_kinds(7).apply(0..1000, |n| *n);
        let mut seen = HashSet::new();
        let first: Vec<i32> = made.stream.iter().copied().filter(|n| seen.insert(*n)).collect();
        assert_eq!(first, (0..1000).collect::<Vec<_>>());
        assert_eq!(made.distinct, first);
        assert!(made.repeats() > 100, "{}", made.repeats());
    }

    #[test]
    fn each_kind_does_what_it_says() {
        let adjacent = Duplicator::new(1).adjacent(1.0).apply([1, 2], |n| *n);
        assert_eq!(adjacent.stream, [1, 1, 2, 2]);
        let repeated = Duplicator::new(1).repeated(1.0, 3).apply([1, 2], |n| *n);
        assert_eq!(repeated.stream, [1, 1, 1, 1, 2, 2, 2, 2]);
        let far = Duplicator::new(1).far(1.0, 1).apply([1, 2, 3], |n| *n);
        assert_eq!(far.stream, [1, 2, 1, 3, 2, 3]);
        assert_eq!(Duplicator::new(1).apply([1, 1], |n| *n).distinct, [1]);
    }
}
