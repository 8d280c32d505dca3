//! What ARCHITECTURE.md says of the tests is true.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

use std::path::Path;

fn sources(directory: &Path, all: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target" && name != ".git") {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Every test that the table of invariants names is there.
#[test]
fn every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (_, text) = text.split_once("## Invariants").unwrap();
    let (text, _) = text.split_once("\n## ").unwrap();
    let mut all = String::new();
    sources(root, &mut all);
    let cells = text.lines().filter(|line| line.starts_with("| ")).filter_map(|row| row.split('|').nth(3));
    let names: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 40, "only {} names were found", names.len());
    let lint = |name: &str| name.ends_with("_used") || matches!(name, "panic" | "indexing_slicing");
    let there = |name: &str| {
        let places =
            [format!("fn {name}("), format!("fn {name}<"), format!("    {name}: "), format!("mod {name}")];
        places.iter().any(|place| all.contains(place)) || lint(name)
    };
    let missing: Vec<&str> = names.into_iter().filter(|name| !there(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
