//! The user's code can panic in more places than its handler's body: in a `Drop`, in an error's `Display`, in
//! a function that finds ids. Wherever it does, it is that message's failure and nobody else's.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::delivery::Position;

/// What `call` returns; `None` when it panics. For calls within the span of their message.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch(None, call)
}

/// The same, for the message at `position`.
pub(crate) fn caught_at<T>(position: &Position, call: impl FnOnce() -> T) -> Option<T> {
    catch(Some(position), call)
}

fn catch<T>(position: Option<&Position>, call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(panic) => {
            let position = position.map(tracing::field::display);
            tracing::error!(position, panic = panic_text(&*panic), "the user's code panicked");
            drop_quietly(panic);
            None
        }
    }
}

/// Drops `value`, whatever its `Drop` does.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::error!(panic = panic_text(&*panic), "the user's code panicked while it was dropped");
        // Its own `Drop` may be the next to panic.
        std::mem::forget(panic);
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// A future that is dropped quietly.
pub(crate) struct Quiet<'a, T>(Option<BoxFuture<'a, T>>);

impl<'a, T> Quiet<'a, T> {
    pub(crate) const fn new(future: BoxFuture<'a, T>) -> Self {
        Self(Some(future))
    }
}

impl<T> Future for Quiet<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Quiet<'_, T> {
    fn drop(&mut self) {
        drop_quietly(self.0.take());
    }
}
