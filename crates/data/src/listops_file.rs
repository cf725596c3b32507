//! ListOps from tab separated files.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::{content, io};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split, files, listops};

/// More than 20 times the training file of Long Range Arena.
const BYTES_MAX: u64 = 4 << 30;

/// ListOps from files, in the tokens of [`ListOps`](crate::ListOps).
///
/// A folder with one `*train*.tsv`, `*val*.tsv` and `*test*.tsv` (each perhaps .gz or .xz), or one
/// such file, which then has no parts. Lines hold a tree and its value with a tab between, in
/// either order; a first line without digits is a heading. Trees are in flat form or with the
/// parentheses of the original sets, which are dropped. Every value is computed and must agree. A
/// file with `[FIRST` or `[LAST` (tokens 16 and 17) has vocabulary 18.
///
/// Keys: `length`, the stored length (2000); a longer tree is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct ListOpsFiles {
    pub(super) path: PathBuf,
    pub(super) length: usize,
}

impl ListOpsFiles {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            path: options.path()?,
            length: options.number("length", 2000, 1..=1 << 20)?,
        })
    }

    pub(super) fn read(&self, split: Option<Split>) -> Result<Dataset, DataError> {
        let path = match (self.path.is_dir(), split) {
            (true, split) => find(&self.path, split.unwrap_or_default())?,
            (false, None) => self.path.clone(),
            (false, Some(_)) => {
                let path = self.path.clone();
                return Err(DataError::NoSplits { path });
            }
        };
        let bytes = files::read(&path, BYTES_MAX)?;
        let lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
        let numbered = lines.par_iter().enumerate();
        let parsed = numbered.filter(|(number, line)| !skipped(*number, line));
        let parsed = parsed.map(|(number, line)| {
            let at = |wrong: Wrong| {
                let found = format!("line {}: {}", number + 1, wrong.found);
                content(&path, found, wrong.expected)
            };
            self.line(line).map_err(at)
        });
        // The first line that is wrong is the one named, whichever thread came first.
        let parsed: Vec<_> = parsed.collect();
        let parsed: Vec<(Vec<u16>, usize)> = parsed.into_iter().collect::<Result<_, _>>()?;
        if parsed.is_empty() {
            return Err(content(&path, "no line", "at least one tree"));
        }
        let (rows, labels): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
        let old = rows
            .iter()
            .flatten()
            .any(|&t| usize::from(t) >= listops::VOCABULARY);
        let vocabulary = match old {
            true => listops::VOCABULARY_OLD,
            false => listops::VOCABULARY,
        };
        let classes = listops::CLASSES;
        let targets = Targets::Classes { labels, classes };
        Ok(Dataset::from_rows(&rows, vocabulary, self.length).with_targets(targets))
    }

    /// A tree and its value.
    fn line(&self, line: &[u8]) -> Result<(Vec<u16>, usize), Wrong> {
        let text = std::str::from_utf8(line).map_err(|_| wrong("bytes that are no text", LINE))?;
        let (left, right) = text
            .trim_end()
            .split_once('\t')
            .ok_or(wrong("no tab", LINE))?;
        let (tree, label) = match left.trim().len() {
            1 => (right, left),
            _ => (left, right),
        };
        let tokens = tokens(tree)?;
        if tokens.len() > self.length {
            let found = format!("a tree of {} tokens", tokens.len());
            return Err(wrong(found, format!("at most length={}", self.length)));
        }
        let value = listops::value(&tokens).map_err(|found| wrong(found, "one whole tree"))?;
        if label.trim() != value.to_string() {
            let found = format!("value {:?}", shortened(label));
            return Err(wrong(found, format!("{value}, the value of the tree")));
        }
        Ok((tokens, value.into()))
    }
}

const LINE: &str = "a tree, a tab and its value";

/// What is wrong with a line.
struct Wrong {
    found: String,
    expected: String,
}

fn wrong(found: impl Into<String>, expected: impl Into<String>) -> Wrong {
    Wrong {
        found: found.into(),
        expected: expected.into(),
    }
}

/// Empty lines and the heading.
fn skipped(number: usize, line: &[u8]) -> bool {
    let heading = number == 0 && !line.iter().any(u8::is_ascii_digit);
    heading || line.iter().all(u8::is_ascii_whitespace)
}

fn tokens(tree: &str) -> Result<Vec<u16>, Wrong> {
    let words = tree.split_whitespace();
    let words = words.filter(|word| !matches!(*word, "(" | ")"));
    let token = |word: &str| match listops::TOKENS.iter().position(|known| *known == word) {
        Some(place) => Ok(place as u16 + 1),
        None => {
            let found = format!("word {:?}", shortened(word));
            Err(wrong(
                found,
                format!("one of {}", listops::TOKENS.join(" ")),
            ))
        }
    };
    words.map(token).collect()
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(20).collect()
}

/// The one file of a part.
fn find(folder: &Path, split: Split) -> Result<PathBuf, DataError> {
    let (word, expected) = match split {
        Split::Train => ("train", "*train*.tsv[.gz]"),
        Split::Validation => ("val", "*val*.tsv[.gz]"),
        Split::Test => ("test", "*test*.tsv[.gz]"),
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let name = entry.map_err(io(folder))?.file_name();
        let name = name.to_string_lossy().into_owned();
        let plain = name.trim_end_matches(".gz").trim_end_matches(".xz");
        if name.contains(word) && plain.ends_with(".tsv") {
            found.push(name);
        }
    }
    found.sort();
    match found.as_slice() {
        [name] => Ok(folder.join(name)),
        [] => Err(DataError::NoFile {
            folder: folder.to_path_buf(),
            expected,
        }),
        many => Err(content(
            folder,
            format!("{} files {expected}: {}", many.len(), many.join(", ")),
            "one; name the file itself",
        )),
    }
}
