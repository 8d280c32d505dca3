//! `cargo xtask services`: the brokers and databases that tests talk to.
//!
//! Each is found in this order: an address in the environment, a local Docker daemon, programs of this machine.

mod docker;
mod install;
pub(crate) mod interrupt;
mod process;
mod programs;
mod report;
mod session;
mod state;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Subcommand, ValueEnum};
use einmal_services::{Exempt, Service, probe, shown};

use process::Process;
pub(crate) use report::{Found, Outcome, Report, required};
pub(crate) use session::Session;
use state::{Entry, Host, Lock, State};

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Find or start services, and write `export` lines with their addresses.
    Up(Up),
    /// Ask each whether it answers, and write the `export` lines again.
    Status,
    /// Stop what `up` started.
    Down {
        /// These only: kafka, rabbitmq, postgres, redis.
        #[arg(long, value_delimiter = ',')]
        only: Vec<Service>,
    },
}

#[derive(clap::Args)]
pub(crate) struct Up {
    /// These only: kafka, rabbitmq, postgres, redis.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Service>,
    /// Where to start what the environment has no address for.
    #[arg(long, value_enum, default_value_t)]
    from: From,
    /// Install nothing, and fetch nothing with Maven either.
    #[arg(long)]
    no_install: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum From {
    /// In Docker when a local daemon answers, else out of programs of this machine.
    #[default]
    Any,
    /// In Docker, or not at all.
    Docker,
    /// Out of programs of this machine, whether there is Docker or not.
    Programs,
}

/// What is asked of `bring_up`.
struct Wanted<'a> {
    services: &'a [Service],
    from: From,
    install: bool,
    /// The task that will stop them.
    owner: Option<Process>,
}

pub(crate) fn run(root: &Path, task: &Task) -> Result<()> {
    interrupt::catch()?;
    match task {
        Task::Up(up) => {
            let services = chosen(&up.only);
            let wanted = Wanted { services: &services, from: up.from, install: !up.no_install, owner: None };
            let report = bring_up(root, &wanted)?;
            interrupt::check()?;
            report.print();
            report.exports();
            report.judge(&Exempt::from_env())
        }
        Task::Status => status(root),
        Task::Down { only } => down(root, &chosen(only)),
    }
}

fn chosen(only: &[Service]) -> Vec<Service> {
    if only.is_empty() { Service::ALL.to_vec() } else { only.to_vec() }
}

fn down(root: &Path, services: &[Service]) -> Result<()> {
    let _lock = Lock::take(root)?;
    let mut state = State::load(root)?;
    install::recover(&mut state)?;
    stop(&mut state, services, |_| true)?;
    state.clear_when_empty()
}

/// Stops each of them for which the entry is meant. They all get their turn.
fn stop(state: &mut State, services: &[Service], meant: impl Fn(&Entry) -> bool) -> Result<()> {
    let mut failed = Vec::new();
    for service in services.iter().rev() {
        if state.get(*service).is_some_and(&meant)
            && let Err(error) = state.stop(*service)
        {
            failed.push(format!("{service}: {error:#}"));
        }
    }
    if !failed.is_empty() {
        bail!("not stopped: {}", failed.join("; "));
    }
    Ok(())
}

fn status(root: &Path) -> Result<()> {
    let state = State::load(root)?;
    let mut report = Report::default();
    for service in Service::ALL {
        let outcome = match (service.address(), state.get(service)) {
            (Some(address), _) => given(service, address),
            (None, Some(entry)) => match alive(service, entry) {
                Ok(()) => Outcome::Real(found(entry)),
                Err(error) => Outcome::Failed(format!("{error:#}; `up` or `down` clears it away")),
            },
            (None, None) => Outcome::Missing("not started".to_owned()),
        };
        report.add(service, outcome);
    }
    report.print();
    report.exports();
    Ok(())
}

/// Finds or starts what is wanted. What fails is in the report; an error is for what concerns all.
fn bring_up(root: &Path, wanted: &Wanted<'_>) -> Result<Report> {
    let _lock = Lock::take(root)?;
    let mut state = State::load(root)?;
    install::recover(&mut state)?;
    clear_away(&mut state)?;

    let mut report = Report::default();
    let mut to_start = Vec::new();
    for &service in wanted.services {
        if let Some(address) = service.address() {
            report.add(service, given(service, address));
        } else if let Some(entry) = state.get_mut(service) {
            // Of a `test` that was killed, or of `up`, which keeps what it has.
            let theirs = entry.owner.as_ref().is_some_and(|owner| !owner.alive());
            if theirs || wanted.owner.is_none() {
                entry.owner.clone_from(&wanted.owner);
            }
            report.add(service, Outcome::Real(found(entry)));
            state.save()?;
        } else {
            to_start.push(service);
        }
    }

    let daemon = if to_start.is_empty() || wanted.from == From::Programs { None } else { docker::find() };
    match daemon {
        Some(daemon) => start_containers(root, &mut state, wanted, &daemon, &to_start, &mut report)?,
        None if wanted.from == From::Docker => {
            for service in to_start {
                report.add(service, Outcome::Missing("no local Docker daemon answers".to_owned()));
            }
        }
        None => start_programs(root, state, wanted, to_start, &mut report)?,
    }
    Ok(report)
}

/// Stops what no longer answers, or never did: its task was killed, or somebody else stopped it.
fn clear_away(state: &mut State) -> Result<()> {
    for service in Service::ALL {
        let Some(entry) = state.get(service) else {
            continue;
        };
        if let Err(error) = alive(service, entry) {
            eprintln!("{service}: {error:#}; clearing it away");
            state.stop(service)?;
        }
    }
    Ok(())
}

