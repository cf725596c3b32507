//! Where data come from.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Split;
use crate::adding::Adding;
use crate::autoregression::Autoregression;
use crate::copy::Copying;
use crate::fsdd::SpokenDigits;
use crate::generate::{COUNT_MAX, TrivialAnswer};
use crate::imdb::Reviews;
use crate::lagged_sine::LaggedSine;
use crate::listops::{ListOps, TOKENS};
use crate::listops_file::ListOpsFiles;
use crate::moving_digits::MovingDigits;
use crate::options::{Options, SourceError};
use crate::random_transformer::RandomTransformer;
use crate::recall::Recall;
use crate::sparse::Sparse;
use crate::sprites::Sprites;
use crate::table::Table;
use crate::text::Text;
use crate::waves::Waves;

/// Every name that may stand before the colon.
const NAMES: [&str; 17] = [
    "mnist",
    "fsdd",
    "imdb",
    "listops",
    "text",
    "arrays",
    "csv",
    "recall",
    "adding",
    "copy",
    "lagged-sine",
    "ar",
    "waves",
    "moving-digits",
    "sprites",
    "sparse",
    "teacher",
];

/// Where data come from, read from `name[:path][,key=value]…`.
///
/// A text without a known name before its first colon is the path of a file of arrays, or of a table
/// where it ends in `.csv`. Keys
/// that a source does not have are errors that name those it has. [`Display`] gives all keys back,
/// so a printed source makes the same data again.
///
/// Sources that read files also take `count` and `seed` (0): so many sequences of each part,
/// chosen by the seed, in their stored order.
///
/// ```
/// use hankelite_data::Source;
///
/// let source: Source = "adding:length=50,count=20".parse()?;
/// assert_eq!(source.to_string(), "adding:length=50,count=20,held_out=1000,seed=0");
/// # Ok::<(), hankelite_data::SourceError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Source {
    /// `mnist:DIR`: a folder with idx files, compressed or not; pixels row by row.
    Mnist(PathBuf),
    /// `mnist:DIR,permuted=true`: the same with all pixels in one fixed random order.
    PermutedMnist(PathBuf),
    /// `mnist:DIR,order=bottom-up`: the same row by row from the lowest, each from left to right.
    BottomUpMnist(PathBuf),
    /// A file of arrays: safetensors, `numpy.save`, `numpy.savez` or `torch.save`, with inputs and,
    /// perhaps, targets.
    Arrays(PathBuf),
    /// `csv:FILE`: a table of numbers.
    Table(Table),
    /// `fsdd:PATH`: spoken digits.
    SpokenDigits(SpokenDigits),
    /// `imdb:PATH`: reviews as bytes.
    Reviews(Reviews),
    /// `listops:PATH`: ListOps from files.
    ListOpsFiles(ListOpsFiles),
    /// `text:FILE`: the next byte of a text.
    Text(Text),
    /// `listops`: generated ListOps.
    ListOps(ListOps),
    /// `recall`: delayed recall.
    Recall(Recall),
    /// `adding`: the adding problem.
    Adding(Adding),
    /// `copy`: the copy problem.
    Copying(Copying),
    /// `lagged-sine`: the lagged sine of a Gaussian process.
    LaggedSine(LaggedSine),
    /// `ar`: the next value of an autoregressive process.
    Autoregression(Autoregression),
    /// `waves`: waveforms in noise.
    Waves(Waves),
    /// `moving-digits:DIR`: MNIST digits that bounce.
    MovingDigits(MovingDigits),
    /// `sprites`: blobs that bounce.
    Sprites(Sprites),
    /// `sparse`: signals with slowly varying sparse codes.
    Sparse(Sparse),
    /// `teacher`: the answers of a random transformer.
    RandomTransformer(RandomTransformer),
    /// Some sequences of another source, chosen by a seed.
    Sample {
        /// The whole.
        source: Box<Source>,
        /// Sequences of each part.
        count: usize,
        /// Decides which.
        seed: u64,
    },
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        if let Some((start, keys)) = text.split_once(',')
            && NAMES.contains(&start)
        {
            let (found, expected) = (text.to_string(), format!("{start}:{keys}"));
            return Err(SourceError::Comma { found, expected });
        }
        if !NAMES.contains(&name) {
            let letters = name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            // One letter before a colon is a drive.
            if letters && name.len() > 1 && text.contains(':') {
                let known = NAMES.join(", ");
                let found = name.to_string();
                return Err(SourceError::Name { found, known });
            }
            let table = Table::of_path(text).map(Source::Table);
            return Ok(table.unwrap_or(Source::Arrays(text.into())));
        }
        let mut options = Options::new(name, rest)?;
        let source = match (name, options.has_path()) {
            ("listops", false) => Source::ListOps(ListOps::parse(&mut options)?),
            ("recall", _) => Source::Recall(Recall::parse(&mut options)?),
            ("adding", _) => Source::Adding(Adding::parse(&mut options)?),
            ("copy", _) => Source::Copying(Copying::parse(&mut options)?),
            ("lagged-sine", _) => Source::LaggedSine(LaggedSine::parse(&mut options)?),
            ("waves", _) => Source::Waves(Waves::parse(&mut options)?),
            ("moving-digits", _) => Source::MovingDigits(MovingDigits::parse(&mut options)?),
            ("sprites", _) => Source::Sprites(Sprites::parse(&mut options)?),
            ("sparse", _) => Source::Sparse(Sparse::parse(&mut options)?),
            ("teacher", _) => Source::RandomTransformer(RandomTransformer::parse(&mut options)?),
            ("ar", _) => Source::Autoregression(Autoregression::parse(&mut options)?),
            _ => of_files(name, &mut options)?,
        };
        options.finish()?;
        Ok(source)
    }
}

