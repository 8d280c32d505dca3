//! Asks a service whether it answers, and which version it is, in its own protocol.

mod amqp;
mod kafka;
mod postgres;
mod redis;
mod wire;

use std::io::{Error, ErrorKind, Result};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::url::host_and_port;
use crate::{Service, Url};

/// Long enough for a broker that is busy with its start.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks once, and hands back the version. It is text for people: not every service tells its version.
///
/// # Errors
/// When it does not answer, or not as this service should. The error holds no password.
pub fn ask(service: Service, address: &str) -> Result<String> {
    if service == Service::Kafka {
        return kafka::ask(address);
    }
    let url = Url::parse(address).ok_or_else(|| invalid("not a URL with a host"))?;
    match (service, url.scheme.as_str()) {
        (Service::RabbitMq, "amqp") => amqp::ask(&url),
        (Service::Postgres, "postgres" | "postgresql") => postgres::ask(&url),
        (Service::Redis, "redis") => redis::ask(&url),
        // There is no TLS in here. That something listens is all that can be said.
        (Service::RabbitMq, "amqps") => connect(&url.host, url.port.unwrap_or(5671)).map(|_| tls()),
        (Service::Redis, "rediss") => connect(&url.host, url.port.unwrap_or(6379)).map(|_| tls()),
        _ => Err(invalid(&format!("{service} has no addresses like {}://", url.scheme))),
    }
}

fn tls() -> String {
    "unknown (TLS)".to_owned()
}

fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let mut last = invalid("the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn place(text: &str, default_port: u16) -> Result<(String, u16)> {
    let (host, port) = host_and_port(text.trim()).ok_or_else(|| invalid("not host:port"))?;
    Ok((host, port.unwrap_or(default_port)))
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}
