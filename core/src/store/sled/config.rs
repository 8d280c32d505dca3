//! The settings of a [`SledStore`](super::SledStore), checked when they are built.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::error::{InvalidSetting, within};

/// The longest result that can be kept. Larger values make sled's file grow without end.
const MAX_VALUE: usize = 8 * 1024;

/// What an answered call survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The death of the process, and a power loss: sled's file is synced before the answer.
    #[default]
    Fsync,
    /// The death of the process only. **A power loss may lose everything, or leave a database that does not
    /// open**: both were measured. For data that can be had again.
    Flush,
}

/// A point of the writer's way to the disk, see [`SledConfigBuilder::probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePoint {
    /// The batch is in sled's memory.
    BeforeFlush,
    /// The operating system has it.
    AfterFlush,
    /// The disk has it; nobody has been told.
    AfterSync,
}

/// See [`SledConfigBuilder::probe`].
#[derive(Clone, Default)]
pub(super) struct Probe(Option<Arc<dyn Fn(WritePoint) + Send + Sync>>);

impl Probe {
    pub(super) fn pass(&self, point: WritePoint) {
        if let Some(probe) = &self.0 {
            probe(point);
        }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Probe" } else { "None" })
    }
}

/// The settings of a [`SledStore`](super::SledStore).
#[derive(Clone, Debug)]
pub struct SledConfig {
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) cache_bytes: u64,
    pub(super) max_keys: usize,
    pub(super) max_keys_per_scope: usize,
    pub(super) max_value: usize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) probe: Probe,
}

impl SledConfig {
    /// Settings of a store in the directory `path`, which is made if it isn't there. Nothing else may be in
    /// it, and only one process at a time can have it open.
    pub fn builder(path: impl AsRef<Path>) -> SledConfigBuilder {
        SledConfigBuilder {
            config: Self {
                path: path.as_ref().to_owned(),
                durability: Durability::default(),
                cache_bytes: 64 << 20,
                max_keys: 1_000_000,
                max_keys_per_scope: 1_000_000,
                max_value: MAX_VALUE,
                clock: Arc::new(SystemClock),
                probe: Probe::default(),
            },
        }
    }

    /// Settings of a store in the directory `path`, all at their defaults.
    ///
    /// # Errors
    /// When `path` is empty.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidSetting> {
        Self::builder(path).build()
    }

    /// The store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a [`SledConfig`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SledConfigBuilder {
    config: SledConfig,
}

impl SledConfigBuilder {
    /// What an answered call survives; [`Durability::Fsync`] unless set.
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// How much memory sled may cache in: 1 MiB to 64 GiB, 64 MiB unless set.
    pub const fn cache_bytes(mut self, bytes: u64) -> Self {
        self.config.cache_bytes = bytes;
        self
    }

    /// The most records in the store: 1 to 1,000,000,000, a million unless set. A record takes about 300
    /// bytes on disk plus its result.
    pub const fn max_keys(mut self, keys: usize) -> Self {
        self.config.max_keys = keys;
        self
    }

    /// The most records in one scope: 1 to 1,000,000,000, a million unless set.
    pub const fn max_keys_per_scope(mut self, keys: usize) -> Self {
        self.config.max_keys_per_scope = keys;
        self
    }

    /// The longest result that is kept, in bytes: at most 8,192, which is also the default. The operation
    /// of a longer one is done and not run again; its repeats get no result.
    pub const fn max_value(mut self, bytes: usize) -> Self {
        self.config.max_value = bytes;
        self
    }

    /// The source of time, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.config.clock = clock;
        self
    }

    /// Calls `probe` on the writer's thread at each point of a batch's way to the disk: for tests that stop
    /// or kill the process there.
    pub fn probe(mut self, probe: impl Fn(WritePoint) + Send + Sync + 'static) -> Self {
        self.config.probe = Probe(Some(Arc::new(probe)));
        self
    }

    /// The settings.
    ///
    /// # Errors
    /// When one of them lies outside its bounds.
    pub fn build(self) -> Result<SledConfig, InvalidSetting> {
        const MAX_KEYS: usize = 1_000_000_000;
        let config = self.config;
        if config.path.as_os_str().is_empty() {
            return Err(InvalidSetting::new("path", "must not be empty"));
        }
        within("cache_bytes", &config.cache_bytes, 1 << 20..=64 << 30)?;
        within("max_keys", &config.max_keys, 1..=MAX_KEYS)?;
        within("max_keys_per_scope", &config.max_keys_per_scope, 1..=MAX_KEYS)?;
        within("max_value", &config.max_value, 0..=MAX_VALUE)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outside_their_bounds_are_named() {
        let field = |builder: SledConfigBuilder| builder.build().unwrap_err().field();
        let ok = || SledConfig::builder("x");
        assert_eq!(field(SledConfig::builder("")), "path");
        assert_eq!(field(ok().cache_bytes(1)), "cache_bytes");
        assert_eq!(field(ok().max_keys(0)), "max_keys");
        assert_eq!(field(ok().max_keys_per_scope(0)), "max_keys_per_scope");
        assert_eq!(field(ok().max_value(8193)), "max_value");
        assert!(ok().build().is_ok());
    }
}