fn of_files(name: &str, options: &mut Options) -> Result<Source, SourceError> {
    let source = match name {
        "mnist" => {
            let permuted = options.choice("permuted", ["false", "true"])?;
            let bottom_up = options.choice("order", ["top-down", "bottom-up"])?;
            let path = options.path()?;
            match (permuted, bottom_up) {
                (false, false) => Source::Mnist(path),
                (true, false) => Source::PermutedMnist(path),
                (false, true) => Source::BottomUpMnist(path),
                (true, true) => {
                    let expected = "top-down beside permuted=true".to_string();
                    return Err(options.wrong("order", "bottom-up".to_string(), expected));
                }
            }
        }
        "fsdd" => Source::SpokenDigits(SpokenDigits::parse(options)?),
        "imdb" => Source::Reviews(Reviews::parse(options)?),
        "listops" => Source::ListOpsFiles(ListOpsFiles::parse(options)?),
        "text" => Source::Text(Text::parse(options)?),
        "csv" => Source::Table(Table::parse(options)?),
        _ => Source::Arrays(options.path()?),
    };
    let count = options.optional("count", 1..=COUNT_MAX)?;
    let seed = options.number("seed", 0, 0..=u64::MAX)?;
    Ok(match count {
        None => source,
        Some(count) => Source::Sample {
            source: Box::new(source),
            count,
            seed,
        },
    })
}

