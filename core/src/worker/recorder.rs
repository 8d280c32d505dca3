//! Outcomes of one lane in the mode `Observe`, on their way to the store while the next handler runs. No
//! message waits for them: they are settled already.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::engine::Engine;
use crate::id::DedupKey;
use crate::observe::Kept;

pub(crate) struct Recorder {
    engine: Arc<Engine>,
    done: Vec<Kept>,
    under_way: Option<(Vec<DedupKey>, BoxFuture<'static, ()>)>,
}

impl Recorder {
    pub(crate) const fn new(engine: Arc<Engine>) -> Self {
        Self { engine, done: Vec::new(), under_way: None }
    }

    pub(crate) fn extend(&mut self, done: Vec<Kept>) {
        self.done.extend(done);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.done.is_empty() && self.under_way.is_none()
    }

    /// Whether `key` can't be asked about yet.
    pub(crate) fn holds(&self, key: &DedupKey) -> bool {
        let mut under_way = self.under_way.iter().flat_map(|(keys, _)| keys);
        self.done.iter().any(|kept| kept.lease.claim.key == *key) || under_way.any(|held| held == key)
    }

    /// Stores outcomes until none is left.
    ///
    /// # Cancel safety
    /// Dropped, it goes on where it was with the next call.
    pub(crate) async fn drain(&mut self) {
        while !self.is_empty() {
            self.step().await;
        }
    }

    /// Stores outcomes until fewer than `depth` wait.
    pub(crate) async fn make_room(&mut self, depth: usize) {
        while self.done.len() >= depth {
            self.step().await;
        }
    }

    /// Stores outcomes, and never ends: for doing something else meanwhile.
    pub(crate) async fn go_on<T>(&mut self) -> T {
        self.drain().await;
        std::future::pending().await
    }

    async fn step(&mut self) {
        if self.under_way.is_none() {
            let (engine, done) = (Arc::clone(&self.engine), std::mem::take(&mut self.done));
            let keys = done.iter().map(|kept| kept.lease.claim.key.clone()).collect();
            self.under_way = Some((keys, Box::pin(async move { engine.keep(done).await })));
        }
        if let Some((_, under_way)) = &mut self.under_way {
            under_way.await;
        }
        self.under_way = None;
    }
}
