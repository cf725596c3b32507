//! Tables of numbers: one sequence a row, or a signal of one step a row.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::error::content;
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, files};

const BYTES_MAX: u64 = 1 << 30;
const STEPS_MAX: usize = 1 << 24;
/// More classes than any table has; below it every whole number is exact in single precision.
const CLASSES_MAX: f32 = 1e6;

/// Headings of a column with the class of each row.
const LABELS: [&str; 6] = ["label", "labels", "class", "target", "y", "category"];

/// A table of comma-separated numbers (.csv, perhaps .gz or .xz), with or without a line of headings.
///
/// Each row is a sequence of one number a step; a column with the heading `label`, `labels`, `class`,
/// `category`, `target` or `y` holds the class of each row, counted from 0. With `steps` each row is a
/// step, each column an input, and the rows are cut into sequences of so many; what is left at the
/// end is not used.
///
/// Keys: `steps`.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub(super) path: PathBuf,
    steps: Option<usize>,
}

/// A table's cells, and its headings where it has such.
struct Cells {
    headings: Vec<String>,
    rows: Vec<Vec<f32>>,
}

impl Table {
    /// Of a path whose ending shows what it is.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let plain = path.trim_end_matches(".gz").trim_end_matches(".xz");
        let ending = Path::new(plain).extension()?;
        ending.eq_ignore_ascii_case("csv").then(|| Self {
            path: path.into(),
            steps: None,
        })
    }

    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            path: options.path()?,
            steps: options.optional("steps", 1..=STEPS_MAX)?,
        })
    }

    pub(super) fn read(&self) -> Result<Dataset, DataError> {
        let mut cells = Cells::read(&self.path)?;
        let Some(steps) = self.steps else {
            let labels = cells.labels(&self.path)?;
            return self.sequences(&cells.rows, labels);
        };
        let width = cells.rows.first().map_or(0, Vec::len);
        let count = cells.rows.len() / steps;
        if count == 0 {
            let found = format!("{} rows", cells.rows.len());
            return Err(self.wrong(found, format!("at least steps={steps}")));
        }
        if let Some(row) = cells.rows.iter().position(|row| row.len() != width) {
            let found = format!("{} numbers in row {}", cells.rows[row].len(), row + 1);
            return Err(self.wrong(found, format!("{width}, as in the first")));
        }
        let values = cells.rows.into_iter().take(count * steps).flatten();
        Ok(Dataset::from_values(values.collect(), width, steps))
    }

    /// One sequence a row; shorter rows are padded with zeros.
    fn sequences(
        &self,
        rows: &[Vec<f32>],
        labels: Option<Vec<usize>>,
    ) -> Result<Dataset, DataError> {
        let length = rows.iter().map(Vec::len).max().unwrap_or(0);
        if length < 2 {
            let found = format!("{} rows of {length} numbers", rows.len());
            let expected = format!(
                "one sequence a row, or the steps of a sequence: csv:{},steps=N",
                self.path.display()
            );
            return Err(self.wrong(found, expected));
        }
        if let Some(empty) = rows.iter().position(Vec::is_empty) {
            let found = format!("no number in row {}", empty + 1);
            return Err(self.wrong(found, "at least one".to_string()));
        }
        let padded = rows.iter().flat_map(|row| {
            let missing = length - row.len();
            row.iter().copied().chain(std::iter::repeat_n(0.0, missing))
        });
        let mut data = Dataset::from_values(padded.collect(), 1, length);
        if rows.iter().any(|row| row.len() < length) {
            data = data.with_lengths(rows.iter().map(Vec::len).collect());
        }
        Ok(match labels {
            None => data,
            Some(labels) => {
                let classes = labels.iter().max().map_or(1, |most| most + 1);
                data.with_targets(Targets::Classes { labels, classes })
            }
        })
    }

    /// With its name, after which keys may stand.
    pub(super) fn named(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "csv:{}", self.path.display())?;
        self.steps
            .map_or(Ok(()), |steps| write!(f, ",steps={steps}"))
    }

    fn wrong(&self, found: String, expected: String) -> DataError {
        content(&self.path, found, expected)
    }
}

impl Cells {
    fn read(path: &Path) -> Result<Self, DataError> {
        let bytes = files::read(path, BYTES_MAX)?;
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(bytes.as_slice());
        let mut cells = Self {
            headings: Vec::new(),
            rows: Vec::new(),
        };
        for (index, record) in reader.records().enumerate() {
            let record = record.map_err(|error| content(path, error.to_string(), "a table"))?;
            let mut all: Vec<&str> = record.iter().collect();
            while all.last().is_some_and(|cell| cell.is_empty()) {
                all.pop();
            }
            let numbers = all.into_iter().map(|cell| number(cell).ok_or(cell));
            let numbers: Result<Vec<f32>, &str> = numbers.collect();
            match numbers {
                Ok(numbers) if numbers.is_empty() => {}
                Ok(numbers) => cells.rows.push(numbers),
                Err(_) if index == 0 && are_headings(&record) => {
                    cells.headings = record.iter().map(str::to_lowercase).collect();
                }
                Err(cell) => {
                    let found = format!("`{cell}` in line {}", index + 1);
                    return Err(content(path, found, "finite numbers with commas between"));
                }
            }
        }
        Ok(cells)
    }

    /// Takes the column of the classes out, where there is one.
    fn labels(&mut self, path: &Path) -> Result<Option<Vec<usize>>, DataError> {
        let mut headings = self.headings.iter();
        let Some(column) = headings.position(|name| LABELS.contains(&name.as_str())) else {
            return Ok(None);
        };
        let mut labels = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter_mut().enumerate() {
            let found = (column < row.len()).then(|| row.remove(column));
            let whole = found.filter(|class| *class >= 0.0 && class.fract() == 0.0);
            let whole = whole.filter(|class| *class < CLASSES_MAX);
            let Some(class) = whole else {
                let heading = &self.headings[column];
                let found = found.map_or("nothing".to_string(), |number| number.to_string());
                let found = format!("{found} in column `{heading}` of row {}", index + 1);
                return Err(content(path, found, "the number of a class, from 0"));
            };
            labels.push(class as usize);
        }
        Ok(Some(labels))
    }
}

/// Whether the cells of a first line are headings: none is a number, or one is that of the labels.
fn are_headings(line: &csv::StringRecord) -> bool {
    let is_label = |cell: &str| LABELS.contains(&cell.to_lowercase().as_str());
    line.iter().any(is_label) || line.iter().all(|cell| cell.parse::<f32>().is_err())
}

fn number(cell: &str) -> Option<f32> {
    cell.parse().ok().filter(|number: &f32| number.is_finite())
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.display().to_string();
        // With a colon or a comma in it a path is told apart by the name before it.
        let plain = !path.contains([':', ',']) && Self::of_path(&path).as_ref() == Some(self);
        match plain {
            true => f.write_str(&path),
            false => self.named(f),
        }
    }
}
