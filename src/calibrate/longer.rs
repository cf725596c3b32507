//! What a smaller model does beyond the length that it was calibrated at.

use serde::Serialize;

use crate::calibrate::CalibrateError;
use crate::calibrate::logits::relative_change;
use crate::infer::{Network, Path};
use crate::model::{Model, Sequence};

/// Pairs of sequences that are run.
const PAIRS: usize = 16;

/// Agreement on sequences that are twice as long as those of the calibration: pairs of these, one
/// after the other. The kernels of a smaller model are held to the full ones over the calibrated
/// steps, and loosely behind them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Longer {
    /// Steps of one calibration sequence.
    pub steps: usize,
    /// Relative change of the logits of the same sequences one by one.
    pub change: f64,
    /// Relative change of the logits of the pairs, over twice the steps.
    pub change_of_pairs: f64,
}

/// How much further the logits of a smaller model are from those of the full one on sequences of
/// twice the length, by up to 16 pairs of the calibration sequences. `None` for fewer than two
/// sequences. Cost 32 forward passes of either model, and 16 of twice the length.
///
/// # Errors
/// [`CalibrateError::Infer`].
pub fn change_beyond(
    full: &Model,
    reduced: &Model,
    sequences: &[Sequence<'_>],
    steps: usize,
) -> Result<Option<Longer>, CalibrateError> {
    let used = &sequences[..sequences.len().min(2 * PAIRS) / 2 * 2];
    if used.is_empty() {
        return Ok(None);
    }
    let pairs: Vec<Joined> = used.chunks_exact(2).map(Joined::new).collect();
    let joined: Vec<Sequence<'_>> = pairs.iter().map(Joined::sequence).collect();
    let change = |steps, sequences: &[Sequence<'_>]| {
        let logits = |model| Network::new(model, steps, Path::Auto)?.logits_of_all(sequences);
        Ok::<_, CalibrateError>(relative_change(&logits(full)?, &logits(reduced)?))
    };
    Ok(Some(Longer {
        steps,
        change: change(steps, used)?,
        change_of_pairs: change(2 * steps, &joined)?,
    }))
}

/// Sequences one after the other.
enum Joined {
    Values(Vec<f32>),
    Tokens(Vec<u32>),
}

impl Joined {
    fn new(sequences: &[Sequence<'_>]) -> Self {
        let (mut values, mut tokens) = (Vec::new(), Vec::new());
        for sequence in sequences {
            match sequence {
                Sequence::Values(own) => values.extend_from_slice(own),
                Sequence::Tokens(own) => tokens.extend_from_slice(own),
            }
        }
        match tokens.is_empty() {
            true => Self::Values(values),
            false => Self::Tokens(tokens),
        }
    }

    fn sequence(&self) -> Sequence<'_> {
        match self {
            Self::Values(values) => Sequence::Values(values),
            Self::Tokens(tokens) => Sequence::Tokens(tokens),
        }
    }
}
