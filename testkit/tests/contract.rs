//! The contract and the suite name the same cases.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

use einmal_testkit::conformance::cases;
use einmal_testkit::mutants::DiskHarness;

/// Every case that the contract of `DedupStore` names in brackets is in the suite.
#[test]
fn every_case_of_the_contract_is_in_the_suite() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src/store.rs");
    // Outside of the repository the source of the contract is not at hand.
    let Ok(source) = std::fs::read_to_string(path) else { return };
    let contract: String = source
        .lines()
        .skip_while(|line| *line != "/// # Contract")
        .take_while(|line| line.starts_with("///"))
        .map(|line| format!("{}\n", line.trim_start_matches("///").trim()))
        .collect();
    let lists = contract.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    // A link has an address behind it; a list of cases has not.
    let lists = lists.filter(|(_, after)| !after.starts_with('('));
    let named: BTreeSet<&str> = lists.flat_map(|(list, _)| list.split('`').skip(1).step_by(2)).collect();
    let suite: BTreeSet<&str> = cases::<DiskHarness>().iter().map(|case| case.name).collect();
    assert!(named.len() > 15, "{named:?}");
    assert_eq!(named.difference(&suite).collect::<Vec<_>>(), Vec::<&&str>::new());
}
