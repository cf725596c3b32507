//! AR(lag): the next value of an autoregressive process.

use std::fmt::Display;

use crate::draw::Draw;
use crate::generate::{LENGTH_MAX, SQUARED_ERROR, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// AR(lag): the next value of X_t = a X_{t−lag} + ε_t from a window of the process.
///
/// ```text
/// ε_t ~ N(0, v),  X_t ~ N(0, v/(1 − a²)) for t < lag       (stationary from the first step)
/// f_k = 10000^(−k/P),  k = 0 … P−1
/// x_t = s (X_t, sin f_0 t, cos f_0 t, …, sin f_{P−1} t, cos f_{P−1} t),  t = 0 … L−1
/// y   = X_L                                                 one number for the sequence
/// ```
///
/// Every window is drawn on its own. Width 1 + 2P. The task of the comparison of recurrent
/// networks and shallow transformers (a = 0.9, v = 0.1, eight pairs, L = lag + 1, 5000 windows);
/// the frequencies and the scale s, which the paper leaves open, are keys.
///
/// Keys: `lag` (10), `length` L (lag + 1; at least lag, or the value needed is not seen),
/// `coefficient` a (0.9), `variance` v (0.1), `pairs` P (8), `scale` s (1), `count` (5000),
/// `held_out` (1000), `seed` (0). Trivial answer: always 0, v/(1 − a²); no answer is better than v.
#[derive(Debug, Clone, PartialEq)]
pub struct Autoregression {
    lag: usize,
    length: usize,
    coefficient: f64,
    variance: f64,
    pairs: usize,
    scale: f64,
    sizes: Sizes,
}

impl Autoregression {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        let lag = options.number("lag", 10, 1..=LENGTH_MAX - 1)?;
        Ok(Self {
            lag,
            length: options.number("length", lag + 1, lag..=LENGTH_MAX)?,
            coefficient: options.number("coefficient", 0.9, -0.9999..=0.9999)?,
            variance: options.number("variance", 0.1, 1e-12..=1e12)?,
            pairs: options.number("pairs", 8, 0..=512)?,
            scale: options.number("scale", 1.0, 1e-6..=1e6)?,
            sizes: Sizes::parse(options, 5000, 1000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let width = 1 + 2 * self.pairs;
        self.sizes.check(self, split, self.length * width)?;
        let positions: Vec<f32> = (0..self.length).flat_map(|t| self.position(t)).collect();
        let rows = self.sizes.sequences(split, |draw| {
            let process = self.process(draw);
            let mut row = positions.clone();
            for (x, value) in row.chunks_exact_mut(width).zip(&process) {
                x[0] = (self.scale * value) as f32;
            }
            (row, process[self.length] as f32)
        });
        let (rows, values): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let targets = Targets::Values { values, width: 1 };
        Ok(Dataset::from_values(rows.concat(), width, self.length).with_targets(targets))
    }

    /// X_0 … X_L.
    fn process(&self, draw: &mut Draw) -> Vec<f64> {
        let (noise, start) = (self.variance.sqrt(), self.stationary_variance().sqrt());
        let mut x: Vec<f64> = Vec::with_capacity(self.length + 1);
        for t in 0..=self.length {
            x.push(match t.checked_sub(self.lag) {
                Some(before) => self.coefficient * x[before] + noise * draw.normal(),
                None => start * draw.normal(),
            });
        }
        x
    }

    /// The tokens of step t, with a gap for X_t.
    fn position(&self, t: usize) -> Vec<f32> {
        let mut row = vec![0.0];
        for k in 0..self.pairs {
            let frequency = libm::pow(10_000.0, -(k as f64) / self.pairs as f64);
            let angle = frequency * t as f64;
            row.push((self.scale * libm::sin(angle)) as f32);
            row.push((self.scale * libm::cos(angle)) as f32);
        }
        row
    }

    fn stationary_variance(&self) -> f64 {
        self.variance / (1.0 - self.coefficient.powi(2))
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        TrivialAnswer {
            measure: SQUARED_ERROR,
            loss: self.stationary_variance(),
            answer: "always 0: v/(1 - a^2)",
            floor: Some(self.variance),
        }
    }
}

impl Display for Autoregression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ar:lag={},length={},", self.lag, self.length)?;
        let (a, v) = (self.coefficient, self.variance);
        write!(f, "coefficient={a},variance={v},")?;
        write!(
            f,
            "pairs={},scale={},{}",
            self.pairs, self.scale, self.sizes
        )
    }
}
