//! Samples from a pipe or a file, one at a time.

mod raw;
mod rows;

use std::io::{BufRead, ErrorKind};
use std::str::FromStr;

use anyhow::{Context, bail};
use hankelite_data::Sound;
pub(super) use raw::{Coding, Raw};
pub(super) use rows::{Columns, Rows};

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
    /// When it was taken, where the input says so.
    fn stamp(&self) -> Option<&str> {
        None
    }
}

/// What has come of an input, at least one byte of it unless it has ended.
fn come<'a>(reader: &'a mut Box<dyn BufRead>, name: &str) -> anyhow::Result<&'a [u8]> {
    loop {
        match reader.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| name.to_string()),
            Ok(_) => break,
        }
    }
    // What has come is given again without being read again.
    Ok(reader.fill_buf()?)
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
        let buffer = come(&mut self.reader, &self.name)?;
        let (first, length) = (buffer.first().copied(), buffer.len());
        self.ready = length.saturating_sub(1);
        if first.is_some() {
            self.reader.consume(1);
        }
        Ok(first)
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
}
