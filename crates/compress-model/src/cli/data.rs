//! `compress-model data`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use hankelite_archive::check_output;
use hankelite_data::{
    Batch, ConstantAnswer, Dataset, Source, Split, Steps, Targets, TrivialAnswer,
};
use serde::Serialize;

use crate::cli::common::{SPLITS, grouped, short, words};
use crate::cli::printer::Printer;

/// Characters of an example that are shown.
const EXAMPLE_MAX: usize = 600;
/// Channels of an example that are drawn.
const CHANNELS_MAX: usize = 4;
/// Classes whose counts are shown one by one.
const CLASSES_MAX: usize = 20;
/// Heights of a drawn step, lowest first.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const EXAMPLES: &str = "\
Examples:
  compress-model data mnist:data/mnist
  compress-model data imdb:aclImdb.tar.gz,length=1024 --split train --example 3
  compress-model data adding:length=200,count=1000,seed=1 --format json
  compress-model data fsdd:recordings --split train --output digits-train.safetensors

DATA is the path of a safetensors file, or name[:path][,key=value]... with one of these names:
  mnist:DIR        idx files; keys permuted (false), order (top-down, or bottom-up)
  fsdd:PATH        spoken digits, folder or archive; keys rate (1333), length (512), test_takes (5)
  imdb:PATH        reviews as bytes, folder or archive; keys length (4096)
  listops:PATH     trees from .tsv files; keys length (2000)
  text:FILE        the next byte of a text; keys length (256)
  arrays:FILE      a safetensors file
  (the six above also take count, the number of sequences, and seed, which chooses them)
  listops          keys max_length (2000), max_depth (10), max_args (10), min_length (500)
  recall           delayed recall; keys delay (100), classes (8), distractors (8)
  adding           keys length (300)
  copy             keys lag (100), score (all, or answer)
  lagged-sine      sine of a Gaussian process; keys length (1000), width (1)
  ar               keys lag (10), length (lag + 1), coefficient (0.9), variance (0.1), pairs (8),
                   scale (1)
  waves            waveforms in noise; keys length (256)
  sparse           signals with sparse codes; keys size (64), frames (20), active (4), change (0.1)
  sprites          blobs that bounce; keys frames (20), size (16), digits (2)
  moving-digits:DIR  MNIST digits that bounce; keys frames (20), size (16), digits (2)
  teacher          answers of a random transformer; keys length (16), width (8), heads (64),
                   teacher (0)
  (the eleven above also take count and held_out, the sequences for training and for test, and seed)
An archive is .tar, .tar.gz or .tar.xz. docs/data.md has the definitions.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The data set or task (see below).
    #[arg(value_name = "DATA")]
    source: Source,
    /// Print sizes and an example; without --output this happens anyway.
    #[arg(long)]
    describe: bool,
    /// One part only [default: all there are].
    #[arg(long, value_parser = words::<Split>(SPLITS))]
    split: Option<Split>,
    /// The sequence of each part that is shown, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    example: usize,
    /// Write the part as arrays to a safetensors file: inputs, lengths, labels or targets, mask.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    data: String,
    baseline: Option<TrivialAnswer>,
    parts: Vec<Description>,
}

/// One part of a data set.
#[derive(Serialize)]
struct Description {
    /// `null` where there are no parts.
    part: Option<Split>,
    sequences: usize,
    /// Stored steps.
    length: usize,
    /// True steps.
    lengths: Lengths,
    width: Option<usize>,
    vocabulary: Option<usize>,
    targets: &'static str,
    classes: Option<usize>,
    /// Sequences, or steps that count, of each class.
    class_counts: Option<Vec<usize>>,
    /// The best answer that does not look at the input.
    constant_answer: Option<ConstantAnswer>,
    notes: Vec<String>,
    example: Example,
}

#[derive(Serialize)]
struct Lengths {
    min: usize,
    mean: f64,
    max: usize,
}

