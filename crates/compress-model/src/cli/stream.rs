//! `compress-model stream`.

use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use hankelite::model::InputKind;
use hankelite::stream::Runner;
use hankelite_data::Sound;

use crate::cli::common::{Declarations, Input, positive};
use crate::cli::image::{LayOut, open_streamed};
use crate::cli::printer::Printer;
use crate::cli::samples::{Raw, Samples, Text};

const EXAMPLES: &str = "\
Examples:
  seq 0 255 | awk '{ print sin($1 / 8) }' | compress-model stream model.pth --last
  compress-model stream model.pth --input sound.wav --every 1000 --class
  arecord -f FLOAT_LE -r 16000 -t raw | compress-model stream small.edge --from f32 --every 160
  compress-model stream text.pth --input tokens.txt --to f32 > logits.f32

Numbers of a step follow one another, separated by blanks, commas or new lines; for a model with an
embedding they are tokens. Every output is written before the next input is waited for. A model
that pools by the mean gives the outputs of the mean of all steps so far. With --format json every
output is a JSON array on a line of its own.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Where the samples come from: a file, `-` for standard input; a name that ends in .wav is
    /// sound, full scale being 1.
    #[arg(long = "input", value_name = "FILE", default_value = "-")]
    samples: PathBuf,
    /// How samples are written in it.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    from: Form,
    /// How outputs are written.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    to: Form,
    /// Write the outputs of every Nth step.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 1)]
    every: usize,
    /// Write the outputs of the last step only.
    #[arg(long, conflicts_with = "every")]
    last: bool,
    /// Write the index of the largest output instead of the outputs.
    #[arg(long, conflicts_with = "to")]
    class: bool,
    #[command(flatten)]
    lay_out: LayOut,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Numbers in decimals.
    Text,
    /// Raw f32 (tokens: u32), little-endian.
    F32,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let streamed = open_streamed(path, &arguments.lay_out, &arguments.declarations, printer)?;
    let runner = Runner::<f32>::from_image(streamed.image);
    let runner = runner.with_context(|| path.display().to_string())?;
    let mut samples = open_samples(arguments, &runner)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let shape = Shape {
        json: printer.is_json(),
        class: arguments.class,
        raw: arguments.to == Form::F32,
    };
    match pump(arguments, runner, samples.as_mut(), &mut out, shape) {
        Err(error) if is_broken_pipe(&error) => {
            // Whoever read the outputs has enough. What is left in the buffer goes nowhere.
            let _ = out.into_parts();
            Ok(())
        }
        outcome => outcome,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<io::Error>();
    source.is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe)
}

fn open_samples(arguments: &Arguments, runner: &Runner) -> anyhow::Result<Box<dyn Samples>> {
    let path = &arguments.samples;
    let named = || path.display().to_string();
    let is_sound = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("wav"));
    if is_sound {
        return open_sound(path, runner);
    }
    let (reader, name): (Box<dyn BufRead>, String) = match path == Path::new("-") {
        true => (
            Box::new(BufReader::new(io::stdin())),
            "standard input".to_string(),
        ),
        false => {
            let file = File::open(path).with_context(named)?;
            (Box::new(BufReader::new(file)), named())
        }
    };
    Ok(match arguments.from {
        Form::Text => Box::new(Text::new(reader, name)),
        Form::F32 => Box::new(Raw::new(reader, name)),
    })
}

fn open_sound(path: &Path, runner: &Runner) -> anyhow::Result<Box<dyn Samples>> {
    let sound = Sound::open(path)?;
    let width = sound.channels();
    let taken = match runner.takes() {
        InputKind::Numbers { width: expected } if expected == width => return Ok(Box::new(sound)),
        InputKind::Numbers { width } => format!("{width} numbers"),
        InputKind::Tokens { .. } => "1 token".to_string(),
    };
    let path = path.display();
    bail!("{path} has {width} channels, but the model takes {taken}")
}

/// Steps until the input ends.
fn pump(
    arguments: &Arguments,
    mut runner: Runner,
    samples: &mut dyn Samples,
    out: &mut dyn Write,
    shape: Shape,
) -> anyhow::Result<()> {
    let mut inputs = match runner.takes() {
        InputKind::Tokens { .. } => None,
        InputKind::Numbers { width } => Some(vec![0.0; width]),
    };
    let mut outputs = vec![0.0; runner.outputs()];
    let mut steps = 0u64;
    loop {
        // What is done is shown before the next input is waited for.
        if samples.would_wait() {
            out.flush()?;
        }
        if let Some(inputs) = &mut inputs {
            if !fill(inputs, samples)? {
                break;
            }
            outputs.copy_from_slice(runner.step(inputs)?);
        } else {
            let Some(token) = samples.token()? else { break };
            let stepped = runner.step_tokens(&[token]);
            outputs.copy_from_slice(stepped.with_context(|| samples.place())?);
        }
        steps += 1;
        if !arguments.last && steps.is_multiple_of(arguments.every as u64) {
            shape.write(out, &outputs)?;
        }
    }
    if arguments.last && steps > 0 {
        shape.write(out, &outputs)?;
    }
    Ok(out.flush()?)
}

/// The numbers of the next step; false at the end of the input.
fn fill(inputs: &mut [f32], samples: &mut dyn Samples) -> anyhow::Result<bool> {
    let expected = inputs.len();
    for (found, input) in inputs.iter_mut().enumerate() {
        match samples.number()? {
            Some(number) => *input = number,
            None if found == 0 => return Ok(false),
            None => bail!(
                "{}: the input ends within a step, after {found} of {expected} numbers",
                samples.place()
            ),
        }
    }
    Ok(true)
}

/// How outputs are written.
#[derive(Clone, Copy)]
struct Shape {
    json: bool,
    class: bool,
    raw: bool,
}

impl Shape {
    fn write(self, out: &mut dyn Write, outputs: &[f32]) -> io::Result<()> {
        if self.raw {
            return outputs
                .iter()
                .try_for_each(|y| out.write_all(&y.to_le_bytes()));
        }
        if self.class {
            return writeln!(out, "{}", largest(outputs));
        }
        let (open, between, close) = if self.json {
            ("[", ", ", "]")
        } else {
            ("", " ", "")
        };
        write!(out, "{open}")?;
        for (index, y) in outputs.iter().enumerate() {
            let before = if index == 0 { "" } else { between };
            match y.is_finite() || !self.json {
                true => write!(out, "{before}{y}")?,
                // JSON has no word for it.
                false => write!(out, "{before}null")?,
            }
        }
        writeln!(out, "{close}")
    }
}

/// The index of the largest output; of equal ones the first.
fn largest(outputs: &[f32]) -> usize {
    let mut best = 0;
    for (index, y) in outputs.iter().enumerate() {
        if *y > outputs[best] {
            best = index;
        }
    }
    best
}
