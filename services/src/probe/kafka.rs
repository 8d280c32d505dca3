//! Kafka: a metadata request, which a broker answers with itself in it only once it serves.

use std::io::{Result, Write};
use std::net::TcpStream;

use super::wire::{Reader, checked, len32, read};
use super::{connect, invalid, place};

const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const CLIENT: &str = "einmal-probe";

/// Asks the brokers one after the other, until one answers.
pub(super) fn ask(brokers: &str) -> Result<String> {
    let mut last = invalid("no broker is named");
    for broker in brokers.split(',').filter(|broker| !broker.trim().is_empty()) {
        match ask_one(broker) {
            Ok(version) => return Ok(version),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask_one(broker: &str) -> Result<String> {
    let (host, port) = place(broker, 9092)?;
    let mut stream = connect(&host, port)?;
    // No topics, and none to be made.
    let answer = call(&mut stream, METADATA, 4, &[0, 0, 0, 0, 0])?;
    if brokers_in(&answer)? == 0 {
        return Err(invalid("the cluster has no broker yet"));
    }
    let answer = call(&mut stream, API_VERSIONS, 3, &software())?;
    Ok(match metadata_version(&answer)? {
        Some(level) => format!("metadata.version {level}"),
        None => "unknown".to_owned(),
    })
}

/// Sends a request and hands back the body of the answer.
fn call(stream: &mut TcpStream, key: i16, version: i16, body: &[u8]) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    request.extend(key.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(7i32.to_be_bytes());
    request.extend(i16::try_from(CLIENT.len()).unwrap_or_default().to_be_bytes());
    request.extend(CLIENT.as_bytes());
    if key == API_VERSIONS {
        // Tagged fields of the header: none.
        request.push(0);
    }
    request.extend(body);
    stream.write_all(&len32(&request))?;
    stream.write_all(&request)?;

    let length = Reader(&read(stream, 4)?).length()?;
    let answer = read(stream, length)?;
    let mut reader = Reader(&answer);
    if reader.i32()? != 7 {
        return Err(invalid("an answer to another request"));
    }
    Ok(reader.0.to_vec())
}

/// Version 4: throttle time, then brokers.
fn brokers_in(answer: &[u8]) -> Result<usize> {
    let mut reader = Reader(answer);
    reader.i32()?;
    reader.length()
}

/// The name and version of the client, as compact strings.
fn software() -> Vec<u8> {
    let mut body = Vec::new();
    for text in [CLIENT, "0"] {
        body.push(u8::try_from(text.len() + 1).unwrap_or_default());
        body.extend(text.as_bytes());
    }
    body.push(0);
    body
}

/// Kafka does not tell its release. The level of its metadata comes nearest.
fn metadata_version(answer: &[u8]) -> Result<Option<i16>> {
    let mut reader = Reader(answer);
    let error = reader.i16()?;
    if error != 0 {
        return Err(invalid(&format!("it refuses to tell its versions: error {error}")));
    }
    // Arrays hold one more than their length.
    for _ in 1..reader.varint()? {
        reader.take(6)?;
        skip_tags(&mut reader)?;
    }
    reader.i32()?;
    for _ in 0..reader.varint()? {
        let tag = reader.varint()?;
        let size = reader.varint()?;
        let mut field = Reader(reader.take(size)?);
        // Finalized features.
        if tag != 2 {
            continue;
        }
        for _ in 1..field.varint()? {
            let length = field.varint()?.saturating_sub(1);
            let name = field.take(length)?;
            let level = field.i16()?;
            field.i16()?;
            skip_tags(&mut field)?;
            if name == b"metadata.version" {
                return Ok(Some(level));
            }
        }
    }
    Ok(None)
}

fn skip_tags(reader: &mut Reader<'_>) -> Result<()> {
    for _ in 0..reader.varint()? {
        reader.varint()?;
        let size = u32::try_from(reader.varint()?).unwrap_or(u32::MAX);
        reader.take(checked(size)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_level_of_the_metadata() {
        let mut answer = vec![0, 0];
        // Two kinds of request, then the throttle time.
        answer.extend([3, 0, 3, 0, 0, 0, 13, 0, 0, 18, 0, 0, 0, 4, 0]);
        answer.extend([0, 0, 0, 0]);
        let mut feature = vec![2, 17];
        feature.extend(b"metadata.version");
        feature.extend([0, 27, 0, 27, 0]);
        answer.extend([1, 2, u8::try_from(feature.len()).unwrap()]);
        answer.extend(&feature);
        assert_eq!(metadata_version(&answer).unwrap(), Some(27));
        for end in 0..answer.len() {
            metadata_version(&answer[..end]).unwrap_err();
        }
    }

    #[test]
    fn an_old_broker_tells_no_features() {
        assert_eq!(metadata_version(&[0, 0, 1, 0, 0, 0, 0, 0]).unwrap(), None);
        metadata_version(&[0, 35, 1, 0, 0, 0, 0, 0]).unwrap_err();
    }

    #[test]
    fn counts_brokers() {
        assert_eq!(brokers_in(&[0, 0, 0, 0, 0, 0, 0, 1, 9]).unwrap(), 1);
        brokers_in(&[0, 0]).unwrap_err();
    }
}
