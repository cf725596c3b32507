//! The program's report, on what is open and on what was made of it.

use hankelite::ProgressSink;
use hankelite::calibrate::Calibration;
use hankelite::checkpoint::Checkpoint;
use hankelite::infer::{Network, Path};
use hankelite::model::Model;
use hankelite::target::Size;
use hankelite_report::{Accuracy, Footprint, Pair, Plotted, Story, grouped, page_html};
use serde::Deserialize;
use serde_json::json;

use crate::given::{listed, steps};
use crate::place::{File, sha256};
use crate::play::storage;
use crate::saved::Made;
use crate::{Fault, Reading, Session};

/// Steps over which kernels are compared where neither a length is declared nor there are data: those of
/// the program.
const KERNEL_LENGTH: usize = 1024;

/// What a report is about.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    /// Whether the smaller model stands beside the opened one.
    pub smaller: bool,
    /// Microseconds of a step of the opened model, and of the smaller one, as far as they were measured.
    pub microseconds: Vec<f64>,
}

impl Session {
    /// The report as HTML: that of `compress-model report`, with what was recorded of the reduction.
    ///
    /// # Errors
    /// For a smaller model before [`Session::reduce`], and as [`Plotted::layers`].
    pub fn report(&self, asked: &Asked, sink: &dyn ProgressSink) -> Result<String, Fault> {
        let made = match asked.smaller {
            true => Some(self.made()?),
            false => None,
        };
        let smaller = made
            .map(|made| made.systems(&self.checkpoint))
            .transpose()?;
        let smaller = smaller.as_deref();
        let calibration = self.statistics(sink)?;
        let (full, record) = (&self.checkpoint, made.map(|made| &made.record));
        let length = full.declared().length;
        let drawn = Plotted {
            full: &full.model,
            reduced: smaller.map(|smaller| &smaller.model),
            calibration: calibration.as_ref(),
            records: record.map(|record| &record.layers[..]),
            steps: length
                .or(calibration.as_ref().map(Calibration::length))
                .unwrap_or(KERNEL_LENGTH),
        };
        let layers = drawn.layers(sink)?;
        let page = self.story(asked, made, smaller)?.page(
            layers,
            &drawn,
            json!({ "checkpoint": self.name, "reduction": record }),
        );
        Ok(page_html(&page))
    }

    fn story(
        &self,
        asked: &Asked,
        made: Option<&Made>,
        smaller: Option<&Checkpoint>,
    ) -> Result<Story<'_>, Fault> {
        let (full, record) = (&self.checkpoint, made.map(|made| &made.record));
        let time = |which: usize| asked.microseconds.get(which).copied();
        Ok(Story {
            title: match made {
                None => self.name.clone(),
                Some(made) => format!("{} → {}", self.name, made.name),
            },
            family: full.family(),
            parameters: Pair {
                before: full.parameters_of_file(),
                after: record.map(|record| record.parameters_after),
            },
            footprint: self.footprint(full, time(0)).map(|before| Pair {
                before,
                after: smaller.and_then(|smaller| self.footprint(smaller, time(1))),
            }),
            layers_alone: full.is_layers_alone() || self.reading == Reading::Parts,
            accuracy: self.accuracies(made),
            logit_change: record.and_then(|record| {
                let which = match record.bytes_met {
                    true => "held-out sequences",
                    false => "the calibration sequences",
                };
                Some((record.logit_change?, which))
            }),
            assumptions: full.assumptions(),
            warnings: full.notes().to_vec(),
            provenance: self.origins(made)?,
        })
    }

    /// Absent where the network does not run sample by sample.
    fn footprint(&self, checkpoint: &Checkpoint, microseconds: Option<f64>) -> Option<Footprint> {
        if checkpoint.is_layers_alone() || self.reading == Reading::Parts {
            return None;
        }
        let size = Size::of(&checkpoint.model, &storage(checkpoint).ok()?).ok()?;
        Some(Footprint {
            bytes: size.total(),
            microseconds,
            stored: match checkpoint.storage() {
                Some(_) => "",
                None => " in single precision",
            },
        })
    }

    /// Of the sequences that do not calibrate.
    fn accuracies(&self, made: Option<&Made>) -> Option<Pair<Accuracy>> {
        let given = self.given.as_ref()?;
        let count = given.others.as_ref()?.len() as f64;
        let of = |share: f64| Accuracy {
            share,
            error: (share * (1.0 - share) / count).sqrt(),
        };
        let after = made.and_then(|made| made.record.accuracy.as_ref());
        Some(Pair {
            before: of(given.accuracy?),
            after: after.map(|accuracy| of(accuracy.reduced)),
        })
    }

    fn origins(&self, made: Option<&Made>) -> Result<Vec<(String, String)>, Fault> {
        let mut all = vec![(
            "Source".to_string(),
            self.identified(&self.name, &self.file)?,
        )];
        if let Some(made) = made {
            let smaller = self.identified(&made.name, &made.file)?;
            all.push(("Smaller model".to_string(), smaller));
        }
        if let Some(given) = &self.given {
            all.push(("Calibration".to_string(), given.origin.clone()));
        }
        let version = format!("hankelite.html {}", env!("CARGO_PKG_VERSION"));
        all.push(("Version".to_string(), version));
        Ok(all)
    }

    /// A file by its name, its bytes and, where all of it was read, its hash.
    fn identified(&self, name: &str, file: &File) -> Result<String, Fault> {
        let known = format!("{name}, {} bytes", grouped(file.length() as usize));
        Ok(match self.reading {
            Reading::Whole => format!("{known}, SHA-256 {}", sha256(file)?),
            Reading::Parts => known,
        })
    }

    /// Of what the layers get from the data.
    fn statistics(&self, sink: &dyn ProgressSink) -> Result<Option<Calibration>, Fault> {
        let Some(given) = &self.given else {
            return Ok(None);
        };
        let model: &Model = &self.checkpoint.model;
        let sequences = listed(&given.calibrating);
        let network = Network::new(model, steps(&sequences, model), Path::Auto)?;
        let gathered = Calibration::gather(&network.observed(sink), &sequences, &given.origin)?;
        Ok(Some(gathered))
    }
}
