//! A wish to stop that can come from more than one side.

use tokio_util::sync::CancellationToken;

/// Asked for as soon as one of its tokens is cancelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    one: CancellationToken,
    other: Option<CancellationToken>,
}

impl Stop {
    pub(crate) fn either(one: &CancellationToken, other: &CancellationToken) -> Self {
        Self { one: one.clone(), other: Some(other.clone()) }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.one.is_cancelled() || self.other.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    pub(crate) async fn asked(&self) {
        match &self.other {
            None => self.one.cancelled().await,
            Some(other) => tokio::select! {
                () = self.one.cancelled() => {}
                () = other.cancelled() => {}
            },
        }
    }
}

impl From<&CancellationToken> for Stop {
    fn from(token: &CancellationToken) -> Self {
        Self { one: token.clone(), other: None }
    }
}
