//! Numbers as bytes, one after the other.

use std::io::BufRead;

use anyhow::bail;

use crate::cli::samples::{Samples, come};

/// Bytes of the longest number.
const BYTES_MAX: usize = 4;

/// How bytes are numbers; all little-endian. Full scale of whole numbers is 1, as in sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Coding {
    F32,
    S16,
    S24,
    S32,
    U8,
}

impl Coding {
    fn bytes(self) -> usize {
        match self {
            Coding::F32 | Coding::S32 => 4,
            Coding::S24 => 3,
            Coding::S16 => 2,
            Coding::U8 => 1,
        }
    }

    /// The number of the leading bytes.
    fn number(self, [a, b, c, d]: [u8; BYTES_MAX]) -> f32 {
        match self {
            Coding::F32 => f32::from_le_bytes([a, b, c, d]),
            Coding::S32 => i32::from_le_bytes([a, b, c, d]) as f32 / 2f32.powi(31),
            // As the upper bytes of four, which carries the sign along.
            Coding::S24 => i32::from_le_bytes([0, a, b, c]) as f32 / 2f32.powi(31),
            Coding::S16 => f32::from(i16::from_le_bytes([a, b])) / 2f32.powi(15),
            // Zero is the middle.
            Coding::U8 => (f32::from(a) - 128.0) / 128.0,
        }
    }
}

/// Numbers of one coding.
pub(in crate::cli) struct Raw {
    reader: Box<dyn BufRead>,
    name: String,
    coding: Coding,
    index: usize,
    ready: usize,
}

impl Raw {
    pub(in crate::cli) fn new(reader: Box<dyn BufRead>, name: String, coding: Coding) -> Self {
        Self {
            reader,
            name,
            coding,
            index: 0,
            ready: 0,
        }
    }

    /// The bytes of the next number, with zeros behind them.
    fn next(&mut self) -> anyhow::Result<Option<[u8; BYTES_MAX]>> {
        let size = self.coding.bytes();
        let (mut bytes, mut read) = ([0; BYTES_MAX], 0);
        while read < size {
            let buffer = come(&mut self.reader, &self.name)?;
            let some = buffer.len().min(size - read);
            bytes[read..read + some].copy_from_slice(&buffer[..some]);
            self.ready = buffer.len() - some;
            self.reader.consume(some);
            read += some;
            if some == 0 {
                break;
            }
        }
        self.index += 1;
        match read {
            0 => Ok(None),
            _ if read == size => Ok(Some(bytes)),
            _ => bail!("{}: the input ends within a number", self.place()),
        }
    }
}

impl Samples for Raw {
    fn number(&mut self) -> anyhow::Result<Option<f32>> {
        let coding = self.coding;
        let number = self.next()?.map(|bytes| coding.number(bytes));
        match number {
            Some(value) if !value.is_finite() => {
                bail!("{}: found {value}, expected a finite number", self.place())
            }
            number => Ok(number),
        }
    }

    fn token(&mut self) -> anyhow::Result<Option<u32>> {
        match self.coding {
            Coding::F32 => Ok(self.next()?.map(u32::from_le_bytes)),
            _ => bail!("{}: sound has no tokens; tokens are text or u32", self.name),
        }
    }

    fn place(&self) -> String {
        format!("{}, number {}", self.name, self.index)
    }

    fn would_wait(&self) -> bool {
        self.ready < self.coding.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(content: &'static [u8], coding: Coding) -> Raw {
        Raw::new(Box::new(content), "here".to_string(), coding)
    }

    #[test]
    fn raw_numbers_end_whole() {
        let mut samples = raw(&[0, 0, 128, 63, 1], Coding::F32);
        assert_eq!(samples.number().unwrap(), Some(1.0));
        let error = samples.number().unwrap_err().to_string();
        assert_eq!(error, "here, number 2: the input ends within a number");
        assert!(raw(&[0, 0, 192, 127], Coding::F32).number().is_err());
    }

    #[test]
    fn whole_numbers_have_a_full_scale_of_one() {
        let cases: [(Coding, &[u8], &[f32]); 4] = [
            (Coding::U8, &[0, 128, 192], &[-1.0, 0.0, 0.5]),
            (
                Coding::S16,
                &[0, 128, 0, 64, 255, 255],
                &[-1.0, 0.5, -1.0 / 32768.0],
            ),
            (Coding::S24, &[0, 0, 128, 0, 0, 64], &[-1.0, 0.5]),
            (Coding::S32, &[0, 0, 0, 128, 0, 0, 0, 64], &[-1.0, 0.5]),
        ];
        for (coding, bytes, expected) in cases {
            let mut samples = raw(bytes.to_vec().leak(), coding);
            for number in expected {
                assert_eq!(samples.number().unwrap(), Some(*number), "{coding:?}");
            }
            assert_eq!(samples.number().unwrap(), None);
            assert!(samples.token().is_err());
        }
    }
}
