//! The code of the pages under `docs`, compiled as doc tests. The examples themselves are the programs.

#[cfg(doctest)]
#[doc = include_str!("../../docs/from-your-rdkafka-loop.md")]
mod from_your_rdkafka_loop {}
