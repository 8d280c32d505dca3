//! RabbitMQ: the handshake of AMQP 0-9-1 up to an open virtual host.

use std::io::{Result, Write};
use std::net::TcpStream;

use super::wire::{Reader, len32, read};
use super::{connect, invalid};
use crate::Url;

const START: (u16, u16) = (10, 10);
const START_OK: (u16, u16) = (10, 11);
const TUNE: (u16, u16) = (10, 30);
const TUNE_OK: (u16, u16) = (10, 31);
const OPEN: (u16, u16) = (10, 40);
const OPEN_OK: (u16, u16) = (10, 41);
const CLOSE: (u16, u16) = (10, 50);
const CLOSE_OK: (u16, u16) = (10, 51);
const METHOD_FRAME: u8 = 1;
const FRAME_END: u8 = 0xce;

pub(super) fn ask(url: &Url) -> Result<String> {
    let mut stream = connect(&url.host, url.port.unwrap_or(5672))?;
    stream.write_all(b"AMQP\0\0\x09\x01")?;
    let start = expect(&mut stream, START)?;
    let version = version(&start)?;

    let user = url.user.as_deref().unwrap_or("guest");
    let password = url.password.as_deref().unwrap_or("guest");
    let mut ok = vec![0, 0, 0, 0];
    ok.extend(short("PLAIN"));
    let login = format!("\0{user}\0{password}");
    ok.extend(len32(login.as_bytes()));
    ok.extend(login.as_bytes());
    ok.extend(short("en_US"));
    send(&mut stream, START_OK, &ok)?;

    // Its limits are fine; the heartbeat is not worth having.
    let mut tune = expect(&mut stream, TUNE)?;
    tune.truncate(6);
    tune.extend([0, 0]);
    send(&mut stream, TUNE_OK, &tune)?;

    let host = url.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let mut open = short(host);
    open.extend([0, 0]);
    send(&mut stream, OPEN, &open)?;
    expect(&mut stream, OPEN_OK)?;

    // 200: a normal end. Without it the broker's log has a warning for each question.
    let close = [0, 200, 0, 0, 0, 0, 0];
    if send(&mut stream, CLOSE, &close).is_ok() {
        let _ = expect(&mut stream, CLOSE_OK);
    }
    Ok(version)
}

fn send(stream: &mut TcpStream, (class, method): (u16, u16), arguments: &[u8]) -> Result<()> {
    let mut payload = Vec::new();
    payload.extend(class.to_be_bytes());
    payload.extend(method.to_be_bytes());
    payload.extend(arguments);
    let mut frame = vec![METHOD_FRAME, 0, 0];
    frame.extend(len32(&payload));
    frame.extend(payload);
    frame.push(FRAME_END);
    stream.write_all(&frame)
}

/// The arguments of the next method, which must be this one.
fn expect(stream: &mut TcpStream, wanted: (u16, u16)) -> Result<Vec<u8>> {
    let head = read(stream, 7)?;
    if head.starts_with(b"AMQP") {
        return Err(invalid("it speaks another version of AMQP"));
    }
    let length = Reader(head.get(3..).unwrap_or_default()).length()?;
    let payload = read(stream, length)?;
    if read(stream, 1)? != [FRAME_END] {
        return Err(invalid("a frame without its end"));
    }
    let mut reader = Reader(&payload);
    let got = (reader.u16()?, reader.u16()?);
    if got == wanted {
        return Ok(reader.0.to_vec());
    }
    if got == CLOSE {
        let code = reader.u16()?;
        let length = usize::from(reader.u8()?);
        let text = String::from_utf8_lossy(reader.take(length)?).into_owned();
        return Err(invalid(&format!("it closes the connection: {code} {text}")));
    }
    Err(invalid(&format!("method {got:?} where {wanted:?} is due")))
}

fn short(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    let mut short = vec![length];
    short.extend(bytes.iter().take(usize::from(length)));
    short
}

/// Out of the server's properties.
fn version(start: &[u8]) -> Result<String> {
    let mut reader = Reader(start);
    // The version of the protocol.
    reader.take(2)?;
    let length = reader.length()?;
    let mut table = Reader(reader.take(length)?);
    while !table.0.is_empty() {
        let length = usize::from(table.u8()?);
        let name = table.take(length)?;
        let kind = table.u8()?;
        let size = match kind {
            b't' | b'b' | b'B' => 1,
            b's' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'l' | b'L' | b'd' | b'T' => 8,
            b'V' => 0,
            // Each has its length in front.
            b'S' | b'F' | b'A' | b'x' => table.length()?,
            _ => return Err(invalid("a property of an unknown kind")),
        };
        let value = table.take(size)?;
        if name == b"version" && kind == b'S' {
            return Ok(String::from_utf8_lossy(value).into_owned());
        }
    }
    Ok("unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(properties: &[u8]) -> Vec<u8> {
        let mut start = vec![0, 9];
        start.extend(len32(properties));
        start.extend(properties);
        start
    }

    #[test]
    fn finds_the_version_behind_other_properties() {
        let mut properties = Vec::new();
        properties.extend(short("capabilities"));
        properties.extend(b"F\0\0\0\x04\x01at\x01");
        properties.extend(short("version"));
        properties.extend(b"S\0\0\0\x063.10.8");
        let start = start(&properties);
        assert_eq!(version(&start).unwrap(), "3.10.8");
        for end in 0..start.len() {
            version(&start[..end]).unwrap_err();
        }
    }

    #[test]
    fn no_version_is_no_fault() {
        assert_eq!(version(&start(&[])).unwrap(), "unknown");
    }

    #[test]
    fn short_strings_are_cut() {
        assert_eq!(short("ab"), [2, b'a', b'b']);
        assert_eq!(short(&"x".repeat(300)).len(), 256);
    }
}
