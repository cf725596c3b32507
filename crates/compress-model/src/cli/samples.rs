//! Samples from a pipe or a file, one at a time.

use std::io::{BufRead, ErrorKind};
use std::str::FromStr;

use anyhow::{Context, bail};
use hankelite_data::Sound;

/// Longest text of one number.
const WORD_MAX: usize = 64;

/// Where samples come from.
pub(super) trait Samples {
    /// The next number; `None` at the end.
    fn number(&mut self) -> anyhow::Result<Option<f32>>;
    /// The next token; `None` at the end.
    fn token(&mut self) -> anyhow::Result<Option<u32>>;
    /// Where the last one stood, for errors.
    fn place(&self) -> String;
    /// Whether the next sample may have to be waited for.
    fn would_wait(&self) -> bool;
}

/// Numbers in decimals between blanks, commas and new lines.
pub(super) struct Text {
    reader: Box<dyn BufRead>,
    name: String,
    line: usize,
    /// The line of the last word.
    word_line: usize,
    /// Bytes that have come and were not taken.
    ready: usize,
}

impl Text {
    pub(super) fn new(reader: Box<dyn BufRead>, name: String) -> Self {
        Self {
            reader,
            name,
            line: 1,
            word_line: 1,
            ready: 0,
        }
    }

    fn byte(&mut self) -> anyhow::Result<Option<u8>> {
        let name = &self.name;
        loop {
            let buffer = match self.reader.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                buffer => buffer.with_context(|| name.clone())?,
            };
            let (first, length) = (buffer.first().copied(), buffer.len());
            self.ready = length.saturating_sub(1);
            if first.is_some() {
                self.reader.consume(1);
            }
            return Ok(first);
        }
    }

    /// The next word, or an empty one at the end.
    fn word(&mut self) -> anyhow::Result<String> {
        let mut word = Vec::new();
        while let Some(byte) = self.byte()? {
            let blank = byte.is_ascii_whitespace() || byte == b',';
            if !blank {
                word.push(byte);
                self.word_line = self.line;
            }
            self.line += usize::from(byte == b'\n');
            if word.len() > WORD_MAX || (blank && !word.is_empty()) {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&word).into_owned())
    }

    fn parsed<T: FromStr>(
        &mut self,
        what: &str,
        good: impl Fn(&T) -> bool,
    ) -> anyhow::Result<Option<T>> {
        let word = self.word()?;
        if word.is_empty() {
            return Ok(None);
        }
        match word.parse() {
            Ok(value) if good(&value) => Ok(Some(value)),
            _ => bail!("{}: found `{word}`, expected {what}", self.place()),
        }
    }
}

impl Samples for Text {
    fn number(&mut self) -> anyhow::Result<Option<f32>> {
        self.parsed("a finite number", |number: &f32| number.is_finite())
    }

    fn token(&mut self) -> anyhow::Result<Option<u32>> {
        self.parsed("a token (a whole number)", |_: &u32| true)
    }

    fn place(&self) -> String {
        format!("{}, line {}", self.name, self.word_line)
    }

    fn would_wait(&self) -> bool {
        self.ready == 0
    }
}

/// Four bytes each, little-endian.
pub(super) struct Raw {
    reader: Box<dyn BufRead>,
    name: String,
    index: usize,
    ready: usize,
}

impl Raw {
    pub(super) fn new(reader: Box<dyn BufRead>, name: String) -> Self {
        Self {
            reader,
            name,
            index: 0,
            ready: 0,
        }
    }

    fn four(&mut self) -> anyhow::Result<Option<[u8; 4]>> {
        let (mut four, mut read) = ([0; 4], 0);
        while read < 4 {
            let buffer = match self.reader.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                buffer => buffer.with_context(|| self.name.clone())?,
            };
            let some = buffer.len().min(4 - read);
            four[read..read + some].copy_from_slice(&buffer[..some]);
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
            4 => Ok(Some(four)),
            _ => bail!("{}: the input ends within a number", self.place()),
        }
    }
}

impl Samples for Raw {
    fn number(&mut self) -> anyhow::Result<Option<f32>> {
        let number = self.four()?.map(f32::from_le_bytes);
        match number {
            Some(value) if !value.is_finite() => {
                bail!("{}: found {value}, expected a finite number", self.place())
            }
            number => Ok(number),
        }
    }

    fn token(&mut self) -> anyhow::Result<Option<u32>> {
        Ok(self.four()?.map(u32::from_le_bytes))
    }

    fn place(&self) -> String {
        format!("{}, number {}", self.name, self.index)
    }

    fn would_wait(&self) -> bool {
        self.ready < 4
    }
}

impl Samples for Sound {
    fn number(&mut self) -> anyhow::Result<Option<f32>> {
        Ok(self.next().transpose()?)
    }

    fn token(&mut self) -> anyhow::Result<Option<u32>> {
        bail!("sound has no tokens")
    }

    fn place(&self) -> String {
        "the sound".to_string()
    }

    fn would_wait(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &'static str) -> Text {
        Text::new(Box::new(content.as_bytes()), "here".to_string())
    }

    #[test]
    fn numbers_stand_between_blanks_commas_and_lines() {
        let mut samples = text("1, 2.5\n\n-3e-1\r\n4");
        let mut found = Vec::new();
        while let Some(number) = samples.number().unwrap() {
            found.push(number);
        }
        assert_eq!(found, [1.0, 2.5, -0.3, 4.0]);
    }

    #[test]
    fn a_bad_number_is_named_with_its_line() {
        for bad in ["nan", "1..2", "inf", "x"] {
            let content: &'static str = format!("1\n2\n{bad} 4\n").leak();
            let mut samples = text(content);
            samples.number().unwrap();
            samples.number().unwrap();
            let error = samples.number().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("here, line 3: found `{bad}`, expected a finite number")
            );
        }
        let endless: &'static str = "9".repeat(1000).leak();
        let error = text(endless).number().unwrap_err().to_string();
        assert!(error.contains("here, line 1"), "{error}");
    }

    #[test]
    fn raw_numbers_end_whole() {
        let raw = |content: &'static [u8]| Raw::new(Box::new(content), "here".to_string());
        let mut samples = raw(&[0, 0, 128, 63, 1]);
        assert_eq!(samples.number().unwrap(), Some(1.0));
        let error = samples.number().unwrap_err().to_string();
        assert_eq!(error, "here, number 2: the input ends within a number");
        assert!(raw(&[0, 0, 192, 127]).number().is_err());
    }
}
