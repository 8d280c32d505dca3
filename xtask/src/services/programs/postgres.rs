//! PostgreSQL: a cluster of its own. It refuses root, so there it runs as the user of its package.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use einmal_services::Service;

use super::super::install::is_root;
use super::{Place, Started, free_ports, which};

const USER: &str = "postgres";

pub(super) fn missing() -> Vec<&'static str> {
    if bin().is_some() { Vec::new() } else { vec!["postgresql"] }
}

/// The folder with `initdb` and `postgres`. Debian keeps it off the path, one for each version.
fn bin() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("initdb").is_file() && bin.join("postgres").is_file())
        .collect();
    versions.sort();
    versions.pop().map(|(_, bin)| bin).or_else(|| {
        let bin = which("initdb")?.parent()?.to_path_buf();
        bin.join("postgres").is_file().then_some(bin)
    })
}

pub(super) fn start(place: &Place<'_>) -> Result<Started> {
    let bin = bin().context("no initdb and postgres here")?;
    let user = if is_root() { Some(user()?) } else { None };
    let as_user = |program: &str| {
        let mut command = Command::new(bin.join(program));
        // As `runuser` would, but with no process between.
        if let Some((uid, gid)) = user {
            command.gid(gid).uid(uid);
        }
        command.env("LC_ALL", "C.UTF-8");
        command
    };
    if let Some((uid, gid)) = user {
        chown(&place.dir, Some(uid), Some(gid)).with_context(|| place.dir.display().to_string())?;
    }

    let data = place.dir.join("data");
    place.run(
        as_user("initdb")
            // Who can reach loopback may log in: there is nothing in it, and no password to keep.
            .args(["--auth=trust", "--username=einmal", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"])
            .arg("--pgdata")
            .arg(&data),
    )?;
    let [port] = free_ports()?;
    let child = place.spawn(
        as_user("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            // No socket in a folder that others share.
            .args(["-c", "unix_socket_directories="]),
    )?;
    let address = Service::Postgres.address_at("127.0.0.1", port);
    Ok(Started { address, children: vec![("postgres", child)], version: None })
}

fn user() -> Result<(u32, u32)> {
    let id = |flag: &str| -> Result<u32> {
        let output = Command::new("id").args([flag, USER]).output().context("could not start id")?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().with_context(|| format!("PostgreSQL refuses root, and there is no user {USER}"))
    };
    Ok((id("-u")?, id("-g")?))
}
