//! Test kit of Einmal, for who writes a store, an adapter or a handler.

mod clock;
mod duplicator;
mod faulty;
mod hand;

pub use clock::{ManualClock, START};
pub use duplicator::{Duplicator, Redelivered};
pub use faulty::{Fault, Faults, FaultyStore, Method};
pub use hand::{Fate, Hand, HandAck, HandSource, Handle, hand_source};
