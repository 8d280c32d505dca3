//! What a supervisor asks by HTTP: `/metrics` for Prometheus, `/health` and `/live` for who restarts it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use einmal::names;
use einmal::worker::{Health, HealthCell};
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::json;
use tokio::net::TcpListener;

/// Seconds: from a handler that only looks something up to one that runs for `max_run`.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];
/// Histograms are kept sample by sample until they are tidied up.
const TIDY_EVERY: Duration = Duration::from_secs(5);

/// Listens, and does not answer yet.
pub(crate) struct Endpoint {
    recorder: PrometheusHandle,
    listener: TcpListener,
}

impl Endpoint {
    /// Takes the address, and has all metrics of this process recorded from now on.
    pub(crate) async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| format!("--metrics {address}"))?;
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &BUCKETS)?;
        let recorder = builder.install_recorder()?;
        describe();
        tracing::info!("metrics at http://{}/metrics", listener.local_addr()?);
        Ok(Self { recorder, listener })
    }

    /// Answers, until the future is dropped.
    pub(crate) async fn serve(self, health: HealthCell) -> Result<()> {
        let Self { recorder, listener } = self;
        let tidied = recorder.clone();
        let alive = health.clone();
        let render = async move || ([(CONTENT_TYPE, "text/plain; version=0.0.4")], recorder.render());
        let ready = async move || {
            let health = health.read();
            answer(&health, health.ready)
        };
        let live = async move || {
            let health = alive.read();
            answer(&health, health.live)
        };
        let router = Router::new()
            .route("/metrics", get(render))
            // Not ready while the broker, the store or the dead letters fail: it goes on by itself.
            .route("/health", get(ready))
            // Not alive: only a restart helps.
            .route("/live", get(live));
        let tidy = async {
            loop {
                tokio::time::sleep(TIDY_EVERY).await;
                tidied.run_upkeep();
            }
        };
        tokio::select! {
            served = async { axum::serve(listener, router).await } => served.context("the metrics endpoint"),
            () = tidy => Ok(()),
        }
    }
}

fn answer(health: &Health, good: bool) -> impl IntoResponse + use<> {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "live": health.live, "ready": health.ready, "reasons": health.reasons });
    (status, [(CONTENT_TYPE, "application/json")], body.to_string())
}

/// Says what each metric is. The names are Einmal's.
fn describe() {
    use einmal_kafka::names as kafka;
    for (name, what) in [
        (names::RECEIVED, "Deliveries taken in"),
        (names::ANSWERED, "Deliveries that came to their final answer"),
        (names::RUNS, "Handler runs started"),
        (names::TAKEN_OVER, "Claims of keys that another holder had let lapse"),
        (names::LEASE_LOST, "Leases lost while the handler ran or its outcome was stored"),
        (names::WAIT_TIMED_OUT, "Copies whose longest wait was over"),
        (names::DEAD_LETTERED, "Dead letters published"),
        (names::DEAD_LETTER_ERRORS, "Dead letters that were not confirmed"),
        (names::STORE_ERRORS, "Store calls that failed"),
        (names::REFUSED, "Settles that were refused"),
        (names::TX_CONFLICTS, "Transactions run again because something they read had changed"),
        (names::PURGED, "Expired records taken away"),
        (kafka::COMMITS, "Commits of a partition's offset"),
        (kafka::REBALANCES, "Rebalances of the group"),
        (kafka::CLIENT_ERRORS, "Errors that the client reported and goes on after"),
        (kafka::STALE_SETTLES, "Messages settled after their partition was gone"),
        (kafka::UNOWNED, "Messages given out after their partition was gone"),
    ] {
        describe_counter!(name, Unit::Count, what);
    }
    for (name, unit, what) in [
        (names::IN_FLIGHT, Unit::Count, "Deliveries taken in and not answered yet, looked at every second"),
        (names::IN_FLIGHT_BYTES, Unit::Bytes, "Bytes of the deliveries in flight"),
        (names::WAITING, Unit::Count, "Deliveries that wait for a copy that runs, or for their back-off"),
        (names::LIVE_KEYS, Unit::Count, "Records in the store, looked at every second"),
        (names::BYTES_ON_DISK, Unit::Bytes, "Bytes of the store on disk, looked at every second"),
        (names::MODE, Unit::Count, "0 is off, 1 observes, 2 enforces"),
        (kafka::ASSIGNED, Unit::Count, "Partitions assigned now"),
    ] {
        describe_gauge!(name, unit, what);
    }
    describe_histogram!(names::HANDLER_SECONDS, Unit::Seconds, "Time that a handler ran");
    describe_histogram!(names::SETTLE_SECONDS, Unit::Seconds, "Time from delivery to settle");
}
