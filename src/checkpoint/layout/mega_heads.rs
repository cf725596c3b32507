//! The moving average of lucidrains/Mega-pytorch (`mega_pytorch/mega_pytorch.py`, MultiHeadedEMA): heads
//! with one real pole each, for all channels.
//!
//! ```text
//! p = σ(alphas)   q = (1 − σ(alphas)) σ(dampen_factors), one for each head
//! k_d[l] = Σ_h reduction_hd expansion_hd p_h q_h^l
//! ```
//!
//! No skip. With `reverse_alphas` and `reverse_dampen_factors` the second half of the rows of
//! `expansion` and `reduction` runs backwards in time and includes the sample at hand. What is reduced
//! has poles of its own in each channel, which the layout does not hold.

use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::Tensors;

/// What a normalisation between the heads and their sum is called.
const NORM: &str = "norm_heads.1.weight";

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct MegaHeads {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
}

/// The heads of one direction.
struct Heads {
    exponents: Vec<Complex64>,
    /// p.
    gains: Vec<f64>,
}

impl MegaHeads {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn heads(&self, tensors: &Tensors<'_>, names: [&str; 2]) -> Result<Heads, Fault> {
        let alphas = tensors.values(&self.name(names[0]), "[heads]")?;
        let shape: &[usize] = &[alphas.data.len()];
        let expected = format!("{shape:?}");
        let dampen = tensors.shaped(&self.name(names[1]), &[shape], &expected)?;
        let sigmoid = |x: f64| Transform::Sigmoid.apply(x);
        // 1 − σ(x) = σ(−x)
        let poles = alphas.data.iter().zip(&dampen.data);
        let poles = poles.map(|(&a, &d)| Complex64::from((sigmoid(-a) * sigmoid(d)).ln()));
        Ok(Heads {
            exponents: poles.collect(),
            gains: alphas.data.iter().map(|&a| sigmoid(a)).collect(),
        })
    }

    /// The systems of one direction, from its rows of expansion ∘ reduction.
    fn systems(&self, heads: &Heads, rows: &DMatrix<f64>) -> Result<Vec<DiagonalSystem>, Fault> {
        let systems = rows.column_iter().enumerate().map(|(d, column)| {
            let residues = column.iter().zip(&heads.gains);
            let residues: Vec<Complex64> = residues
                .map(|(weight, gain)| Complex64::from(weight * gain))
                .collect();
            let time = Time::Discrete { step: 1.0 };
            let system = DiagonalSystem::siso(time, heads.exponents.clone(), &residues, 0.0);
            system.map_err(|source| bank::fault(&self.layer, d, source))
        });
        systems.collect()
    }
}

impl Layout for MegaHeads {
    fn family(&self) -> &'static str {
        "MEGA moving average (mega-pytorch)"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        if tensors.contains(&self.name(NORM)) {
            return Err(Fault::Unsupported {
                what: "a moving average of mega-pytorch with a normalisation of its heads",
                tensor: self.name(NORM),
                why: "what stands between the poles and their sum is not linear",
            });
        }
        let forward = self.heads(tensors, ["alphas", "dampen_factors"])?;
        let heads = forward.gains.len();
        let both = tensors.contains(&self.name("reverse_alphas"));
        let rows = if both { 2 * heads } else { heads };
        let expansion = tensors.real_matrix(&self.name("expansion"), [Some(rows), None])?;
        let channels = Some(expansion.ncols());
        let reduction = tensors.real_matrix(&self.name("reduction"), [Some(rows), channels])?;
        let weights = expansion.component_mul(&reduction);
        let first = weights.rows(0, heads).into_owned();
        let backward = match both {
            false => Vec::new(),
            true => {
                let backward = self.heads(tensors, ["reverse_alphas", "reverse_dampen_factors"])?;
                let second = weights.rows(heads, backward.gains.len()).into_owned();
                self.systems(&backward, &second)?
            }
        };
        Ok(Dynamics {
            systems: self.systems(&forward, &first)?,
            backward,
            backward_from: 0,
            note: None,
        })
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let exponents = dynamics.systems.first().map(DiagonalSystem::exponents);
        let pole = exponents.and_then(|all| all.first()).copied();
        let why = "the layout holds one set of real poles for all channels; `compress-model convert --to \
                   mega` writes a layout with those of each channel, which `reduce` then makes smaller";
        let pole = pole.unwrap_or_default();
        Err(not_representable(self.family(), &self.layer, 0, pole, why))
    }
}
