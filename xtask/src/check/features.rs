//! Each feature of einmal-kafka brings what it is for and nothing else, and the default brings none of it.
//!
//! Their code is compiled by two builds of librdkafka, without all and with all of them, which the tests use as well:
//! each build costs a minute or more. That one feature alone is enough for its part is seen here, from the graph.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

use super::graph::names;
use crate::command::{capture, cargo};

/// The C libraries that features bring, by their crates.
const LIBRARIES: [&str; 5] = ["openssl-sys", "zstd-sys", "sasl2-sys", "krb5-src", "curl-sys"];

const BRINGS: [(&str, &[&str]); 5] = [
    ("", &[]),
    ("tls", &["openssl-sys"]),
    ("sasl", &["openssl-sys"]),
    ("zstd", &["zstd-sys"]),
    ("tls,sasl,zstd", &["openssl-sys", "zstd-sys"]),
];

pub(super) fn run(root: &Path) -> Result<()> {
    for (features, brings) in BRINGS {
        let tree = capture(cargo(root).args([
            "tree",
            "-p",
            "einmal-kafka",
            "-e",
            "normal",
            "--features",
            features,
            "--prefix",
            "none",
            "--format",
            "{p}",
        ]))?;
        let names = names(&tree);
        ensure!(
            names.contains("rdkafka-sys"),
            "`cargo tree` did not list rdkafka-sys; has its output changed?"
        );
        let found = libraries(&names);
        ensure!(
            found == BTreeSet::from_iter(brings.iter().copied()),
            "features {features:?} bring {found:?}"
        );
    }
    Ok(())
}

fn libraries<'a>(names: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    names.iter().copied().filter(|name| LIBRARIES.contains(name)).collect()
}
