//! Where samples come from.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use hankelite::model::InputKind;
use hankelite_data::Sound;

use crate::cli::quantities::above_zero;
use crate::cli::samples::{Coding, Columns, Raw, Rows, Samples, Text};

/// What is read, and how.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// Where the samples come from: a file, or `-` for standard input.
    #[arg(long = "input", value_name = "FILE", default_value = "-")]
    samples: PathBuf,
    /// How samples are written in it [default: wav and csv for names that end so, else text].
    #[arg(long, value_enum)]
    from: Option<Form>,
    /// The columns of a table that the model takes, by their headings [default: all but --time].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    columns: Vec<String>,
    /// The column of a table with the time of each row, for --to jsonl.
    #[arg(long, value_name = "NAME")]
    time: Option<String>,
    /// Samples of a second, for the times of --to jsonl [default: as sound records].
    #[arg(long, value_name = "N", value_parser = above_zero)]
    hertz: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Numbers in decimals.
    Text,
    /// Rows of cells between commas, one for each step; the first may hold headings.
    Csv,
    /// Sound with a header; full scale is 1, in all whole numbers.
    Wav,
    /// Raw f32 (tokens: u32), little-endian.
    F32,
    /// Raw whole numbers of 16 bits, little-endian.
    S16,
    /// The same of 24 bits.
    S24,
    /// The same of 32 bits.
    S32,
    /// Raw bytes; 128 is zero.
    U8,
}

impl Form {
    /// What a file's name says.
    fn of(path: &Path) -> Self {
        let ends = |ending: &str| {
            path.extension()
                .is_some_and(|e| e.eq_ignore_ascii_case(ending))
        };
        match () {
            () if ends("wav") => Form::Wav,
            () if ends("csv") => Form::Csv,
            () => Form::Text,
        }
    }
}

/// Samples, and how many there are in a second where that is known.
pub(super) struct Opened {
    pub(super) samples: Box<dyn Samples>,
    pub(super) hertz: Option<f64>,
}

impl Source {
    /// Opens it for a model that takes such inputs.
    pub(super) fn open(&self, takes: InputKind) -> anyhow::Result<Opened> {
        let form = self.from.unwrap_or(Form::of(&self.samples));
        if form != Form::Csv && (self.time.is_some() || !self.columns.is_empty()) {
            bail!("--columns and --time need a table: --from csv");
        }
        let (reader, name) = self.reader()?;
        let mut hertz = self.hertz;
        let samples: Box<dyn Samples> = match form {
            Form::Text => Box::new(Text::new(reader, name)),
            Form::Csv => {
                let columns = Columns {
                    inputs: self.columns.clone(),
                    time: self.time.clone(),
                };
                let rows = Rows::new(reader, name.clone(), &columns)?;
                require_width(
                    takes,
                    &name,
                    "columns (choose with --columns)",
                    rows.inputs(),
                )?;
                Box::new(rows)
            }
            Form::Wav => {
                let sound = Sound::from_reader(Box::new(reader), &name)?;
                require_width(takes, &name, "channels", sound.channels())?;
                hertz = hertz.or(Some(f64::from(sound.hertz())));
                Box::new(sound)
            }
            Form::F32 => Box::new(Raw::new(reader, name, Coding::F32)),
            Form::S16 => Box::new(Raw::new(reader, name, Coding::S16)),
            Form::S24 => Box::new(Raw::new(reader, name, Coding::S24)),
            Form::S32 => Box::new(Raw::new(reader, name, Coding::S32)),
            Form::U8 => Box::new(Raw::new(reader, name, Coding::U8)),
        };
        Ok(Opened { samples, hertz })
    }

    fn reader(&self) -> anyhow::Result<(Box<dyn BufRead>, String)> {
        let path = &self.samples;
        if path == Path::new("-") {
            let reader = Box::new(BufReader::new(io::stdin()));
            return Ok((reader, "standard input".to_string()));
        }
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| name.clone())?;
        Ok((Box::new(BufReader::new(file)), name))
    }
}

/// Refuses inputs of another width than the model's.
fn require_width(takes: InputKind, name: &str, what: &str, found: usize) -> anyhow::Result<()> {
    let taken = match takes {
        InputKind::Numbers { width } if width == found => return Ok(()),
        InputKind::Tokens { .. } if found == 1 && what != "channels" => return Ok(()),
        InputKind::Numbers { width } => format!("{width} numbers"),
        InputKind::Tokens { .. } => "1 token".to_string(),
    };
    bail!("{name} has {found} {what}, but the model takes {taken}")
}
