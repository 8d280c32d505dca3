//! The suite against the pretended disk that keeps its contract. This store offers every hook of a harness,
//! so that no case passes here without a look, but those of shared stores.

use einmal_testkit::mutants::{Breach, DiskHarness};

einmal_testkit::conformance!(DiskHarness::new(Breach::None));
