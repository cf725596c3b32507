//! Comma-separated rows, one for each step, as sensors write them.

use std::io::BufRead;

use anyhow::{Context, bail};

use crate::cli::samples::{Samples, come};

/// Longest line.
const LINE_MAX: usize = 1 << 16;

/// Which columns are read.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Columns {
    /// The inputs of the model by their headings; all but that of the time where none is named.
    pub(in crate::cli) inputs: Vec<String>,
    /// The time of each row.
    pub(in crate::cli) time: Option<String>,
}

/// Rows of cells. The first may hold headings.
pub(in crate::cli) struct Rows {
    lines: Lines,
    /// Cells of a row.
    width: usize,
    /// Where inputs stand in a row.
    inputs: Vec<usize>,
    time: Option<usize>,
    /// The row that is being read.
    row: csv::StringRecord,
    next: usize,
}

/// The lines of an input.
struct Lines {
    reader: Box<dyn BufRead>,
    name: String,
    line: usize,
    /// Whether another whole line has come.
    is_more: bool,
}

impl Rows {
    /// Reads the headings, or the first row where there are none.
    pub(in crate::cli) fn new(
        reader: Box<dyn BufRead>,
        name: String,
        columns: &Columns,
    ) -> anyhow::Result<Self> {
        let mut lines = Lines {
            reader,
            name,
            line: 0,
            is_more: false,
        };
        let first = lines.row()?.unwrap_or_default();
        let has_headings = first.iter().any(|cell| cell.parse::<f64>().is_err());
        let headings: Vec<&str> = match has_headings {
            true => first.iter().collect(),
            false => Vec::new(),
        };
        let find = |wanted: &String| {
            let place = headings.iter().position(|heading| heading == wanted);
            place.with_context(|| no_column(&lines.name, wanted, &headings))
        };
        let time = columns.time.as_ref().map(find).transpose()?;
        let inputs: Vec<usize> = match columns.inputs.as_slice() {
            [] => (0..first.len()).filter(|at| Some(*at) != time).collect(),
            named => named.iter().map(find).collect::<anyhow::Result<_>>()?,
        };
        let width = first.len();
        // Headings count as read to their end.
        let next = if has_headings { inputs.len() } else { 0 };
        Ok(Self {
            lines,
            width,
            inputs,
            time,
            row: first,
            next,
        })
    }

    /// Numbers of a step.
    pub(in crate::cli) fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The next cell; none at the end.
    fn cell(&mut self) -> anyhow::Result<Option<&str>> {
        if self.next == self.inputs.len() {
            let Some(row) = self.lines.row()? else {
                return Ok(None);
            };
            if row.len() != self.width {
                let (found, place) = (row.len(), self.place());
                bail!("{place}: {found} cells, expected {}", self.width);
            }
            (self.row, self.next) = (row, 0);
        }
        self.next += 1;
        Ok(self.row.get(self.inputs[self.next - 1]))
    }
}

fn no_column(name: &str, wanted: &str, headings: &[&str]) -> String {
    match headings {
        [] => format!("{name}: no headings in the first line, so no column `{wanted}`"),
        _ => format!(
            "{name}: no column `{wanted}`, expected one of `{}`",
            headings.join("`, `")
        ),
    }
}

impl Lines {
    /// The next line that is not blank, as cells.
    fn row(&mut self) -> anyhow::Result<Option<csv::StringRecord>> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(None);
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let mut reader = csv::ReaderBuilder::new()
                .has_headers(false)
                .trim(csv::Trim::All)
                .from_reader(line.as_slice());
            let mut row = csv::StringRecord::new();
            let read = reader.read_record(&mut row);
            let place = || format!("{}, line {}: no row of text", self.name, self.line);
            read.with_context(place)?;
            return Ok(Some(row));
        }
    }

    /// The next line with its end, empty at the end of the input.
    fn line(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.line += 1;
        loop {
            let buffer = come(&mut self.reader, &self.name)?;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            line.extend(&buffer[..taken]);
            self.is_more = buffer[taken..].contains(&b'\n');
            self.reader.consume(taken);
            if line.len() > LINE_MAX {
                bail!(
                    "{}, line {}: longer than {LINE_MAX} bytes",
                    self.name,
                    self.line
                );
            }
            if end.is_some() || taken == 0 {
                return Ok(line);
            }
        }
    }
}

