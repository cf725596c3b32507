//! What all generated tasks share: how many sequences, which seed, what a trivial answer costs.

use std::fmt::Display;

use rayon::prelude::*;

use crate::draw::Draw;
use crate::options::{Options, SourceError};
use crate::{DataError, Split};

/// The longest sequence that a source may have.
pub(super) const LENGTH_MAX: usize = 1 << 24;
/// The most sequences that a source may have.
pub(super) const COUNT_MAX: usize = 1 << 24;
/// The most numbers or tokens in one part of a data set: 8 GiB of f32.
const VALUES_MAX: u128 = 1 << 31;

/// How many sequences, and from which seed. Sequence i of a part depends on the seed, the part
/// and i alone: a larger set begins with the smaller one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    count: usize,
    held_out: usize,
    seed: u64,
}

impl Sizes {
    /// Keys `count` (training sequences), `held_out` (validation and test sequences, each) and
    /// `seed`.
    pub(super) fn parse(
        options: &mut Options,
        count: usize,
        held_out: usize,
    ) -> Result<Self, SourceError> {
        Ok(Self {
            count: options.number("count", count, 1..=COUNT_MAX)?,
            held_out: options.number("held_out", held_out, 1..=COUNT_MAX)?,
            seed: options.number("seed", 0, 0..=u64::MAX)?,
        })
    }

    pub(super) fn of(&self, split: Split) -> usize {
        match split {
            Split::Train => self.count,
            Split::Validation | Split::Test => self.held_out,
        }
    }

    /// The random numbers of sequence `index` of a part.
    pub(super) fn draw(&self, split: Split, index: usize) -> Draw {
        Draw::new(self.seed, ((split as u64) << 40) | index as u64)
    }

    /// Every sequence of a part, on all cores, in order.
    pub(super) fn sequences<T: Send>(
        &self,
        split: Split,
        one: impl Fn(&mut Draw) -> T + Sync,
    ) -> Vec<T> {
        let indices = (0..self.of(split)).into_par_iter();
        indices.map(|i| one(&mut self.draw(split, i))).collect()
    }

    /// Whether a part with so many numbers in each sequence can be held.
    pub(super) fn check(
        &self,
        data: &impl Display,
        split: Split,
        each: usize,
    ) -> Result<(), DataError> {
        let values = self.of(split) as u128 * each as u128;
        if values > VALUES_MAX {
            let (data, most) = (data.to_string(), VALUES_MAX);
            return Err(DataError::TooLarge { data, values, most });
        }
        Ok(())
    }
}

impl Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            count,
            held_out,
            seed,
        } = self;
        write!(f, "count={count},held_out={held_out},seed={seed}")
    }
}

/// What an answer without skill costs on a generated task, by its definition.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct TrivialAnswer {
    /// `cross-entropy` (nats) or `mean squared error`.
    pub measure: &'static str,
    /// The expected loss of the trivial answer.
    pub loss: f64,
    /// The trivial answer.
    pub answer: &'static str,
    /// The lowest expected loss that can be reached, where it is not 0.
    pub floor: Option<f64>,
}

pub(super) const CROSS_ENTROPY: &str = "cross-entropy";
pub(super) const SQUARED_ERROR: &str = "mean squared error";