/// One sequence without its padding.
#[derive(Serialize)]
struct Example {
    index: usize,
    /// L × width.
    values: Option<Vec<f32>>,
    tokens: Option<Vec<u32>>,
    /// The tokens as a person reads them.
    text: Option<String>,
    answer: Answer,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    None,
    Class(usize),
    Values(Vec<f32>),
    StepClasses(Vec<u32>),
    StepValues(Vec<f32>),
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let source = &arguments.source;
    let splits = splits(arguments)?;
    if let Some(file) = &arguments.output {
        let inputs: Vec<_> = source.path().into_iter().collect();
        check_output(file, &inputs)?;
    }
    let mut parts = Vec::new();
    for split in splits {
        let data = Dataset::read(source, split)?;
        parts.push(describe(source, split, &data, arguments.example)?);
        if let Some(file) = &arguments.output {
            data.write(file)?;
            printer.message(&format!("wrote {}", file.display()));
        }
    }
    if arguments.output.is_some() && !arguments.describe && !printer.is_json() {
        return Ok(());
    }
    let document = Document {
        data: source.to_string(),
        baseline: source.trivial_answer(),
        parts,
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    show(&document, printer)
}

/// The parts requested: all, or the one of `--split`.
fn splits(arguments: &Arguments) -> anyhow::Result<Vec<Option<Split>>> {
    let all = arguments.source.splits();
    Ok(match arguments.split {
        Some(part) => vec![Some(part)],
        None if all.is_empty() => vec![None],
        None if arguments.output.is_some() => {
            let names: Vec<String> = all.iter().map(Split::to_string).collect();
            bail!(
                "{} has parts, expected --split with --output ({})",
                arguments.source,
                names.join(", ")
            )
        }
        None => all.iter().copied().map(Some).collect(),
    })
}

fn describe(
    source: &Source,
    part: Option<Split>,
    data: &Dataset,
    example: usize,
) -> anyhow::Result<Description> {
    if example >= data.len() {
        bail!(
            "--example {example}, expected less than {}, the number of sequences",
            data.len()
        );
    }
    let (targets, class_counts) = counted(data.targets());
    Ok(Description {
        part,
        sequences: data.len(),
        length: data.length(),
        lengths: lengths(data),
        width: data.width(),
        vocabulary: data.vocabulary(),
        targets,
        classes: data.classes(),
        class_counts,
        constant_answer: data.constant_answer(),
        notes: data.notes().to_vec(),
        example: one(source, example, data.batch(&[example])),
    })
}

fn lengths(data: &Dataset) -> Lengths {
    let stored = data.length();
    let Some(all) = data.lengths() else {
        return Lengths {
            min: stored,
            mean: stored as f64,
            max: stored,
        };
    };
    Lengths {
        min: all.iter().copied().min().unwrap_or(0),
        mean: all.iter().sum::<usize>() as f64 / all.len() as f64,
        max: all.iter().copied().max().unwrap_or(0),
    }
}

/// What is answered, and how often each class.
fn counted(targets: &Targets) -> (&'static str, Option<Vec<usize>>) {
    let count = |labels: &mut dyn Iterator<Item = usize>, classes: usize| {
        let mut counts = vec![0; classes];
        labels.for_each(|label| counts[label] += 1);
        Some(counts)
    };
    match targets {
        Targets::None => ("none", None),
        Targets::Classes { labels, classes } => (
            "one class for each sequence",
            count(&mut labels.iter().copied(), *classes),
        ),
        Targets::Values { .. } => ("numbers for each sequence", None),
        Targets::StepClasses {
            labels,
            classes,
            mask,
        } => {
            let scored = labels.iter().enumerate();
            let scored = scored.filter(|(step, _)| mask.as_ref().is_none_or(|m| m[*step]));
            let mut scored = scored.map(|(_, &label)| label as usize);
            ("one class for each step", count(&mut scored, *classes))
        }
        Targets::StepValues { .. } => ("numbers for each step", None),
    }
}

fn one(source: &Source, index: usize, batch: Batch) -> Example {
    let steps = batch.lengths.map_or(batch.length, |lengths| lengths[0]);
    let (values, tokens) = match batch.steps {
        Steps::Values(mut values) => {
            values.truncate(steps * (values.len() / batch.length));
            (Some(values), None)
        }
        Steps::Tokens(mut tokens) => {
            tokens.truncate(steps);
            (None, Some(tokens))
        }
    };
    Example {
        index,
        text: tokens.as_ref().map(|tokens| source.spelled(tokens)),
        values,
        tokens,
        answer: match batch.targets {
            Targets::None => Answer::None,
            Targets::Classes { labels, .. } => Answer::Class(labels[0]),
            Targets::Values { values, .. } => Answer::Values(values),
            Targets::StepClasses { labels, .. } => Answer::StepClasses(labels),
            Targets::StepValues { values, .. } => Answer::StepValues(values),
        },
    }
}

fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&document.data)?;
    let header = [
        "part",
        "sequences",
        "length",
        "true min",
        "mean",
        "max",
        "width",
        "vocabulary",
        "constant answer",
    ];
    printer.table(&header, document.parts.iter().map(row).collect())?;
    if let Some(trivial) = &document.baseline {
        let floor = trivial.floor.map_or(String::new(), |floor| {
            format!("; lowest possible {}", short(floor))
        });
        printer.line(&format!(
            "trivial answer ({}): {} {}{floor}",
            trivial.answer,
            trivial.measure,
            short(trivial.loss)
        ))?;
    }
    for part in &document.parts {
        printer.line("")?;
        show_part(part, printer)?;
    }
    Ok(())
}

fn row(part: &Description) -> Vec<String> {
    let optional = |number: Option<usize>| number.map_or("-".to_string(), grouped);
    let constant = part.constant_answer.map_or("-".to_string(), |answer| {
        let share = answer
            .accuracy
            .map(|share| format!(" ({:.1} %)", 100.0 * share));
        short(answer.loss) + &share.unwrap_or_default()
    });
    vec![
        name(part),
        grouped(part.sequences),
        grouped(part.length),
        grouped(part.lengths.min),
        format!("{:.1}", part.lengths.mean),
        grouped(part.lengths.max),
        optional(part.width),
        optional(part.vocabulary),
        constant,
    ]
}

