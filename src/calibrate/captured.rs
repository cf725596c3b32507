//! The inputs of the layers, and gradients of the logits by their outputs, as another program wrote
//! them to a file: calibration of networks that are not run here.

use std::collections::BTreeMap;
use std::path::Path;

use hankelite_archive::{Archive, RawTensor};
use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::calibrate::statistics::{GROUP, GROUPS_HELD, Gather, Sums};
use crate::calibrate::{CalibrateError, Calibration, Known, LayerCalibration, LayerSequences};
use crate::model::Model;
use crate::progress::{ProgressSink, stage};

/// What the name of a layer's gradients has behind that of the layer.
const GRADIENT: &str = ".output_gradient";

/// A file with a tensor (B, L, H) for each layer of a model, the inputs of its channels on B
/// sequences of L steps, under the layer's name; and perhaps `NAME.output_gradient`, (B, L, H) or
/// (B, K, L, H), for every layer: the derivatives of K combinations of the logits by y = k ∗ u + D u.
/// Each combination is Σ_c s_c z_c, the s_c being random signs, less their mean.
///
/// A file stays where it is; it is read in pieces.
#[derive(Debug)]
pub struct Captured {
    archive: Archive,
    layers: Vec<String>,
    channels: Vec<usize>,
    sequences: usize,
    length: usize,
    /// Combinations of each sequence; 0 without gradients.
    combinations: usize,
}

impl Captured {
    /// Whether a file has a tensor under the name of one of the model's layers.
    pub fn is_file_of(path: &Path, model: &Model) -> bool {
        let archive = Archive::open(path);
        let named = |archive: Archive| {
            let mut blocks = model.blocks().iter();
            blocks.any(|block| archive.contains(block.name()))
        };
        archive.is_ok_and(named)
    }

    /// Opens a file and compares its shapes with the layers of a model. Of more sequences than `most`
    /// the first are used.
    ///
    /// # Errors
    /// [`CalibrateError::Archive`]; [`CalibrateError::Other`] for a missing tensor or another shape.
    pub fn open(path: &Path, model: &Model, most: usize) -> Result<Self, CalibrateError> {
        Self::of(Archive::open(path)?, model, most)
    }

    /// As [`Captured::open`], for tensors in memory; `name` is what errors call them.
    ///
    /// # Errors
    /// [`CalibrateError::Other`].
    pub fn in_memory(
        name: &str,
        tensors: BTreeMap<String, RawTensor>,
        model: &Model,
    ) -> Result<Self, CalibrateError> {
        Self::of(Archive::in_memory(name, tensors), model, usize::MAX)
    }

    fn of(archive: Archive, model: &Model, most: usize) -> Result<Self, CalibrateError> {
        let first = model.blocks().first().map_or("", |block| block.name());
        let shape = archive
            .shape(first)
            .ok_or_else(|| missing(&archive, first))?;
        let &[sequences, length, _] = shape else {
            let expected = "[sequences, steps, channels]".to_string();
            return Err(wrong(&archive, first, expected));
        };
        let with_gradients = archive.contains(&format!("{first}{GRADIENT}"));
        let combinations = match archive.shape(&format!("{first}{GRADIENT}")) {
            Some(&[_, count, _, _]) => count,
            _ => usize::from(with_gradients),
        };
        let blocks = model.blocks().iter();
        let made = Self {
            layers: blocks
                .clone()
                .map(|block| block.name().to_string())
                .collect(),
            channels: blocks.map(|block| block.channels()).collect(),
            sequences: sequences.min(most),
            length,
            combinations,
            archive,
        };
        made.check(sequences, with_gradients)?;
        Ok(made)
    }

    fn check(&self, stored: usize, with_gradients: bool) -> Result<(), CalibrateError> {
        let (length, count) = (self.length, self.combinations);
        for (name, &channels) in self.layers.iter().zip(&self.channels) {
            let found = self.archive.shape(name);
            let found = found.ok_or_else(|| missing(&self.archive, name))?;
            if found != [stored, length, channels] || stored * length == 0 {
                let expected = format!("[{stored}, {length}, {channels}], none of them 0");
                return Err(wrong(&self.archive, name, expected));
            }
            if !with_gradients {
                continue;
            }
            let name = format!("{name}{GRADIENT}");
            let found = self.archive.shape(&name);
            let found = found.ok_or_else(|| missing(&self.archive, &name))?;
            let several = [stored, count, length, channels];
            if found != several && !(count == 1 && found == [stored, length, channels]) {
                let expected = format!("{several:?}");
                return Err(wrong(&self.archive, &name, expected));
            }
        }
        Ok(())
    }

    /// Sequences that are used.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Steps of each sequence.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether there are gradients of the logits.
    pub(crate) fn has_gradients(&self) -> bool {
        self.combinations > 0
    }

    /// Combinations of the logits for each sequence.
    pub(super) fn combinations(&self) -> usize {
        self.combinations
    }

    /// Autocorrelations, means and importances of all layers; the importances are 1 without
    /// gradients. Cost an FFT for each channel and sequence; memory O(L H) for one layer, and some
    /// sequences.
    ///
    /// # Errors
    /// [`CalibrateError::Other`]; the file can no longer be read.
    pub fn statistics(
        &self,
        origin: &str,
        observer: &dyn ProgressSink,
    ) -> Result<Calibration, CalibrateError> {
        observer.begin(stage::LAYER_INPUTS, self.layers.len());
        let layers = self.layers.iter().enumerate().map(|(layer, name)| {
            observer.step()?;
            let sums = self.sums(layer)?;
            let statistics = sums.statistics(self.sequences);
            let statistics = statistics.map_err(|fault| CalibrateError::of_layer(name, fault))?;
            let importance = match self.has_gradients() {
                true => self.importance(layer)?,
                false => vec![1.0; self.channels[layer]],
            };
            LayerCalibration::new(name, statistics, importance)
        });
        let layers = layers.collect::<Result<Vec<_>, CalibrateError>>()?;
        let known = match self.has_gradients() {
            true => Known::InputsAndGradients,
            false => Known::Inputs,
        };
        Calibration::new(layers, origin, known)
    }

