//! Services for the time of one task.

use std::path::{Path, PathBuf};

use anyhow::Result;
use einmal_services::Service;

use super::process::Process;
use super::report::Report;
use super::state::{Lock, State};
use super::{From, Wanted, bring_up, interrupt};

/// Services that were found, or started and are stopped at the end, however it ends.
#[derive(Debug)]
pub(crate) struct Session {
    root: PathBuf,
    owner: Option<Process>,
    report: Report,
}

impl Session {
    /// Nothing is looked for, started or installed when nothing is wanted.
    pub(crate) fn begin(root: &Path, services: &[Service], from: From) -> Result<Self> {
        let owner = Process::own();
        let mut session = Self { root: root.to_path_buf(), owner: None, report: Report::default() };
        if !services.is_empty() {
            interrupt::catch()?;
            // Before the start: a start that fails halfway is cleared away too.
            session.owner.clone_from(&owner);
            let wanted = Wanted { services, from, install: true, owner };
            session.report = bring_up(root, &wanted)?;
        }
        Ok(session)
    }

    pub(crate) fn report(&self) -> &Report {
        &self.report
    }

    /// Stops what this task started. What `services up` started stays.
    pub(crate) fn end(&mut self) -> Result<()> {
        let Some(owner) = self.owner.take() else {
            return Ok(());
        };
        let _lock = Lock::take(&self.root)?;
        let mut state = State::load(&self.root)?;
        super::stop(&mut state, &Service::ALL, |entry| entry.owner.as_ref() == Some(&owner))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("error: {error:#}");
        }
    }
}
