//! Processes that we started: to know them again, and to end just them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// Every service that we start carries it, with the service's folder as value, and so do all that it starts.
/// It finds what a killed task had no time to write down.
pub(super) const MARK: &str = "EINMAL_SERVICES_RUN";

const POLL: Duration = Duration::from_millis(50);
/// For a broker that shuts down in order. What is left then is killed: its data is thrown away anyway.
const POLLS: usize = 200;

/// A process, told from a later one with the same number by when it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(super) name: String,
    pub(super) pid: i32,
    start: String,
}

impl Process {
    /// `None` when it has ended.
    pub(super) fn of(name: &str, pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { name: name.to_owned(), pid, start: started(pid)? })
    }

    /// This very task.
    pub(super) fn own() -> Option<Self> {
        Self::of("xtask", std::process::id())
    }

    pub(super) fn alive(&self) -> bool {
        started(self.pid).is_some_and(|start| start == self.start)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // Between the look and the signal the number could pass on, in theory. There is no better way by number.
        if !self.alive() {
            return Ok(());
        }
        let pid = Pid::from_raw(self.pid).context("no process has this number")?;
        match kill_process(pid, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot end {} (pid {})", self.name, self.pid)),
        }
    }
}

/// Ends them in order, or by force, and then what they left behind.
pub(super) fn stop(processes: &[Process], mark: &Path) -> Result<()> {
    for process in processes {
        // To PostgreSQL SIGTERM means: wait until every client has gone.
        let signal = if process.name == "postgres" { Signal::INT } else { Signal::TERM };
        process.signal(signal)?;
    }
    if !gone(processes) {
        for process in processes {
            process.signal(Signal::KILL)?;
        }
    }
    let left = marked(mark);
    for process in &left {
        process.signal(Signal::KILL)?;
    }
    let all: Vec<_> = processes.iter().cloned().chain(left).collect();
    if !gone(&all) {
        let names: Vec<_> = all
            .iter()
            .filter(|process| process.alive())
            .map(|process| format!("{} (pid {})", process.name, process.pid))
            .collect();
        bail!("still running: {}", names.join(", "));
    }
    Ok(())
}

fn gone(processes: &[Process]) -> bool {
    for _ in 0..POLLS {
        if !processes.iter().any(Process::alive) {
            return true;
        }
        sleep(POLL);
    }
    false
}

/// Waits for a process of an earlier task.
pub(super) fn wait(process: &Process) {
    while process.alive() && !super::interrupt::raised() {
        sleep(POLL);
    }
}

/// Those that carry our mark. Linux only; elsewhere the state file must do.
fn marked(mark: &Path) -> Vec<Process> {
    let mut wanted = format!("{MARK}=").into_bytes();
    wanted.extend(mark.as_os_str().as_encoded_bytes());
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            // Those of other users can't be read, and are not ours.
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|line| line == wanted))
        })
        .filter_map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Process::of(name.trim(), pid)
        })
        .collect()
}

/// When it started, as text that no other process of this number has; `None` for one that has ended.
fn started(pid: i32) -> Option<String> {
    if !Path::new("/proc/self/stat").exists() {
        return started_by_ps(pid);
    }
    let ticks = start_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    // Ticks count from the boot.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{}/{ticks}", boot.trim()))
}

/// Field 22. The name, field 2, may hold blanks and brackets.
fn start_in_stat(stat: &str) -> Option<String> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    // A zombie has ended; only its parent has not looked.
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

fn started_by_ps(pid: i32) -> Option<String> {
    let output = Command::new("ps")
        .env("LC_ALL", "C")
        .args(["-o", "lstart=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    use super::*;

    fn sleeper(mark: &Path) -> std::process::Child {
        let mut command = Command::new("sleep");
        command.arg("1000").env(MARK, mark).stdin(Stdio::null()).process_group(0).spawn().unwrap()
    }

    #[test]
    fn reads_the_start_behind_an_odd_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 9";
        assert_eq!(start_in_stat(stat).as_deref(), Some("4242"));
        assert_eq!(start_in_stat(&stat.replace(" S ", " Z ")), None);
        assert_eq!(start_in_stat("7 (a"), None);
    }

    #[test]
    fn a_later_process_with_the_same_number_is_another() {
        let own = Process::own().unwrap();
        assert!(own.alive());
        let earlier = Process { start: "an earlier boot/1".to_owned(), ..own };
        assert!(!earlier.alive());
        // It would end this test.
        stop(&[earlier], Path::new("/nowhere")).unwrap();
    }

    #[test]
    fn stops_what_is_written_down() {
        let mark = Path::new("/nowhere/written-down");
        let mut child = sleeper(mark);
        let process = Process::of("sleep", child.id()).unwrap();
        stop(std::slice::from_ref(&process), mark).unwrap();
        assert!(!process.alive());
        child.wait().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn stops_what_only_carries_the_mark_and_no_other() {
        let (mine, other) = (Path::new("/nowhere/mine"), Path::new("/nowhere/mine-too"));
        let (mut one, mut two) = (sleeper(mine), sleeper(other));
        let kept = Process::of("sleep", two.id()).unwrap();
        stop(&[], mine).unwrap();
        assert!(Process::of("sleep", one.id()).is_none());
        assert!(kept.alive());
        stop(&[], other).unwrap();
        assert!(!kept.alive());
        one.wait().unwrap();
        two.wait().unwrap();
    }
}
