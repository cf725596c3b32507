//! What a pipeline gives: means over the seeds, as text, Markdown, JSON and a picture.

use std::collections::BTreeMap;

use hankelite_train::Folder;
use serde::Serialize;

use crate::cli::pipeline::settings::{ARMS, Arm, Config};
use crate::cli::pipeline::study::Row;
use crate::cli::printer::{Printer, versioned};
use crate::cli::report::WrittenReport;
use crate::cli::training::Measured;
use crate::report::{Captions, Curve, curves_with_errors_svg};

/// Mean, standard error and number of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Mean {
    pub(super) mean: f64,
    /// Absent for a single value.
    pub(super) standard_error: Option<f64>,
    pub(super) count: usize,
}

impl Mean {
    /// `None` for no values. The standard error is that of independent values: √(s²/n) with the
    /// unbiased s².
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let variance = squares / (count as f64 - 1.0) / count as f64;
        Some(Self {
            mean,
            standard_error: (count > 1).then(|| variance.sqrt()),
            count,
        })
    }

    pub(super) fn shown(&self, digits: usize) -> String {
        match self.standard_error {
            Some(error) => format!("{:.digits$} ± {error:.digits$}", self.mean),
            None => format!("{:.digits$}", self.mean),
        }
    }
}

/// One arm at one order.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    pub(super) order: usize,
    pub(super) arm: Arm,
    pub(super) before: Mean,
    pub(super) after: Mean,
    /// The reduced start less this arm, after training, seed by seed.
    pub(super) behind_reduced: Option<Mean>,
    /// The unreduced network trained on less this arm, after training, seed by seed.
    pub(super) behind_unreduced: Option<Mean>,
    pub(super) parameters: usize,
    /// Of weights and state in single precision, where known.
    pub(super) bytes: Option<usize>,
    pub(super) steps: Mean,
    pub(super) seconds: Mean,
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// `accuracy in %`, or `loss`.
    pub(super) measure: &'static str,
    pub(super) seeds: Vec<u64>,
    pub(super) pretrained: Option<Mean>,
    pub(super) cells: Vec<Cell>,
    rows: Vec<Row>,
    /// The page for a browser, where one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<WrittenReport>,
    #[serde(skip)]
    pub(super) digits: usize,
    #[serde(skip)]
    pub(super) full: usize,
}

impl Report {
    pub(super) fn new(config: &Config, rows: Vec<Row>) -> Self {
        let accuracy = rows.iter().all(|row| row.after.accuracy.is_some());
        let value = |measured: &Measured| match (accuracy, measured.accuracy) {
            (true, Some(accuracy)) => 100.0 * accuracy,
            _ => measured.loss,
        };
        let pretrained: Vec<f64> = rows
            .iter()
            .filter(|row| row.arm.is_none())
            .map(|row| value(&row.after))
            .collect();
        let full = rows.iter().map(|row| row.order).max().unwrap_or(0);
        let mut groups: BTreeMap<(std::cmp::Reverse<usize>, Arm), Vec<&Row>> = BTreeMap::new();
        for row in &rows {
            if let Some(arm) = row.arm {
                let key = (std::cmp::Reverse(row.order), arm);
                groups.entry(key).or_default().push(row);
            }
        }
        let after = |seed: u64, order: usize, arm: Arm| {
            let wanted = |row: &&Row| (row.seed, row.order, row.arm) == (seed, order, Some(arm));
            rows.iter().find(wanted).map(|row| value(&row.after))
        };
        let cell = |(&(order, arm), group): (&(std::cmp::Reverse<usize>, Arm), &Vec<&Row>)| {
            let order = order.0;
            let mean = |get: &dyn Fn(&Row) -> Option<f64>| {
                let values: Vec<f64> = group.iter().filter_map(|row| get(row)).collect();
                Mean::of(&values)
            };
            let behind = |other: usize| {
                mean(&|row| Some(after(row.seed, other, Arm::Reduced)? - value(&row.after)))
            };
            Some(Cell {
                order,
                arm,
                before: mean(&|row| Some(value(&row.before)))?,
                after: mean(&|row| Some(value(&row.after)))?,
                behind_reduced: behind(order).filter(|_| arm != Arm::Reduced),
                behind_unreduced: behind(full).filter(|_| order != full),
                parameters: group.first()?.parameters,
                bytes: group.first()?.bytes,
                steps: mean(&|row| Some(row.steps as f64))?,
                seconds: mean(&|row| Some(row.seconds))?,
            })
        };
        Self {
            measure: if accuracy { ACCURACY } else { "loss" },
            seeds: config.seeds.clone(),
            pretrained: Mean::of(&pretrained),
            cells: groups.iter().filter_map(cell).collect(),
            digits: if accuracy { 2 } else { 4 },
            full,
            rows,
            report: None,
        }
    }

