//! One linear state space layer alone: what the theory of the generalisation measure is about.

use candle_core::{DType, Device, Result, Tensor, bail};
use hankelite_control::DiagonalSystem;

use crate::nn::dynamics::{TrainableDynamics, modes_for};
use crate::nn::hankel::{HankelPlan, hankel};
use crate::nn::parameterisation::ModeForm;
use crate::nn::tensors::TensorType;
use crate::nn::{
    Mode, NetworkError, NetworkInput, Parameter, Parameterisation, Penalty, SequenceModel, Traced,
    Wanted, plain,
};

/// A single channel without encoder, activation, feedthrough and head. Its output for a sequence
/// u of numbers is the last output,
///
/// ```text
/// y = Σ_i k_i u_{L−1−i}
/// ```
///
/// Put together from candle's operations; for experiments with the measure.
///
/// # References
/// Liu and Li, section 5.
pub struct Filter {
    dynamics: TrainableDynamics,
    parameters: Vec<Parameter>,
    dtype: DType,
    device: Device,
}

impl Filter {
    /// The filter of a discrete system with one input and one output, trained as S4D. Its
    /// feedthrough is left aside.
    ///
    /// # Errors
    /// [`NetworkError::Pole`] for a mode that does not decay; [`NetworkError::System`];
    /// [`NetworkError::Candle`].
    pub fn new(
        system: &DiagonalSystem,
        dtype: DType,
        device: &Device,
    ) -> std::result::Result<Self, NetworkError> {
        let systems = std::slice::from_ref(system);
        let form = ModeForm {
            kind: Parameterisation::S4d,
            length: 1,
            scaled: false,
        };
        let to = TensorType { dtype, device };
        let dynamics = TrainableDynamics::new("filter", systems, system.order(), form, to)?;
        Ok(Self {
            parameters: dynamics.parameters(""),
            dynamics,
            dtype,
            device: device.clone(),
        })
    }

    /// The system as it is trained now.
    ///
    /// # Errors
    /// [`NetworkError::System`] where training has led to numbers that are not finite.
    pub fn to_system(&self) -> std::result::Result<DiagonalSystem, NetworkError> {
        Ok(self.dynamics.systems("filter", &[0.0])?.remove(0))
    }
}

impl SequenceModel for Filter {
    fn forward(&self, input: &NetworkInput, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.traced(input, mode, Wanted::default())?.outputs)
    }

    fn traced(&self, input: &NetworkInput, _: Mode<'_>, wanted: Wanted) -> Result<Traced> {
        let (batch, length, width) = input.steps.dims3()?;
        if width != 1 || wanted.layers {
            bail!("a filter takes one number for each step, and has no layers to show");
        }
        let steps = input.steps.to_dtype(self.dtype)?;
        let flat = modes_for(&[&self.dynamics], length)?;
        let modes = flat.reshape((4, 1, self.dynamics.modes()))?;
        let modes = (0..4).map(|part| modes.get(part));
        let kernel = plain::kernel(&modes.collect::<Result<Vec<_>>>()?, length)?;
        let kernel = kernel.to_dtype(self.dtype)?;
        let turned = plain::turned(&kernel)?;
        let input = match wanted.penalty {
            Some(Penalty::Measure) => Some(&steps),
            Some(Penalty::FilterNorm | Penalty::Hankel) | None => None,
        };
        let penalty = wanted.penalty.map(|penalty| match penalty {
            Penalty::Hankel => hankel(&flat, HankelPlan::of_one(self.dynamics.modes())),
            Penalty::Measure | Penalty::FilterNorm => {
                plain::mean_square(&kernel, input)?.unsqueeze(0)
            }
        });
        Ok(Traced {
            outputs: steps.reshape((batch, length))?.matmul(&turned.t()?)?,
            layers: Vec::new(),
            penalties: penalty.transpose()?,
        })
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn device(&self) -> &Device {
        &self.device
    }
}
