//! Services out of programs of this machine, in a temporary folder, on free ports of loopback.

mod kafka;
mod postgres;
mod rabbitmq;
mod redis;

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use einmal_services::{Service, probe};

use super::interrupt;
use super::process::{MARK, Process};
use super::state::{State, folder};

const POLL: Duration = Duration::from_millis(100);
/// A broker on a machine that is busy with a build takes its time.
const POLLS: usize = 1200;

/// The place of one service.
struct Place<'a> {
    root: &'a Path,
    /// For its data. It goes when the service is stopped.
    dir: PathBuf,
    log: PathBuf,
    /// Whether what is missing may be fetched.
    fetch: bool,
}

/// A service whose processes run, but may not answer yet.
struct Started {
    address: String,
    children: Vec<(&'static str, Child)>,
    /// Where the service does not tell it.
    version: Option<String>,
}

/// The Debian packages that are missing.
pub(super) fn missing(root: &Path, service: Service) -> Vec<&'static str> {
    match service {
        Service::Kafka => kafka::missing(root),
        Service::RabbitMq => rabbitmq::missing(),
        Service::Postgres => postgres::missing(),
        Service::Redis => redis::missing(),
    }
}

/// Starts a service and waits until it answers; the version is what it says of itself. What runs is written down
/// in the state as soon as it runs.
pub(super) fn start(root: &Path, state: &Mutex<State>, service: Service, fetch: bool) -> Result<()> {
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = lock().dir()?.join(service.name());
    fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
    let log = folder(root).join("logs").join(format!("{service}.log"));
    File::create(&log).with_context(|| log.display().to_string())?;
    let place = Place { root, dir, log, fetch };

    let mut started = match service {
        Service::Kafka => kafka::start(&place),
        Service::RabbitMq => rabbitmq::start(&place),
        Service::Postgres => postgres::start(&place),
        Service::Redis => redis::start(&place),
    }
    .map_err(|error| error.context(place.complaint(service)))?;
    {
        let mut state = lock();
        let entry = state.get_mut(service).context("a service that nobody asked for")?;
        entry.address.clone_from(&started.address);
        entry.processes =
            started.children.iter().filter_map(|(name, child)| Process::of(name, child.id())).collect();
        state.save()?;
    }
    let told = answer(service, &mut started).map_err(|error| error.context(place.complaint(service)))?;
    let mut state = lock();
    let entry = state.get_mut(service).context("a service that nobody asked for")?;
    entry.version = match started.version {
        Some(version) => format!("{version} ({told})"),
        None => told,
    };
    entry.ready = true;
    state.save()
}

fn answer(service: Service, started: &mut Started) -> Result<String> {
    patiently(service, &started.address, || {
        for (name, child) in &mut started.children {
            if let Some(status) = child.try_wait()? {
                bail!("{name} ended: {status}");
            }
        }
        Ok(())
    })
}

/// Asks until it answers, as long as there is hope.
pub(super) fn patiently(
    service: Service,
    address: &str,
    mut hope: impl FnMut() -> Result<()>,
) -> Result<String> {
    let mut last = None;
    for _ in 0..POLLS {
        interrupt::check()?;
        hope()?;
        match probe::ask(service, address) {
            Ok(version) => return Ok(version),
            Err(error) => last = Some(error),
        }
        sleep(POLL);
    }
    let last = last.map_or_else(String::new, |error| format!(": {error}"));
    bail!("it does not answer{last}")
}

impl Place<'_> {
    /// Starts a program that stays.
    fn spawn(&self, command: &mut Command) -> Result<Child> {
        self.prepare(command)?.spawn().with_context(|| format!("could not start {}", name(command)))
    }

    /// Runs a program to its end.
    fn run(&self, command: &mut Command) -> Result<()> {
        let mut child = self.spawn(command)?;
        loop {
            if let Some(status) = child.try_wait()? {
                if !status.success() {
                    bail!("{}: {status}", name(command));
                }
                return Ok(());
            }
            if interrupt::raised() {
                child.kill()?;
            }
            sleep(POLL);
        }
    }

    fn prepare<'c>(&self, command: &'c mut Command) -> Result<&'c mut Command> {
        let out = File::options().append(true).open(&self.log)?;
        Ok(command
            .current_dir(&self.dir)
            .env(MARK, &self.dir)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            // A Ctrl-C is for the task, which stops its services in order.
            .process_group(0))
    }

    fn complaint(&self, service: Service) -> String {
        format!("{service} did not start{}", tail(&self.log))
    }
}

fn name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The end of a log, for an error message.
pub(super) fn tail(log: &Path) -> String {
    const LINES: usize = 20;
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
    if last.is_empty() {
        return String::new();
    }
    format!("\n--- the end of {}\n{}\n---", log.display(), last.join("\n"))
}

/// The program of this name on the path.
pub(super) fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    // Debian has some daemons where the path of a user does not go.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(more).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// So many ports that nobody listens on. All are held until all are known, so that they differ.
///
/// They lie below those that the system gives to clients: a broker takes seconds until it listens, and a
/// connection that some test makes meanwhile must not sit on its port.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    const FIRST: u64 = 20_000;
    const COUNT: u64 = 12_000;
    const TRIES: usize = 1_000;
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = (0..TRIES).find_map(|_| {
            let candidate = FIRST + RandomState::new().hash_one(()) % COUNT;
            TcpListener::bind((Ipv4Addr::LOCALHOST, u16::try_from(candidate).ok()?)).ok()
        });
        let listener = listener.context("no free port on loopback")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Ports for containers, all different.
pub(super) fn ports_for(services: &[Service]) -> Result<Vec<(Service, u16)>> {
    let ports: [u16; Service::ALL.len()] = free_ports()?;
    Ok(services.iter().copied().collect::<BTreeSet<_>>().into_iter().zip(ports).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ() {
        let ports: [u16; 8] = free_ports().unwrap();
        assert_eq!(BTreeSet::from(ports).len(), 8);
        assert!(ports.iter().all(|port| (20_000..32_000).contains(port)), "{ports:?}");
        assert_eq!(ports_for(&[Service::Redis, Service::Kafka]).unwrap().len(), 2);
    }

    #[test]
    fn the_end_of_a_log_is_short() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(tail(&log), "");
        fs::write(&log, (0..100).map(|line| format!("line {line}\n")).collect::<String>()).unwrap();
        let end = tail(&log);
        assert!(end.contains("line 99") && end.contains("line 80") && !end.contains("line 79"));
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(which("sh").is_some());
        assert!(which("no-such-program-here").is_none());
    }

    #[test]
    fn a_service_that_ends_at_once_is_not_waited_for() {
        let child = Command::new("false").spawn().unwrap();
        let [port] = free_ports().unwrap();
        let address = Service::Redis.address_at("127.0.0.1", port);
        let mut started = Started { address, children: vec![("false", child)], version: None };
        let error = answer(Service::Redis, &mut started).unwrap_err();
        assert!(error.to_string().contains("false ended"), "{error:#}");
    }
}
