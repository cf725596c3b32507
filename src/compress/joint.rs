//! Records of layers whose systems were reduced with all their channels together.

use hankelite_control::{ControlError, DiagonalSystem};

use crate::compress::candidate::Candidate;
use crate::compress::class::record_over_horizon;
use crate::compress::{ChannelRecord, CompressError, LayerRecord, WeightedRecord};
use crate::model::Block;

/// What is recorded of one system beside its distance from the full one.
pub(crate) struct JointRecord {
    pub(crate) weighted: WeightedRecord,
    pub(crate) notes: Vec<String>,
}

/// The record of a layer, one entry for each system; kernel errors are those forwards in time.
///
/// # Errors
/// [`CompressError::Channel`] for modes that do not decay, but those of a class.
pub(crate) fn record_of_joint(
    full: &Block,
    reduced: &Block,
    joint: Vec<JointRecord>,
    kernel_length: usize,
) -> Result<LayerRecord, CompressError> {
    let pairs = full.systems().iter().zip(reduced.systems()).zip(joint);
    let records = pairs.enumerate().map(|(index, ((before, after), joint))| {
        let decay = before.is_stable() && after.is_stable();
        let record = match full.class().is_some() && !decay {
            true => record_over_horizon([before, after], index, kernel_length),
            false => record_of(before, after, index, kernel_length),
        };
        let mut record = record.map_err(|source| CompressError::channel(full, index, source))?;
        record.notes.extend(joint.notes);
        record.weighted = Some(joint.weighted);
        Ok(record)
    });
    let records = records.collect::<Result<_, CompressError>>()?;
    let name = full.name().to_string();
    Ok(LayerRecord::new(name, full.order(), records))
}

fn record_of(
    before: &DiagonalSystem,
    after: &DiagonalSystem,
    index: usize,
    kernel_length: usize,
) -> Result<ChannelRecord, ControlError> {
    let mut whole = Candidate::whole(after, None);
    if before != after {
        // No bound is known.
        whole.error_bound = f64::INFINITY;
    }
    Ok(whole.measured(before, index, kernel_length)?.1)
}
