//! Signals with slowly varying sparse codes.

use std::f64::consts::PI;
use std::fmt::Display;

use crate::draw::Draw;
use crate::generate::{LENGTH_MAX, SQUARED_ERROR, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::{DataError, Dataset, Split};

/// What stays of an amplitude from step to step.
const MEMORY: f64 = 0.98;

/// Signals that are few atoms of an overcomplete cosine dictionary, slowly changing; the answer at
/// each step is the signal itself.
///
/// ```text
/// s_t = Q h_t,  Q = D_p ⊗ D_2p, p = √size:  columns D_k[i,j] ∝ cos(π (i + ½) j/k) of length p,
///               those with j > 0 made zero-mean, all of norm 1;  2 · size atoms
/// h_t has `active` entries other than zero.  Each, from step to step:
///     with probability `change`:  goes to another free atom, amplitude new, N(0, 1)
///     else:                       stays, amplitude 0.98 of itself + √(1 − 0.98²) N(0, 1)
/// ```
///
/// Width size. What sequential compressive sensing assumes: the code and its change are sparse. The
/// task of the small reconstruction experiment (size 64, 500 sequences).
///
/// Keys: `size` (64, a square), `frames` (20), `active` (4), `change` (0.1), `count` (500),
/// `held_out` (100), `seed` (0). Trivial answer: always 0, mean squared error active/size, as atoms
/// have norm 1 and amplitudes are independent of each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Sparse {
    edge: usize,
    frames: usize,
    active: usize,
    change: f64,
    sizes: Sizes,
}

impl Sparse {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        let size: usize = options.number("size", 64, 4..=4096)?;
        let edge = size.isqrt();
        if edge * edge != size {
            let expected = "a square, such as 64".to_string();
            return Err(options.wrong("size", size.to_string(), expected));
        }
        Ok(Self {
            edge,
            frames: options.number("frames", 20, 1..=LENGTH_MAX)?,
            active: options.number("active", 4, 1..=size)?,
            change: options.number("change", 0.1, 0.0..=1.0)?,
            sizes: Sizes::parse(options, 500, 100)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let width = self.edge * self.edge;
        self.sizes.check(self, split, 2 * self.frames * width)?;
        let atoms = self.atoms();
        let rows = self
            .sizes
            .sequences(split, |draw| self.signals(draw, &atoms));
        let values = rows.concat();
        Ok(Dataset::of_own_values(values, width, self.frames))
    }

    /// The columns of Q.
    fn atoms(&self) -> Vec<Vec<f64>> {
        let (tall, wide) = (
            cosines(self.edge, self.edge),
            cosines(self.edge, 2 * self.edge),
        );
        let pairs = tall.iter().flat_map(|a| wide.iter().map(move |b| (a, b)));
        let product = |(a, b): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
            a.iter()
                .flat_map(|x| b.iter().map(move |y| x * y))
                .collect()
        };
        pairs.map(product).collect()
    }

    fn signals(&self, draw: &mut Draw, atoms: &[Vec<f64>]) -> Vec<f32> {
        let mut order = draw.order(atoms.len());
        let mut amplitudes: Vec<f64> = (0..self.active).map(|_| draw.normal()).collect();
        let noise = (1.0 - MEMORY * MEMORY).sqrt();
        let mut out = Vec::with_capacity(self.frames * self.edge * self.edge);
        for t in 0..self.frames {
            for (k, amplitude) in amplitudes.iter_mut().enumerate().filter(|_| t > 0) {
                // The first `active` of the order are in use.
                if draw.unit() < self.change {
                    order.swap(k, self.active + draw.below(atoms.len() - self.active));
                    *amplitude = draw.normal();
                } else {
                    *amplitude = MEMORY * *amplitude + noise * draw.normal();
                }
            }
            let mut signal = vec![0.0; self.edge * self.edge];
            for (amplitude, &atom) in amplitudes.iter().zip(&order) {
                let pairs = signal.iter_mut().zip(&atoms[atom]);
                pairs.for_each(|(sum, value)| *sum += amplitude * value);
            }
            out.extend(signal.into_iter().map(|value| value as f32));
        }
        out
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        TrivialAnswer {
            measure: SQUARED_ERROR,
            loss: self.active as f64 / (self.edge * self.edge) as f64,
            answer: "always 0: active/size",
            floor: None,
        }
    }
}

/// The columns of D: `count` cosines of length `length`.
fn cosines(length: usize, count: usize) -> Vec<Vec<f64>> {
    let column = |j: usize| {
        let angle = |i: usize| PI * (i as f64 + 0.5) * j as f64 / count as f64;
        let mut column: Vec<f64> = (0..length).map(|i| libm::cos(angle(i))).collect();
        let mean = column.iter().sum::<f64>() / length as f64;
        if j > 0 {
            column.iter_mut().for_each(|x| *x -= mean);
        }
        let norm = column.iter().map(|x| x * x).sum::<f64>().sqrt();
        column.iter_mut().for_each(|x| *x /= norm);
        column
    };
    (0..count).map(column).collect()
}

impl Display for Sparse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (size, frames) = (self.edge * self.edge, self.frames);
        write!(f, "sparse:size={size},frames={frames},")?;
        let (active, change) = (self.active, self.change);
        write!(f, "active={active},change={change},{}", self.sizes)
    }
}
