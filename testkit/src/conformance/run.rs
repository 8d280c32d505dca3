//! Runs cases.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::{Case, Harness, cases};

/// After so long a case is taken to hang. Nothing is measured with it: it only ends what would not end.
const HANGS: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    // Two threads at least: a claim that is not atomic must get the chance to show it.
    Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime")
}

/// Runs a case to its end, on a runtime with several threads.
pub fn block_on<F: Future>(case: F) -> F::Output {
    runtime().block_on(case)
}

/// Runs the whole suite, each case against a harness of its own, and says which failed and how.
///
/// For tests of the suite itself, and of stores that break a rule on purpose: those must fail exactly the
/// cases that hold the rule.
pub fn failing<H: Harness>(make: impl Fn() -> H) -> BTreeMap<&'static str, String> {
    let failure = |case: &Case<H>| {
        let harness = Arc::new(make());
        let run = async {
            let ended = tokio::time::timeout(HANGS, (case.run)(Arc::clone(&harness))).await;
            ended.map_err(|_| "it hangs".to_owned())
        };
        let runtime = runtime();
        let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run)));
        // What hangs, hangs in a task of this runtime: it is not waited for.
        runtime.shutdown_background();
        ended.unwrap_or_else(|panic| Err(message(&*panic))).err()
    };
    cases().iter().filter_map(|case| Some((case.name, failure(case)?))).collect()
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}
