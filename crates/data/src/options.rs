//! The grammar of a source: `name[:path][,key=value]…`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// Why the text of a [`Source`](super::Source) cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No such name before the colon.
    #[error("no data named `{found}`; there are {known} (a file of that name is `./{found}:…`)")]
    Name {
        /// What stands there.
        found: String,
        /// All names.
        known: String,
    },
    /// A comma where the colon belongs.
    #[error(
        "`{found}`: a colon stands between name and keys, `{expected}` (a file is `./{found}`)"
    )]
    Comma {
        /// The text.
        found: String,
        /// With a colon.
        expected: String,
    },
    /// A key that this source does not have.
    #[error("`{name}` has no key `{found}`; its keys are {known}")]
    Key {
        /// The source.
        name: String,
        /// The key.
        found: String,
        /// The keys there are.
        known: String,
    },
    /// The same key twice.
    #[error("`{name}`: the key `{key}` stands twice")]
    Twice {
        /// The source.
        name: String,
        /// The key.
        key: String,
    },
    /// A value out of its range, or no value.
    #[error("`{name}`: {key}={found}, expected {expected}")]
    Value {
        /// The source.
        name: String,
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: String,
    },
    /// A source that needs a path and has none.
    #[error("`{name}` needs a path: `{name}:PATH`")]
    NoPath {
        /// The source.
        name: String,
    },
    /// A path, or a word without `=`, where only keys may stand.
    #[error("`{name}:{found}`: expected key=value; {name} is generated and takes no path")]
    Path {
        /// The source.
        name: String,
        /// What stands there.
        found: String,
    },
}

/// The parts of a source's text, taken out one by one.
pub(super) struct Options {
    name: String,
    path: Option<String>,
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Options {
    /// `rest` is what follows the colon. The keys are the last pieces between commas that have
    /// the form `key=value`; what stands before is the path, which may hold commas too.
    pub(super) fn new(name: &str, rest: &str) -> Result<Self, SourceError> {
        let mut pieces: Vec<&str> = rest.split(',').collect();
        let mut pairs = Vec::new();
        while let Some((key, value)) = pieces.last().and_then(|piece| pair(piece)) {
            if pairs.iter().any(|(other, _)| other == key) {
                let (name, key) = (name.to_string(), key.to_string());
                return Err(SourceError::Twice { name, key });
            }
            pairs.push((key.to_string(), value.to_string()));
            pieces.pop();
        }
        let path = pieces.join(",");
        Ok(Self {
            name: name.to_string(),
            path: (!path.is_empty()).then_some(path),
            pairs,
            known: Vec::new(),
        })
    }

    pub(super) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    pub(super) fn path(&mut self) -> Result<PathBuf, SourceError> {
        let name = || self.name.clone();
        let path = self.path.take();
        path.map(PathBuf::from)
            .ok_or_else(|| SourceError::NoPath { name: name() })
    }

    /// The value of a key, or its default.
    pub(super) fn number<T>(
        &mut self,
        key: &'static str,
        default: T,
        range: RangeInclusive<T>,
    ) -> Result<T, SourceError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let value = self.optional(key, range)?;
        Ok(value.unwrap_or(default))
    }

    /// The value of a key that may be left out.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, SourceError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => {
                let expected = format!("{} to {}", range.start(), range.end());
                Err(self.wrong(key, text, expected))
            }
        }
    }

    /// One of two words: whether it is the second.
    pub(super) fn choice(
        &mut self,
        key: &'static str,
        words: [&str; 2],
    ) -> Result<bool, SourceError> {
        match self.text(key) {
            None => Ok(false),
            Some(text) if text == words[0] => Ok(false),
            Some(text) if text == words[1] => Ok(true),
            Some(text) => Err(self.wrong(key, text, words.join(" or "))),
        }
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let place = self.pairs.iter().position(|(other, _)| other == key)?;
        Some(self.pairs.remove(place).1)
    }

    pub(super) fn wrong(&self, key: &str, found: String, expected: String) -> SourceError {
        SourceError::Value {
            name: self.name.clone(),
            key: key.to_string(),
            found,
            expected,
        }
    }

    /// Nothing may be left over.
    pub(super) fn finish(self) -> Result<(), SourceError> {
        let name = self.name;
        if let Some((found, _)) = self.pairs.into_iter().next_back() {
            let known = self.known.join(", ");
            return Err(SourceError::Key { name, found, known });
        }
        match self.path {
            Some(found) => Err(SourceError::Path { name, found }),
            None => Ok(()),
        }
    }
}

fn pair(piece: &str) -> Option<(&str, &str)> {
    let (key, value) = piece.split_once('=')?;
    let plain = |c: char| c.is_ascii_lowercase() || c == '_';
    (!key.is_empty() && key.chars().all(plain)).then_some((key, value))
}
