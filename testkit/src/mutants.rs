//! Stores that break one rule each, to test the tests: the [suite](mod@crate::conformance) must fail on every
//! one of them, in exactly the cases that hold the broken rule.

mod breach;
mod disk;
mod gate;
mod harness;

pub use breach::Breach;
pub use disk::Disk;
pub use harness::DiskHarness;
