//! A system whose file holds some systems only, fitted within them for its inputs.

use hankelite_control::{
    ClassInput, ControlError, InputStatistics, InputWeight, Refinement, SystemClass, Time,
    h2_in_class, weighted_in_class,
};
use nalgebra::DMatrix;

use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::sample::Sample;
use crate::calibrate::mimo::unit::{Cut, Unit};
use crate::calibrate::statistics::{Gather, Sums};
use crate::compress::{WeightedRecord, note_of_units, whole_units};

/// Inputs as uncorrelated signals of one spectrum, each of its own power.
struct Spectrum {
    weight: InputWeight,
    powers: Vec<f64>,
}

impl Spectrum {
    /// Of the inputs of samples; `None` where they are zero.
    fn of(samples: &[Sample]) -> Option<Self> {
        let length = samples.iter().map(|sample| sample.input.nrows()).max()?;
        let mut sums = Sums::zeros(length, samples[0].input.ncols());
        for sample in samples {
            let steps = sample.input.nrows();
            let padded = sample.input.clone().resize_vertically(length, 0.0);
            sums.add(&padded, steps);
        }
        let lags = sums.statistics(samples.len()).ok()?;
        let lags = lags.autocorrelation();
        let total = DMatrix::from_column_slice(length, 1, lags.column_sum().as_slice());
        let power = total[(0, 0)];
        let one = InputStatistics::new(vec![0.0], total, samples.len()).ok()?;
        Some(Self {
            weight: one.weight(0)?,
            powers: lags.row(0).iter().map(|own| own / power).collect(),
        })
    }
}

/// The system of a class with at most `order` stored modes: that of the least H2 error, and from there that
/// of the least error for the inputs' spectrum. Errors in the record are those of the samples themselves.
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
    let white = h2_in_class(full, class, order, None)?.system;
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
    let input = ClassInput {
        weight: &spectrum.weight,
        powers: &spectrum.powers,
        feedthrough: false,
    };
    let found = weighted_in_class(full, &white, class, input)?;
    let modes = unit.modes.replaced(&found.system);
    let error = rms(errors_of(&modes).0);
    // Inputs may be correlated with one another, which the fit does not know.
    if error < before {
        (cut.record.error, cut.record.steps) = (error, found.steps);
        (cut.record.white_noise, cut.modes) = (false, modes);
    }
    Ok(cut)
}
