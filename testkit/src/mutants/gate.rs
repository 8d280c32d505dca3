//! Holds back the syncs of a pretended disk.

use tokio::sync::watch;
use tokio::task::yield_now;

#[derive(Clone, Debug)]
pub(super) struct Gate(watch::Sender<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    closed: bool,
    waiting: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(State::default()))
    }
}

impl Gate {
    pub(super) fn close(&self, close: bool) {
        self.0.send_modify(|state| state.closed = close);
    }

    /// Ends when what was decided may be called durable.
    pub(super) async fn pass(&self) {
        struct Waiting<'a>(&'a watch::Sender<State>);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|state| state.waiting -= 1);
            }
        }
        self.0.send_modify(|state| state.waiting += 1);
        let _waiting = Waiting(&self.0);
        // No disk is at once: a call can be dropped here.
        yield_now().await;
        let _ = self.0.subscribe().wait_for(|state| !state.closed).await;
    }

    /// Ends when something waits at the closed gate.
    pub(super) async fn wait_held(&self) {
        let _ = self.0.subscribe().wait_for(|state| state.closed && state.waiting > 0).await;
    }
}
