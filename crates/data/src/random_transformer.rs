//! The answers of a random transformer.

use std::fmt::Display;

use crate::draw::Draw;
use crate::generate::{LENGTH_MAX, Sizes};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Windows of random tokens, and what a fixed random shallow transformer answers to them.
///
/// ```text
/// x_t = z/max(1, ‖z‖),  z ~ N(0, I_d),  t = 0 … L−1
/// y   = m^{−1/2} Σ_i c_i tanh(U_i · a_i),   a_i = Σ_t α_it x_t,   α_i = softmax_t(x_t · W_i x_{L−1})
/// W_i, U_i standard normal, c_i = ±1        one number for the sequence
/// ```
///
/// The sizes of the teacher-student experiment on shallow transformers. Its teacher is another one,
/// an average over anchors of transported features; this is a plain network of the same form. All
/// parts of all seeds share it: it depends on `teacher`, `heads` and `width` alone.
///
/// Keys: `length` L (16), `width` d (8), `heads` m (64), `teacher` (0, its seed), `count` (5000),
/// `held_out` (1000), `seed` (0).
#[derive(Debug, Clone, PartialEq)]
pub struct RandomTransformer {
    length: usize,
    width: usize,
    heads: usize,
    teacher: u64,
    sizes: Sizes,
}

struct Head {
    /// d × d, row by row.
    attention: Vec<f64>,
    neuron: Vec<f64>,
    output: f64,
}

impl RandomTransformer {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            length: options.number("length", 16, 1..=LENGTH_MAX)?,
            width: options.number("width", 8, 1..=512)?,
            heads: options.number("heads", 64, 1..=1 << 12)?,
            teacher: options.number("teacher", 0, 0..=u64::MAX)?,
            sizes: Sizes::parse(options, 5000, 1000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        self.sizes.check(self, split, self.length * self.width)?;
        let heads = self.heads();
        let rows = self.sizes.sequences(split, |draw| {
            let tokens: Vec<f64> = (0..self.length).flat_map(|_| self.token(draw)).collect();
            let sum: f64 = heads.iter().map(|head| head.answer(&tokens)).sum();
            let answer = sum / (self.heads as f64).sqrt();
            let tokens: Vec<f32> = tokens.into_iter().map(|x| x as f32).collect();
            (tokens, answer as f32)
        });
        let (rows, values): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let targets = Targets::Values { values, width: 1 };
        Ok(Dataset::from_values(rows.concat(), self.width, self.length).with_targets(targets))
    }

    fn token(&self, draw: &mut Draw) -> Vec<f64> {
        let token: Vec<f64> = (0..self.width).map(|_| draw.normal()).collect();
        let norm = dot(&token, &token).sqrt().max(1.0);
        token.into_iter().map(|x| x / norm).collect()
    }

    /// Each head from a stream of its own; the last streams but one, as no sequence has them.
    fn heads(&self) -> Vec<Head> {
        let head = |index: usize| {
            let mut draw = Draw::new(self.teacher, u64::MAX - 1 - index as u64);
            let attention = (0..self.width * self.width).map(|_| draw.normal());
            let attention = attention.collect();
            let neuron = (0..self.width).map(|_| draw.normal()).collect();
            let output = if draw.below(2) == 0 { -1.0 } else { 1.0 };
            Head {
                attention,
                neuron,
                output,
            }
        };
        (0..self.heads).map(head).collect()
    }
}

impl Head {
    /// c tanh(U · a). Cost O(d² + L d).
    fn answer(&self, tokens: &[f64]) -> f64 {
        let width = self.neuron.len();
        let query = &tokens[tokens.len() - width..];
        let key: Vec<f64> = self
            .attention
            .chunks_exact(width)
            .map(|row| dot(row, query))
            .collect();
        let scores: Vec<f64> = tokens.chunks_exact(width).map(|x| dot(x, &key)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| libm::exp(s - largest)).collect();
        let pairs = weights.iter().zip(tokens.chunks_exact(width));
        let sum: f64 = pairs.map(|(weight, x)| weight * dot(&self.neuron, x)).sum();
        self.output * libm::tanh(sum / weights.iter().sum::<f64>())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl Display for RandomTransformer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "teacher:length={},width={},", self.length, self.width)?;
        let (heads, teacher) = (self.heads, self.teacher);
        write!(f, "heads={heads},teacher={teacher},{}", self.sizes)
    }
}
