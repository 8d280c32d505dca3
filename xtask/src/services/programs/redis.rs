//! Redis, as the package has it.

use std::process::Command;

use anyhow::{Context, Result};
use einmal_services::Service;

use super::{Place, Started, free_ports, which};

pub(super) fn missing() -> Vec<&'static str> {
    if which("redis-server").is_some() { Vec::new() } else { vec!["redis-server"] }
}

pub(super) fn start(place: &Place<'_>) -> Result<Started> {
    let program = which("redis-server").context("no redis-server here")?;
    let [port] = free_ports()?;
    let mut command = Command::new(program);
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--daemonize", "no"])
        // What it was told is on disk within a second, as a store for Einmal wants it.
        .args(["--appendonly", "yes", "--save", "", "--dir"])
        .arg(&place.dir);
    let child = place.spawn(&mut command)?;
    let address = Service::Redis.address_at("127.0.0.1", port);
    Ok(Started { address, children: vec![("redis-server", child)], version: None })
}
