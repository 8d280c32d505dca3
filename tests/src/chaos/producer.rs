//! Keeps sending numbered messages through all faults, each exactly once into the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rdkafka::producer::{DefaultProducerContext, Producer as _, ThreadedProducer};

use crate::kafka::{PATIENCE, Topic, send};

/// Sends on its own thread.
#[derive(Debug)]
pub struct Producer {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    thread: JoinHandle<Result<()>>,
}

impl Producer {
    /// Sends so many a second, to the partition of each one's number.
    ///
    /// # Errors
    /// When the client can't be made.
    pub fn start(topic: &Topic, per_second: usize) -> Result<Self> {
        let mut client = topic.client();
        // In order and once each, however long the broker is away: an offset tells its message's number.
        client.set("enable.idempotence", "true").set("message.timeout.ms", "0");
        client.set("socket.timeout.ms", "3000").set("reconnect.backoff.max.ms", "1000");
        let producer: ThreadedProducer<DefaultProducerContext> = client.create()?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (name, partitions) = (topic.name.clone(), topic.partitions);
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            const TICK: Duration = Duration::from_millis(20);
            let each_tick = (per_second * 20).div_ceil(1_000);
            while !stopped.load(Ordering::SeqCst) {
                for _ in 0..each_tick {
                    let number = counter.fetch_add(1, Ordering::SeqCst);
                    send(&producer, &name, i32::try_from(number % partitions)?, number, "")?;
                }
                std::thread::sleep(TICK);
            }
            producer.flush(PATIENCE).context("the producer's last messages")?;
            ensure!(producer.in_flight_count() == 0, "the producer has messages left");
            Ok(())
        });
        Ok(Self { stop, sent, thread })
    }

    /// Messages handed to the client so far.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// Stops, and waits until all has arrived. Says how many there are.
    ///
    /// # Errors
    /// When something did not arrive.
    pub fn finish(self) -> Result<usize> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("the producer panicked"))??;
        Ok(self.sent.load(Ordering::SeqCst))
    }
}
