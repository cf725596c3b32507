//! The neural tangent kernel of the transformer at its start.

use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::shallow::parameters::dot;
use crate::shallow::{
    Activation, Features, Query, Samples, ShallowError, Transformer, TransformerSize, Units,
};

/// The three parts of the kernel over n inputs, each n × n, symmetric and positive semidefinite.
///
/// ```text
/// Θ_c = E[act(Uᵀa) act(Uᵀa')]
/// Θ_u = E[act'(Uᵀa) act'(Uᵀa') ⟨a, a'⟩]
/// Θ_w = ⟨q, q'⟩ E[act'(Uᵀa) act'(Uᵀa') UᵀM M'U]
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Θ_c.
    pub c: DMatrix<f64>,
    /// Θ_u.
    pub u: DMatrix<f64>,
    /// Θ_w.
    pub w: DMatrix<f64>,
}

impl Kernel {
    /// Θ = Θ_c + Θ_u + Θ_w.
    pub fn total(&self) -> DMatrix<f64> {
        &self.c + &self.u + &self.w
    }

    /// The parts as averages over the heads of a model, each with c_i² in the last two. With
    /// independent heads this is a Monte Carlo estimate of the kernel, whose error falls with
    /// m^(−1/2); at the symmetric start of width m it is the empirical kernel of the network. Cost
    /// O(n m d (d + L + n)).
    pub fn over_heads(model: &Transformer, inputs: &Samples) -> Self {
        let n = inputs.len();
        let looks: Vec<Features> = (0..n)
            .into_par_iter()
            .map(|index| {
                let mut features = model.features();
                model.look(inputs.sequence(index), &mut features);
                features
            })
            .collect();
        let queries: Vec<&[f64]> = inputs
            .sequences()
            .map(|tokens| model.query().of(tokens, model.width()))
            .collect();
        let mut kernel = Self {
            c: DMatrix::zeros(n, n),
            u: DMatrix::zeros(n, n),
            w: DMatrix::zeros(n, n),
        };
        for i in 0..n {
            for j in 0..=i {
                let [c, u, w] = parts(model, &looks[i], &looks[j]);
                let w = w * dot(queries[i], queries[j]);
                for (i, j) in [(i, j), (j, i)] {
                    (kernel.c[(i, j)], kernel.u[(i, j)], kernel.w[(i, j)]) = (c, u, w);
                }
            }
        }
        kernel
    }
}

/// Means over the heads of h h', c² s s' ⟨a, a'⟩ and c² s s' ⟨M U, M' U⟩.
fn parts(model: &Transformer, x: &Features, y: &Features) -> [f64; 3] {
    let units = model.parameters().units();
    let slopes = model.slopes(x).iter().zip(model.slopes(y));
    let slopes = slopes.zip(model.parameters().group(0));
    let weights: Vec<f64> = slopes.map(|((x, y), c)| c * c * x * y).collect();
    let rows = |x: &[f64], y: &[f64]| -> f64 {
        let pairs = x.chunks_exact(units).zip(y.chunks_exact(units));
        let row = |(x, y): (&[f64], &[f64])| -> f64 {
            let heads = weights.iter().zip(x.iter().zip(y));
            heads.map(|(weight, (x, y))| weight * x * y).sum()
        };
        pairs.map(row).sum()
    };
    let c = dot(&x.response, &y.response);
    let u = rows(model.attended(x), model.attended(y));
    let moved = model.covariance_times_neuron(x);
    let w = rows(moved, model.covariance_times_neuron(y));
    [c, u, w].map(|sum| sum / units as f64)
}

/// The kernel by Monte Carlo over `heads` independent heads.
///
/// # Errors
/// As [`Transformer::independent`].
pub fn kernel_blocks(
    inputs: &Samples,
    heads: usize,
    query: &Query,
    activation: Activation,
    seed: u64,
) -> Result<Kernel, ShallowError> {
    let size = TransformerSize {
        units: heads,
        width: inputs.width(),
    };
    let model = Transformer::independent(size, query.clone(), activation, seed)?;
    Ok(Kernel::over_heads(&model, inputs))
}

/// ⟨∇_φ f(X), ∇_φ f(X')⟩ over n inputs, n × n, from the gradients themselves. It carries the 1/m of
/// the network; the further 1/m in one display of the paper's proof is a slip. Cost O(n² m d²).
pub fn empirical_kernel<M: Units>(model: &M, inputs: &Samples) -> DMatrix<f64> {
    let gradients: Vec<_> = inputs
        .sequences()
        .map(|tokens| model.gradient(tokens))
        .collect();
    let n = gradients.len();
    DMatrix::from_fn(n, n, |i, j| gradients[i.max(j)].dot(&gradients[i.min(j)]))
}
