//! Waveforms in noise: the task of the shipped model.

use std::f64::consts::{SQRT_2, TAU};
use std::fmt::Display;

use crate::draw::Draw;
use crate::generate::{CROSS_ENTROPY, LENGTH_MAX, Sizes, TrivialAnswer};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Waveforms.
const SHAPES: usize = 5;
/// The share of a period that a pulse lasts.
const DUTY: f64 = 0.15;

/// One tone in noise; the class is its waveform, and whether its pitch glides.
///
/// ```text
/// τ_t = t/(L − 1) − 1/2,  t = 0 … L−1
/// x_t = a e(τ_t) w_s(φ_t) + a σ ε_t,  ε_t standard normal
/// φ_t = φ + (p/L) Σ_{i≤t} 2^{g τ_i}                      periods
/// e(τ) = 1 + c τ − d exp(−((τ − m)/0.15)²)               envelope
/// y   = s for a constant pitch (g = 0), s + 5 for a glide over |g| octaves
/// ```
///
/// Shape s uniform over sine, triangle, square, sawtooth, pulse train, each of mean 0 and mean
/// square 1; p log-uniform over 6 … 24 periods; a glide as likely as none, up as likely as down,
/// |g| uniform over 1 … 2; φ uniform over 0 … 1; a log-uniform over 0.5 … 2; σ uniform over
/// 0.1 … 0.45; c over −0.6 … 0.6, d over 0 … 0.6, m over −0.5 … 0.5. So the class shows neither in
/// the level nor in a short stretch: the timbre takes some periods, and a glide, as the pitch
/// itself is random, a long part of the sequence.
///
/// Keys: `length` L (256), `count` (20000), `held_out` (4000), `seed` (0). Trivial answer: ln 10.
#[derive(Debug, Clone, PartialEq)]
pub struct Waves {
    length: usize,
    sizes: Sizes,
}

impl Waves {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            length: options.number("length", 256, 2..=LENGTH_MAX)?,
            sizes: Sizes::parse(options, 20_000, 4000)?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        self.sizes.check(self, split, self.length)?;
        let tone = |draw: &mut Draw| {
            let label = draw.below(2 * SHAPES);
            (tone(draw, label, self.length), label)
        };
        let (rows, labels): (Vec<_>, Vec<_>) =
            self.sizes.sequences(split, tone).into_iter().unzip();
        let classes = 2 * SHAPES;
        let targets = Targets::Classes { labels, classes };
        Ok(Dataset::from_values(rows.concat(), 1, self.length).with_targets(targets))
    }

    pub(super) fn trivial_answer(&self) -> TrivialAnswer {
        TrivialAnswer {
            measure: CROSS_ENTROPY,
            loss: (2.0 * SHAPES as f64).ln(),
            answer: "all ten classes alike: ln 10",
            floor: None,
        }
    }
}

impl Display for Waves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waves:length={},{}", self.length, self.sizes)
    }
}

fn between(draw: &mut Draw, low: f64, high: f64) -> f64 {
    low + (high - low) * draw.unit()
}

/// The samples of a tone of class `label`. Cost about 100 flops a sample.
fn tone(draw: &mut Draw, label: usize, length: usize) -> Vec<f32> {
    let periods = 6.0 * libm::exp2(2.0 * draw.unit());
    let direction = if draw.below(2) == 0 { -1.0 } else { 1.0 };
    let octaves = direction * between(draw, 1.0, 2.0);
    let glide = if label < SHAPES { 0.0 } else { octaves };
    let amplitude = libm::exp2(between(draw, -1.0, 1.0));
    let noise = between(draw, 0.1, 0.45);
    let (tilt, dip) = (between(draw, -0.6, 0.6), between(draw, 0.0, 0.6));
    let place = between(draw, -0.5, 0.5);
    let mut phase = draw.unit();
    let samples = (0..length).map(|t| {
        let tau = t as f64 / (length - 1) as f64 - 0.5;
        phase += periods / length as f64 * libm::exp2(glide * tau);
        let near = (tau - place) / 0.15;
        let envelope = 1.0 + tilt * tau - dip * libm::exp(-near * near);
        let clean = envelope * shape(label % SHAPES, phase - libm::floor(phase));
        (amplitude * (clean + noise * draw.normal())) as f32
    });
    samples.collect()
}

/// Mean 0 and mean square 1 over a period, `phase` in 0 … 1.
fn shape(kind: usize, phase: f64) -> f64 {
    match kind {
        0 => SQRT_2 * libm::sin(TAU * phase),
        1 => 3f64.sqrt() * (4.0 * (phase - 0.5).abs() - 1.0),
        2 if phase < 0.5 => 1.0,
        2 => -1.0,
        3 => 3f64.sqrt() * (2.0 * phase - 1.0),
        _ => {
            let pulse = if phase < DUTY { 1.0 } else { 0.0 };
            (pulse - DUTY) / (DUTY * (1.0 - DUTY)).sqrt()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn shapes_have_mean_zero_and_mean_square_one() {
        let points = 100_000;
        for kind in 0..super::SHAPES {
            let phases = (0..points).map(|i| (f64::from(i) + 0.5) / f64::from(points));
            let values: Vec<f64> = phases.map(|phase| shape(kind, phase)).collect();
            let mean = values.iter().sum::<f64>() / f64::from(points);
            let square = values.iter().map(|x| x * x).sum::<f64>() / f64::from(points);
            assert!(
                mean.abs() < 1e-9 && (square - 1.0).abs() < 1e-4,
                "{kind}: {mean}, {square}"
            );
        }
    }
}