    fn sums(&self, layer: usize) -> Result<Sums, CalibrateError> {
        let (length, channels) = (self.length, self.channels[layer]);
        let mut total = Sums::zeros(length, channels);
        for first in (0..self.sequences).step_by(GROUP * GROUPS_HELD) {
            let last = (first + GROUP * GROUPS_HELD).min(self.sequences);
            let inputs = self.inputs(layer, first, last)?;
            let sums = inputs.par_chunks(GROUP).map(|members| {
                let mut sums = Sums::zeros(length, channels);
                members.iter().for_each(|input| sums.add(input, length));
                sums
            });
            for sums in sums.collect::<Vec<_>>() {
                total.merge(&sums);
            }
        }
        Ok(total)
    }

    /// The mean square of the gradients of each channel.
    fn importance(&self, layer: usize) -> Result<Vec<f64>, CalibrateError> {
        let mut squares = vec![0.0; self.channels[layer]];
        for first in (0..self.sequences).step_by(GROUP) {
            let last = (first + GROUP).min(self.sequences);
            for gradient in self.gradients(layer, first, last)?.iter().flatten() {
                for (sum, column) in squares.iter_mut().zip(gradient.column_iter()) {
                    *sum += column.norm_squared();
                }
            }
        }
        let samples = (self.sequences * self.combinations * self.length) as f64;
        Ok(squares.into_iter().map(|sum| sum / samples).collect())
    }

    /// The inputs of one layer on some sequences, each L × H.
    pub(super) fn inputs(
        &self,
        layer: usize,
        first: usize,
        last: usize,
    ) -> Result<Vec<DMatrix<f64>>, CalibrateError> {
        let (length, channels) = (self.length, self.channels[layer]);
        let values = self.values(&self.layers[layer], first, last)?;
        let each = values.chunks_exact(length * channels);
        Ok(each
            .map(|own| DMatrix::from_row_slice(length, channels, own))
            .collect())
    }

    /// The gradients of one layer on some sequences: of each the combinations, L × H.
    pub(super) fn gradients(
        &self,
        layer: usize,
        first: usize,
        last: usize,
    ) -> Result<Vec<Vec<DMatrix<f64>>>, CalibrateError> {
        let (length, channels) = (self.length, self.channels[layer]);
        let name = format!("{}{GRADIENT}", self.layers[layer]);
        let values = self.values(&name, first, last)?;
        let each = values.chunks_exact(self.combinations * length * channels);
        let each = each.map(|own| {
            let own = own.chunks_exact(length * channels);
            own.map(|own| DMatrix::from_row_slice(length, channels, own))
                .collect()
        });
        Ok(each.collect())
    }

    /// The inputs of the channels of one layer: for each channel sequences × L. Memory O(n L H).
    pub(super) fn by_channel(&self, layer: usize) -> Result<Vec<DMatrix<f64>>, CalibrateError> {
        let (length, channels) = (self.length, self.channels[layer]);
        let mut inputs = vec![DMatrix::zeros(self.sequences, length); channels];
        for first in (0..self.sequences).step_by(GROUP) {
            let last = (first + GROUP).min(self.sequences);
            for (n, input) in self.inputs(layer, first, last)?.iter().enumerate() {
                for (own, column) in inputs.iter_mut().zip(input.column_iter()) {
                    own.row_mut(first + n).tr_copy_from(&column);
                }
            }
        }
        Ok(inputs)
    }

    /// Everything that was captured of one layer. Memory O(n L H) with the gradients.
    pub(super) fn layer(&self, layer: usize) -> Result<LayerSequences, CalibrateError> {
        let inputs = self.inputs(layer, 0, self.sequences)?;
        let gradients = match self.has_gradients() {
            true => self.gradients(layer, 0, self.sequences)?,
            false => Vec::new(),
        };
        LayerSequences::new(inputs, gradients)
    }

    fn values(&self, name: &str, first: usize, last: usize) -> Result<Vec<f64>, CalibrateError> {
        let raw: RawTensor = self.archive.rows(name, first..last)?;
        let values = raw.to_f64().map_err(|error| error.of(name))?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let each = values.len() / (last - first).max(1);
            return Err(CalibrateError::Other(format!(
                "{}: tensor `{name}` holds {} in sequence {}, expected finite numbers",
                self.archive.path().display(),
                values[at],
                first + at / each.max(1)
            )));
        }
        Ok(values)
    }
}

fn missing(archive: &Archive, tensor: &str) -> CalibrateError {
    let names: Vec<String> = archive
        .names()
        .take(5)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = if archive.names().count() > names.len() {
        ", ..."
    } else {
        ""
    };
    CalibrateError::Other(format!(
        "{}: no tensor `{tensor}`, found {}{more}",
        archive.path().display(),
        names.join(", ")
    ))
}

fn wrong(archive: &Archive, tensor: &str, expected: String) -> CalibrateError {
    CalibrateError::Other(format!(
        "{}: tensor `{tensor}` has shape {:?}, expected {expected}",
        archive.path().display(),
        archive.shape(tensor).unwrap_or(&[])
    ))
}
