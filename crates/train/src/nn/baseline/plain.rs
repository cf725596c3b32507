//! A recurrent cell put together from candle's operations, step by step: for devices other than the
//! processor, and as the check of the fast path.

use candle_core::{Result, Tensor};

use crate::nn::baseline::gates::{Cell, CellTensors};

/// As [`recurrence`](super::recurrence::recurrence).
pub(super) fn recurrence(cell: Cell, tensors: CellTensors<'_>) -> Result<Tensor> {
    let CellTensors {
        inputs,
        weights,
        vector,
    } = tensors;
    let (batch, length, gates) = inputs.dims3()?;
    let units = gates / cell.gates();
    let zeros = Tensor::zeros((batch, units), inputs.dtype(), inputs.device())?;
    let (mut h, mut c) = (zeros.clone(), zeros);
    let mut states = Vec::with_capacity(length);
    for t in 0..length {
        let p = inputs.narrow(1, t, 1)?.squeeze(1)?;
        h = match cell {
            Cell::Tanh => {
                let (p, q) = shares(&p, &h, weights, vector)?;
                (p + q)?.tanh()?
            }
            Cell::Lstm => {
                let (p, q) = shares(&p, &h, weights, vector)?;
                let sum = (p + q)?;
                let gate = |index: usize| sum.narrow(1, index * units, units);
                let (i, f, o) = (
                    sigmoid(&gate(0)?)?,
                    sigmoid(&gate(1)?)?,
                    sigmoid(&gate(3)?)?,
                );
                c = ((f * c)? + (i * gate(2)?.tanh()?)?)?;
                (o * c.tanh()?)?
            }
            Cell::Gru => {
                let (p, q) = shares(&p, &h, weights, vector)?;
                let gate = |of: &Tensor, index: usize| of.narrow(1, index * units, units);
                let r = sigmoid(&(gate(&p, 0)? + gate(&q, 0)?)?)?;
                let z = sigmoid(&(gate(&p, 1)? + gate(&q, 1)?)?)?;
                let n = (gate(&p, 2)? + (r * gate(&q, 2)?)?)?.tanh()?;
                (&n + (z * (&h - &n)?)?)?
            }
            Cell::Mixed => {
                let a = (p + h.matmul(&weights.t()?)?)?.tanh()?;
                let share = |index: usize| vector.narrow(0, index, 1);
                (a.broadcast_mul(&share(0)?)? + h.broadcast_mul(&share(1)?)?)?
            }
            Cell::Independent => {
                let sum = (p + h.broadcast_mul(weights)?)?;
                sum.broadcast_add(vector)?.relu()?
            }
        };
        states.push(h.clone());
    }
    Tensor::stack(&states, 1)
}

/// p and q with their biases.
fn shares(p: &Tensor, h: &Tensor, weights: &Tensor, vector: &Tensor) -> Result<(Tensor, Tensor)> {
    let gates = p.dim(1)?;
    let p = p.broadcast_add(&vector.narrow(0, 0, gates)?)?;
    let q = h.matmul(&weights.t()?)?;
    Ok((p, q.broadcast_add(&vector.narrow(0, gates, gates)?)?))
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    ((x * 0.5)?.tanh()? + 1.0)? * 0.5
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use hankelite_kernels::Workspaces;

    use super::*;
    use crate::nn::baseline::recurrence;
    use crate::nn::tensors::waves::{wave, worst};

    const CELLS: [Cell; 5] = [
        Cell::Tanh,
        Cell::Lstm,
        Cell::Gru,
        Cell::Mixed,
        Cell::Independent,
    ];

    fn operands(cell: Cell, batch: usize, units: usize) -> [Var; 3] {
        let gates = cell.gates() * units;
        let (weights, vector) = match cell {
            Cell::Independent => (vec![units], units),
            Cell::Mixed => (vec![gates, units], 2),
            _ => (vec![gates, units], 2 * gates),
        };
        [
            wave(&[batch, 4, gates], [0.0, 0.3, 0.1]),
            wave(&weights, [0.0, 0.3, 1.0]),
            wave(&[vector], [0.0, 0.3, 2.0]),
        ]
    }

    /// Values and gradients, with one slice of units and with several.
    #[test]
    fn the_operation_is_that_of_single_steps() {
        for cell in CELLS {
            for units in [3, 300] {
                let vars = operands(cell, 2, units);
                let parts = CellTensors {
                    inputs: &vars[0],
                    weights: &vars[1],
                    vector: &vars[2],
                };
                let fast = recurrence::recurrence(cell, parts, &Workspaces::new(), true).unwrap();
                let slow = recurrence(cell, parts).unwrap();
                assert!(worst(&fast, &slow) < 1e-13, "{cell:?} {units}");
                let weights = wave(&[2, 4, units], [0.0, 0.3, 3.0]);
                let gradients = |out: &Tensor| {
                    let sum = (out * weights.as_tensor()).unwrap().sum_all().unwrap();
                    sum.backward().unwrap()
                };
                let (of_fast, again) = (gradients(&fast), gradients(&fast));
                let of_slow = gradients(&slow);
                for var in &vars {
                    let [a, b, c] = [&of_fast, &of_slow, &again].map(|all| all.get(var).unwrap());
                    let size = b.abs().unwrap().flatten_all().unwrap().max(0).unwrap();
                    let size: f64 = size.to_scalar().unwrap();
                    assert!(
                        size > 0.0 && worst(a, b) < 1e-12 * size.max(1.0),
                        "{cell:?}"
                    );
                    assert_eq!(worst(a, c), 0.0, "{cell:?}: a second backward pass");
                }
            }
        }
    }
}
