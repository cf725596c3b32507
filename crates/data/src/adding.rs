//! The adding problem.

use std::fmt::Display;

use crate::generate::{LENGTH_MAX, SQUARED_ERROR, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// The adding problem: the sum of the two marked numbers.
///
/// ```text
/// x_t = (u_t, m_t),  t = 0 … L−1
/// u_t                uniform over [0, 1)
/// m_t                1 at t = i and t = j, else 0
/// i uniform over 0 … ⌊L/2⌋−1,  j uniform over ⌊L/2⌋ … L−1
/// y = u_i + u_j      one number for the sequence
/// ```
///
/// Hochreiter and Schmidhuber (1997), section 5.4, with one mark in each half as in Arjovsky,
/// Shah and Bengio (2016), section 5.3.
///
/// Keys: `length` L (300), `count` (10000), `held_out` (1000), `seed` (0). Trivial answer: always
/// 1, mean squared error Var(u_i + u_j) = 1/6.
#[derive(Debug, Clone, PartialEq)]
pub struct Adding {
    length: usize,
    sizes: Sizes,
}

impl Adding {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            length: options.number("length", 300, 2..=LENGTH_MAX)?,
            sizes: Sizes::parse(options, 10_000, 1000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let (length, half) = (self.length, self.length / 2);
        self.sizes.check(self, split, 2 * length)?;
        let rows = self.sizes.sequences(split, |draw| {
            let mut row: Vec<f32> = (0..length)
                .flat_map(|_| [draw.unit() as f32, 0.0])
                .collect();
            let marked = [draw.below(half), half + draw.below(length - half)];
            marked.iter().for_each(|t| row[2 * t + 1] = 1.0);
            let sum: f32 = marked.iter().map(|t| row[2 * t]).sum();
            (row, sum)
        });
        let (rows, values): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let targets = Targets::Values { values, width: 1 };
        Ok(Dataset::from_values(rows.concat(), 2, length).with_targets(targets))
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        TrivialAnswer {
            measure: SQUARED_ERROR,
            loss: 1.0 / 6.0,
            answer: "always 1: 1/6",
            floor: None,
        }
    }
}

impl Display for Adding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "adding:length={},{}", self.length, self.sizes)
    }
}
