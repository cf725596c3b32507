//! What was gathered from a few sequences, and its file.

use std::path::Path;

use hankelite_archive::{Archive, ArchiveError, Dtype, RawTensor, write_arrays};
use hankelite_control::{InputStatistics, StatisticsError};
use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

use crate::calibrate::fingerprint::{agree, fingerprint};
use crate::calibrate::{CalibrateError, input_statistics};
use crate::infer::{Network, importance_from};
use crate::model::{Model, Sequence};

/// The name of the format in the file's metadata.
const FORMAT: &str = "hankelite input statistics 1";

/// The input of one layer, and the sensitivity of the logits to its channels.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LayerCalibration {
    /// The layer's name.
    pub name: String,
    /// Of its input.
    pub statistics: InputStatistics,
    /// [`crate::advanced::importance`] of each channel.
    pub importance: Vec<f64>,
}

impl LayerCalibration {
    /// Statistics of the input of the layer of that name, and the importance of each channel: the mean
    /// square of the derivative of Σ_c s_c z_c by the channel's output, z being the logits and the s_c
    /// random signs less their mean.
    ///
    /// # Errors
    /// [`CalibrateError`] for as many importances as there are no channels, or one that
    /// is negative or not finite.
    pub fn new(
        name: &str,
        statistics: InputStatistics,
        importance: Vec<f64>,
    ) -> Result<Self, CalibrateError> {
        let wrong = |fault| CalibrateError::of_layer(name, fault);
        let (found, expected) = (importance.len(), statistics.channels());
        if found != expected {
            return Err(wrong(StatisticsError::Channels { found, expected }));
        }
        let fine = |i: &f64| *i >= 0.0 && i.is_finite();
        if let Some(channel) = importance.iter().position(|i| !fine(i)) {
            let what = "the importance";
            return Err(wrong(StatisticsError::NotFinite { channel, what }));
        }
        Ok(Self {
            name: name.to_string(),
            statistics,
            importance,
        })
    }
}

/// What is known of a network beyond its layers, which decides the parts of the method that can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// The inputs of the layers: channels are balanced and refined for them, one by one.
    Inputs,
    /// Gradients of the logits too: states are shared by importance, and all channels are fitted
    /// together to first order where the gradients themselves are at hand.
    InputsAndGradients,
    /// The network runs: allocations are compared, and all channels are fitted together, by its
    /// logits, where the sequences are at hand.
    Network,
}

/// Inputs of a reduction besides the metrics of the layer inputs.
#[derive(Debug, Clone)]
pub(super) struct Summary {
    /// Where the sequences came from.
    pub(super) origin: String,
    /// How many.
    pub(super) sequences: usize,
    /// Their steps.
    pub(super) length: usize,
    pub(super) known: Known,
    /// Of each channel of every layer.
    pub(super) importance: Vec<Vec<f64>>,
}

/// The inputs of a network's layers, gathered once; enough to reduce it again without the data.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    layers: Vec<LayerCalibration>,
    /// Of the model that ran; `None` where another program ran it.
    fingerprint: Option<String>,
    origin: String,
    known: Known,
}

/// What stands beside the arrays of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    #[serde(default)]
    origin: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    known: Option<Known>,
    sequences: usize,
    layers: Vec<String>,
}