impl Source {
    /// The file or folder that is read; `None` for a generated task.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Source::Mnist(path)
            | Source::PermutedMnist(path)
            | Source::BottomUpMnist(path)
            | Source::Arrays(path) => Some(path),
            Source::MovingDigits(data) => Some(&data.path),
            Source::SpokenDigits(data) => Some(&data.path),
            Source::Reviews(data) => Some(&data.path),
            Source::ListOpsFiles(data) => Some(&data.path),
            Source::Text(data) => Some(&data.path),
            Source::Table(data) => Some(&data.path),
            Source::Sample { source, .. } => source.path(),
            _ => None,
        }
    }

    /// The parts that can be read; empty for one set without parts.
    pub fn splits(&self) -> &'static [Split] {
        match self {
            Source::Arrays(_) | Source::Table(_) => &[],
            Source::ListOpsFiles(data) if !data.path.is_dir() => &[],
            Source::Mnist(_)
            | Source::PermutedMnist(_)
            | Source::BottomUpMnist(_)
            | Source::SpokenDigits(_)
            | Source::Reviews(_)
            | Source::Text(_) => &[Split::Train, Split::Test],
            Source::Sample { source, .. } => source.splits(),
            _ => &[Split::Train, Split::Validation, Split::Test],
        }
    }

    /// What an answer without skill costs, for a generated task where its definition gives it; `None`
    /// for files, films and the teacher, of which
    /// [`Dataset::constant_answer`](crate::Dataset::constant_answer) gives it.
    pub fn trivial_answer(&self) -> Option<TrivialAnswer> {
        match self {
            Source::ListOps(task) => Some(task.trivial_answer()),
            Source::Recall(task) => Some(task.trivial_answer()),
            Source::Adding(task) => Some(task.trivial_answer()),
            Source::Copying(task) => Some(task.trivial_answer()),
            Source::LaggedSine(task) => Some(task.trivial_answer()),
            Source::Autoregression(task) => Some(task.trivial_answer()),
            Source::Waves(task) => Some(task.trivial_answer()),
            Source::Sparse(task) => Some(task.trivial_answer()),
            _ => None,
        }
    }

    /// Tokens as a person reads them: texts as text, trees as words, others as numbers. Padding
    /// is left out.
    pub fn spelled(&self, tokens: &[u32]) -> String {
        let text = |shift: u32| {
            let bytes = tokens.iter().filter(|&&token| token >= shift);
            let bytes: Vec<u8> = bytes.map(|&token| (token - shift) as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        match self {
            Source::Reviews(_) => text(1),
            Source::Text(_) => text(0),
            Source::Sample { source, .. } => source.spelled(tokens),
            Source::ListOps(_) | Source::ListOpsFiles(_) => {
                let words = tokens.iter().filter_map(|&token| {
                    let place = (token as usize).checked_sub(1)?;
                    TOKENS.get(place).copied()
                });
                words.collect::<Vec<_>>().join(" ")
            }
            _ => {
                let numbers: Vec<String> = tokens.iter().map(u32::to_string).collect();
                numbers.join(" ")
            }
        }
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Mnist(folder) => write!(f, "mnist:{}", folder.display()),
            Source::PermutedMnist(folder) => write!(f, "mnist:{},permuted=true", folder.display()),
            Source::BottomUpMnist(folder) => {
                write!(f, "mnist:{},order=bottom-up", folder.display())
            }
            Source::Arrays(path) => {
                // A path such as `notes:x` would be taken for a name without `arrays:` before it.
                let plain = path.display().to_string();
                let name = match plain.parse().as_ref() == Ok(self) {
                    true => "",
                    false => "arrays:",
                };
                write!(f, "{name}{plain}")
            }
            Source::SpokenDigits(data) => data.fmt(f),
            Source::Reviews(data) => data.fmt(f),
            Source::ListOpsFiles(data) => {
                write!(f, "listops:{},length={}", data.path.display(), data.length)
            }
            Source::Text(data) => data.fmt(f),
            Source::Table(data) => data.fmt(f),
            Source::ListOps(task) => task.fmt(f),
            Source::Recall(task) => task.fmt(f),
            Source::Adding(task) => task.fmt(f),
            Source::Copying(task) => task.fmt(f),
            Source::LaggedSine(task) => task.fmt(f),
            Source::Autoregression(task) => task.fmt(f),
            Source::Waves(task) => task.fmt(f),
            Source::MovingDigits(task) => task.fmt(f),
            Source::Sprites(task) => task.fmt(f),
            Source::Sparse(task) => task.fmt(f),
            Source::RandomTransformer(task) => task.fmt(f),
            Source::Sample {
                source,
                count,
                seed,
            } => {
                match &**source {
                    // Only with its name before it can the path of an array file take keys.
                    Source::Arrays(path) => write!(f, "arrays:{}", path.display())?,
                    Source::Table(data) => data.named(f)?,
                    other => other.fmt(f)?,
                }
                write!(f, ",count={count},seed={seed}")
            }
        }
    }
}
