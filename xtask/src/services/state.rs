//! What was started, in `target/services/state.json`, so that a later task can stop it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use einmal_services::Service;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::process::Process;
use super::{interrupt, process};

/// Where a service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Host {
    Docker,
    Programs,
}

/// A service that we started, or were starting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) host: Host,
    /// Written down before the first process starts, so `false` may mean that a task was killed.
    pub(super) ready: bool,
    pub(super) address: String,
    pub(super) version: String,
    /// The `test` task that stops it at its end; none for `up`.
    pub(super) owner: Option<Process>,
    pub(super) processes: Vec<Process>,
    pub(super) container: Option<String>,
}

impl Entry {
    pub(super) fn new(host: Host, owner: Option<Process>) -> Self {
        Self {
            host,
            ready: false,
            address: String::new(),
            version: String::new(),
            owner,
            processes: Vec::new(),
            container: None,
        }
    }
}

/// The file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// Data of the services, one folder each.
    pub(super) dir: Option<PathBuf>,
    /// An apt that still ran when this was written.
    pub(super) installer: Option<Process>,
    services: BTreeMap<String, Entry>,
    #[serde(skip)]
    file: PathBuf,
}

/// Everything that outlives a task.
pub(super) fn folder(root: &Path) -> PathBuf {
    root.join("target").join("services")
}

impl State {
    pub(super) fn load(root: &Path) -> Result<Self> {
        let file = folder(root).join("state.json");
        let mut state = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("cannot read {}; is it of another version?", file.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        state.file = file;
        Ok(state)
    }

    /// In one step: a task that is killed here leaves the old state or the new one.
    pub(super) fn save(&self) -> Result<()> {
        let next = self.file.with_extension("json.next");
        fs::write(&next, serde_json::to_vec_pretty(self)?).with_context(|| next.display().to_string())?;
        fs::rename(&next, &self.file).with_context(|| self.file.display().to_string())
    }

    pub(super) fn get(&self, service: Service) -> Option<&Entry> {
        self.services.get(service.name())
    }

    pub(super) fn get_mut(&mut self, service: Service) -> Option<&mut Entry> {
        self.services.get_mut(service.name())
    }

    pub(super) fn set(&mut self, service: Service, entry: Entry) -> Result<()> {
        self.services.insert(service.name().to_owned(), entry);
        self.save()
    }

    /// The folder for data, made when there is none.
    pub(super) fn dir(&mut self) -> Result<PathBuf> {
        if let Some(dir) = self.dir.as_ref().filter(|dir| dir.is_dir()) {
            return Ok(dir.clone());
        }
        let dir = tempfile::Builder::new().prefix("einmal-services-").tempdir()?.keep();
        // A database may run as another user, who must get through.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711))?;
        self.dir = Some(dir.clone());
        self.save()?;
        Ok(dir)
    }

    /// Stops one service, and forgets it. Its data goes too.
    pub(super) fn stop(&mut self, service: Service) -> Result<()> {
        let Some(entry) = self.get(service).cloned() else {
            return Ok(());
        };
        if let Some(dir) = self.dir.clone() {
            let data = dir.join(service.name());
            process::stop(&entry.processes, &data)?;
            match fs::remove_dir_all(&data) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| data.display().to_string());
                }
                _ => {}
            }
        }
        if entry.host == Host::Docker {
            let others = self.services.iter().filter(|(name, _)| *name != service.name());
            let keep: Vec<_> = others.filter_map(|(_, entry)| entry.container.clone()).collect();
            super::docker::remove(entry.container.as_deref(), self.dir.as_deref(), &keep)?;
        }
        self.services.remove(service.name());
        self.save()?;
        self.clear_when_empty()
    }

    /// Nothing is left of it when nothing runs. The logs stay.
    pub(super) fn clear_when_empty(&mut self) -> Result<()> {
        if !self.services.is_empty() || self.installer.is_some() {
            return Ok(());
        }
        if let Some(dir) = self.dir.take() {
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| dir.display().to_string());
                }
                _ => {}
            }
        }
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| self.file.display().to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Held while services are started or stopped. The system lets it go when the task dies.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code, reason = "open is all it has to be")] File);

impl Lock {
    pub(super) fn take(root: &Path) -> Result<Self> {
        let folder = folder(root);
        fs::create_dir_all(folder.join("logs")).with_context(|| folder.display().to_string())?;
        let path = folder.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        let mut told = false;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            interrupt::check()?;
            if !told {
                eprintln!("waiting for another task that starts or stops services");
                told = true;
            }
            sleep(Duration::from_millis(100));
        }
        Ok(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_goes_when_the_last_is_stopped() {
        let root = tempfile::tempdir().unwrap();
        let _lock = Lock::take(root.path()).unwrap();
        let mut state = State::load(root.path()).unwrap();
        assert!(state.get(Service::Redis).is_none());
        let dir = state.dir().unwrap();
        fs::create_dir(dir.join("redis")).unwrap();
        let entry = Entry::new(Host::Programs, Process::own());
        state.set(Service::Redis, entry.clone()).unwrap();
        state.set(Service::Kafka, entry.clone()).unwrap();

        let mut again = State::load(root.path()).unwrap();
        assert_eq!(again, state);
        again.stop(Service::Redis).unwrap();
        assert!(!dir.join("redis").exists());
        assert_eq!(again.get(Service::Kafka), Some(&entry));
        again.stop(Service::Kafka).unwrap();
        assert!(!dir.exists());
        assert!(!folder(root.path()).join("state.json").exists());
        again.stop(Service::Kafka).unwrap();
    }

    #[test]
    fn a_state_that_makes_no_sense_is_an_error_and_not_an_empty_one() {
        let root = tempfile::tempdir().unwrap();
        let _lock = Lock::take(root.path()).unwrap();
        fs::write(folder(root.path()).join("state.json"), "{").unwrap();
        State::load(root.path()).unwrap_err();
    }
}
