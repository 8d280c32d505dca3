//! Test kit of Einmal, for who writes a store, an adapter or a handler.
//!
//! - For a store: the [suite](mod@conformance) that holds every store to its contract, and stores that break
//!   a rule each ([`mutants`]) to hold the suite to its own.
//! - For an adapter or a worker: [`FaultyStore`], a store that fails on demand; [`hand_source`], a source
//!   driven by hand; [`Duplicator`], which makes of messages what an at-least-once broker may.
//! - For all of them: [`ManualClock`], so that no test waits for real time.

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
