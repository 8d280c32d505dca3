//! A log with an at-least-once reader, on a file: what is not settled is delivered again after a restart.
//!
//! It keeps the settled deliveries one by one, so that every settle counts at the moment it is made, and a
//! message that was settled and is run again can't hide behind a low-water mark.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use einmal::worker::{Ack, Assignment, Incoming, Source};
use einmal::{Delivery, Position};

use crate::points::{Killer, Point};
use crate::witness::{Lines, Place};

/// Partitions of the log.
pub const PARTITIONS: usize = 4;

/// The id of the message with this number: about three in ten repeat an earlier one, near or far, on the same
/// partition or another.
#[must_use]
pub fn id_of(number: usize) -> String {
    let original = match number % 10 {
        3 => number - 1,
        6 => number - PARTITIONS.min(number),
        9 => number / 2,
        _ => number,
    };
    // An original may itself be a repeat.
    if original == number { format!("m{number}") } else { id_of(original) }
}

/// Whether the strict handler rejects what has this id. Each is the original of some copies.
#[must_use]
pub fn is_rejected(id: &str) -> bool {
    id.strip_prefix('m')
        .and_then(|number| number.parse().ok())
        .is_some_and(|number: usize| number % 100 == 12)
}

fn delivery(number: usize) -> Delivery {
    let id = id_of(number);
    let partition = i32::try_from(number % PARTITIONS).unwrap_or_default();
    let offset = i64::try_from(number / PARTITIONS).unwrap_or_default();
    Delivery::new(Position::in_log("log", partition, offset), Some(Bytes::from(format!("payload of {id}"))))
        .with_key(Some(Bytes::from(id.clone())))
        .with_headers(vec![
            ("message-id".into(), Some(Bytes::from(id))),
            ("number".into(), Some(Bytes::from(number.to_string()))),
        ])
}

/// The number of a message, from its header.
#[must_use]
pub fn number_of(delivery: &Delivery) -> Option<usize> {
    let header = delivery.header("number").flatten().next()?;
    std::str::from_utf8(header).ok()?.parse().ok()
}

/// Delivers what is not settled yet, in order.
#[derive(Debug)]
pub struct LogBroker {
    left: VecDeque<usize>,
}

impl LogBroker {
    /// A log of `messages`, without what earlier processes settled.
    ///
    /// # Errors
    /// When the file of settled deliveries can't be read.
    pub fn open(place: &Place, messages: usize) -> Result<Self> {
        let settled = place.read_settled()?;
        Ok(Self { left: (0..messages).filter(|number| !settled.contains_key(number)).collect() })
    }
}

#[async_trait]
impl Source for LogBroker {
    type Ack = Written;

    async fn next(&mut self) -> Option<Incoming<Written>> {
        let delivery = delivery(self.left.pop_front()?);
        Some(Incoming { delivery, assignment: Assignment::default(), ack: Written })
    }
}

/// Settling is what [`Watched`] writes down, and nothing more.
#[derive(Debug)]
pub struct Written;

impl Ack for Written {
    fn settle(self) {}
}

/// A source whose settles are written down, and at whose settles the process may be killed.
#[derive(Debug)]
pub struct Watched<S> {
    source: S,
    settled: Arc<Lines>,
    killer: Arc<Killer>,
}

impl<S> Watched<S> {
    /// Watches `source`.
    ///
    /// # Errors
    /// When the file of settled deliveries can't be opened.
    pub fn new(source: S, place: &Place, killer: Arc<Killer>) -> Result<Self> {
        Ok(Self { source, settled: Arc::new(Lines::append_to(&place.settled())?), killer })
    }
}

#[async_trait]
impl<S: Source> Source for Watched<S> {
    type Ack = WatchedAck<S::Ack>;

    async fn next(&mut self) -> Option<Incoming<Self::Ack>> {
        let Incoming { delivery, assignment, ack } = self.source.next().await?;
        let number = number_of(&delivery).unwrap_or(usize::MAX);
        let (settled, killer) = (Arc::clone(&self.settled), Arc::clone(&self.killer));
        Some(Incoming { delivery, assignment, ack: WatchedAck { ack, number, settled, killer } })
    }
}

/// See [`Watched`].
#[derive(Debug)]
pub struct WatchedAck<A> {
    ack: A,
    number: usize,
    settled: Arc<Lines>,
    killer: Arc<Killer>,
}

impl<A: Ack> Ack for WatchedAck<A> {
    fn settle(self) {
        self.killer.pass(Point::BeforeSettle);
        // A line that fails is a message that looks unsettled.
        let _ = self.settled.push(&format!("{} {}", self.number, std::process::id()));
        self.ack.settle();
        self.killer.pass(Point::AfterSettle);
    }
}
