//! The embedded store on sled against the suite.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use einmal::{SledConfig, SledStore};
use einmal_testkit::ManualClock;
use einmal_testkit::conformance::{Bounds, Harness};
use tempfile::TempDir;

/// Stores in directories of their own. A case opens one store, so that the last one made is the one that it
/// opens again.
#[derive(Debug, Default)]
struct Sled {
    clock: ManualClock,
    last: Mutex<Option<(TempDir, Bounds)>>,
}

impl Sled {
    async fn open_at(&self, directory: &Path, bounds: Bounds) -> SledStore {
        let config = SledConfig::builder(directory)
            .max_keys(bounds.max_keys)
            .max_keys_per_scope(bounds.max_keys_per_scope)
            .clock(self.clock.shared())
            .build()
            .unwrap();
        SledStore::open(config).await.unwrap()
    }

    fn take_last(&self) -> (TempDir, Bounds) {
        self.last.lock().unwrap().take().unwrap()
    }

    async fn open_in(&self, directory: TempDir, bounds: Bounds) -> SledStore {
        let store = self.open_at(directory.path(), bounds).await;
        *self.last.lock().unwrap() = Some((directory, bounds));
        store
    }
}

#[async_trait]
impl Harness for Sled {
    type Store = SledStore;

    async fn open(&self, bounds: Bounds) -> SledStore {
        self.open_in(TempDir::new().unwrap(), bounds).await
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_wall(&self, seconds: i64) -> bool {
        self.clock.step_wall(seconds);
        true
    }

    async fn reopen(&self, store: SledStore) -> Option<SledStore> {
        let (directory, bounds) = self.take_last();
        store.close().await.unwrap();
        Some(self.open_in(directory, bounds).await)
    }

    /// A kill leaves the files as they are at some moment: so does a copy of them, made while the store is
    /// open. What the store does after it is in the old files only.
    async fn crash(&self, store: SledStore) -> Option<SledStore> {
        let (old, bounds) = self.take_last();
        let new = TempDir::new().unwrap();
        // Of one moment are only files that were still the same after they had all been read.
        let mut files = read(old.path());
        loop {
            let again = read(old.path());
            if again == files {
                break;
            }
            files = again;
        }
        for (name, bytes) in files {
            let path = new.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        store.close().await.unwrap();
        Some(self.open_in(new, bounds).await)
    }
}

/// All files below `directory`, by their paths in it.
fn read(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                // A file that has gone meanwhile is told by the next reading.
                files.insert(path.strip_prefix(directory).unwrap().to_owned(), bytes);
            }
        }
    }
    files
}

einmal_testkit::conformance!(Sled::default());
