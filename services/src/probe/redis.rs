//! Redis: `PING`, then the version out of `INFO`.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::TcpStream;

use super::{connect, invalid};
use crate::Url;

/// `INFO server` is one or two thousand bytes.
const MOST: u64 = 1 << 16;

pub(super) fn ask(url: &Url) -> Result<String> {
    let stream = connect(&url.host, url.port.unwrap_or(6379))?;
    let mut stream = BufReader::new(stream.take(MOST));
    match (&url.user, &url.password) {
        (Some(user), Some(password)) => drop(call(&mut stream, &["AUTH", user, password])?),
        (None, Some(password)) => drop(call(&mut stream, &["AUTH", password])?),
        _ => {}
    }
    let pong = call(&mut stream, &["PING"])?;
    if pong != "PONG" {
        return Err(invalid("no PONG for PING"));
    }
    Ok(version(&call(&mut stream, &["INFO", "server"])?))
}

fn call(stream: &mut BufReader<std::io::Take<TcpStream>>, words: &[&str]) -> Result<String> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().get_mut().write_all(request.as_bytes())?;
    answer(stream)
}

/// A simple string, an error or a bulk string.
fn answer(stream: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.trim_end();
    if let Some(text) = line.strip_prefix('+') {
        return Ok(text.to_owned());
    }
    if let Some(error) = line.strip_prefix('-') {
        return Err(invalid(error));
    }
    let length = line.strip_prefix('$').and_then(|length| length.parse::<u64>().ok());
    let length = length.filter(|length| *length <= MOST).ok_or_else(|| invalid("not an answer of Redis"))?;
    let mut text = String::new();
    // The line's end is part of it.
    stream.take(length + 2).read_to_string(&mut text)?;
    Ok(text)
}

fn version(info: &str) -> String {
    info.lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .map_or_else(|| "unknown".to_owned(), |version| version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kinds_of_answers() {
        assert_eq!(answer(&mut &b"+PONG\r\n"[..]).unwrap(), "PONG");
        assert_eq!(answer(&mut &b"$3\r\nabc\r\n"[..]).unwrap().trim(), "abc");
        assert!(answer(&mut &b"-NOAUTH first\r\n"[..]).unwrap_err().to_string().contains("NOAUTH"));
        for odd in [&b""[..], b"HTTP/1.1 400\r\n", b"$-1\r\n", b"$99999999\r\n"] {
            answer(&mut &odd[..]).unwrap_err();
        }
    }

    #[test]
    fn finds_the_version() {
        assert_eq!(version("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"), "7.0.15");
        assert_eq!(version(""), "unknown");
    }
}
