//! Installs what is missing, on Debian, as root or by sudo.
//!
//! Packages of servers start their daemon when they are installed. That is not wanted here: the services run on
//! ports and folders of their own. `policy-rc.d` is Debian's way to say so, and it is put back afterwards.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::process::{self, Process};
use super::programs::{tail, which};
use super::state::{State, folder};

const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Whoever had a policy before gets it back from here.
const KEPT_POLICY: &str = "/usr/sbin/policy-rc.d.before-einmal";
const OURS: &str = "#!/bin/sh\n# Of `cargo xtask services`, for the time of an install.\nexit 101\n";

/// Installs packages with apt.
pub(super) fn install(root: &Path, state: &mut State, packages: &[&str]) -> Result<()> {
    if which("apt-get").is_none() {
        bail!("no apt-get here to install {}", packages.join(", "));
    }
    if !is_root() && !sudo_works() {
        bail!("not root, and no sudo without a password, to install {}", packages.join(", "));
    }
    eprintln!("installing {}", packages.join(", "));
    let log = folder(root).join("logs").join("install.log");
    let policy = Policy::block(root)?;
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    // The lists may be missing or old, and to fetch them takes time when they are neither.
    let installed = apt(state, &log, &arguments, true).or_else(|_| {
        apt(state, &log, &["update"], false)?;
        apt(state, &log, &arguments, false)
    });
    let restored = policy.restore();
    installed.with_context(|| format!("apt-get did not install {}{}", packages.join(", "), tail(&log)))?;
    restored
}

fn apt(state: &mut State, log: &Path, arguments: &[&str], fresh_log: bool) -> Result<()> {
    let out = File::options()
        .create(true)
        .write(true)
        .truncate(fresh_log)
        .append(!fresh_log)
        .open(log)
        .with_context(|| log.display().to_string())?;
    let mut child = as_root("env")
        .args([
            "DEBIAN_FRONTEND=noninteractive",
            "LC_ALL=C",
            "apt-get",
            "-q",
            "-o",
            "DPkg::Lock::Timeout=300",
        ])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        // A Ctrl-C must not hit dpkg halfway.
        .process_group(0)
        .spawn()
        .context("could not start apt-get")?;
    state.installer = Process::of("apt-get", child.id());
    state.save()?;
    let status = child.wait()?;
    state.installer = None;
    state.save()?;
    if !status.success() {
        bail!("apt-get {}: {status}", arguments.first().unwrap_or(&""));
    }
    Ok(())
}

/// What a killed task may have left: an apt at work, and our policy.
pub(super) fn recover(state: &mut State) -> Result<()> {
    if let Some(installer) = &state.installer {
        if installer.alive() {
            eprintln!("waiting for the apt-get of an earlier task");
            process::wait(installer);
            super::interrupt::check()?;
        }
        state.installer = None;
        state.save()?;
    }
    restore_policy()
}

struct Policy {
    done: bool,
}

impl Policy {
    fn block(root: &Path) -> Result<Self> {
        restore_policy()?;
        let ours = folder(root).join("policy-rc.d");
        fs::write(&ours, OURS).with_context(|| ours.display().to_string())?;
        if Path::new(POLICY).exists() {
            run(as_root("mv").args(["-f", POLICY, KEPT_POLICY]))?;
        }
        run(as_root("install").args(["-m", "755"]).arg(&ours).arg(POLICY))?;
        fs::remove_file(&ours).with_context(|| ours.display().to_string())?;
        Ok(Self { done: false })
    }

    fn restore(mut self) -> Result<()> {
        self.done = true;
        restore_policy()
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if !self.done {
            let _ = restore_policy();
        }
    }
}

fn restore_policy() -> Result<()> {
    if Path::new(KEPT_POLICY).exists() {
        run(as_root("mv").args(["-f", KEPT_POLICY, POLICY]))
    } else if fs::read_to_string(POLICY).is_ok_and(|policy| policy == OURS) {
        run(as_root("rm").args(["-f", POLICY]))
    } else {
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

fn as_root(program: &str) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn sudo_works() -> bool {
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    which("sudo").is_some()
        && quiet(Command::new("sudo").args(["-n", "true"])).is_ok_and(|status| status.success())
}

/// Where Debian puts a program that need not be on the path.
pub(super) fn debian(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    path.is_file().then_some(path)
}