    /// Whether larger values are better: accuracies, not losses.
    pub(super) fn is_accuracy(&self) -> bool {
        self.measure == ACCURACY
    }

    /// Writes the three files of the report.
    pub(super) fn keep(&self, root: &Folder) -> anyhow::Result<()> {
        root.write("report.json", versioned(self)?.as_bytes())?;
        root.write("report.md", self.markdown().as_bytes())?;
        Ok(root.write("report.svg", self.picture().as_bytes())?)
    }

    /// Prints the table.
    pub(super) fn show(&self, root: &Folder, printer: &Printer) -> anyhow::Result<()> {
        if printer.is_json() {
            return printer.json(self);
        }
        printer.heading(&self.title())?;
        let (header, rows) = self.table();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        printer.table(&header, rows)?;
        let (header, rows) = self.distances();
        if !rows.is_empty() {
            printer.line("")?;
            printer.heading(BEHIND)?;
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            printer.table(&header, rows)?;
        }
        let place = root.path().display();
        printer.line(&format!(
            "wrote report.md, report.json and report.svg in {place}"
        ))?;
        match &self.report {
            Some(report) => report.show(printer),
            None => Ok(()),
        }
    }

    fn title(&self) -> String {
        let pretrained = self.pretrained.map_or(String::new(), |mean| {
            format!("; after pretraining {}", mean.shown(self.digits))
        });
        format!(
            "{} of the test part, before → after training, mean ± standard error over \
             {}{pretrained}",
            self.measure,
            self.counted_seeds()
        )
    }

    /// "3 seeds", and fewer where a run is not at its end.
    pub(super) fn counted_seeds(&self) -> String {
        let counts = || self.cells.iter().map(|cell| cell.after.count);
        let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        match least == most {
            true if most == 1 => "1 seed".to_string(),
            true => format!("{most} seeds"),
            false => format!("{least} to {most} seeds: not all are finished"),
        }
    }

    pub(super) fn arms(&self) -> Vec<Arm> {
        let there = |arm: &Arm| self.cells.iter().any(|cell| cell.arm == *arm);
        ARMS.into_iter().filter(there).collect()
    }

    pub(super) fn orders(&self) -> Vec<usize> {
        let mut orders: Vec<usize> = self.cells.iter().map(|cell| cell.order).collect();
        orders.dedup();
        orders
    }

    pub(super) fn cell(&self, order: usize, arm: Arm) -> Option<&Cell> {
        let wanted = |cell: &&Cell| (cell.order, cell.arm) == (order, arm);
        self.cells.iter().find(wanted)
    }

    /// One row for each order, one column for each arm.
    fn grid(&self, show: impl Fn(&Cell) -> String) -> (Vec<String>, Vec<Vec<String>>) {
        let arms = self.arms();
        let mut header = vec!["states".to_string()];
        header.extend(arms.iter().map(|arm| arm.name().to_string()));
        let row = |order: usize| {
            let mut row = vec![order.to_string()];
            let cells = arms.iter().map(|&arm| self.cell(order, arm));
            row.extend(cells.map(|cell| cell.map_or("–".to_string(), &show)));
            row
        };
        (header, self.orders().into_iter().map(row).collect())
    }

    fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let digits = self.digits;
        self.grid(|cell| {
            format!(
                "{} → {}",
                cell.before.shown(digits),
                cell.after.shown(digits)
            )
        })
    }

    /// Differences after training, seed by seed.
    fn distances(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let digits = self.digits;
        let show = |mean: Option<Mean>| mean.map_or("–".to_string(), |mean| mean.shown(digits));
        let mut header = vec!["states".to_string(), "unreduced − reduced".to_string()];
        let others: Vec<Arm> = self.arms().into_iter().skip(1).collect();
        header.extend(others.iter().map(|arm| format!("reduced − {}", arm.name())));
        let mut rows = Vec::new();
        for order in self
            .orders()
            .into_iter()
            .filter(|&order| order != self.full)
        {
            let Some(reduced) = self.cell(order, Arm::Reduced) else {
                continue;
            };
            let mut row = vec![order.to_string(), show(reduced.behind_unreduced)];
            for &arm in &others {
                row.push(show(
                    self.cell(order, arm).and_then(|cell| cell.behind_reduced),
                ));
            }
            rows.push(row);
        }
        (header, rows)
    }

    fn markdown(&self) -> String {
        let mut text = format!("{}\n\n", self.title());
        text.push_str(&markdown_table(&self.table()));
        text.push_str(&format!("\n{BEHIND}\n\n"));
        text.push_str(&markdown_table(&self.distances()));
        text.push_str("\nSteps and seconds of one training, parameters\n\n");
        let spent = self.grid(|cell| {
            format!(
                "{:.0}, {:.0} s, {}",
                cell.steps.mean, cell.seconds.mean, cell.parameters
            )
        });
        text.push_str(&markdown_table(&spent));
        text
    }

    fn picture(&self) -> String {
        let mut curves = Vec::new();
        let mut errors = Vec::new();
        let mut add = |name: String, cells: Vec<(usize, Mean)>| {
            let mut cells = cells;
            cells.sort_by_key(|(order, _)| *order);
            let points = cells.iter().map(|(order, mean)| (*order as f64, mean.mean));
            let spread = cells.iter().map(|(_, mean)| mean.standard_error);
            errors.push(spread.map(|error| error.unwrap_or(0.0)).collect());
            curves.push(Curve {
                name,
                points: points.collect(),
            });
        };
        for arm in self.arms() {
            let cells = self.cells.iter().filter(|cell| cell.arm == arm);
            let after = cells.clone().map(|cell| (cell.order, cell.after)).collect();
            add(format!("{}, after", arm.name()), after);
            if arm == Arm::Reduced {
                let before = cells.map(|cell| (cell.order, cell.before)).collect();
                add(format!("{}, before", arm.name()), before);
            }
        }
        let captions = Captions {
            title: "before and after main training, mean and standard error over seeds",
            x: "states of each channel",
            y: self.measure,
        };
        curves_with_errors_svg(&curves, &errors, &captions)
    }
}

const ACCURACY: &str = "accuracy in %";

const BEHIND: &str = "Differences after training, seed by seed, mean ± standard error";

fn markdown_table((header, rows): &(Vec<String>, Vec<Vec<String>>)) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header);
    text.push_str(&line(&vec!["---".to_string(); header.len()]));
    rows.iter().for_each(|row| text.push_str(&line(row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_the_standard_error_of_independent_values() {
        assert_eq!(Mean::of(&[]), None);
        let one = Mean::of(&[3.0]).unwrap();
        assert_eq!((one.mean, one.standard_error, one.count), (3.0, None, 1));
        assert_eq!(one.shown(1), "3.0");
        // s² = 1, n = 3.
        let three = Mean::of(&[1.0, 2.0, 3.0]).unwrap();
        let error = three.standard_error.unwrap();
        assert!((error - (1.0f64 / 3.0).sqrt()).abs() < 1e-15);
        assert_eq!(three.shown(2), "2.00 ± 0.58");
    }
}
