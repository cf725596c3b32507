//! Records of layers whose systems were reduced with all their channels together.

use crate::compress::candidate::Candidate;
use crate::compress::{CompressError, LayerRecord, WeightedRecord};
use crate::model::Block;

/// What is recorded of one system beside its distance from the full one.
pub(crate) struct JointRecord {
    pub(crate) weighted: WeightedRecord,
    pub(crate) notes: Vec<String>,
}

/// The record of a layer, one entry for each system; kernel errors are those forwards in time.
///
/// # Errors
/// [`CompressError::Channel`] for modes that do not decay.
pub(crate) fn record_of_joint(
    full: &Block,
    reduced: &Block,
    joint: Vec<JointRecord>,
    kernel_length: usize,
) -> Result<LayerRecord, CompressError> {
    let pairs = full.systems().iter().zip(reduced.systems()).zip(joint);
    let records = pairs.enumerate().map(|(index, ((before, after), joint))| {
        let mut whole = Candidate::whole(after, None);
        whole.notes = joint.notes;
        if before != after {
            // No bound is known.
            whole.error_bound = f64::INFINITY;
        }
        let measured = whole.measured(before, index, kernel_length);
        let (_, mut record) =
            measured.map_err(|source| CompressError::channel(full, index, source))?;
        record.weighted = Some(joint.weighted);
        Ok(record)
    });
    let records = records.collect::<Result<_, CompressError>>()?;
    let name = full.name().to_string();
    Ok(LayerRecord::new(name, full.order(), records))
}
