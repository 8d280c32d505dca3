//! Bytes in network order.

use std::io::{Read, Result};

use super::invalid;

/// No answer that we ask for is near it.
const MOST: usize = 1 << 20;

/// Reads a message piece by piece; what is missing is an error, never a panic.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, tail) =
            self.0.split_at_checked(count).ok_or_else(|| invalid("the answer is cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| invalid("the answer is cut short"))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn length(&mut self) -> Result<usize> {
        checked(self.u32()?)
    }

    /// Kafka's unsigned varint.
    pub(super) fn varint(&mut self) -> Result<usize> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return checked(value);
            }
        }
        Err(invalid("a number is too long"))
    }
}

pub(super) fn checked(length: u32) -> Result<usize> {
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= MOST)
        .ok_or_else(|| invalid("the answer is too long"))
}

/// Reads so many bytes from a socket.
pub(super) fn read(stream: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The length of something that we send. All of it is short.
pub(super) fn len32(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_until_the_end_and_no_further() {
        let mut reader = Reader(&[1, 0, 2, 0, 0, 0, 3, 0xac, 0x02]);
        assert_eq!(reader.u8().unwrap(), 1);
        assert_eq!(reader.u16().unwrap(), 2);
        assert_eq!(reader.i32().unwrap(), 3);
        assert_eq!(reader.varint().unwrap(), 300);
        reader.u8().unwrap_err();
    }

    #[test]
    fn a_length_out_of_all_reason_is_refused() {
        Reader(&[0xff; 4]).length().unwrap_err();
        Reader(&[0xff; 6]).varint().unwrap_err();
    }
}
