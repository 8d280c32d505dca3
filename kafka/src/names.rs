//! The names of this crate's metrics. Those of the worker are in [`einmal::names`].

/// Gauge: partitions that are assigned now.
pub const ASSIGNED: &str = "einmal_kafka_assigned_partitions";
/// Counter: commits of a partition's offset, by label `result`: `ok`, `error`, or `lost` when the group had
/// moved on, which is no fault.
pub const COMMITS: &str = "einmal_kafka_commits_total";
/// Counter: rebalances, by label `kind`: `assigned`, `revoked`, or `lost` when there was no time to finish.
pub const REBALANCES: &str = "einmal_kafka_rebalances_total";
/// Counter: errors that the client reported and goes on after.
pub const CLIENT_ERRORS: &str = "einmal_kafka_client_errors_total";
/// Counter: attempts to read a batch that this build of the client can't decompress, or that is damaged. It waits
/// unread, and what is behind it in its partition too.
pub const UNREADABLE: &str = "einmal_kafka_unreadable_total";
/// Counter: messages settled after their partition was gone. Their outcomes answer the next delivery.
pub const STALE_SETTLES: &str = "einmal_kafka_stale_settles_total";
/// Counter: messages that the client gave out after their partition was gone. Nobody works on them.
pub const UNOWNED: &str = "einmal_kafka_unowned_total";
