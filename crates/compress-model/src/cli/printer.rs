//! The only place that prints.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::Table;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::cli::table::{Layout, hanging, length, wrapped};
use crate::cli::{Colour, Format, Global};

/// Columns that a picture takes when stdout is no terminal.
const WIDTH: usize = 80;
/// What results are fitted into: a window that is narrower breaks their lines, and longer lines than
/// the most are hard to read.
const COLUMNS: std::ops::RangeInclusive<usize> = 60..=200;

/// Prints data to stdout and messages to stderr, as the user requested.
#[derive(Clone, Copy)]
pub(super) struct Printer {
    json: bool,
    quiet: bool,
    verbose: bool,
    /// What lines are fitted into; `None` where stdout is a file or a pipe.
    columns: Option<usize>,
    colour_out: bool,
    colour_err: bool,
}

impl Printer {
    pub(super) fn new(global: &Global) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = |terminal: bool| match global.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => terminal && !no_colour,
        };
        Self {
            json: global.format == Format::Json,
            quiet: global.quiet,
            verbose: global.verbose,
            columns: columns(),
            colour_out: colour(std::io::stdout().is_terminal()),
            colour_err: colour(std::io::stderr().is_terminal()),
        }
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether tables of single layers are printed where a summary would do.
    pub(super) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// One JSON document on stdout.
    pub(super) fn json(&self, document: &impl Serialize) -> anyhow::Result<()> {
        out(&versioned(document)?)
    }

    /// A line for a person on stdout; nothing when JSON was requested.
    pub(super) fn line(&self, text: &str) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        match self.columns {
            None => out(text),
            Some(columns) => text
                .split('\n')
                .flat_map(|line| hanging(line, columns))
                .try_for_each(|line| out(&line)),
        }
    }

    /// A heading on stdout.
    pub(super) fn heading(&self, text: &str) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        let lines = match self.columns {
            None => vec![text.to_string()],
            Some(columns) => hanging(text, columns),
        };
        let mut lines = lines.iter();
        lines.try_for_each(|line| out(&paint(line, "1", self.colour_out)))
    }

    /// The bars of a picture on stdout, behind the label of their row.
    pub(super) fn picture(&self, label: &str, bars: &str) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        let bars = paint(bars, "36", self.colour_out);
        out(&format!("  {label} │{bars}"))
    }

    /// A table on stdout; every column but the first is a number.
    pub(super) fn table(&self, header: &[&str], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
        let mut widths = vec![0; header.len()];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(length(cell));
            }
        }
        let layout = Layout::new(header, &widths, self.columns);
        self.rows(&layout.lines(&rows))
    }

    /// Lines of a table, as they are.
    fn rows(&self, lines: &[String]) -> anyhow::Result<()> {
        match self.json {
            true => Ok(()),
            false => lines.iter().try_for_each(|line| out(line)),
        }
    }

    /// A table whose rows appear as they are made: the width of every column is known beforehand.
    /// In a window that is too narrow, the columns that may stand aside go into a line below each
    /// row.
    pub(super) fn growing(&self, columns: &[Column<'_>]) -> anyhow::Result<Growing<'_>> {
        let layout = |shown: &[usize]| {
            let header: Vec<&str> = shown.iter().map(|&index| columns[index].name).collect();
            let widths: Vec<usize> = shown.iter().map(|&index| columns[index].least).collect();
            Layout::new(&header, &widths, self.columns)
        };
        let all: Vec<usize> = (0..columns.len()).collect();
        let (mut whole, mut aside) = (layout(&all), Vec::new());
        let mut shown = all;
        if !whole.is_whole() {
            (aside, shown) = shown.into_iter().partition(|&index| columns[index].aside);
            whole = layout(&shown);
        }
        let aside = aside.into_iter();
        let table = Growing {
            printer: self,
            aside: aside
                .map(|index| (index, columns[index].name.to_string()))
                .collect(),
            shown,
            layout: whole,
        };
        self.rows(&table.layout.head())?;
        Ok(table)
    }

    /// A remark on stderr.
    pub(super) fn message(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Something that was assumed or repaired, on stderr.
    pub(super) fn note(&self, kind: &str, text: &str) {
        let text = printable(text);
        let kind = paint(&format!("{kind}:"), "33", self.colour_err);
        self.message(&format!("{kind} {text}"));
    }

    /// An error with its causes, on stderr, also when quiet.
    pub(super) fn error(&self, kind: &str, error: &anyhow::Error, hint: Option<&str>) {
        let mut stderr = std::io::stderr();
        if self.json {
            let _ = writeln!(stderr, "{}", failure(kind, &causes(error), hint));
            return;
        }
        let mark = paint("error:", "1;31", self.colour_err);
        let _ = writeln!(stderr, "{mark} {}", causes(error));
        if let Some(hint) = hint {
            let mark = paint("hint:", "1;36", self.colour_err);
            let _ = writeln!(stderr, "{mark} {hint}");
        }
    }

    /// A progress bar on stderr; it draws nothing when quiet or when stderr is no terminal.
    pub(super) fn progress(&self, length: usize, what: &str) -> ProgressBar {
        let bar = ProgressBar::new(length as u64);
        if self.quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = "{msg} [{bar:30}] {pos}/{len} {rate}/s eta {eta}";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&rate(state.per_sec()));
        };
        bar.set_style(style.with_key("rate", rate).progress_chars("=> "));
        bar.set_message(what.to_string());
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// Columns for a picture with its labels.
    pub(super) fn width(&self) -> usize {
        self.columns.unwrap_or(WIDTH)
    }
}

/// Counts up when a field of a JSON document changes its name or its meaning, or goes; not when one
/// is added.
const SCHEMA_VERSION: u32 = 1;

/// A document with the version of its form.
#[derive(Serialize)]
struct Versioned<'a, D> {
    schema_version: u32,
    #[serde(flatten)]
    document: &'a D,
}

