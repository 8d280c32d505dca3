//! core knows no broker, no HTTP and no SQL: its dependency graph holds no crate that does.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};

use crate::command::{capture, cargo};

/// Whole names. A crate that merely begins like one of these is not meant.
const FOREIGN: &[&str] = &[
    // Brokers.
    "amqprs",
    "async-nats",
    "aws-sdk-sqs",
    "fe2o3-amqp",
    "kafka",
    "lapin",
    "nats",
    "paho-mqtt",
    "pulsar",
    "rdkafka",
    "rdkafka-sys",
    "rskafka",
    "rumqttc",
    "samsa",
    // HTTP.
    "actix-http",
    "actix-web",
    "axum",
    "axum-core",
    "curl",
    "h2",
    "h3",
    "http",
    "http-body",
    "hyper",
    "hyper-util",
    "isahc",
    "poem",
    "reqwest",
    "rocket",
    "surf",
    "tonic",
    "tower-http",
    "ureq",
    "warp",
    // SQL and database servers.
    "deadpool-postgres",
    "diesel",
    "fred",
    "libsqlite3-sys",
    "mongodb",
    "mysql",
    "mysql_async",
    "postgres",
    "postgres-protocol",
    "redis",
    "rusqlite",
    "sea-orm",
    "sqlx",
    "sqlx-core",
    "tiberius",
    "tokio-postgres",
];

pub(super) fn run(root: &Path) -> Result<()> {
    let tree = capture(cargo(root).args([
        "tree",
        "-p",
        "einmal",
        "-e",
        "normal",
        "--all-features",
        // Not only what this machine builds.
        "--target",
        "all",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))?;
    let names = names(&tree);
    if !names.contains("einmal") {
        bail!("`cargo tree` did not list einmal itself; has its output changed?");
    }
    let found = foreign(&names);
    if !found.is_empty() {
        bail!("core depends on {}", found.join(", "));
    }
    Ok(())
}

/// Lines read `name v1.2.3`, with more behind it for a path, a macro or a repeat.
pub(super) fn names(tree: &str) -> BTreeSet<&str> {
    tree.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

fn foreign<'a>(names: &BTreeSet<&'a str>) -> Vec<&'a str> {
    names.iter().copied().filter(|name| FOREIGN.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
einmal v0.1.0 (/somewhere/core)
async-trait v0.1.92 (proc-macro)
bytes v1.12.2
sled v0.34.7
bytes v1.12.2 (*)

";

    #[test]
    fn reads_the_names_of_a_tree() {
        let expected = BTreeSet::from(["einmal", "async-trait", "bytes", "sled"]);
        assert_eq!(names(TREE), expected);
    }

    #[test]
    fn a_clean_tree_passes() {
        assert!(foreign(&names(TREE)).is_empty());
    }

    #[test]
    fn foreign_crates_are_named() {
        let tree = format!("{TREE}rdkafka v0.39.0\nhttp v1.4.0 (*)\n");
        assert_eq!(foreign(&names(&tree)), ["http", "rdkafka"]);
    }

    #[test]
    fn only_whole_names_count() {
        let tree = format!("{TREE}httparse v1.10.1\nredis-protocol v6.0.0\nmy-rdkafka v1.0.0\n");
        assert!(foreign(&names(&tree)).is_empty());
    }
}
