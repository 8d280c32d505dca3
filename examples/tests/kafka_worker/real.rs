//! On the real Kafka.

use einmal_services::{Service, address_or_skip};
use rustix::process::Signal;

use crate::support::{Group, Worker, ledger, lines, produce};

const MESSAGES: usize = 10_000;

/// Stopped by SIGTERM and SIGINT with work in flight, started again, until all is committed.
#[test]
fn stopped_in_the_middle_again_and_again_each_payment_is_booked_once() {
    let test = "stopped_in_the_middle_again_and_again_each_payment_is_booked_once";
    let Some(brokers) = address_or_skip(Service::Kafka, test) else { return };
    let topic = format!("kafka-worker-{:016x}", rand::random::<u64>());
    let produced =
        produce(&brokers, &topic, &["--create", "--count", &MESSAGES.to_string(), "--repeats", "30"]);
    let bookings = produced["bookings"].as_u64().unwrap();
    assert_eq!((&produced["messages"], bookings), (&MESSAGES.into(), 7_000));

    let group = Group::of(&brokers, &topic);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger");
    let start = |more: &[&str]| {
        let more = [&["--ledger", file.to_str().unwrap()], more].concat();
        Worker::start(&brokers, &topic, folder.path(), &more)
    };
    let mut handled = 0;
    let mut add = |counts: &serde_json::Value| {
        handled += counts["ran_ok"].as_u64().unwrap();
        handled
    };
    for (signal, slow, enough) in
        [(Signal::TERM, "20ms", 500), (Signal::INT, "50ms", 2_000), (Signal::TERM, "50ms", 4_000)]
    {
        let mut worker = start(&["--slow", slow]);
        worker.until("work in flight", |worker| {
            let page = worker.metrics();
            lines(&file) >= enough && page.received() > page.answered()
        });
        let before = group.committed();
        let counts = worker.drain(signal);
        assert!(lines(&file) < 7_000, "nothing was left to do: {counts}");
        // What was handled has its outcome, and is committed as far as nothing before it is left.
        assert_eq!(add(&counts), lines(&file) as u64, "{counts}");
        assert!(group.committed() >= before, "{counts}");
        assert_eq!(counts["in_flight"], 0, "{counts}");
    }

    let mut worker = start(&[]);
    worker.until("the commit of everything", |_| group.committed() == MESSAGES);
    worker.until("a quiet page", |worker| worker.metrics().sum("einmal_in_flight", "") == 0);
    assert_eq!(worker.get("/health").unwrap().0, 200);
    let page = worker.metrics();
    let counts = worker.drain(Signal::TERM);
    page.add_up_to(&counts);
    assert_eq!(add(&counts), bookings, "something ran again");
    let (ids, cents) = ledger(&file);
    assert_eq!((ids.len() as u64, ids.values().max()), (bookings, Some(&1)));
    assert_eq!(produced["cents"], cents);
    assert_eq!(group.committed(), MESSAGES);
}
