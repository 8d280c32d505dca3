//! Docker: whether a daemon answers, and how its containers start and go.
//!
//! To ask and to remove takes one line of HTTP each. To start takes testcontainers and its 200 crates, so that is
//! a program of its own, built only where a daemon answers.

use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use einmal_services::Service;
use serde::Deserialize;

use crate::command::cargo;

const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Daemon {
    Socket(PathBuf),
    Port(String),
}

impl Daemon {
    /// As `DOCKER_HOST` has it.
    fn host(&self) -> String {
        match self {
            Self::Socket(path) => format!("unix://{}", path.display()),
            Self::Port(place) => format!("tcp://{place}"),
        }
    }

    fn call(&self, method: &str, path: &str) -> Result<(u16, String)> {
        // 1.0: the answer ends with the connection, and comes in one piece.
        let request = format!("{method} {path} HTTP/1.0\r\nHost: docker\r\n\r\n");
        let mut answer = String::new();
        match self {
            Self::Socket(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(request.as_bytes())?;
                stream.read_to_string(&mut answer)?;
            }
            Self::Port(place) => {
                let mut stream = TcpStream::connect(place)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(request.as_bytes())?;
                stream.read_to_string(&mut answer)?;
            }
        }
        parse(&answer)
    }
}

fn parse(answer: &str) -> Result<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n").context("not an answer of HTTP")?;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("an answer without a status")?, body.to_owned()))
}

/// Where `DOCKER_HOST` points, or else the sockets that Docker is known to use. Only a local daemon counts: the
/// containers listen on loopback.
fn candidates() -> Vec<Daemon> {
    match env::var("DOCKER_HOST") {
        Ok(host) if !host.is_empty() => named(&host).into_iter().collect(),
        _ => {
            let mut sockets = vec![PathBuf::from("/var/run/docker.sock")];
            if let Some(home) = env::var_os("HOME") {
                sockets.push(Path::new(&home).join(".docker/run/docker.sock"));
            }
            if let Some(runtime) = env::var_os("XDG_RUNTIME_DIR") {
                sockets.push(Path::new(&runtime).join("docker.sock"));
            }
            sockets.into_iter().map(Daemon::Socket).collect()
        }
    }
}

fn named(host: &str) -> Option<Daemon> {
    if let Some(path) = host.strip_prefix("unix://") {
        return Some(Daemon::Socket(PathBuf::from(path)));
    }
    let place = host.strip_prefix("tcp://").or_else(|| host.strip_prefix("http://"))?.trim_end_matches('/');
    let local = ["127.0.0.1:", "localhost:", "[::1]:"].iter().any(|start| place.starts_with(start));
    local.then(|| Daemon::Port(place.to_owned()))
}

/// The daemon, when one answers.
pub(super) fn find() -> Option<Daemon> {
    candidates()
        .into_iter()
        .find(|daemon| daemon.call("GET", "/_ping").is_ok_and(|(status, _)| status == 200))
}

/// Starts a container for each, and hands back the ids of those that are up. A pull or a start that fails is
/// never taken for "no Docker".
pub(super) fn start(
    root: &Path,
    daemon: &Daemon,
    dir: &Path,
    wanted: &[(Service, u16)],
) -> Result<Vec<(Service, String)>> {
    eprintln!("starting containers; images that are missing are pulled");
    let output = cargo(root)
        .args(["run", "--quiet", "--package", "einmal-services", "--features", "docker"])
        .args(["--bin", "docker-services", "--", &label(dir)])
        .args(wanted.iter().map(|(service, port)| format!("{service}={port}")))
        .env("DOCKER_HOST", daemon.host())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("could not start cargo")?;
    // Its exit code says only that one of them failed. Which ones did not is told by the lines.
    Ok(ids(&String::from_utf8_lossy(&output.stdout)))
}

fn ids(lines: &str) -> Vec<(Service, String)> {
    lines
        .lines()
        .filter_map(|line| {
            let (name, id) = line.split_once(' ')?;
            Some((name.parse().ok()?, id.trim().to_owned()))
        })
        .collect()
}

/// The folder's name is new for each run.
fn label(dir: &Path) -> String {
    dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned()
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Id")]
    id: String,
}

/// Removes a container, and those of the same run that nobody wrote down.
pub(super) fn remove(id: Option<&str>, dir: Option<&Path>, keep: &[String]) -> Result<()> {
    let Some(daemon) = find() else {
        // To insist would block every later task, and without its daemon a container does not run.
        let label = dir.map(label).unwrap_or_default();
        eprintln!(
            "warning: no Docker daemon answers; it may still hold containers of einmal.services={label}"
        );
        return Ok(());
    };
    let mut ids: Vec<_> = id.map(str::to_owned).into_iter().collect();
    if let Some(dir) = dir {
        let filter = format!("{{\"label\":[\"einmal.services={}\"]}}", label(dir));
        let (status, body) =
            daemon.call("GET", &format!("/containers/json?all=1&filters={}", encode(&filter)))?;
        if status != 200 {
            bail!("Docker does not list its containers: status {status}");
        }
        let listed: Vec<Listed> =
            serde_json::from_str(&body).context("cannot read the list of containers")?;
        ids.extend(listed.into_iter().map(|listed| listed.id).filter(|id| !keep.contains(id)));
    }
    ids.sort();
    ids.dedup();
    for id in ids {
        // With its volumes.
        let (status, body) = daemon.call("DELETE", &format!("/containers/{id}?force=1&v=1"))?;
        if !matches!(status, 204 | 404) {
            bail!("Docker does not remove container {id}: status {status} {}", body.trim());
        }
    }
    Ok(())
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn only_a_local_daemon_counts() {
        assert_eq!(named("unix:///a/b"), Some(Daemon::Socket(PathBuf::from("/a/b"))));
        assert_eq!(named("tcp://127.0.0.1:2375/"), Some(Daemon::Port("127.0.0.1:2375".to_owned())));
        assert_eq!(named("tcp://docker.example:2375"), None);
        assert_eq!(named("ssh://me@host"), None);
    }

    #[test]
    fn a_daemon_is_asked_over_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(b"HTTP/1.0 200 OK\r\nApi-Version: 1.50\r\n\r\nOK").unwrap();
            String::from_utf8(request).unwrap()
        });
        let answer = Daemon::Socket(path).call("GET", "/_ping").unwrap();
        assert_eq!(answer, (200, "OK".to_owned()));
        assert!(server.join().unwrap().starts_with("GET /_ping HTTP/1.0\r\n"));
        parse("garbage").unwrap_err();
    }

    #[test]
    fn reads_what_the_starter_writes() {
        let lines = "kafka abc\nnoise\nmysql def\nredis  0123\n";
        let expected = vec![(Service::Kafka, "abc".to_owned()), (Service::Redis, "0123".to_owned())];
        assert_eq!(ids(lines), expected);
    }

    #[test]
    fn filters_are_encoded() {
        assert_eq!(encode("{\"a\":[1]}"), "%7B%22a%22%3A%5B1%5D%7D");
    }
}
