//! Joins a member of a consumer group to Einmal's worker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use einmal::worker::{HealthCell, Summary, Worker, WorkerConfig, WorkerError};
use einmal::{
    Capabilities, DedupStore, Delivery, FingerprintPolicy, Handler, Idempotent, Identify, InvalidId,
    InvalidSetting, ModeSwitch, Policy, Run, Scope, Settings, TransactionalStore, TxHandler,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::KafkaConfig;
use crate::consumer::KafkaConsumer;
use crate::dead_letter::{DeadLetterTopic, KafkaDeadLetters};
use crate::error::KafkaError;

/// Why a [`KafkaWorker`] can't be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaBuildError {
    /// A setting is out of its bounds, or contradicts another.
    #[error("a setting can't be used: {0}")]
    Setting(#[from] InvalidSetting),
    /// The consumer group's name can't be a scope: give one with [`KafkaWorkerBuilder::scope`].
    #[error("the consumer group's name can't be the scope, set one: {0}")]
    Scope(#[from] InvalidId),
    /// The producer of dead letters can't be made.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

/// Why a [`KafkaWorker`] stopped by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaWorkerError {
    /// The consumer could not start or could not go on, or did not close.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// The worker could not go on.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// Consumes topics, and runs a handler once for each message id.
#[derive(Debug)]
pub struct KafkaWorker {
    config: KafkaConfig,
    worker: Arc<Worker>,
    /// The retention of outcomes.
    remembered: Duration,
}

impl KafkaWorker {
    /// Begins with the settings of the consumer.
    pub fn builder(config: KafkaConfig) -> KafkaWorkerBuilder {
        KafkaWorkerBuilder {
            config,
            scope: None,
            identify: None,
            fingerprint: FingerprintPolicy::default(),
            policy: Policy::default(),
            worker: WorkerConfig::default(),
            dead_letters: Some(DeadLetterTopic::default()),
            on_span: None,
            mode: ModeSwitch::default(),
        }
    }

    /// Joins the group and works until `shutdown` is cancelled, which gives what runs the time to end, commits
    /// and leaves the group. A worker runs once.
    ///
    /// The settings of its topics are read in the background, and a warning logged of each that keeps messages
    /// for longer than the policy's retention.
    ///
    /// # Errors
    /// When the consumer can't start, when it or the store has failed for good, or when the consumer did not
    /// close in time. Nothing that is not settled is lost.
    ///
    /// # Cancel safety
    /// Dropping the future stops all handlers, and the consumer leaves its group in the background; claims are
    /// not given back. Cancel `shutdown` instead.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<Summary, KafkaWorkerError> {
        let health = self.worker.health().clone();
        let (source, consumer) =
            KafkaConsumer::start_remembering(&self.config, health, Some(self.remembered))?;
        let (worker, stop) = (Arc::clone(&self.worker), shutdown.clone());
        // A task of its own: in place it would be the caller's thread, often one that runs nothing else, that is
        // woken for every message.
        let mut work = AbortOnDropHandle::new(tokio::spawn(async move { worker.run(source, stop).await }));
        let worked = tokio::select! {
            worked = &mut work => worked,
            () = shutdown.cancelled() => {
                consumer.stop_intake();
                work.await
            }
        };
        let worked = worked.unwrap_or_else(|error| Err(WorkerError::Panicked(error)));
        match (worked, consumer.close().await) {
            (Ok(summary), Ok(())) => Ok(summary),
            (Ok(_), Err(kafka)) => Err(kafka.into()),
            (Err(worker), Ok(())) => Err(worker.into()),
            (Err(worker), Err(kafka)) => {
                tracing::error!(error = %kafka, "the consumer failed as well");
                Err(worker.into())
            }
        }
    }

    /// How worker and consumer are.
    #[must_use]
    pub fn health(&self) -> &HealthCell {
        self.worker.health()
    }

    /// What has been answered so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.worker.summary()
    }
}

/// Builds a [`KafkaWorker`].
#[derive(Clone, Debug)]
#[must_use]
pub struct KafkaWorkerBuilder {
    config: KafkaConfig,
    scope: Option<Scope>,
    identify: Option<Identify>,
    fingerprint: FingerprintPolicy,
    policy: Policy,
    worker: WorkerConfig,
    dead_letters: Option<DeadLetterTopic>,
    mode: ModeSwitch,
    on_span: Option<OnSpan>,
}

#[derive(Clone)]
struct OnSpan(Arc<Hook>);

type Hook = dyn Fn(&tracing::Span, &Delivery) + Send + Sync;

impl fmt::Debug for OnSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnSpan")
    }
}

