//! Deliveries that need no order: each on its own.

use std::sync::Arc;

use super::Shared;
use super::item::Item;
use super::source::Ack;
use super::wait::{Again, Patience};
use crate::claim::Token;
use crate::idempotent::Reached;
use crate::mode::Mode;
use crate::observe::Look;
use crate::settle::Disposition;

/// Processes `item` until it is settled, or must be left to another delivery.
pub(crate) async fn process<A: Ack>(shared: Arc<Shared>, mut item: Item<A>) {
    let mut patience = Patience::default();
    let (no_start, no_more) = (item.no_start(), item.no_more());
    loop {
        let slot = tokio::select! {
            biased;
            () = no_start.asked() => return,
            slot = Arc::clone(&shared.slots).acquire_owned() => slot,
        };
        let engine = &shared.engine;
        let (mut claimed, mut slot) = (false, Some(slot));
        let reached = |reached| match reached {
            Reached::Claimed => {
                claimed = true;
                patience.answered(&shared);
            }
            // The slot is for running: it is free again while the outcome is on its way to the disk.
            Reached::Ran => drop(slot.take()),
        };
        let handler = &*shared.handler;
        let disposition = match engine.mode.get() {
            Mode::Enforce => engine.process(handler, &item.delivery, item.token, &no_more, reached).await,
            mode => {
                let look = Look { mode, token: item.token, counted: &mut item.counted, later: None };
                engine.observe(handler, &item.delivery, look, &no_more, reached).await
            }
        };
        // Who waits needs none.
        drop(slot);
        if claimed {
            // A late call of that claim must not meet the next one under its token.
            item.token = Token::random();
        }
        let again = match disposition {
            Disposition::Settle(settled) => {
                drop(patience);
                shared.look_for_recovery();
                return item.settle(&settled);
            }
            Disposition::Later { why, retry_after } => {
                patience.later(&shared, &mut item, why, retry_after).await
            }
            Disposition::Unsettled(unsettled) => patience.unsettled(&shared, &mut item, unsettled).await,
        };
        if again == Again::No {
            return;
        }
    }
}
