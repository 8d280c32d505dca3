//! A log with an at-least-once reader, on a file: what is not settled is delivered again after a restart.
//!
//! It keeps the settled deliveries one by one, so that every settle counts at the moment it is made, and a
//! message that was settled and is run again can't hide behind a low-water mark.

use std::collections::VecDeque;
use std::path::Path;
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

fn delivery(number: usize) -> Delivery {
    let id = id_of(number);
    let partition = i32::try_from(number % PARTITIONS).unwrap_or_default();
    let offset = i64::try_from(number / PARTITIONS).unwrap_or_default();
    Delivery::new(Position::in_log("log", partition, offset), Some(Bytes::from(format!("payload of {id}"))))
        .with_key(Some(Bytes::from(id.clone())))
        .with_headers(vec![("message-id".into(), Some(Bytes::from(id)))])
}

/// Delivers what is not settled yet, in order.
#[derive(Debug)]
pub struct LogBroker {
    left: VecDeque<usize>,
    settled: Arc<Lines>,
    killer: Arc<Killer>,
}

impl LogBroker {
    /// A log of `messages`, with what earlier processes settled.
    ///
    /// # Errors
    /// When the file of settled deliveries can't be opened.
    pub fn open(place: &Place, messages: usize, killer: Arc<Killer>) -> Result<Self> {
        let settled = place.read_settled()?;
        let left = (0..messages).filter(|number| !settled.contains_key(number)).collect();
        let path: &Path = &place.settled();
        Ok(Self { left, settled: Arc::new(Lines::append_to(path)?), killer })
    }
}

#[async_trait]
impl Source for LogBroker {
    type Ack = LogAck;

    async fn next(&mut self) -> Option<Incoming<LogAck>> {
        let number = self.left.pop_front()?;
        let ack = LogAck { number, settled: Arc::clone(&self.settled), killer: Arc::clone(&self.killer) };
        Some(Incoming { delivery: delivery(number), assignment: Assignment::default(), ack })
    }
}

/// Settles one delivery by a line in a file.
#[derive(Debug)]
pub struct LogAck {
    number: usize,
    settled: Arc<Lines>,
    killer: Arc<Killer>,
}

impl Ack for LogAck {
    fn settle(self) {
        self.killer.pass(Point::BeforeSettle);
        // A settle that fails is a message delivered again.
        let _ = self.settled.push(&format!("{} {}", self.number, std::process::id()));
        self.killer.pass(Point::AfterSettle);
    }
}