/// A document as it is printed and kept in a file.
pub(super) fn versioned(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Versioned {
        schema_version: SCHEMA_VERSION,
        document,
    })
}

/// An error as a JSON document in one line. `kind` is `run` or `usage`.
pub(super) fn failure(kind: &str, message: &str, hint: Option<&str>) -> String {
    serde_json::json!({
        "schema_version": SCHEMA_VERSION,
        "error": { "kind": kind, "message": message, "hint": hint },
    })
    .to_string()
}

/// Steps a second to two figures at least.
fn rate(per_second: f64) -> String {
    match per_second {
        fast if fast >= 10.0 => format!("{fast:.0}"),
        slow if slow >= 1.0 => format!("{slow:.1}"),
        slower => format!("{slower:.2}"),
    }
}

/// A column of a table that is printed row by row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column<'a> {
    pub(super) name: &'a str,
    /// The width of its widest cell.
    pub(super) least: usize,
    /// Whether it may stand in a line below the row where the window is narrow.
    pub(super) aside: bool,
}

/// A table that is printed row by row.
pub(super) struct Growing<'a> {
    printer: &'a Printer,
    layout: Layout,
    /// The columns that it shows.
    shown: Vec<usize>,
    /// Those in the line below each row, with their names.
    aside: Vec<(usize, String)>,
}

impl Growing<'_> {
    /// One more row; every cell but the first is a number.
    pub(super) fn row(&self, cells: &[String]) -> anyhow::Result<()> {
        let shown = self.shown.iter().map(|&index| cells[index].clone());
        let shown: Vec<String> = shown.collect();
        self.printer.rows(&self.layout.row(&shown))?;
        let aside = self.aside.iter();
        let aside = aside.filter(|(index, _)| !["", "-"].contains(&cells[*index].as_str()));
        let aside: Vec<String> = aside
            .map(|(index, name)| format!("{name} {}", cells[*index]))
            .collect();
        if aside.is_empty() {
            return Ok(());
        }
        let width = self.printer.width() - MARGIN;
        let lines = wrapped(&aside.join(", "), width);
        let lines = lines.iter().map(|line| format!("{:MARGIN$}{line}", ""));
        self.printer.rows(&lines.collect::<Vec<_>>())
    }
}

/// Before what stands below a row.
const MARGIN: usize = 4;

/// The columns of the terminal, or as the variable COLUMNS has them; `None` where stdout is no
/// terminal and there is no such variable.
fn columns() -> Option<usize> {
    let stated = std::env::var("COLUMNS").ok();
    let stated = stated.and_then(|text| text.parse::<usize>().ok());
    let found = stated.or_else(|| Table::new().width().map(usize::from));
    Some(found?.clamp(*COLUMNS.start(), *COLUMNS.end()))
}

/// The error and its causes in one line, each once: many errors of the libraries repeat
/// their cause in their own text, and some name the file that is named around them.
fn causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if cause.starts_with(&format!("{text}: ")) {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    printable(&text)
}

/// Longest message that is shown; names in a file can be of any length.
const MESSAGE_MAX: usize = 2000;

/// Names from a file may hold control characters that a terminal would obey.
fn printable(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(MESSAGE_MAX) {
        if c == '\n' || !(c.is_control() || ('\u{200b}'..='\u{202e}').contains(&c)) {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
    if text.chars().nth(MESSAGE_MAX).is_some() {
        out.push_str(" ...");
    }
    out
}

fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_string()
    }
}

/// Writes to stdout. A reader that went away (`| head`) is no error.
fn out(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_once() {
        let within = |outer: &str| anyhow::anyhow!("a.pth: no layer").context(outer.to_string());
        assert_eq!(causes(&within("a.pth")), "a.pth: no layer");
        assert_eq!(causes(&within("b.pth")), "b.pth: a.pth: no layer");
        assert_eq!(causes(&within("a.pt")), "a.pt: a.pth: no layer");
    }

    #[test]
    fn rates_have_the_figures_that_matter() {
        let rates = [288.4, 12.0, 9.94, 1.0, 0.123].map(rate);
        assert_eq!(rates, ["288", "12", "9.9", "1.0", "0.12"]);
    }
}
