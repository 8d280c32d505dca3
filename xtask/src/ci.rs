//! `cargo xtask ci`: what a change must pass.

use std::path::Path;

use anyhow::Result;

use crate::{check, test};

pub(crate) fn run(root: &Path) -> Result<()> {
    check::run(root)?;
    test::run(root, &test::Args::default())
}
