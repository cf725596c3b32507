//! The lagged sine of a Gaussian process.

use std::fmt::Display;

use crate::draw::Draw;
use crate::generate::{LENGTH_MAX, SQUARED_ERROR, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Correlations below this share change no double: h(t) is taken as 0 there.
const NEGLIGIBLE: f64 = 1e-20;
/// Above this width the covariance is singular to rounding.
const WIDTH_WITHOUT_JITTER: f64 = 3.0;
/// Relative to h(0).
const JITTER: f64 = 1e-10;
/// The most entries of the factor: 1 GiB.
const FACTOR_MAX: u128 = 1 << 27;

/// The sine of the middle value of a Gaussian process with mean 1.
///
/// ```text
/// E x_i = 1,  Cov(x_i, x_j) = h(i − j),  h(t) = e^{−(t/b)²}/(b √π),  i, j = 0 … L−1
/// y = sin x_m,  m = ⌊L/2⌋                                   one number for the sequence
/// ```
///
/// The synthetic experiment of Liu and Li on the generalization of state space models, section 5:
/// L = 1000, b in {1, 0.1, 0.01}, 100 training and 1000 test sequences. Values come from the
/// Cholesky factor of the covariance, a band matrix as h falls below 10⁻²⁰ h(0) behind 6.8 b
/// steps. For b above 3 the matrix is singular to rounding: 10⁻¹⁰ h(0) is added to its diagonal,
/// and a note of the data set states it.
///
/// Keys: `length` L (1000), `width` b (1; 10⁻⁶ to 100), `count` (100), `held_out` (1000), `seed`
/// (0). With σ² = h(0), trivial answer: the best constant E sin x = e^{−σ²/2} sin 1, mean squared
/// error Var sin x = (1 − e^{−2σ²} cos 2)/2 − e^{−σ²} sin² 1. The best linear answer, the floor
/// for a linear model, leaves Var sin x − σ² e^{−σ²} cos² 1.
#[derive(Debug, Clone, PartialEq)]
pub struct LaggedSine {
    length: usize,
    width: f64,
    sizes: Sizes,
}

impl LaggedSine {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            length: options.number("length", 1000, 1..=LENGTH_MAX)?,
            width: options.number("width", 1.0, 1e-6..=100.0)?,
            sizes: Sizes::parse(options, 100, 1000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let length = self.length;
        self.sizes.check(self, split, length)?;
        let factor = self.factor()?;
        let rows = self.sizes.sequences(split, |draw| factor.sample(draw));
        let values: Vec<f32> = rows.concat();
        let middle = values.iter().skip(length / 2).step_by(length);
        let targets = Targets::Values {
            values: middle.map(|&x| libm::sin(x.into()) as f32).collect(),
            width: 1,
        };
        let data = Dataset::from_values(values, 1, length).with_targets(targets);
        Ok(match self.jitter() {
            0.0 => data,
            jitter => data.with_note(format!(
                "{jitter:e} added to the diagonal of the covariance, which is singular to rounding"
            )),
        })
    }

    /// h(t).
    fn covariance(&self, t: usize) -> f64 {
        let root = std::f64::consts::PI.sqrt();
        libm::exp(-(t as f64 / self.width).powi(2)) / (self.width * root)
    }

    fn jitter(&self) -> f64 {
        match self.width > WIDTH_WITHOUT_JITTER {
            true => JITTER * self.covariance(0),
            false => 0.0,
        }
    }

    /// Row i of the Cholesky factor G, K = G Gᵀ, from its first column inside the band on:
    /// G_ij = (K_ij − Σ_{k<j} G_ik G_jk)/G_jj, G_ii = √(K_ii − Σ_{k<i} G_ik²). Cost O(L w²) for w
    /// columns beside the diagonal.
    fn factor(&self) -> Result<BandFactor, DataError> {
        let reach = (self.width * (-NEGLIGIBLE.ln()).sqrt()).floor() as usize;
        let band = reach.min(self.length - 1);
        let (values, most) = ((band as u128 + 1) * self.length as u128, FACTOR_MAX);
        if values > most {
            let data = self.to_string();
            return Err(DataError::TooLarge { data, values, most });
        }
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(self.length);
        for i in 0..self.length {
            let first = i.saturating_sub(band);
            let mut row: Vec<f64> = Vec::with_capacity(i - first + 1);
            for j in first..i {
                let (other, start) = (&rows[j], j.saturating_sub(band));
                let shared = row.iter().zip(&other[first - start..]);
                let sum: f64 = shared.map(|(a, b)| a * b).sum();
                row.push((self.covariance(i - j) - sum) / other[j - start]);
            }
            let left = self.covariance(0) + self.jitter() - row.iter().map(|g| g * g).sum::<f64>();
            if left <= 0.0 {
                let (data, step) = (self.to_string(), i);
                return Err(DataError::Singular { data, step });
            }
            row.push(left.sqrt());
            rows.push(row);
        }
        Ok(BandFactor { rows })
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        let variance = self.covariance(0);
        let mean = (-variance / 2.0).exp() * 1f64.sin();
        let square = (1.0 - (-2.0 * variance).exp() * 2f64.cos()) / 2.0;
        let loss = square - mean * mean;
        TrivialAnswer {
            measure: SQUARED_ERROR,
            loss,
            answer: "the best constant, E sin x",
            floor: Some(loss - variance * (-variance).exp() * 1f64.cos().powi(2)),
        }
    }
}

/// The Cholesky factor of the covariance, row by row.
struct BandFactor {
    rows: Vec<Vec<f64>>,
}

impl BandFactor {
    /// 1 + G z for standard normal z.
    fn sample(&self, draw: &mut Draw) -> Vec<f32> {
        let z: Vec<f64> = self.rows.iter().map(|_| draw.normal()).collect();
        let rows = self.rows.iter().enumerate();
        let values = rows.map(|(i, row)| {
            let z = &z[i + 1 - row.len()..=i];
            1.0 + row.iter().zip(z).map(|(g, z)| g * z).sum::<f64>()
        });
        values.map(|x| x as f32).collect()
    }
}

impl Display for LaggedSine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            length,
            width,
            sizes,
        } = self;
        write!(f, "lagged-sine:length={length},width={width},{sizes}")
    }
}
