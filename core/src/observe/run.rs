//! Any code, in the modes that obey no answer of the store.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Serialize;

use crate::claim::ClaimRequest;
use crate::engine::Engine;
use crate::mode::Mode;
use crate::observe::Kept;
use crate::run::{Answer, RunError};

impl Engine {
    /// Runs `work`, whatever the store says.
    pub(crate) async fn observe_run<T, E, F, Fut>(
        &self,
        mode: Mode,
        request: ClaimRequest,
        work: F,
    ) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let lease = match mode {
            Mode::Observe => self.ask(request, None, &mut false).await,
            Mode::Off | Mode::Enforce => None,
        };
        let value = match AssertUnwindSafe(async { work().await }).catch_unwind().await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                self.free(lease).await;
                return Err(RunError::Work(error));
            }
            Err(panic) => {
                self.free(lease).await;
                std::panic::resume_unwind(panic);
            }
        };
        if let Some(lease) = lease {
            match serde_json::to_vec(&value) {
                Ok(bytes) => self.keep(vec![Kept { lease, result: Some(Bytes::from(bytes)) }]).await,
                // It could not be replayed, and is this caller's all the same.
                Err(_) => self.free(Some(lease)).await,
            }
        }
        Ok(Answer::Ran(value))
    }
}
