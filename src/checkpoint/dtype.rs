//! A checkpoint in another number format.

use std::collections::BTreeMap;

use hankelite_archive::{Archive, Changes, Dtype, RawTensor};
use hankelite_control::{DiagonalSystem, Time, h2_error, h2_norm};

use crate::checkpoint::encode::{EncodedCheckpoint, floating, require_finite};
use crate::checkpoint::layout::Dynamics;
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::{CheckpointError, Fault};

/// The largest relative H2 error of a system that rounding its numbers may make.
const CHANGE_MAX: f64 = 0.01;

/// A layer whose systems keep their number format, because another one would change them too much.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct KeptLayer {
    /// Its name in the file.
    pub layer: String,
    /// The largest relative H2 error of a system, had it been rounded; infinite where that would
    /// have made a mode that does not decay.
    pub change: f64,
}

impl EncodedCheckpoint<'_> {
    /// The same in another number format: every real tensor of the network in `dtype`, but the poles
    /// and residues of a layer where rounding them would change a system by more than one per cent
    /// in the H2 norm. Integers and complex tensors stay as they are. All tensors are held in
    /// memory.
    ///
    /// # Errors
    /// [`Fault::Overflow`] for a number that `dtype` does not reach;
    /// [`ArchiveError`](hankelite_archive::ArchiveError) when the file cannot be read.
    pub fn in_dtype(mut self, dtype: Dtype) -> Result<(Self, Vec<KeptLayer>), CheckpointError> {
        let path = self.archive.path().to_path_buf();
        let kept = self.change_dtype(dtype).map_err(|fault| fault.at(&path))?;
        Ok((self, kept))
    }

    fn change_dtype(&mut self, dtype: Dtype) -> Result<Vec<KeptLayer>, Fault> {
        let mut tensors = self.rounded(dtype)?;
        let whole = self.encoding.archive.with(tensors.clone())?;
        let mut kept = Vec::new();
        for index in 0..self.encoding.structure.layers.len() {
            let [planned, rounded] =
                [&self.archive, &whole].map(|archive| self.dynamics(index, archive));
            let planned = planned?;
            let change = match rounded {
                Ok(rounded) => change(&planned, &rounded),
                Err(_) => f64::INFINITY,
            };
            if change <= CHANGE_MAX {
                continue;
            }
            for name in self.system_tensors(index, &planned)? {
                match self.archive.tensor(&name) {
                    Ok(tensor) => tensors.insert(name, tensor),
                    Err(_) => None,
                };
            }
            let layer = self.encoding.stored[index].name().to_string();
            kept.push(KeptLayer { layer, change });
        }
        self.archive = self.encoding.archive.with(Changes::from(tensors))?;
        self.stacked = self.encoding.stacked(&self.archive)?;
        Ok(kept)
    }

    /// All tensors that differ from those of the file: changed ones, and those in another format.
    fn rounded(&self, dtype: Dtype) -> Result<BTreeMap<String, RawTensor>, Fault> {
        let mut tensors = BTreeMap::new();
        for name in self.archive.names() {
            let tensor = self.archive.tensor(name)?;
            let real = matches!(
                tensor.dtype(),
                Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64
            );
            let inside = name.starts_with(&self.encoding.structure.prefix);
            if real && inside && tensor.dtype() != dtype {
                let values = tensor.to_f64().map_err(|error| error.of(name))?;
                let made = floating(name, dtype, tensor.shape().to_vec(), &values)?;
                require_finite(name, &made, &values)?;
                tensors.insert(name.to_string(), made);
            } else if tensor != self.encoding.archive.tensor(name)? {
                tensors.insert(name.to_string(), tensor);
            }
        }
        Ok(tensors)
    }

    fn dynamics(&self, index: usize, archive: &Archive) -> Result<Dynamics, Fault> {
        let structure = &self.encoding.structure;
        structure.layers[index].decode(&Tensors::new(archive, &structure.prefix))
    }

    /// The tensors that hold the systems of a layer.
    fn system_tensors(&self, index: usize, systems: &Dynamics) -> Result<Vec<String>, Fault> {
        let structure = &self.encoding.structure;
        let tensors = Tensors::new(&self.archive, &structure.prefix);
        let encoded = structure.layers[index].encode(systems, &tensors)?;
        let names = encoded.iter().map(|encoded| tensors.full(&encoded.name));
        Ok(names.collect())
    }
}

/// The largest relative H2 error of a system of a layer; infinite where one does not decay.
fn change(planned: &Dynamics, rounded: &Dynamics) -> f64 {
    let pairs = planned.systems.iter().zip(&rounded.systems);
    let backward = planned.backward.iter().zip(&rounded.backward);
    let changes = pairs
        .chain(backward)
        .map(|(planned, rounded)| relative_error(planned, rounded).unwrap_or(f64::INFINITY));
    changes.fold(0.0, f64::max)
}

fn relative_error(planned: &DiagonalSystem, rounded: &DiagonalSystem) -> Option<f64> {
    let (planned, rounded) = (in_steps(planned)?, in_steps(rounded)?);
    let (planned, rounded) = (planned.stable().ok()?, rounded.stable().ok()?);
    let error = h2_error(planned, rounded).ok()?;
    let norm = h2_norm(planned).ok()?;
    Some(if error > 0.0 { error / norm } else { 0.0 })
}

/// The same samples with a step of one: rounding changes the step, too.
fn in_steps(system: &DiagonalSystem) -> Option<DiagonalSystem> {
    let made = DiagonalSystem::new(
        Time::Discrete { step: 1.0 },
        system.scaled_exponents(),
        system.input().clone(),
        system.output().clone(),
        system.feedthrough().clone(),
    );
    made.ok()
}
