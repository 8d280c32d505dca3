//! `cargo xtask test`: every test, and no silent skip.
//!
//! A test that lacks what it needs (a broker, a database) returns early and appends one line,
//! `name: reason`, to the file that `EINMAL_SKIPPED_TESTS` names.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, run as run_command};

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Test the release build.
    #[arg(long)]
    release: bool,
    /// Run only tests whose name holds one of these. What follows `--` goes to the test binaries.
    filter: Vec<String>,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let skips = skip_file(root);
    reset(&skips)?;

    let tests = run_command(&mut cargo_test(root, args, "--all-targets"));
    // Before the doc tests: the last lines of a good run are cargo's own summary.
    let reported = read_skips(&skips)?;
    report(&reported);
    let doc_tests = run_command(&mut cargo_test(root, args, "--doc"));
    let skipped = read_skips(&skips)?;
    if skipped != reported {
        report(&skipped);
    }

    tests.and(doc_tests)?;
    let ci = env::var("CI").ok();
    let require_services = env::var("EINMAL_REQUIRE_SERVICES").ok();
    if !skipped.is_empty() && skips_fail(ci.as_deref(), require_services.as_deref()) {
        bail!("skipped tests: {}; none may be skipped here", skipped.len());
    }
    Ok(())
}

fn cargo_test(root: &Path, args: &Args, which: &str) -> Command {
    let mut command = cargo(root);
    command
        .env("EINMAL_SKIPPED_TESTS", skip_file(root))
        // One failure must not hide the next.
        .args(["test", "--workspace", which, "--no-fail-fast"]);
    if args.release {
        command.arg("--release");
    }
    if !args.filter.is_empty() {
        command.arg("--").args(&args.filter);
    }
    command
}

/// Always under the root, so that a test finds it even when cargo builds elsewhere.
fn skip_file(root: &Path) -> PathBuf {
    root.join("target").join("skipped-tests.txt")
}

/// Removes what an earlier run left, and makes sure that a test can append.
fn reset(file: &Path) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| file.display().to_string())
        }
        _ => Ok(()),
    }
}

/// No file means that no test was skipped.
fn read_skips(file: &Path) -> Result<Vec<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(parse_skips(&text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Sorted, because tests run in any order.
fn parse_skips(text: &str) -> Vec<String> {
    let mut lines: Vec<_> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    lines
}

fn report(skipped: &[String]) {
    if skipped.is_empty() {
        return;
    }
    eprintln!("\nskipped tests: {}", skipped.len());
    for line in skipped {
        eprintln!("    {line}");
    }
}

fn skips_fail(ci: Option<&str>, require_services: Option<&str>) -> bool {
    ci == Some("true") || require_services == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_no_skip() {
        let folder = tempfile::tempdir().unwrap();
        let file = skip_file(folder.path());
        assert!(read_skips(&file).unwrap().is_empty());
    }

    #[test]
    fn a_run_starts_without_the_skips_of_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = skip_file(folder.path());
        reset(&file).unwrap();
        fs::write(&file, "old: no broker\n").unwrap();
        assert_eq!(read_skips(&file).unwrap(), ["old: no broker"]);
        reset(&file).unwrap();
        assert!(read_skips(&file).unwrap().is_empty());
    }

    #[test]
    fn skips_are_sorted_and_named_once() {
        let text = "b: no broker\n\n  a: no broker  \nb: no broker\n";
        assert_eq!(parse_skips(text), ["a: no broker", "b: no broker"]);
    }

    #[test]
    fn skips_fail_only_where_services_are_promised() {
        assert!(!skips_fail(None, None));
        assert!(!skips_fail(Some("false"), Some("0")));
        assert!(!skips_fail(Some(""), Some("")));
        assert!(skips_fail(Some("true"), None));
        assert!(skips_fail(None, Some("1")));
    }

    #[test]
    fn filters_go_to_the_test_binaries() {
        let args = Args { release: true, filter: vec!["one".to_owned(), "--nocapture".to_owned()] };
        let command = cargo_test(Path::new("/"), &args, "--doc");
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(
            words,
            ["test", "--workspace", "--doc", "--no-fail-fast", "--release", "--", "one", "--nocapture"]
        );
    }
}
