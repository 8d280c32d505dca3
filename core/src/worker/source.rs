//! What an adapter hands to the worker, and how the worker hands it back.

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::delivery::Delivery;

/// The right to settle one delivery with its broker. Used up by settling, so that nothing is settled twice;
/// dropped, the delivery is unsettled and will be delivered again.
pub trait Ack: Send + 'static {
    /// Settles the delivery: its outcome is durable. Best effort and without waiting: an ack that is lost
    /// means another delivery, which the stored outcome answers.
    fn settle(self);
}

/// The span for which an adapter may deliver from a partition or queue, and settle what it delivered.
///
/// Cloning gives another handle of the same span.
#[derive(Clone, Debug, Default)]
pub struct Assignment {
    /// Cancelled when nothing more should be started: what runs may end and be settled.
    pub closing: CancellationToken,
    /// Cancelled when nothing can be settled any more: what runs is cancelled.
    pub lost: CancellationToken,
}

/// A delivery with the right to settle it.
#[derive(Debug)]
pub struct Incoming<A> {
    /// The message.
    pub delivery: Delivery,
    /// The span in which it can be settled.
    pub assignment: Assignment,
    /// The right to settle it.
    pub ack: A,
}

/// Where a worker gets its deliveries from.
#[async_trait]
pub trait Source: Send {
    /// The right to settle one delivery.
    type Ack: Ack;

    /// The next delivery; `None` when there will be none any more.
    ///
    /// The worker stops asking while it is at a bound, or while its store fails: a source must then hold
    /// back its broker without giving up its membership.
    ///
    /// # Cancel safety
    /// No delivery may be lost when the future is dropped.
    async fn next(&mut self) -> Option<Incoming<Self::Ack>>;
}

#[async_trait]
impl<A: Ack> Source for tokio::sync::mpsc::Receiver<Incoming<A>> {
    type Ack = A;

    async fn next(&mut self) -> Option<Incoming<A>> {
        self.recv().await
    }
}
