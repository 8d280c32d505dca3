//! Test kit of Einmal, for who writes a store, an adapter or a handler.

mod clock;
pub mod conformance;
mod duplicator;
mod faulty;
mod hand;
pub mod mutants;

pub use clock::{ManualClock, START};
pub use duplicator::{Duplicator, Redelivered};
pub use faulty::{Fault, Faults, FaultyStore, Method};
pub use hand::{Fate, Hand, HandAck, HandSource, Handle, hand_source};
