//! `cargo xtask check`: all that can be known without running a test.

mod deny;
mod graph;
mod length;
mod rust_version;

use std::path::Path;

use anyhow::{Result, bail};

use crate::command::{cargo, run as run_command};

type Step = (&'static str, fn(&Path) -> Result<()>);

/// Quick ones first. They all run: one failure must not hide the next.
const STEPS: &[Step] = &[
    ("format", format),
    ("file length", length::run),
    ("core's dependency graph", graph::run),
    ("rust-version", rust_version::run),
    ("licences, sources, advisories", deny::run),
    ("core without features", core_alone),
    ("lints", lints),
    ("services in Docker", docker),
    ("docs", docs),
];

pub(crate) fn run(root: &Path) -> Result<()> {
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        eprintln!("==> {name}");
        if let Err(error) = step(root) {
            eprintln!("error: {name}: {error:#}");
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        bail!("check failed: {}", failed.join("; "));
    }
    eprintln!("==> check passed");
    Ok(())
}

fn format(root: &Path) -> Result<()> {
    run_command(cargo(root).args(["fmt", "--all", "--check"]))
}

/// Without sled nothing in core may be left unused, so lints and not the build alone.
fn core_alone(root: &Path) -> Result<()> {
    run_command(cargo(root).args(["clippy", "-p", "einmal", "--no-default-features", "--", "-D", "warnings"]))
}

fn lints(root: &Path) -> Result<()> {
    run_command(cargo(root).args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--features",
        "einmal-tests/real-kafka,einmal-examples/real-kafka",
        "--",
        "-D",
        "warnings",
    ]))
}

/// No other step builds it: it is a feature, and there may be no Docker here.
fn docker(root: &Path) -> Result<()> {
    run_command(cargo(root).args([
        "clippy",
        "-p",
        "einmal-services",
        "--all-features",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

fn docs(root: &Path) -> Result<()> {
    run_command(cargo(root).env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--no-deps", "--workspace"]))
}
