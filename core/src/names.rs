//! Every name that Einmal shows to those who watch it: metrics, their labels, and the fields of spans.
//!
//! Counters count since the start of the process; gauges say how things are now. Those of a worker carry
//! the label `scope`, those of a store (live keys, bytes, purged) none.

/// Counter: deliveries taken in by a worker.
pub const RECEIVED: &str = "einmal_received_total";
/// Counter: deliveries that came to their final answer, by label `answer`: `ran_ok`, `ran_failed`,
/// `ignored`, `duplicate`, `conflict`, `parked`, `dead_lettered_without_run`, `rejected_before_claim`,
/// `passed`, `unsettled`.
pub const ANSWERED: &str = "einmal_answered_total";
/// Gauge: deliveries taken in and not answered yet.
pub const IN_FLIGHT: &str = "einmal_in_flight";
/// Gauge: bytes of these.
pub const IN_FLIGHT_BYTES: &str = "einmal_in_flight_bytes";
/// Gauge: deliveries that wait for a copy that runs, or for their back-off.
pub const WAITING: &str = "einmal_waiting";
/// Counter: handler runs started.
pub const RUNS: &str = "einmal_runs_total";
/// Histogram: seconds a handler ran.
pub const HANDLER_SECONDS: &str = "einmal_handler_seconds";
/// Histogram: seconds from delivery to settle.
pub const SETTLE_SECONDS: &str = "einmal_delivery_to_settle_seconds";
/// Counter: claims of keys that another holder had let lapse.
pub const TAKEN_OVER: &str = "einmal_lease_taken_over_total";
/// Counter: leases lost while the handler ran or its outcome was stored.
pub const LEASE_LOST: &str = "einmal_lease_lost_total";
/// Counter: copies whose longest wait was over.
pub const WAIT_TIMED_OUT: &str = "einmal_wait_timed_out_total";
/// Counter: dead letters published, by label `reason`.
pub const DEAD_LETTERED: &str = "einmal_dead_lettered_total";
/// Counter: dead letters that were not confirmed.
pub const DEAD_LETTER_ERRORS: &str = "einmal_dead_letter_errors_total";
/// Counter: store calls that failed, by label `kind`.
pub const STORE_ERRORS: &str = "einmal_store_errors_total";
/// Counter: settles that were refused, by label `refusal`.
pub const REFUSED: &str = "einmal_settle_refused_total";
/// Counter: transactions that were run again because something they read had changed.
pub const TX_CONFLICTS: &str = "einmal_tx_conflicts_total";
/// Counter: what the mode `Observe` saw, by label `would`, which says what `Enforce` would have done: `run`,
/// `duplicate`, `conflict`, `in_progress`, `not_yet`, `dead_letter`, `reject`, and `unknown` where the store
/// failed, each delivery once; `fail`, `give_up`, `not_stored` for what came after.
pub const OBSERVED: &str = "einmal_observed_total";
/// Gauge: the mode of a worker: 0 `Off`, 1 `Observe`, 2 `Enforce`.
pub const MODE: &str = "einmal_mode";
/// Gauge: records in the store.
pub const LIVE_KEYS: &str = "einmal_live_keys";
/// Gauge: bytes on disk.
pub const BYTES_ON_DISK: &str = "einmal_bytes_on_disk";
/// Counter: expired records taken away.
pub const PURGED: &str = "einmal_purged_total";
