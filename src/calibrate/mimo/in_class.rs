//! A system whose file holds some systems only, fitted within them for its inputs.

use hankelite_control::{
    ClassInput, ControlError, InputStatistics, InputWeight, Refinement, SystemClass, Time,
    gram_matrix, h2_in_class, weighted_in_class,
};
use nalgebra::DMatrix;

use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::sample::Sample;
use crate::calibrate::mimo::unit::{Cut, Unit};
use crate::calibrate::statistics::{Gather, Sums};
use crate::compress::{WeightedRecord, note_of_units, whole_units};

/// Inputs as signals of one spectrum.
struct Spectrum {
    weight: InputWeight,
    /// Of the inputs at one step, relative to their power together.
    covariance: DMatrix<f64>,
}

impl Spectrum {
    /// Of the inputs of samples; `None` where they are zero.
    fn of(samples: &[Sample]) -> Option<Self> {
        let length = samples.iter().map(|sample| sample.input.nrows()).max()?;
        let inputs = samples[0].input.ncols();
        let mut sums = Sums::zeros(length, inputs);
        let mut covariance = DMatrix::zeros(inputs, inputs);
        for sample in samples {
            covariance += gram_matrix(&sample.input);
            let steps = sample.input.nrows();
            let padded = sample.input.clone().resize_vertically(length, 0.0);
            sums.add(&padded, steps);
        }
        let lags = sums.statistics(samples.len()).ok()?;
        let lags = lags.autocorrelation();
        let total = DMatrix::from_column_slice(length, 1, lags.column_sum().as_slice());
        let trace = covariance.trace();
        let one = InputStatistics::new(vec![0.0], total, samples.len()).ok()?;
        Some(Self {
            weight: one.weight(0)?,
            covariance: covariance / trace,
        })
    }

    /// With the correlations and without: inputs have spectra of their own, which the fit does not know, and
    /// those of one step may tell nothing of the others.
    fn covariances(&self) -> Vec<DMatrix<f64>> {
        let powers = DMatrix::from_diagonal(&self.covariance.diagonal());
        let mut both = vec![self.covariance.clone()];
        both.extend((powers != self.covariance).then_some(powers));
        both
    }
}

/// The system of a class with at most `order` stored modes: that of the least H2 error, and from there that
/// of the least error for the inputs' spectrum and correlations, over the steps of the longest sample where
/// modes do not decay. Errors in the record are those of the samples themselves.
///
/// # Errors
/// As [`h2_in_class`].
pub(super) fn cut_in_class(
    unit: &Unit,
    class: SystemClass,
    samples: &[Sample],
    order: usize,
    refinement: Refinement,
) -> Result<Cut, ControlError> {
    let (requested, order) = (order, whole_units(class, order));
    // Exponents of modes are those of a step.
    let full = &unit.modes.systems(Time::Discrete { step: 1.0 })?[0];
    let steps: usize = samples.iter().map(|sample| sample.input.nrows()).sum();
    let rms = |squares: f64| (squares / steps.max(1) as f64).sqrt();
    let errors_of = |modes: &Modes| unit.errors_of(modes.clone(), samples);
    let norm = rms(errors_of(&unit.modes).1);
    if order >= full.order() {
        return Ok(Cut {
            modes: unit.modes.clone(),
            record: WeightedRecord::identity(norm),
            notes: Vec::new(),
        });
    }
    let longest = samples.iter().map(|sample| sample.input.nrows()).max();
    let horizon = longest.filter(|_| !full.is_stable());
    let white = h2_in_class(full, class, order, horizon)?.system;
    let modes = unit.modes.replaced(&white);
    let before = rms(errors_of(&modes).0);
    let mut cut = Cut {
        modes,
        record: WeightedRecord::of_white_noise(norm, before),
        notes: note_of_units(requested, order).into_iter().collect(),
    };
    let Some(spectrum) = Spectrum::of(samples).filter(|_| refinement != Refinement::None) else {
        return Ok(cut);
    };
    for covariance in spectrum.covariances() {
        let input = ClassInput {
            weight: &spectrum.weight,
            covariance: &covariance,
            feedthrough: false,
        };
        let found = weighted_in_class(full, &white, class, input)?;
        let modes = unit.modes.replaced(&found.system);
        let error = rms(errors_of(&modes).0);
        if error < cut.record.error {
            (cut.record.error, cut.record.steps) = (error, found.steps);
            (cut.record.white_noise, cut.modes) = (false, modes);
        }
    }
    let free = unit.cut(samples, order, Refinement::Residues);
    cut.record.free = Some(free.record.error);
    Ok(cut)
}
