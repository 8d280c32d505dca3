//! What can go wrong.

use rand::RngExt;
use rand::rngs::StdRng;
use serde::Serialize;

/// A fault. How long it lasts is chosen with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The worker is killed.
    KillWorker,
    /// The worker is told to terminate, and ends in order.
    TerminateWorker,
    /// The worker stands still, sometimes for longer than its group waits for it.
    StopWorker,
    /// All connections are cut.
    Cut,
    /// The network stands still.
    Stall,
    /// What the broker says is lost, and then the connections.
    Swallow,
    /// The broker stands still.
    StopBroker,
    /// The broker is told to terminate, and started again.
    TerminateBroker,
    /// The broker is killed, and started again.
    KillBroker,
}

impl Fault {
    /// Each as often as it stands here.
    const DRAWN: [Self; 13] = [
        Self::KillWorker,
        Self::KillWorker,
        Self::KillWorker,
        Self::KillWorker,
        Self::KillWorker,
        Self::TerminateWorker,
        Self::StopWorker,
        Self::Cut,
        Self::Stall,
        Self::Swallow,
        Self::StopBroker,
        Self::TerminateBroker,
        Self::KillBroker,
    ];

    /// The next one.
    pub fn draw(random: &mut StdRng) -> Self {
        let at = random.random_range(0..Self::DRAWN.len());
        Self::DRAWN.get(at).copied().unwrap_or(Self::KillWorker)
    }
}
