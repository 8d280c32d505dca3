//! A handler with every kind of ending, and what is traced of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use einmal::{Context, Failure, Reply};
use futures_util::future::BoxFuture;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context as Place, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::Doors;

pub type Fields = BTreeMap<String, String>;

/// Everything that is traced: events with the fields of their spans, and spans.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    pub events: Arc<Mutex<Vec<Fields>>>,
    pub spans: Arc<Mutex<Vec<(&'static str, Fields)>>>,
    /// What is less grave than this is filtered out.
    least: Arc<Mutex<Option<Level>>>,
}

thread_local! {
    /// Each test has a thread of its own, and all of its tasks run there.
    static HERE: Traced = Traced::default();
}

/// One for the whole process: subscribers that come and go on several threads miss lines.
struct Listener;

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Listener {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // Asked each time, for the filter is each test's own.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Place<'_, S>) -> bool {
        HERE.with(|traced| traced.least.lock().unwrap().is_none_or(|least| *metadata.level() <= least))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, place: Place<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Visitor(&mut fields));
        let span = (attributes.metadata().name(), fields.clone());
        HERE.with(|traced| traced.spans.lock().unwrap().push(span));
        place.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_event(&self, event: &Event<'_>, place: Place<'_, S>) {
        let mut fields = Fields::new();
        for span in place.event_scope(event).into_iter().flatten() {
            fields.extend(span.extensions().get::<Fields>().cloned().unwrap_or_default());
        }
        event.record(&mut Visitor(&mut fields));
        if event.metadata().target().starts_with("einmal") {
            HERE.with(|traced| traced.events.lock().unwrap().push(fields));
        }
    }
}

impl Traced {
    pub fn listen() -> Self {
        Self::listen_from(Level::TRACE)
    }

    /// To what is at least as grave as this.
    pub fn listen_from(least: Level) -> Self {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let subscriber = tracing_subscriber::registry().with(Listener);
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
        HERE.with(|traced| {
            traced.events.lock().unwrap().clear();
            traced.spans.lock().unwrap().clear();
            *traced.least.lock().unwrap() = Some(least);
            traced.clone()
        })
    }

    pub fn spans(&self, name: &str) -> Vec<Fields> {
        let spans = self.spans.lock().unwrap();
        spans.iter().filter(|(span, _)| *span == name).map(|(_, fields)| fields.clone()).collect()
    }
}

/// Does what its id says.
pub fn mixed(
    doors: &Doors,
) -> impl Fn(Context) -> BoxFuture<'static, Result<Reply, Failure>> + Send + Sync + 'static {
    let doors = doors.clone();
    move |context: Context| {
        let doors = doors.clone();
        Box::pin(async move {
            let id = context.key().id().as_str().to_owned();
            doors.pass(&id).await;
            match id.trim_end_matches(|c: char| c.is_numeric() || !c.is_ascii()) {
                "retry" if context.attempt() == 1 => Err(Failure::retry("a cause")),
                "fails" => Err(Failure::retry("a cause")),
                "reject" => Err(Failure::reject("a reason")),
                "park" => Err(Failure::park("a reason")),
                "ignore" => Err(Failure::ignore()),
                "panic" => panic!("the handler's fault"),
                "long" => Ok(Reply::bytes(vec![b'x'; 9000])),
                "slow" if context.attempt() == 1 => std::future::pending().await,
                _ => Ok(Reply::bytes(context.payload().to_vec())),
            }
        })
    }
}
