//! The contract between a recurrent body and the network around it.

use candle_core::Tensor;
use nalgebra::DMatrix;

use crate::nn::{Mode, Parameter, host};

/// The matrices of a body of one recurrent layer, h = φ(W h⁻ + U x + b) or, with α and β,
/// h = α φ(W h⁻ + U x) + β h⁻.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SingleLayer {
    /// W, hidden × hidden; diagonal for an IndRNN.
    pub recurrent: DMatrix<f64>,
    /// U, hidden × inputs.
    pub input: DMatrix<f64>,
    /// b, the sum of all biases.
    pub bias: Option<Vec<f64>>,
    /// α and β of a FastRNN.
    pub shares: Option<[f64; 2]>,
}

/// The matrices of one layer: u = W h + U x, where h is the code of the layer before, and for the
/// first layer that of the step before.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FormedLayer {
    /// W_l, codes × codes.
    pub recurrent: DMatrix<f64>,
    /// U_l, codes × inputs.
    pub input: DMatrix<f64>,
}

/// The matrices that an unfolded network never forms, for what looks at a trained one.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Formed {
    /// One for each layer.
    pub layers: Vec<FormedLayer>,
    /// G_c, or P = Q_Dᵀ F Q_D of Sista; codes × codes.
    pub transition: DMatrix<f64>,
    /// U_2 = ω2 P/c_s of Sista, which brings h_{t−1} to the layers behind the first.
    pub from_last: Option<DMatrix<f64>>,
    /// ω1 g_l/c_s for each code, layer by layer.
    pub thresholds1: Vec<Vec<f64>>,
    /// ω2 g_l/c_s, likewise; zeros for Sista.
    pub thresholds2: Vec<Vec<f64>>,
    /// h_0.
    pub initial: Vec<f64>,
}

/// The numbers of a matrix.
pub(super) fn matrix(tensor: &Tensor) -> candle_core::Result<DMatrix<f64>> {
    let (rows, columns) = tensor.dims2()?;
    Ok(DMatrix::from_row_slice(rows, columns, &host(tensor)?))
}

/// The maps around a body that its weights may be built from.
pub(super) struct Frame<'a> {
    /// S, inputs of the body × signal; `None` where its input is the signal itself (S = I).
    pub(super) sensing: Option<&'a Tensor>,
    /// Q_D, signal × codes; `None` for bodies that are no solver of a sparse problem.
    pub(super) dictionary: Option<&'a Tensor>,
}

/// What turns measurements into codes, step by step.
pub(super) trait Body: Send + Sync {
    /// batch × L × inputs to batch × L × codes.
    ///
    /// # Errors
    /// candle's, with the shapes that do not fit.
    fn codes(
        &self,
        input: &Tensor,
        frame: &Frame<'_>,
        mode: Mode<'_>,
    ) -> candle_core::Result<Tensor>;

    /// All trainable tensors of the body, S and Q_D not among them; always in the same order.
    fn parameters(&self) -> &[Parameter];

    /// The matrices of every layer, for what looks at a trained network; `None` for bodies that are
    /// no solver of a sparse problem.
    ///
    /// # Errors
    /// candle's.
    fn formed(&self, _frame: &Frame<'_>) -> candle_core::Result<Option<Formed>> {
        Ok(None)
    }

    /// The matrices of a single layer without gates; `None` for all other bodies.
    ///
    /// # Errors
    /// candle's.
    fn single_layer(&self) -> candle_core::Result<Option<SingleLayer>> {
        Ok(None)
    }
}
