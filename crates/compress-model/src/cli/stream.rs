//! `compress-model stream`.

mod shape;
mod source;

use std::io;
use std::io::{BufWriter, Write};

use anyhow::{Context, bail};
use clap::Args;
use hankelite::model::InputKind;
use hankelite::stream::Runner;

use crate::cli::common::{Declarations, Input, Usage, positive};
use crate::cli::image::{LayOut, open_streamed};
use crate::cli::printer::Printer;
use crate::cli::samples::Samples;
use crate::cli::stream::shape::{Form, Moment, Shape};
use crate::cli::stream::source::{Opened, Source};

const EXAMPLES: &str = "\
Examples:
  seq 0 255 | awk '{ print sin($1 / 8) }' | compress-model stream model.pth --last
  compress-model stream model.pth --input sound.wav --every 1000 --class
  arecord -f S16_LE -r 16000 -t raw | compress-model stream small.edge --from s16 --every 160
  compress-model stream model.pth --input motion.csv --columns x,y,z --time t --to jsonl
  compress-model stream model-16k.pth --rate 16/8 --input sound-8k.wav --to jsonl --class
  compress-model stream text.pth --input tokens.txt --to f32 > logits.f32

Numbers of a step follow one another, separated by blanks, commas or new lines; for a model with an
embedding they are tokens. Every output is written before the next input is waited for. A model
that pools by the mean gives the outputs of the mean of all steps so far. With --format json every
output is a JSON array on a line of its own; --to jsonl writes objects with the step, counted from
1, and the time of its sample in seconds.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    source: Source,
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
    #[arg(long)]
    class: bool,
    #[command(flatten)]
    lay_out: LayOut,
    #[command(flatten)]
    declarations: Declarations,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    if arguments.class && arguments.to == Form::F32 {
        let text = "--class writes text, or with --to jsonl objects, and no raw f32";
        return Err(Usage(text.to_string()).into());
    }
    let path = &arguments.input.checkpoint;
    let streamed = open_streamed(path, &arguments.lay_out, &arguments.declarations, printer)?;
    let runner = Runner::<f32>::from_image(streamed.image);
    let runner = runner.with_context(|| path.display().to_string())?;
    let opened = arguments.source.open(runner.takes())?;
    let mut out = BufWriter::new(io::stdout().lock());
    let shape = Shape {
        form: arguments.to,
        json: printer.is_json(),
        class: arguments.class,
    };
    match pump(arguments, runner, opened, &mut out, shape) {
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

/// Steps until the input ends.
fn pump(
    arguments: &Arguments,
    mut runner: Runner,
    opened: Opened,
    out: &mut dyn Write,
    shape: Shape,
) -> anyhow::Result<()> {
    let Opened { mut samples, hertz } = opened;
    let samples = samples.as_mut();
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
            shape.write(out, &outputs, &moment(steps, hertz, samples))?;
        }
    }
    if arguments.last && steps > 0 {
        shape.write(out, &outputs, &moment(steps, hertz, samples))?;
    }
    Ok(out.flush()?)
}

fn moment(step: u64, hertz: Option<f64>, samples: &dyn Samples) -> Moment<'_> {
    Moment {
        step,
        hertz,
        stamp: samples.stamp(),
    }
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
