//! cargo-deny, with the policy of `deny.toml`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, bail};

use crate::command::{cargo, run as run_command};

pub(super) fn run(root: &Path) -> Result<()> {
    if !installed(root) {
        bail!("cargo-deny is missing; get it with `cargo install cargo-deny --locked`");
    }
    run_command(cargo(root).args(["deny", "--locked", "check", "bans", "licenses", "sources"]))?;

    // The advisories are a git repository of their own, which not every network reaches.
    // To fetch first tells "no database" from "an advisory applies".
    let fetched = run_command(cargo(root).env("GIT_TERMINAL_PROMPT", "0").args(["deny", "fetch", "db"]));
    if let Err(error) = fetched {
        eprintln!("warning: {error:#}");
        eprintln!("warning: ADVISORIES WERE NOT CHECKED: the database cannot be had from here");
        return Ok(());
    }
    run_command(cargo(root).args(["deny", "--locked", "check", "advisories"]))
}

fn installed(root: &Path) -> bool {
    cargo(root)
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