fn name(part: &Description) -> String {
    part.part.map_or("all".to_string(), |part| part.to_string())
}

fn show_part(part: &Description, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!("{}: {}", name(part), part.targets))?;
    if let Some(counts) = &part.class_counts {
        printer.line(&format!("  classes: {}", class_counts(counts)))?;
    }
    for note in &part.notes {
        printer.line(&format!("  note: {note}"))?;
    }
    let example = &part.example;
    printer.line(&format!("  example {}:", example.index))?;
    if let Some(values) = &example.values {
        draw(values, part.width.unwrap_or(1), printer)?;
    }
    if let Some(text) = &example.text {
        printer.line(&format!("  {}", readable(text)))?;
    }
    let own = matches!(&example.answer, Answer::StepValues(values) if Some(values) == example.values.as_ref());
    if own {
        return printer.line("  answer: the numbers of each step themselves");
    }
    match answer(&example.answer) {
        Some(text) => printer.line(&format!("  answer: {}", readable(&text))),
        None => Ok(()),
    }
}

fn class_counts(counts: &[usize]) -> String {
    if counts.len() > CLASSES_MAX {
        let (min, max) = (counts.iter().min(), counts.iter().max());
        return format!(
            "{}, each {} to {} times",
            counts.len(),
            grouped(*min.unwrap_or(&0)),
            grouped(*max.unwrap_or(&0))
        );
    }
    let each = counts.iter().enumerate();
    let each: Vec<String> = each
        .map(|(class, &count)| format!("{class}: {}", grouped(count)))
        .collect();
    each.join(", ")
}

/// Before the bars: the channel's number.
const LABEL: usize = 8;

/// A line of bars for each channel, from the channel's smallest value to its largest.
fn draw(values: &[f32], width: usize, printer: &Printer) -> anyhow::Result<()> {
    for channel in 0..width.min(CHANNELS_MAX) {
        let column: Vec<f32> = values
            .iter()
            .skip(channel)
            .step_by(width)
            .copied()
            .collect();
        let low = column.iter().copied().fold(f32::INFINITY, f32::min);
        let high = column.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let bars = sparkline(&column, printer.width().saturating_sub(LABEL), low, high);
        printer.picture(&format!("{channel}"), &bars)?;
        printer.line(&format!(
            "    {} to {}",
            short(low.into()),
            short(high.into())
        ))?;
    }
    if width > CHANNELS_MAX {
        printer.line(&format!("  and {} more channels", width - CHANNELS_MAX))?;
    }
    Ok(())
}

/// At most `width` bars; several steps in one bar are shown by the one farthest from their
/// channel's lowest value, so that single marks stay visible.
fn sparkline(values: &[f32], width: usize, low: f32, high: f32) -> String {
    let each = values.len().div_ceil(width.max(1)).max(1);
    let bar = |chunk: &[f32]| {
        let top = chunk.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let share = f64::from(top - low) / f64::from((high - low).max(f32::MIN_POSITIVE));
        HEIGHTS[((share * 7.0).round() as usize).min(7)]
    };
    values.chunks(each).map(bar).collect()
}

fn answer(answer: &Answer) -> Option<String> {
    let numbers = |values: &[f32]| {
        let values: Vec<String> = values.iter().map(|&value| short(value.into())).collect();
        values.join(" ")
    };
    Some(match answer {
        Answer::None => return None,
        Answer::Class(class) => format!("class {class}"),
        Answer::Values(values) | Answer::StepValues(values) => numbers(values),
        Answer::StepClasses(labels) => {
            let labels: Vec<String> = labels.iter().map(u32::to_string).collect();
            labels.join(" ")
        }
    })
}

/// Shortened in the middle, without characters that a terminal would obey.
fn readable(text: &str) -> String {
    let clean: Vec<char> = text
        .chars()
        .flat_map(|c| match c.is_control() {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect();
    if clean.len() <= EXAMPLE_MAX {
        return clean.into_iter().collect();
    }
    let (head, tail) = (
        &clean[..EXAMPLE_MAX / 2],
        &clean[clean.len() - EXAMPLE_MAX / 2..],
    );
    let text = |part: &[char]| part.iter().collect::<String>();
    format!("{} … {}", text(head), text(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_bars_keeps_single_marks() {
        assert_eq!(sparkline(&[0.0, 0.5, 1.0], 8, 0.0, 1.0), "▁▅█");
        assert_eq!(sparkline(&[0.0, 0.0, 1.0, 0.0], 2, 0.0, 1.0), "▁█");
        assert_eq!(sparkline(&[2.0; 3], 8, 2.0, 2.0), "▁▁▁");
        assert_eq!(sparkline(&[], 8, 0.0, 0.0), "");
    }

    #[test]
    fn long_texts_are_cut_in_the_middle_and_made_harmless() {
        assert_eq!(readable("a\u{1b}[1m\n"), "a\\u{1b}[1m\\n");
        let long = format!("{}b", "a".repeat(2000));
        assert!(readable(&long).ends_with("ab") && readable(&long).len() < 700);
    }
}
