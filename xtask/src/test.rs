//! `cargo xtask test`: every test, and no silent skip.
//!
//! A test that lacks what it needs (a broker, a database) returns early and appends one line,
//! `name: reason`, to the file that `EINMAL_SKIPPED_TESTS` names.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use einmal_services::{Exempt, Service};

use crate::command::{cargo, run as run_command};
use crate::services::{From, Report, Session, interrupt, required};

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Test the release build.
    #[arg(long)]
    release: bool,
    /// Bring up every service first, not only those that tests need, and run the tests of TLS, SASL and zstd too,
    /// for which librdkafka is built once more. Where services are required, those tests always run.
    #[arg(long)]
    services: bool,
    /// Run only tests whose name holds one of these. What follows `--` goes to the test binaries.
    filter: Vec<String>,
}

/// The services that tests of the workspace talk to. They are found, or else installed and started, before the
/// tests run. A service belongs here once a test asks for it.
const NEEDED: &[Service] = &[Service::Kafka];

/// What `cargo test` is told.
type Tests = &'static [&'static str];

const ALL: Tests = &["--workspace", "--all-targets"];
const DOC: Tests = &["--workspace", "--doc"];
/// What differs in a build of the client that has everything. The same packages as in the lints of that build, or
/// librdkafka would be built once more.
const SECURE: Tests = &[
    "-p",
    "einmal-kafka",
    "-p",
    "einmal-tests",
    "--lib",
    "--test",
    "kafka_codecs",
    "--test",
    "kafka_secure",
    "--features",
    "einmal-tests/secure",
];

pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let skips = skip_file(root);
    reset(&skips)?;
    let needed = if args.services { &Service::ALL } else { NEEDED };
    let mut session = Session::begin(root, needed, From::Any)?;
    interrupt::check()?;
    session.report().print();

    let tests = run_command(&mut cargo_test(root, args, session.report(), ALL));
    let secure = match interrupt::check() {
        Ok(()) if args.services || required() => {
            run_command(&mut cargo_test(root, args, session.report(), SECURE))
        }
        other => other,
    };
    // Before the doc tests: the last lines of a good run are cargo's own summary.
    let reported = read_skips(&skips)?;
    session.report().print();
    report(&reported);
    let doc_tests = match interrupt::check() {
        Ok(()) => run_command(&mut cargo_test(root, args, session.report(), DOC)),
        interrupted => interrupted,
    };
    let skipped = read_skips(&skips)?;
    if skipped != reported {
        report(&skipped);
    }
    let judged = session.report().judge(&Exempt::from_env());
    let ended = session.end();

    interrupt::check()?;
    tests.and(secure).and(doc_tests).and(judged).and(ended)?;
    let counted = not_exempt(&skipped, &Exempt::from_env());
    if counted > 0 && required() {
        bail!("skipped tests: {counted}; none may be skipped here");
    }
    Ok(())
}

fn not_exempt(skipped: &[String], exempt: &Exempt) -> usize {
    skipped.iter().filter(|line| !exempt.line(line)).count()
}

fn cargo_test(root: &Path, args: &Args, services: &Report, tests: Tests) -> Command {
    let mut command = cargo(root);
    command
        .env("EINMAL_SKIPPED_TESTS", skip_file(root))
        .envs(services.addresses())
        // One failure must not hide the next.
        .arg("test")
        .args(tests)
        .arg("--no-fail-fast");
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
    fn what_is_exempt_does_not_count() {
        let skipped = ["a: no kafka".to_owned(), "b: no redis".to_owned()];
        assert_eq!(not_exempt(&skipped, &Exempt::default()), 2);
        assert_eq!(not_exempt(&skipped, &Exempt::parse("kafka")), 1);
    }

    #[test]
    fn filters_go_to_the_test_binaries() {
        let filter = vec!["one".to_owned(), "--nocapture".to_owned()];
        let args = Args { release: true, services: false, filter };
        let command = cargo_test(Path::new("/"), &args, &Report::default(), DOC);
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(
            words,
            ["test", "--workspace", "--doc", "--no-fail-fast", "--release", "--", "one", "--nocapture"]
        );
    }
}
