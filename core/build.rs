//! Tells the program when it was built: no wall time before that can be true (see `store/time.rs`).

use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse::<u64>().ok());
    #[allow(clippy::disallowed_methods, reason = "a build has no Clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("cargo:rustc-env=EINMAL_BUILD_DATE={}", given.unwrap_or(now));
}
