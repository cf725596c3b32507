//! What tells a model from another of the same shapes.

use hankelite_control::DiagonalSystem;
use hankelite_control::num_complex::Complex64;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::model::{Encoder, Gate, Linear, Model, Nonlinearity, Norm, Placement, Pooling};

/// How far apart the sums of two machines may be: their libraries of functions differ by some ulp.
const APART: f64 = 1e-9;

/// A hash (FNV-1a, 64 bits) of the numbers of a model that stand in its file, and a sum over those of its
/// systems, which are computed from the file: all of them decide the inputs of the layers or the
/// gradients of the logits.
pub(super) fn fingerprint(model: &Model) -> String {
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    match model.encoder() {
        Some(Encoder::Linear(linear)) => hash.take_linear(linear),
        Some(Encoder::Embedding(table)) => hash.take(table.as_slice()),
        None => {}
    }
    for block in model.blocks() {
        if block.activation() != Nonlinearity::Gelu {
            hash.take(&[1.0]);
        }
        if let Some(output) = block.output() {
            hash.take(&[match output.gate {
                Gate::None => 0.0,
                Gate::Halves => 1.0,
                Gate::Activated => 2.0,
                Gate::Response => 3.0,
            }]);
            hash.take_linear(&output.linear);
        }
        if let Some((norm, placement)) = block.norm() {
            hash.take(&[f64::from(u8::from(*placement == Placement::Pre))]);
            hash.take_norm(norm);
        }
    }
    if let Some(norm) = model.final_norm() {
        hash.take_norm(norm);
    }
    if let Some(head) = model.head() {
        let pooling = match head.pooling {
            Some(Pooling::Mean) => 0.0,
            Some(Pooling::Last) => 1.0,
            None => 2.0,
        };
        hash.take(&[pooling]);
        hash.take_linear(&head.linear);
    }
    let systems = model.blocks().iter().flat_map(|block| block.all_systems());
    format!("{:016x}:{:.15e}", hash.0, systems_sum(systems))
}

/// Whether two fingerprints may be of one model.
pub(super) fn agree(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let (hash, sum) = text.split_once(':')?;
        Some((hash.to_string(), sum.parse::<f64>().ok()?))
    };
    match (parts(one), parts(other)) {
        (Some((hash, sum)), Some((same, near))) => hash == same && (sum - near).abs() <= APART,
        _ => one == other,
    }
}

/// The sum over poles, B, C and D of Σ ρ_i x_i/Σ |x_i|, the ρ_i being fixed random numbers between −1
/// and 1.
fn systems_sum<'s>(systems: impl Iterator<Item = &'s DiagonalSystem>) -> f64 {
    let mut parts = [(0.0, 0.0); 5];
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut add = |part: usize, x: f64| {
        let share = (random.next_u32() >> 1) as f64 / f64::from(1 << 30) - 1.0;
        parts[part].0 += share * x;
        parts[part].1 += x.abs();
    };
    for system in systems {
        for z in system.scaled_exponents() {
            add(0, z.re);
            add(1, z.im);
        }
        let mut add_all = |part: usize, all: &[Complex64]| {
            all.iter()
                .flat_map(|z| [z.re, z.im])
                .for_each(|x| add(part, x));
        };
        add_all(2, system.input().as_slice());
        add_all(3, system.output().as_slice());
        let through = system.feedthrough();
        through.iter().for_each(|&d| add(4, d));
    }
    let shares = parts.iter().filter(|(_, size)| *size > 0.0);
    shares.map(|(sum, size)| sum / size).sum()
}

struct Hash(u64);

impl Hash {
    fn take(&mut self, values: &[f64]) {
        for byte in values.iter().flat_map(|v| v.to_bits().to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn take_linear(&mut self, linear: &Linear) {
        self.take(linear.weight.as_slice());
        self.take(linear.bias.as_deref().unwrap_or_default());
    }

    fn take_norm(&mut self, norm: &Norm) {
        let (weight, bias, epsilon) = norm.affine();
        self.take(weight);
        self.take(bias);
        self.take(&[epsilon]);
        if let Norm::Batch(batch) = norm {
            self.take(&batch.mean);
            self.take(&batch.variance);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hankelite_control::Time;

    fn sum(change: f64) -> f64 {
        let systems: Vec<_> = (0..50)
            .map(|h| {
                let pole = |n: usize| Complex64::new(-0.5, 3.1 * n as f64 + h as f64);
                let mut residues = vec![Complex64::new(0.3, -0.7 * h as f64); 8];
                if h == 31 {
                    residues[5] *= 1.0 + change;
                }
                let poles = (0..8).map(pole).collect();
                DiagonalSystem::siso(Time::Discrete { step: 0.01 }, poles, &residues, 0.1).unwrap()
            })
            .collect();
        systems_sum(systems.iter())
    }

    #[test]
    fn the_rounding_of_a_library_is_no_other_model_and_a_trained_number_is() {
        let text = |change: f64| format!("00ff:{:.15e}", sum(change));
        assert!(agree(&text(0.0), &text(0.0)));
        assert!(agree(&text(0.0), &text(1e-12)));
        assert!(!agree(&text(0.0), &text(1e-4)));
        assert!(!agree("00ff:1.0", "01ff:1.0"));
        assert!(!agree("00ff", "00ff:1.0"));
        assert!(agree("00ff", "00ff"));
    }
}
