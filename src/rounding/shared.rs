//! The matrices of a system that all channels share, as maps of real numbers.

use std::sync::Arc;

use hankelite_control::{DiagonalSystem, SystemError};
use hankelite_edge::padded;
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::model::Linear;

/// B and C between the channels and the parts of the states: the real ones of all modes, then the
/// imaginary ones, then zeros up to a multiple of sixteen.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedMaps {
    /// From channels to parts.
    pub input: Linear,
    /// From parts to channels: Re C and −Im C. A dense D stands beside C and takes the channels.
    pub output: Linear,
    /// D where it is diagonal.
    pub feedthrough: Option<Vec<f64>>,
}

/// Parts of so many modes.
fn parts(modes: usize) -> usize {
    padded(2 * modes)
}

impl SharedMaps {
    /// The maps of a system with as many outputs as inputs.
    pub fn of(system: &DiagonalSystem) -> Self {
        let (channels, modes) = (system.input().ncols(), system.order());
        let parts = parts(modes);
        let mut input = DMatrix::zeros(channels, parts);
        let mut output = DMatrix::zeros(parts, channels);
        for mode in 0..modes {
            let (re, im) = (mode, modes + mode);
            for channel in 0..channels {
                let b = system.input()[(mode, channel)];
                let c = system.output()[(channel, mode)];
                (input[(channel, re)], input[(channel, im)]) = (b.re, b.im);
                (output[(re, channel)], output[(im, channel)]) = (c.re, -c.im);
            }
        }
        let d = system.feedthrough();
        let diagonal = DMatrix::from_diagonal(&d.diagonal()) == *d;
        if !diagonal {
            output = output.resize_vertically(parts + channels, 0.0);
            output.rows_mut(parts, channels).copy_from(&d.transpose());
        }
        let linear = |weight: DMatrix<f64>| Linear {
            weight: Arc::new(weight),
            bias: None,
        };
        Self {
            input: linear(input),
            output: linear(output),
            feedthrough: diagonal.then(|| d.diagonal().as_slice().to_vec()),
        }
    }

    /// The system of these maps with the poles of `system`.
    ///
    /// # Errors
    /// [`SystemError::NotFinite`].
    pub(crate) fn system(&self, system: &DiagonalSystem) -> Result<DiagonalSystem, SystemError> {
        let (channels, modes) = (system.input().ncols(), system.order());
        let (input, output) = (&self.input.weight, &self.output.weight);
        let of = |mode: usize, channel: usize| {
            let (re, im) = (mode, modes + mode);
            let b = Complex64::new(input[(channel, re)], input[(channel, im)]);
            (
                b,
                Complex64::new(output[(re, channel)], -output[(im, channel)]),
            )
        };
        let feedthrough = match &self.feedthrough {
            Some(_) => system.feedthrough().clone(),
            None => output.rows(parts(modes), channels).transpose(),
        };
        DiagonalSystem::new(
            system.time(),
            system.exponents().to_vec(),
            DMatrix::from_fn(modes, channels, |mode, channel| of(mode, channel).0),
            DMatrix::from_fn(channels, modes, |channel, mode| of(mode, channel).1),
            feedthrough,
        )
    }
}