impl Samples for Rows {
    fn number(&mut self) -> anyhow::Result<Option<f32>> {
        let Some(cell) = self.cell()? else {
            return Ok(None);
        };
        match cell.parse() {
            Ok(number) if f32::is_finite(number) => Ok(Some(number)),
            _ => {
                let cell = cell.to_string();
                bail!("{}: found `{cell}`, expected a finite number", self.place())
            }
        }
    }

    fn token(&mut self) -> anyhow::Result<Option<u32>> {
        let Some(cell) = self.cell()? else {
            return Ok(None);
        };
        match cell.parse() {
            Ok(token) => Ok(Some(token)),
            Err(_) => {
                let cell = cell.to_string();
                bail!(
                    "{}: found `{cell}`, expected a token (a whole number)",
                    self.place()
                )
            }
        }
    }

    fn place(&self) -> String {
        format!("{}, line {}", self.lines.name, self.lines.line)
    }

    fn would_wait(&self) -> bool {
        self.next == self.inputs.len() && !self.lines.is_more
    }

    fn stamp(&self) -> Option<&str> {
        self.row.get(self.time?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(content: &str, inputs: &[&str], time: Option<&str>) -> anyhow::Result<Rows> {
        let columns = Columns {
            inputs: inputs.iter().map(ToString::to_string).collect(),
            time: time.map(str::to_string),
        };
        let content: &'static [u8] = content.to_string().leak().as_bytes();
        Rows::new(Box::new(content), "here".to_string(), &columns)
    }

    fn all(rows: &mut Rows) -> Vec<f32> {
        std::iter::from_fn(|| rows.number().unwrap()).collect()
    }

    #[test]
    fn columns_are_read_by_their_headings_in_the_order_asked_for() {
        let table = "t, x,\"y, lateral\"\r\n0.0, 1, 2\n\n0.5, 3, -4e-1\n";
        let mut found = rows(table, &[], Some("t")).unwrap();
        assert_eq!(found.inputs(), 2);
        assert_eq!(all(&mut found), [1.0, 2.0, 3.0, -0.4]);
        assert_eq!(found.stamp(), Some("0.5"));
        let mut found = rows(table, &["y, lateral", "x"], None).unwrap();
        assert_eq!(all(&mut found), [2.0, 1.0, -0.4, 3.0]);
        assert_eq!(found.stamp(), None);
        // Without headings every column is an input.
        assert_eq!(
            all(&mut rows("1,2\n3,4", &[], None).unwrap()),
            [1.0, 2.0, 3.0, 4.0]
        );
        assert!(all(&mut rows("", &[], None).unwrap()).is_empty());
    }

    #[test]
    fn bad_cells_rows_and_names_are_named() {
        let fault = |table: &str, inputs: &[&str]| {
            let mut rows = match rows(table, inputs, None) {
                Ok(rows) => rows,
                Err(error) => return error.to_string(),
            };
            loop {
                if let Err(error) = rows.number() {
                    return error.to_string();
                }
            }
        };
        for (table, inputs, expected) in [
            (
                "a,b\n1,2\n1,nan\n",
                vec![],
                "here, line 3: found `nan`, expected a finite number",
            ),
            ("a,b\n1,2,3\n", vec![], "here, line 2: 3 cells, expected 2"),
            (
                "a,b\n1,2\n",
                vec!["c"],
                "here: no column `c`, expected one of `a`, `b`",
            ),
            (
                "1,2\n",
                vec!["a"],
                "here: no headings in the first line, so no column `a`",
            ),
        ] {
            assert_eq!(fault(table, &inputs), expected);
        }
        let long = format!("a\n{}\n", "1".repeat(LINE_MAX + 1));
        assert!(fault(&long, &[]).contains("here, line 2: longer than"));
    }
}
