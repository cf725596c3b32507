//! The model card of a smaller model.

use std::path::Path;

use hankelite::checkpoint::Provenance;

use crate::cli::common::grouped;
use crate::cli::report::{percent, typed_command};
use crate::cli::score::Scores;

/// What stands on a card.
pub(super) struct Card<'a> {
    /// The checkpoint that was written.
    pub(super) output: Option<&'a str>,
    /// The image that was written.
    pub(super) image: Option<&'a str>,
    pub(super) family: &'a str,
    /// Before and after.
    pub(super) parameters: [usize; 2],
    pub(super) scores: Option<[&'a Scores; 2]>,
    pub(super) made: &'a Provenance,
    /// What it was trained on, where it was.
    pub(super) trained: Option<String>,
    /// What changes of the logits were measured on, and their sizes.
    pub(super) changes: Vec<(String, f64)>,
    /// Further sections, such as sizes in bytes.
    pub(super) tables: Vec<Table>,
}

/// A section of a card: a table under a title.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

/// The scores before and after, where there are both.
pub(super) fn both<'a>(
    before: &'a Option<Scores>,
    after: &'a Option<Scores>,
) -> Option<[&'a Scores; 2]> {
    Some([before.as_ref()?, after.as_ref()?])
}

impl Table {
    fn markdown(&self) -> String {
        let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let rows = self.rows.iter().map(|row| {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            line(&cells)
        });
        let rows: String = rows.collect();
        let rule = "|---".repeat(self.header.len());
        format!("\n## {}\n{}{rule}|\n{rows}", self.title, line(&self.header))
    }
}

impl Card<'_> {
    /// The card in the form of Hugging Face: a head in YAML, then words.
    pub(super) fn markdown(&self) -> String {
        let name = Path::new(self.output.or(self.image).unwrap_or_default());
        let name = name.file_stem().unwrap_or_default().to_string_lossy();
        let family = self.family.to_lowercase();
        let head = format!(
            "---\ntags:\n- state-space-model\n- {family}\n- model-compression\n- hankelite\n---\n\n# {name}\n\n"
        );
        let mut tables: Vec<String> = self.tables.iter().map(Table::markdown).collect();
        tables.extend(self.evaluation().as_ref().map(Table::markdown));
        let tables = tables.concat();
        format!(
            "{head}{}{}{tables}\n## Limits\nNumbers that were copied from the source's file, such \
             as a stored accuracy or epoch, are those of the source. Licence and data are those of the source.\n",
            self.what(),
            self.origin().markdown(),
        )
    }

    fn what(&self) -> String {
        let (made, [before, after]) = (self.made, self.parameters);
        let smaller = format!(
            "A smaller version of `{}`: {} with {} instead of {} parameters.",
            made.source,
            self.family,
            grouped(after),
            grouped(before),
        );
        let loads = format!(
            "It loads in the code of the original with nothing changed but the state size, {:?} \
             instead of {:?}.",
            made.orders, made.orders_before
        );
        let runs = "is an image for `compress-model stream` and the library for devices.";
        let file = |path: &str| {
            let name = Path::new(path).file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        match (self.output, self.image) {
            (None, Some(_)) => format!("{smaller} It {runs}\n"),
            (_, None) => format!("{smaller} {loads}\n"),
            (_, Some(image)) => format!("{smaller} {loads} `{}` {runs}\n", file(image)),
        }
    }

    fn origin(&self) -> Table {
        let made = self.made;
        let row = |name: &str, text: String| vec![name.to_string(), text];
        let source = match made.source_sha256.as_str() {
            "" => format!("`{}`", made.source),
            hash => format!("`{}`, SHA-256 `{hash}`", made.source),
        };
        let mut rows = vec![row("source", source), row("method", made.method.clone())];
        let of = match &made.calibration {
            Some(calibration) => {
                let without = match self.trained {
                    Some(_) => "",
                    None => ", no training",
                };
                rows.push(row(
                    "calibrated on",
                    format!("{calibration}; no labels{without}"),
                ));
                "error of each layer's output for its own input"
            }
            None => "error of each layer's kernels",
        };
        rows.extend(self.trained.iter().map(|text| row("trained", text.clone())));
        let errors: Vec<String> = made.errors.iter().map(|&error| percent(error)).collect();
        let of = match self.trained {
            Some(_) => format!("{of}, before the training"),
            None => of.to_string(),
        };
        rows.push(row(&of, errors.join(", ")));
        for (on, change) in &self.changes {
            rows.push(row(&format!("change of the logits{on}"), percent(*change)));
        }
        rows.push(row("program", format!("compress-model {}", made.version)));
        rows.push(row("command", format!("`{}`", typed_command())));
        Table {
            title: "How it was made",
            header: vec!["", ""],
            rows,
        }
    }

    fn evaluation(&self) -> Option<Table> {
        let [before, after] = self.scores?;
        let name = format!("accuracy on {} sequences", after.examples);
        Some(Table {
            title: "Evaluation",
            header: vec!["", "before", "after"],
            rows: vec![vec![name, before.to_string(), after.to_string()]],
        })
    }
}
