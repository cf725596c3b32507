//! Delayed recall.

use std::fmt::Display;

use crate::generate::{CROSS_ENTROPY, LENGTH_MAX, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Delayed recall: name the symbol that was shown first.
///
/// ```text
/// x_0            uniform over 0 … K−1                 the cue
/// x_1 … x_delay  uniform over K … K+M−1               distractors
/// x_{delay+1}    K + M                                the question
/// y              x_0                                  one class for the sequence
/// ```
///
/// Length delay + 2, K classes, vocabulary K + M + 1. A memory task in the manner of the copy
/// task of Hochreiter and Schmidhuber (1997), with one symbol to keep; the definition is ours.
///
/// Keys: `delay` (100), `classes` K (8), `distractors` M (8), `count` (10000), `held_out` (1000),
/// `seed` (0). Trivial answer: the uniform one, ln K.
#[derive(Debug, Clone, PartialEq)]
pub struct Recall {
    delay: usize,
    classes: usize,
    distractors: usize,
    sizes: Sizes,
}

impl Recall {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            delay: options.number("delay", 100, 0..=LENGTH_MAX - 2)?,
            classes: options.number("classes", 8, 2..=1 << 15)?,
            distractors: options.number("distractors", 8, 1..=1 << 15)?,
            sizes: Sizes::parse(options, 10_000, 1000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let length = self.delay + 2;
        self.sizes.check(self, split, length)?;
        let rows = self.sizes.sequences(split, |draw| {
            let mut row = vec![draw.below(self.classes) as u32];
            let distractor = |_| (self.classes + draw.below(self.distractors)) as u32;
            row.extend((0..self.delay).map(distractor));
            row.push((self.classes + self.distractors) as u32);
            row
        });
        let targets = Targets::Classes {
            labels: rows.iter().map(|row| row[0] as usize).collect(),
            classes: self.classes,
        };
        let vocabulary = self.classes + self.distractors + 1;
        Ok(Dataset::from_tokens(rows.concat(), vocabulary, length).with_targets(targets))
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        TrivialAnswer {
            measure: CROSS_ENTROPY,
            loss: (self.classes as f64).ln(),
            answer: "all classes alike: ln K",
            floor: None,
        }
    }
}

impl Display for Recall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (delay, classes, sizes) = (self.delay, self.classes, self.sizes);
        let distractors = self.distractors;
        write!(
            f,
            "recall:delay={delay},classes={classes},distractors={distractors},{sizes}"
        )
    }
}
