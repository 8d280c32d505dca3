//! The conformance cases of CloudEvents, read from their feature files: see `tests/data/cloudevents`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use einmal::{Delivery, FingerprintPolicy, Header, IdSource, Identify, Position};

/// A step of a scenario: its words, and the text or the table that belongs to it.
struct Step {
    words: String,
    text: String,
    table: Vec<Vec<String>>,
}

/// The scenarios of a feature file, those with examples once for each.
fn scenarios(feature: &str) -> Vec<(String, Vec<Step>)> {
    let mut scenarios = Vec::new();
    let blocks: Vec<&str> = feature.split("\n    Scenario").collect();
    for block in &blocks[1..] {
        let (scenario, examples) = block.split_once("\n    Examples:\n").unwrap_or((block, ""));
        let examples = table(examples);
        match examples.split_first() {
            None => scenarios.push(steps(scenario)),
            Some((names, rows)) => scenarios.extend(rows.iter().map(|row| {
                let fill = |text: String, (name, value): (&String, &String)| {
                    text.replace(&format!("<{name}>"), value)
                };
                steps(&names.iter().zip(row).fold(scenario.to_owned(), fill))
            })),
        }
    }
    scenarios
}

fn table(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().map(str::trim).filter(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn steps(scenario: &str) -> (String, Vec<Step>) {
    let (title, body) = scenario.split_once('\n').unwrap();
    let mut steps: Vec<Step> = Vec::new();
    let mut quoted = false;
    for line in body.lines() {
        if line.trim() == "\"\"\"" {
            quoted = !quoted;
        } else if quoted {
            let text = &mut steps.last_mut().unwrap().text;
            text.push_str(line.strip_prefix("        ").unwrap_or(line));
            text.push('\n');
        } else if line.trim_start().starts_with('|') {
            steps.last_mut().unwrap().table.extend(table(line));
        } else if !line.trim().is_empty() {
            steps.push(Step { words: line.trim().to_owned(), text: String::new(), table: Vec::new() });
        }
    }
    (title.trim_start_matches(" Outline").trim_matches([':', ' ']).to_owned(), steps)
}

fn step<'a>(steps: &'a [Step], words: &str) -> &'a Step {
    steps.iter().find(|step| step.words.contains(words)).unwrap_or_else(|| panic!("no step \"{words}\""))
}

fn header(name: &str, value: &str) -> Header {
    (name.into(), Some(Bytes::copy_from_slice(value.as_bytes())))
}

fn delivery(payload: &str, headers: Vec<Header>) -> Delivery {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    Delivery::new(Position::in_log("topic", 0, 0), Some(payload)).with_headers(headers)
}

fn kafka(steps: &[Step]) -> Delivery {
    let rows = &step(steps, "Kafka headers").table[1..];
    let headers = rows.iter().map(|row| header(&row[0], &row[1])).collect();
    delivery(&step(steps, "a Kafka message with payload").text, headers)
}

fn http(steps: &[Step]) -> Delivery {
    let (head, body) = step(steps, "an HTTP request").text.split_once("\n\n").unwrap();
    let lines = head.lines().skip(1).map(|line| line.split_once(':').unwrap());
    delivery(body, lines.map(|(name, value)| header(name, value.trim())).collect())
}

/// Runs the cases of a file, and says how many there were.
fn run(file: &str, message: fn(&[Step]) -> Delivery) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/cloudevents").join(file);
    let scenarios = scenarios(&std::fs::read_to_string(path).unwrap());
    for (title, steps) in &scenarios {
        let delivery = message(steps);
        let rows = &step(steps, "the attributes are").table[1..];
        let attributes: BTreeMap<_, _> = rows.iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
        let (source, id) = (attributes["source"], attributes["id"]);
        let expected = format!("ce:{}:{source}:{id}", source.len());
        for identify in [Identify::default(), Identify::new([IdSource::cloud_events()])] {
            assert_eq!(identify.identify(&delivery).unwrap().as_str(), expected, "{file}: {title}");
        }
        // What the case says of type and data, as the plainest of events.
        let plain = delivery_of(attributes["type"], &step(steps, "the data is equal to").text);
        let fingerprint = |delivery| FingerprintPolicy::CloudEvent.of(delivery).unwrap();
        assert_eq!(fingerprint(&delivery), fingerprint(&plain), "{file}: {title}");
        assert_ne!(fingerprint(&delivery), FingerprintPolicy::RawPayload.of(&delivery).unwrap());
    }
    scenarios.len()
}

fn delivery_of(kind: &str, data: &str) -> Delivery {
    delivery(data, vec![header("ce_type", kind), header("content-type", "application/json")])
}

#[test]
fn the_cases_of_the_kafka_binding() {
    assert_eq!(run("kafka-protocol-binding.feature", kafka), 3);
}

#[test]
fn the_cases_of_the_http_binding() {
    assert_eq!(run("http-protocol-binding.feature", http), 4);
}
