//! The copy problem.

use std::fmt::Display;

use crate::generate::{CROSS_ENTROPY, LENGTH_MAX, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Symbols that can stand in the message.
const SYMBOLS: usize = 8;
const BLANK: u32 = 8;
const GO: u32 = 9;
/// Length of the message.
const MESSAGE: usize = 10;

/// The copy problem: give the first ten symbols again, `lag` steps after the last of them.
///
/// ```text
/// x_0 … x_9              uniform over 0 … 7            the message
/// x_{lag+10}             9                             the question
/// all other x            8                             blank
/// y_{lag+10} … y_{lag+19} = x_0 … x_9,  all other y = 8   one class for each step
/// ```
///
/// Length lag + 20, vocabulary 10, classes 10 (the tenth is never right). Hochreiter and
/// Schmidhuber (1997) in the form of Arjovsky, Shah and Bengio (2016), section 5.1.
///
/// Keys: `lag` (100), `score` (`all`: every step counts, as in the papers; `answer`: only the last
/// ten), `count` (10000), `held_out` (1000), `seed` (0). Trivial answer: blank until the question,
/// then uniform over the eight symbols: 10 ln 8/(lag + 20), or ln 8 with `score=answer`.
#[derive(Debug, Clone, PartialEq)]
pub struct Copying {
    lag: usize,
    answer_only: bool,
    sizes: Sizes,
}

impl Copying {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            lag: options.number("lag", 100, 0..=LENGTH_MAX - 2 * MESSAGE)?,
            answer_only: options.choice("score", ["all", "answer"])?,
            sizes: Sizes::parse(options, 10_000, 1000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let (answer, length) = (self.lag + MESSAGE, self.lag + 2 * MESSAGE);
        self.sizes.check(self, split, length)?;
        let messages = self.sizes.sequences(split, |draw| {
            let symbols = (0..MESSAGE).map(|_| draw.below(SYMBOLS) as u32);
            symbols.collect::<Vec<_>>()
        });
        let mut tokens = vec![BLANK; length * messages.len()];
        let mut labels = tokens.clone();
        let rows = tokens.chunks_exact_mut(length);
        for ((x, y), message) in rows.zip(labels.chunks_exact_mut(length)).zip(&messages) {
            x[..MESSAGE].copy_from_slice(message);
            x[answer] = GO;
            y[answer..].copy_from_slice(message);
        }
        let mask = self.answer_only.then(|| {
            let steps = 0..labels.len();
            steps.map(|step| step % length >= answer).collect()
        });
        let targets = Targets::StepClasses {
            labels,
            classes: SYMBOLS + 2,
            mask,
        };
        Ok(Dataset::from_tokens(tokens, SYMBOLS + 2, length).with_targets(targets))
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        let each = (SYMBOLS as f64).ln();
        let steps = (self.lag + 2 * MESSAGE) as f64;
        let (loss, answer) = match self.answer_only {
            true => (each, "the eight symbols alike: ln 8"),
            false => (
                MESSAGE as f64 * each / steps,
                "blank, then the eight symbols alike: 10 ln 8/(lag + 20)",
            ),
        };
        TrivialAnswer {
            measure: CROSS_ENTROPY,
            loss,
            answer,
            floor: None,
        }
    }
}

impl Display for Copying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let score = if self.answer_only { "answer" } else { "all" };
        write!(f, "copy:lag={},score={score},{}", self.lag, self.sizes)
    }
}
