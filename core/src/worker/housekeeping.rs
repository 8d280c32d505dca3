//! What goes on beside the messages: expiry, gauges, and a look at what does not move.

use std::time::Duration;

use super::Shared;
use crate::mode::Mode;
use crate::names;
use crate::settle::Unsettled;
use crate::store::DedupStore;

const EVERY: Duration = Duration::from_secs(1);
const BETWEEN_BATCHES: Duration = Duration::from_millis(20);
const PURGE_BATCH: usize = 1000;
/// Batches of one round, so that a mountain of expired records does not starve the gauges.
const BATCHES: usize = 50;

/// Goes on until it is dropped.
pub(crate) async fn keep_house(shared: &Shared) {
    loop {
        shared.engine.clock.sleep(EVERY).await;
        let mode = shared.engine.mode.get();
        metrics::gauge!(names::MODE, "scope" => shared.engine.scope_label.clone()).set(f64::from(mode as u8));
        in_flight(shared);
        if mode != Mode::Off {
            purge(shared, mode).await;
            stored(shared).await;
        }
        look_for_stalls(shared);
        shared.look_for_recovery();
    }
}

async fn purge(shared: &Shared, mode: Mode) {
    for _ in 0..BATCHES {
        match shared.engine.call(shared.engine.store.purge_expired(PURGE_BATCH)).await {
            Ok(purged) => {
                metrics::counter!(names::PURGED).increment(purged.removed);
                if !purged.more {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "expired records could not be purged");
                if error.is_fatal() && mode == Mode::Enforce {
                    shared.fail(Unsettled::Store(error));
                }
                return;
            }
        }
        shared.engine.clock.sleep(BETWEEN_BATCHES).await;
    }
}

#[allow(clippy::cast_precision_loss, reason = "gauges are floating point")]
fn in_flight(shared: &Shared) {
    let (deliveries, bytes, waiting) = shared.budget.gauges();
    let scope = || shared.engine.scope_label.clone();
    metrics::gauge!(names::IN_FLIGHT, "scope" => scope()).set(deliveries as f64);
    metrics::gauge!(names::IN_FLIGHT_BYTES, "scope" => scope()).set(bytes as f64);
    metrics::gauge!(names::WAITING, "scope" => scope()).set(waiting as f64);
}

#[allow(clippy::cast_precision_loss, reason = "gauges are floating point")]
async fn stored(shared: &Shared) {
    if let Ok(stats) = shared.engine.call(shared.engine.store.stats()).await {
        metrics::gauge!(names::LIVE_KEYS).set(stats.keys as f64);
        if let Some(bytes) = stats.bytes_on_disk {
            metrics::gauge!(names::BYTES_ON_DISK).set(bytes as f64);
        }
    }
}

/// Polling happily while one lane stands still for hours is the failure that nobody sees.
fn look_for_stalls(shared: &Shared) {
    let now = shared.engine.clock.monotonic();
    match shared.budget.oldest() {
        Some((since, position)) if now.saturating_sub(since) > shared.stalled_after => {
            let age = now.saturating_sub(since).as_secs();
            shared.health.trouble(STALLED, format!("{position} has been in flight for {age} s"));
        }
        _ => shared.health.clear(STALLED),
    }
}

const STALLED: &str = "stalled";
