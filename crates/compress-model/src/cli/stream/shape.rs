//! How outputs are written.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

/// How outputs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// Numbers in decimals.
    Text,
    /// Raw f32, little-endian.
    F32,
    /// A JSON object on each line: `step`, `time` in seconds, `outputs`.
    Jsonl,
}

/// What is written of the outputs of a step.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) form: Form,
    /// Whether text is JSON arrays.
    pub(super) json: bool,
    pub(super) class: bool,
}

/// When a step was.
pub(super) struct Moment<'a> {
    /// Counted from 1.
    pub(super) step: u64,
    pub(super) hertz: Option<f64>,
    /// What the input says.
    pub(super) stamp: Option<&'a str>,
}

/// A time of the input is a number where it looks like one.
#[derive(Serialize)]
#[serde(untagged)]
enum Time<'a> {
    Seconds(f64),
    Text(&'a str),
}

#[derive(Serialize)]
struct Line<'a> {
    step: u64,
    time: Option<Time<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<usize>,
}

impl<'a> Moment<'a> {
    fn time(&self) -> Option<Time<'a>> {
        if let Some(stamp) = self.stamp {
            let number = stamp.parse().ok().filter(|number: &f64| number.is_finite());
            return Some(number.map_or(Time::Text(stamp), Time::Seconds));
        }
        Some(Time::Seconds((self.step - 1) as f64 / self.hertz?))
    }
}

impl Shape {
    pub(super) fn write(
        self,
        out: &mut dyn Write,
        outputs: &[f32],
        moment: &Moment<'_>,
    ) -> io::Result<()> {
        match self.form {
            Form::F32 => outputs
                .iter()
                .try_for_each(|y| out.write_all(&y.to_le_bytes())),
            Form::Jsonl => {
                let line = Line {
                    step: moment.step,
                    time: moment.time(),
                    outputs: (!self.class).then_some(outputs),
                    class: self.class.then(|| largest(outputs)),
                };
                serde_json::to_writer(&mut *out, &line)?;
                writeln!(out)
            }
            Form::Text if self.class => writeln!(out, "{}", largest(outputs)),
            Form::Text => self.numbers(out, outputs),
        }
    }

    fn numbers(self, out: &mut dyn Write, outputs: &[f32]) -> io::Result<()> {
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
