//! RabbitMQ, with an epmd of its own: the one that it would start stays behind and listens everywhere.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;

use anyhow::{Context, Result, bail};
use einmal_services::Service;

use super::super::{install::debian, interrupt};
use super::{POLL, POLLS, Place, Started, free_ports, which};

pub(super) fn missing() -> Vec<&'static str> {
    if server().is_some() && which("epmd").is_some() { Vec::new() } else { vec!["rabbitmq-server"] }
}

/// Behind Debian's wrapper, which changes the user and the folder.
fn server() -> Option<PathBuf> {
    debian("/usr/lib/rabbitmq/bin/rabbitmq-server").or_else(|| which("rabbitmq-server"))
}

pub(super) fn start(place: &Place<'_>) -> Result<Started> {
    let server = server().context("no rabbitmq-server here")?;
    let epmd = which("epmd").context("no epmd here")?;
    let [port, distribution, epmd_port] = free_ports()?;

    let mut children = Vec::new();
    let mut command = Command::new(epmd);
    command.args(["-address", "127.0.0.1", "-port", &epmd_port.to_string()]);
    children.push(("epmd", place.spawn(&mut command)?));
    let (_, epmd) = children.first_mut().context("epmd was not started")?;
    wait_for(epmd, epmd_port)?;

    // None: no plugin, no port for one.
    fs::write(place.dir.join("enabled_plugins"), "[].\n")?;
    fs::write(place.dir.join("rabbitmq.conf"), "loopback_users.guest = true\n")?;
    fs::write(place.dir.join("rabbitmq-env.conf"), "")?;
    let mut command = Command::new(server);
    environment(&mut command, &place.dir, port, distribution, epmd_port);
    children.push(("rabbitmq", place.spawn(&mut command)?));
    // The broker first: it takes its leave from epmd.
    children.reverse();
    Ok(Started { address: Service::RabbitMq.address_at("127.0.0.1", port), children, version: None })
}

fn environment(command: &mut Command, dir: &Path, port: u16, distribution: u16, epmd_port: u16) {
    command
        // For the cookie.
        .env("HOME", dir)
        .env("LC_ALL", "C.UTF-8")
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", epmd_port.to_string())
        // Then its script becomes the server, in place of a parent that waits for it.
        .env("RUNNING_UNDER_SYSTEMD", "1")
        .env_remove("NOTIFY_SOCKET")
        .env("RABBITMQ_NODENAME", format!("einmal-{port}@localhost"))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", distribution.to_string())
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            // And schedulers that wait, not spin: the tests need the cores.
            "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none",
        )
        .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", dir.join("log"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_PID_FILE", dir.join("pid"))
        .env("RABBITMQ_GENERATED_CONFIG_DIR", dir.join("config"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
        .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", dir.join("rabbitmq-env.conf"));
}

/// Until epmd listens: a broker that finds none starts its own.
fn wait_for(epmd: &mut Child, port: u16) -> Result<()> {
    for _ in 0..POLLS {
        interrupt::check()?;
        if let Some(status) = epmd.try_wait()? {
            bail!("epmd ended: {status}");
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(());
        }
        sleep(POLL);
    }
    bail!("epmd does not listen");
}
