//! PostgreSQL: `SELECT version()`.

use std::io::{ErrorKind, Result, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::wire::{Reader, len32, read};
use super::{connect, invalid};
use crate::Url;

/// Version 3.0 of the protocol.
const PROTOCOL: i32 = 196_608;

pub(super) fn ask(url: &Url) -> Result<String> {
    let mut stream = connect(&url.host, url.port.unwrap_or(5432))?;
    let user = url.user.as_deref().unwrap_or("postgres");
    let database = url.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(user);
    match log_in(&mut stream, user, database, url.password.as_deref()) {
        // It hashes the password, or wants TLS. That is a client's work.
        Err(error) if error.kind() == ErrorKind::Unsupported => return psql(url, user, database),
        other => other?,
    }
    send(&mut stream, Some(b'Q'), b"SELECT version()\0")?;
    let mut found = None;
    loop {
        match receive(&mut stream)? {
            (b'D', row) => found = first_column(&row)?,
            (b'Z', _) => break,
            _ => {}
        }
    }
    send(&mut stream, Some(b'X'), &[])?;
    Ok(short(&found.ok_or_else(|| invalid("no row for SELECT version()"))?))
}

fn log_in(stream: &mut TcpStream, user: &str, database: &str, password: Option<&str>) -> Result<()> {
    let mut hello = PROTOCOL.to_be_bytes().to_vec();
    hello.extend(format!("user\0{user}\0database\0{database}\0\0").as_bytes());
    send(stream, None, &hello)?;
    loop {
        match receive(stream)? {
            (b'R', body) => match Reader(&body).i32()? {
                0 => {}
                3 => send(stream, Some(b'p'), format!("{}\0", password.unwrap_or_default()).as_bytes())?,
                _ => return Err(ErrorKind::Unsupported.into()),
            },
            (b'Z', _) => return Ok(()),
            _ => {}
        }
    }
}

fn send(stream: &mut TcpStream, kind: Option<u8>, body: &[u8]) -> Result<()> {
    let mut message: Vec<u8> = kind.into_iter().collect();
    let mut length = len32(body);
    // It counts itself.
    let total = u32::from_be_bytes(length).saturating_add(4);
    length = total.to_be_bytes();
    message.extend(length);
    message.extend(body);
    stream.write_all(&message)
}

/// The next message. An error from the server is an error here.
fn receive(stream: &mut TcpStream) -> Result<(u8, Vec<u8>)> {
    let head = read(stream, 5)?;
    let mut reader = Reader(&head);
    let kind = reader.u8()?;
    let length = reader.length()?.checked_sub(4).ok_or_else(|| invalid("a message without a length"))?;
    let body = read(stream, length)?;
    if kind == b'E' {
        return Err(invalid(&message(&body)));
    }
    Ok((kind, body))
}

/// Fields of an error: one letter, then text up to a zero.
fn message(body: &[u8]) -> String {
    body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"M")).map_or_else(
        || "an error without a message".to_owned(),
        |text| String::from_utf8_lossy(text).into_owned(),
    )
}

fn first_column(row: &[u8]) -> Result<Option<String>> {
    let mut reader = Reader(row);
    if reader.i16()? < 1 {
        return Ok(None);
    }
    let length = reader.length()?;
    Ok(Some(String::from_utf8_lossy(reader.take(length)?).into_owned()))
}

/// `PostgreSQL 15.18 (Debian …) on …` is longer than anyone needs.
fn short(version: &str) -> String {
    version.split_whitespace().nth(1).unwrap_or(version).to_owned()
}

/// The password goes by the environment: arguments are for everyone to read.
fn psql(url: &Url, user: &str, database: &str) -> Result<String> {
    let mut command = Command::new("psql");
    command
        .args(["--no-psqlrc", "--no-password", "--tuples-only", "--no-align"])
        .args(["--host", &url.host, "--port", &url.port.unwrap_or(5432).to_string()])
        .args(["--username", user, "--dbname", database, "--command", "SELECT version()"])
        .env("PGCONNECT_TIMEOUT", "3")
        .stdin(Stdio::null());
    if let Some(password) = &url.password {
        command.env("PGPASSWORD", password);
    }
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok("unknown (no psql to log in with)".to_owned())
        }
        Err(error) => Err(error),
        Ok(output) if output.status.success() => Ok(short(&String::from_utf8_lossy(&output.stdout))),
        Ok(output) => Err(invalid(String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_row() {
        let row = b"\0\x01\0\0\0\x0fPostgreSQL 15.1";
        assert_eq!(short(&first_column(row).unwrap().unwrap()), "15.1");
        assert_eq!(first_column(b"\0\0").unwrap(), None);
        first_column(b"\0\x01\0\0\0\x0fPost").unwrap_err();
    }

    #[test]
    fn reads_an_error() {
        assert_eq!(message(b"SFATAL\0C3D000\0Mno such database\0\0"), "no such database");
        assert_eq!(message(b"\0"), "an error without a message");
    }
}