fn alive(service: Service, entry: &Entry) -> Result<()> {
    if !entry.ready {
        bail!("the task that started it did not see its end");
    }
    if let Some(ended) = entry.processes.iter().find(|process| !process.alive()) {
        bail!("{} (pid {}) has ended", ended.name, ended.pid);
    }
    probe::ask(service, &entry.address).context("it does not answer")?;
    Ok(())
}

fn found(entry: &Entry) -> Found {
    let origin = match entry.host {
        Host::Docker => "Docker",
        Host::Programs => "programs of this machine",
    };
    Found { address: entry.address.clone(), version: entry.version.clone(), origin: origin.to_owned() }
}

/// An address that was given and does not answer is a fault: to start another service would hide it.
fn given(service: Service, address: String) -> Outcome {
    match probe::ask(service, &address) {
        Ok(version) => Outcome::Real(Found { address, version, origin: service.variable().to_owned() }),
        Err(error) => {
            let (variable, address) = (service.variable(), shown(&address));
            Outcome::Failed(format!("{variable}={address}: {error}; unset {variable} to have one started"))
        }
    }
}

/// What can't be stopped now stays written down, and must not hide how the others fare.
fn give_up(state: &mut State, service: Service) {
    if let Err(error) = state.stop(service) {
        eprintln!("{service}: not stopped: {error:#}");
    }
}

fn start_containers(
    root: &Path,
    state: &mut State,
    wanted: &Wanted<'_>,
    daemon: &docker::Daemon,
    services: &[Service],
    report: &mut Report,
) -> Result<()> {
    let dir = state.dir()?;
    let ports = programs::ports_for(services)?;
    for (service, port) in &ports {
        let mut entry = Entry::new(Host::Docker, wanted.owner.clone());
        entry.address = service.address_at("127.0.0.1", *port);
        state.set(*service, entry)?;
    }
    let ids: BTreeMap<_, _> = docker::start(root, daemon, &dir, &ports)?.into_iter().collect();
    // All first: who gives up on one removes the containers of this run that nobody wrote down.
    for (service, id) in &ids {
        if let Some(entry) = state.get_mut(*service) {
            entry.container = Some(id.clone());
        }
    }
    state.save()?;
    for (service, _) in ports {
        let started = if ids.contains_key(&service) {
            ready(state, service)
        } else {
            Err(anyhow!("its container did not start; see above"))
        };
        match (started, state.get(service)) {
            (Ok(()), Some(entry)) => report.add(service, Outcome::Real(found(entry))),
            (Ok(()), None) => {}
            (Err(error), _) => {
                report.add(service, Outcome::Failed(format!("{error:#}")));
                give_up(state, service);
            }
        }
    }
    if interrupt::raised() {
        stop(state, services, |_| true)?;
    }
    Ok(())
}

fn ready(state: &mut State, service: Service) -> Result<()> {
    let address = state.get(service).context("a service that nobody asked for")?.address.clone();
    let version = programs::patiently(service, &address, || Ok(()))?;
    let entry = state.get_mut(service).context("a service that nobody asked for")?;
    entry.version = version;
    entry.ready = true;
    state.save()
}

fn start_programs(
    root: &Path,
    mut state: State,
    wanted: &Wanted<'_>,
    mut services: Vec<Service>,
    report: &mut Report,
) -> Result<()> {
    let packages = |services: &[Service]| {
        let mut packages: Vec<_> =
            services.iter().flat_map(|service| programs::missing(root, *service)).collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    };
    let missing = packages(&services);
    if !missing.is_empty() {
        // One service that can't be had must not cost the others: who lacks something is told apart below.
        let installed = if wanted.install {
            install::install(root, &mut state, &missing)
        } else {
            Err(anyhow!("not to be installed"))
        };
        services.retain(|service| {
            let missing = packages(&[*service]);
            if !missing.is_empty() {
                let why = installed.as_ref().err().map(|error| format!(": {error:#}")).unwrap_or_default();
                let reason = format!("{} missing{why}", missing.join(", "));
                report.add(*service, Outcome::Missing(reason));
            }
            missing.is_empty()
        });
    }
    interrupt::check()?;

    for service in &services {
        state.set(*service, Entry::new(Host::Programs, wanted.owner.clone()))?;
    }
    let state = Mutex::new(state);
    let results: Vec<_> = thread::scope(|scope| {
        let start = |service| {
            scope.spawn({
                let state = &state;
                move || programs::start(root, state, service, wanted.install)
            })
        };
        let running: Vec<_> = services.iter().map(|service| (*service, start(*service))).collect();
        let join = |(service, thread): (Service, thread::ScopedJoinHandle<'_, Result<()>>)| {
            (service, thread.join().unwrap_or_else(|_| Err(anyhow!("its start panicked"))))
        };
        running.into_iter().map(join).collect()
    });
    let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (service, result) in results {
        match (result, state.get(service)) {
            (Ok(()), Some(entry)) => report.add(service, Outcome::Real(found(entry))),
            (Ok(()), None) => {}
            (Err(error), _) => {
                report.add(service, Outcome::Failed(format!("{error:#}")));
                give_up(&mut state, service);
            }
        }
    }
    if interrupt::raised() {
        stop(&mut state, &services, |_| true)?;
    }
    Ok(())
}