impl KafkaWorkerBuilder {
    /// Who must not repeat the work: by default the consumer group.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Where message ids are found: by default in the places of [`Identify::default`], which are headers, and
    /// the payload of a structured CloudEvent. Never the record's key, nor its position.
    pub fn identify(mut self, identify: Identify) -> Self {
        self.identify = Some(identify);
        self
    }

    /// What must be equal in a true repeat.
    pub fn fingerprint(mut self, fingerprint: FingerprintPolicy) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Times and limits of the handler.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// What is processed in order, and how much at once.
    pub const fn worker(mut self, worker: WorkerConfig) -> Self {
        self.worker = worker;
        self
    }

    /// Where dead letters go; `None` leaves what is given up owed and unsettled, which stops its partition's
    /// offset.
    pub fn dead_letters(mut self, topic: Option<DeadLetterTopic>) -> Self {
        self.dead_letters = topic;
        self
    }

    /// Shows each span of a message to `hook`, which can continue the producer's trace: see
    /// [`Settings::on_span`].
    pub fn on_span(mut self, hook: impl Fn(&tracing::Span, &Delivery) + Send + Sync + 'static) -> Self {
        self.on_span = Some(OnSpan(Arc::new(hook)));
        self
    }

    /// How far the answers of the store are obeyed: a [`Mode`](einmal::Mode), or a [`ModeSwitch`] that can be
    /// set while the worker runs. By default [`Enforce`](einmal::Mode::Enforce).
    pub fn mode(mut self, mode: impl Into<ModeSwitch>) -> Self {
        self.mode = mode.into();
        self
    }

    /// A worker that runs `handler` and remembers in `store`.
    ///
    /// # Errors
    /// When settings are out of bounds, contradict each other or don't fit the store.
    pub fn build<S: DedupStore, H: Handler>(
        self,
        store: S,
        handler: H,
    ) -> Result<KafkaWorker, KafkaBuildError> {
        warn_if_local(store.capabilities());
        let idempotent = Idempotent::new(store, handler, self.settings()?)?;
        self.join(&idempotent)
    }

    /// A worker that runs `handler` in the transaction of its outcome.
    ///
    /// # Errors
    /// As for [`build`](KafkaWorkerBuilder::build).
    pub fn build_in_tx<S, H>(self, store: S, handler: H) -> Result<KafkaWorker, KafkaBuildError>
    where
        S: TransactionalStore,
        H: TxHandler<S>,
    {
        warn_if_local(store.capabilities());
        let idempotent = Idempotent::in_tx(store, handler, self.settings()?)?;
        self.join(&idempotent)
    }

    fn settings(&self) -> Result<Settings, KafkaBuildError> {
        self.config.check_max_run(self.policy.max_run())?;
        let scope = match &self.scope {
            Some(scope) => scope.clone(),
            None => Scope::new(self.config.group())?,
        };
        let mut settings = Settings::new(scope).fingerprint(self.fingerprint.clone());
        settings = settings.policy(self.policy).mode(self.mode.clone());
        if let Some(identify) = &self.identify {
            settings = settings.identify(identify.clone());
        }
        if let Some(OnSpan(hook)) = self.on_span.clone() {
            settings = settings.on_span(move |span, delivery| hook(span, delivery));
        }
        if let Some(topic) = &self.dead_letters {
            topic.check(self.config.topics())?;
            let letters = KafkaDeadLetters::new(&self.config.client, topic.clone())?;
            settings = settings.dead_letters(letters.consuming(self.config.topics()));
        }
        Ok(settings)
    }

    fn join<S: DedupStore, H: Run>(
        self,
        idempotent: &Idempotent<S, H>,
    ) -> Result<KafkaWorker, KafkaBuildError> {
        let worker = Worker::new(idempotent, self.worker)?;
        let (worker, remembered) = (Arc::new(worker), self.policy.rules().retention);
        Ok(KafkaWorker { config: self.config, worker, remembered })
    }
}

fn warn_if_local(store: Capabilities) {
    if !store.shared {
        tracing::warn!(
            "the store is this process's alone, and does not follow a partition that moves to another member: \
             there its messages can run once more. Run one member, or take a shared store"
        );
    }
}
