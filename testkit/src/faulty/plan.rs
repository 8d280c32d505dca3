//! When and how the calls of a faulty store fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;

/// A method of [`DedupStore`](einmal::DedupStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the method of its name")]
pub enum Method {
    ClaimMany,
    SettleMany,
    Get,
    Forget,
    Force,
    ExpiredClaims,
    PurgeExpired,
    Stats,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// An error, and nothing was applied.
    ErrorBefore,
    /// An error, and the first half of the batch (rounded up, so that one item is applied) was applied.
    ErrorDuring,
    /// An error, and everything was applied.
    ErrorAfter,
    /// Nothing happens until [released](Faults::release); dropped before, it was not applied.
    HangBefore,
    /// Applied, and answered only when [released](Faults::release).
    ReplyLost,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::ErrorBefore, Self::ErrorDuring, Self::ErrorAfter, Self::HangBefore, Self::ReplyLost];

    /// Those that end by themselves.
    pub const ERRORS: [Self; 3] = [Self::ErrorBefore, Self::ErrorDuring, Self::ErrorAfter];
}

/// Says when and how the calls of a [`FaultyStore`](crate::FaultyStore) fail. Cloning gives another handle
/// of the same.
///
/// What was planned [at](Faults::at) a call comes first, then being [down](Faults::down), then
/// [chance](Faults::seeded).
#[derive(Clone, Debug)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    /// How many calls hang, and how often they were released. Sent by everything that changes it.
    hanging: watch::Sender<Hanging>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { plan: Arc::default(), hanging: watch::Sender::new(Hanging::default()) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Hanging {
    calls: usize,
    releases: u64,
}

#[derive(Debug, Default)]
struct Plan {
    calls: BTreeMap<Method, u64>,
    at: BTreeMap<(Method, u64), Fault>,
    down: bool,
    chance: Option<Chance>,
    injected: BTreeMap<(Method, Fault), u64>,
}

#[derive(Debug)]
struct Chance {
    random: StdRng,
    rate: f64,
    faults: Vec<Fault>,
}

impl Faults {
    /// The `nth` call of `method` from here on (1 is the next) fails so.
    pub fn at(&self, method: Method, nth: u64, fault: Fault) {
        let mut plan = self.lock();
        let nth = plan.calls.get(&method).copied().unwrap_or_default() + nth;
        plan.at.insert((method, nth), fault);
    }

    /// While down, every call fails before anything is applied.
    pub fn down(&self, down: bool) {
        self.lock().down = down;
    }

    /// From here on a call in `rate` (0 to 1) of all cases fails, as one of `faults`: the same calls for the
    /// same seed, as long as they are made in the same order.
    pub fn seeded(&self, seed: u64, rate: f64, faults: &[Fault]) {
        let random = StdRng::seed_from_u64(seed);
        self.lock().chance = Some(Chance { random, rate, faults: faults.to_vec() });
    }

    /// No call fails any more: takes back all plans, puts the store up, and releases what hangs. The
    /// counters stay.
    pub fn clear(&self) {
        let mut plan = self.lock();
        (plan.down, plan.chance) = (false, None);
        plan.at.clear();
        drop(plan);
        self.release();
    }

    /// Lets every call that hangs now go on.
    pub fn release(&self) {
        self.hanging.send_modify(|hanging| hanging.releases += 1);
    }

    /// How many calls hang now.
    #[must_use]
    pub fn hanging(&self) -> usize {
        self.hanging.borrow().calls
    }

    /// Waits until at least `count` calls hang.
    pub async fn wait_hanging(&self, count: usize) {
        // It ends in an error only when the sender is gone, and `self` holds it.
        let _ = self.hanging.subscribe().wait_for(|hanging| hanging.calls >= count).await;
    }

    /// How many calls of `method` there were, failed ones included.
    #[must_use]
    pub fn calls(&self, method: Method) -> u64 {
        self.lock().calls.get(&method).copied().unwrap_or_default()
    }

    /// How often `fault` was injected into `method`.
    #[must_use]
    pub fn injected(&self, method: Method, fault: Fault) -> u64 {
        self.lock().injected.get(&(method, fault)).copied().unwrap_or_default()
    }

    /// How many faults were injected in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.lock().injected.values().sum()
    }

    /// How the call of `method` that begins now fails.
    pub(super) fn next(&self, method: Method) -> Option<Fault> {
        let mut plan = self.lock();
        let call = plan.calls.entry(method).or_default();
        *call += 1;
        let call = (method, *call);
        let planned = plan.at.remove(&call);
        let fault = planned.or_else(|| plan.down.then_some(Fault::ErrorBefore)).or_else(|| plan.chance())?;
        *plan.injected.entry((method, fault)).or_default() += 1;
        Some(fault)
    }

    /// Ends at the next release.
    pub(super) async fn hang(&self) {
        struct Hung<'a>(&'a watch::Sender<Hanging>);
        impl Drop for Hung<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|hanging| hanging.calls -= 1);
            }
        }
        let mut releases = self.hanging.subscribe();
        let mut before = 0;
        self.hanging.send_modify(|hanging| {
            hanging.calls += 1;
            before = hanging.releases;
        });
        let _hung = Hung(&self.hanging);
        let _ = releases.wait_for(|hanging| hanging.releases > before).await;
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    fn chance(&mut self) -> Option<Fault> {
        let Chance { random, rate, faults } = self.chance.as_mut()?;
        // Drawn in either case, so that the calls after this one don't depend on it.
        let (hit, fault) = (random.random::<f64>() < *rate, faults.choose(random).copied());
        fault.filter(|_| hit)
    }
}