impl Calibration {
    /// Runs a network on sequences and gathers the inputs of its layers; `origin` describes where
    /// the sequences come from. Nothing depends on the number of threads. Cost about four forward
    /// passes for each sequence.
    ///
    /// # Errors
    /// [`CalibrateError::Infer`] when the model does not run on a sequence, and for no sequences;
    /// [`CalibrateError::Cancelled`] by the network's observer.
    pub fn gather(
        network: &Network<'_>,
        sequences: &[Sequence<'_>],
        origin: &str,
    ) -> Result<Self, CalibrateError> {
        Self::gather_from(network, sequences, 0, origin)
    }

    /// As [`Calibration::gather`], of sequences that stand behind `first` others: a part of a run that
    /// several machines share, to be put together by [`Calibration::merged`].
    ///
    /// # Errors
    /// As [`Calibration::gather`].
    pub fn gather_from(
        network: &Network<'_>,
        sequences: &[Sequence<'_>],
        first: usize,
        origin: &str,
    ) -> Result<Self, CalibrateError> {
        let model = network.model();
        let statistics = input_statistics(network, sequences)?;
        let importance = importance_from(network, sequences, first)?;
        let parts = model.blocks().iter().zip(statistics).zip(importance);
        let layers = parts.map(|((block, statistics), importance)| LayerCalibration {
            name: block.name().to_string(),
            statistics,
            importance,
        });
        Ok(Self {
            layers: layers.collect(),
            fingerprint: Some(fingerprint(model)),
            origin: origin.to_string(),
            known: Known::Network,
        })
    }

    /// Statistics that were gathered elsewhere, in the order of the model's layers; `origin` describes
    /// the sequences behind them. Without a fingerprint only names and channels are compared with
    /// the model.
    ///
    /// # Errors
    /// [`CalibrateError`] for no layer, and for layers of different lengths or numbers of
    /// sequences.
    pub fn new(
        layers: Vec<LayerCalibration>,
        origin: &str,
        known: Known,
    ) -> Result<Self, CalibrateError> {
        let size =
            |layer: &LayerCalibration| (layer.statistics.length(), layer.statistics.sequences());
        let first = layers.first().map(size);
        let other = layers.iter().find(|layer| Some(size(layer)) != first);
        let empty = |layer: String, (length, sequences)| {
            CalibrateError::of_layer(&layer, StatisticsError::Empty { sequences, length })
        };
        match (first, other) {
            (None, _) => Err(empty(String::new(), (0, 0))),
            (Some(_), Some(other)) => Err(CalibrateError::OtherModel(format!(
                "{:?} steps and sequences in layer `{}`, expected {:?}, as in the first",
                size(other),
                other.name,
                first.unwrap_or_default()
            ))),
            (Some(_), None) => Ok(Self {
                layers,
                fingerprint: None,
                origin: origin.to_string(),
                known,
            }),
        }
    }

    /// The statistics of all sequences behind several: to rounding those of one run over all of them.
    /// `origin` describes them together.
    ///
    /// # Errors
    /// [`CalibrateError::OtherModel`] for statistics of other layers, lengths, numbers or knowledge than
    /// the first; [`CalibrateError`] for none.
    pub fn merged(parts: &[Self], origin: &str) -> Result<Self, CalibrateError> {
        let [first, others @ ..] = parts else {
            return Self::new(Vec::new(), origin, Known::Network);
        };
        for other in others {
            let [(found, of), (expected, of_first)] = [other, first].map(|own| {
                let of = own.fingerprint.as_deref().unwrap_or("none");
                (own.kind(), of)
            });
            if found != expected || !agree(of, of_first) {
                return Err(CalibrateError::OtherModel(format!(
                    "{found}, fingerprint {of}, expected {expected}, fingerprint {of_first}"
                )));
            }
        }
        let layers = (0..first.layers.len()).map(|index| {
            let own: Vec<_> = parts.iter().map(|part| &part.layers[index]).collect();
            merged_layer(&own)
        });
        let layers = layers.collect::<Result<_, _>>()?;
        Ok(Self {
            fingerprint: first.fingerprint.clone(),
            ..Self::new(layers, origin, first.known)?
        })
    }

    /// Inputs of a reduction besides the statistics.
    pub(super) fn summary(&self) -> Summary {
        let layers = self.layers.iter();
        Summary {
            origin: self.origin.clone(),
            sequences: self.sequences(),
            length: self.length(),
            known: self.known,
            importance: layers.map(|layer| layer.importance.clone()).collect(),
        }
    }

    /// What statistics must have in common to be put together.
    fn kind(&self) -> String {
        let layers = self.layers.iter();
        let layers = layers.map(|l| format!("{} ({})", l.name, l.statistics.channels()));
        format!(
            "{} steps, layers (channels) {}, known: {:?}",
            self.length(),
            layers.collect::<Vec<_>>().join(", "),
            self.known
        )
    }

    /// What is known of the network beyond its layers.
    pub fn known(&self) -> Known {
        self.known
    }

    /// One entry for each layer.
    pub fn layers(&self) -> &[LayerCalibration] {
        &self.layers
    }

    /// Steps of the sequences.
    pub fn length(&self) -> usize {
        self.layers
            .first()
            .map_or(0, |layer| layer.statistics.length())
    }

    /// Sequences behind the statistics.
    pub fn sequences(&self) -> usize {
        self.layers
            .first()
            .map_or(0, |layer| layer.statistics.sequences())
    }

    /// Where the sequences came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether the statistics are of this very model: its layers' names and channels, and its numbers
    /// where there is a fingerprint.
    ///
    /// # Errors
    /// [`CalibrateError::OtherModel`].
    pub fn check(&self, model: &Model) -> Result<(), CalibrateError> {
        let shape = |layers: Vec<(&str, usize)>| {
            let layers = layers
                .iter()
                .map(|(name, channels)| format!("{name} ({channels})"));
            layers.collect::<Vec<_>>().join(", ")
        };
        let own = self
            .layers
            .iter()
            .map(|l| (l.name.as_str(), l.statistics.channels()));
        let other = model.blocks().iter().map(|b| (b.name(), b.channels()));
        let (found, expected) = (shape(own.collect()), shape(other.collect()));
        if found != expected {
            let what = format!("layers (channels) {found}, expected {expected}");
            return Err(CalibrateError::OtherModel(what));
        }
        let expected = fingerprint(model);
        match &self.fingerprint {
            Some(found) if !agree(found, &expected) => Err(CalibrateError::OtherModel(format!(
                "the same shapes but fingerprint {found}, expected {expected}"
            ))),
            _ => Ok(()),
        }
    }

    /// Writes the statistics as a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// [`ArchiveError`] of the destination.
    pub fn write(&self, path: &Path) -> Result<(), ArchiveError> {
        let mut arrays = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            // The file's own description is in docs/calibrate-your-own-network.md.
            let statistics = &layer.statistics;
            let (length, channels) = statistics.autocorrelation().shape();
            // Column-major L × H is row-major H × L.
            let lags = statistics.autocorrelation().as_slice();
            let array = |name: &str, shape: Vec<usize>, values: &[f64]| {
                let name = format!("{index}.{name}");
                let tensor = RawTensor::from_f64(Dtype::F64, shape, values);
                let tensor = tensor.map_err(|error| error.of(&name))?;
                Ok::<_, ArchiveError>((name, tensor))
            };
            arrays.push(array("autocorrelation", vec![channels, length], lags)?);
            arrays.push(array("mean", vec![channels], statistics.mean())?);
            arrays.push(array("importance", vec![channels], &layer.importance)?);
        }
        let header = Header {
            format: FORMAT.to_string(),
            fingerprint: self.fingerprint.clone(),
            origin: self.origin.clone(),
            known: Some(self.known),
            sequences: self.sequences(),
            layers: self.layers.iter().map(|layer| layer.name.clone()).collect(),
        };
        let header = serde_json::to_string(&header).expect("plain data become JSON");
        write_arrays(path, arrays, &header)
    }

    /// Whether a file declares that it holds statistics.
    pub fn is_file_of(path: &Path) -> bool {
        Archive::open(path).is_ok_and(|archive| header(&archive).is_some())
    }

    /// Reads what [`Calibration::write`] wrote.
    ///
    /// # Errors
    /// [`ArchiveError`] for a damaged file or missing arrays; [`CalibrateError`] for
    /// numbers that no input has.
    pub fn read(path: &Path) -> Result<Self, CalibrateError> {
        let archive = Archive::open(path)?;
        let Some(header) = header(&archive) else {
            return Err(CalibrateError::Other(format!(
                "{}: no input statistics in it, expected a file of `compress-model calibrate`",
                path.display()
            )));
        };
        // Nothing is left out of what a network that ran here gave.
        let optional = header.fingerprint.is_none()
            && header.known.is_none_or(|known| known == Known::Inputs)
            && !archive.contains("0.importance");
        let sequences = header.sequences;
        let layers = header.layers.iter().enumerate();
        let layers = layers.map(|(index, name)| {
            let importance = (!optional).then_some("importance");
            layer(&archive, index, name, sequences, importance)
        });
        let layers = layers.collect::<Result<_, _>>()?;
        let known = header
            .known
            .unwrap_or(match (&header.fingerprint, optional) {
                (Some(_), _) => Known::Network,
                (None, false) => Known::InputsAndGradients,
                (None, true) => Known::Inputs,
            });
        Ok(Self {
            fingerprint: header.fingerprint,
            ..Self::new(layers, &header.origin, known)?
        })
    }
}

/// Means over the sequences of all parts of a layer.
fn merged_layer(parts: &[&LayerCalibration]) -> Result<LayerCalibration, CalibrateError> {
    let counts = parts.iter().map(|part| part.statistics.sequences());
    let sequences: usize = counts.sum();
    let share = |part: &LayerCalibration| part.statistics.sequences() as f64 / sequences as f64;
    let first = &parts[0].statistics;
    let mut mean = vec![0.0; first.channels()];
    let mut importance = mean.clone();
    let mut lags = DMatrix::zeros(first.length(), first.channels());
    for part in parts {
        let share = share(part);
        lags += part.statistics.autocorrelation() * share;
        let own = part.statistics.mean().iter().zip(&part.importance);
        for ((mean, importance), (m, i)) in mean.iter_mut().zip(&mut importance).zip(own) {
            *mean += share * m;
            *importance += share * i;
        }
    }
    let name = &parts[0].name;
    let statistics = InputStatistics::new(mean, lags, sequences);
    let statistics = statistics.map_err(|fault| CalibrateError::of_layer(name, fault))?;
    LayerCalibration::new(name, statistics, importance)
}

fn header(archive: &Archive) -> Option<Header> {
    let header: Header = serde_json::from_str(archive.metadata()?).ok()?;
    (header.format == FORMAT).then_some(header)
}

fn layer(
    archive: &Archive,
    index: usize,
    name: &str,
    sequences: usize,
    importance: Option<&str>,
) -> Result<LayerCalibration, CalibrateError> {
    let numbers = |part: &str| {
        let tensor = format!("{index}.{part}");
        let raw = archive.tensor(&tensor)?;
        let values = raw.to_f64().map_err(|error| error.of(&tensor))?;
        Ok::<_, ArchiveError>((raw.shape().to_vec(), values))
    };
    let statistics = |fault| CalibrateError::of_layer(name, fault);
    let (shape, lags) = numbers("autocorrelation")?;
    let &[channels, length] = shape.as_slice() else {
        return Err(statistics(StatisticsError::Empty {
            sequences,
            length: 0,
        }));
    };
    let (_, mean) = numbers("mean")?;
    let importance = match importance {
        Some(part) => numbers(part)?.1,
        None => vec![1.0; channels],
    };
    let lags = DMatrix::from_vec(length, channels, lags);
    let input = InputStatistics::new(mean, lags, sequences).map_err(statistics)?;
    LayerCalibration::new(name, input, importance)
}
