//! A checkpoint, from a file or from tensors in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hankelite::advanced::{
    Calibrated, CalibratedReduction, CalibrationRun, Captured, HeldApart, Settings, Sizes,
    Targeted, WeightChoice, held_apart, reduce_observed,
};
use hankelite::archive::{Archive, Changes, Dtype, RawTensor};
use hankelite::calibrate::CalibrateError;
use hankelite::checkpoint::{Family, Provenance, from_tensors};
use hankelite::compress::{
    LayerRecord, LayerSpectrum, Method, RealisationChoice, TimeBase, inspect,
};
use hankelite::infer::{Network, Path};
use hankelite::model::{InputKind, Model, Sequence};
use hankelite::rounding::Storage;
use hankelite::target::{Size, TargetError};
use hankelite::{Declared, Plan, ProgressSink, Realisation, Rule, Suited};
use numpy::{PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::control::{ArraysOut, arrays};
use crate::failure::{Failure, Outcome, in_python};
use crate::graph::write_graph;
use crate::progress::watched;
use crate::statistics::{Gathered, LayerIn, Requested};
use crate::stream::Stream;
use crate::target::{Stop, Wanted, image_of, trained};

/// Name, element type, shape and little-endian bytes.
type TensorIn<'py> = (String, String, Vec<usize>, PyReadonlyArray1<'py, u8>);
type TensorOut<'py> = (String, String, Vec<usize>, Bound<'py, PyArray1<u8>>);

/// A smaller checkpoint, its records and choice as JSON, and its image.
type TargetedOut<'py> = (Checkpoint, String, String, Bound<'py, PyArray1<u8>>);

/// Of a layer: name, Hankel values (a row for each channel, NaN where there are none, 0 behind the
/// last), stored states, step, largest |pole|, indices of the modes that do not decay.
type SpectrumOut<'py> = (
    String,
    Bound<'py, PyArray2<f64>>,
    Vec<usize>,
    Vec<f64>,
    Vec<f64>,
    Vec<Vec<usize>>,
);

/// A model with how its tensors encode it.
#[pyclass(frozen, module = "hankelite._core")]
pub(crate) struct Checkpoint(hankelite::checkpoint::Checkpoint);

#[pymethods]
impl Checkpoint {
    /// Reads a file. `declared` is JSON.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf, declared: &str) -> PyResult<Self> {
        let declared = parse_declared(declared)?;
        let read = py.detach(|| hankelite::read(path, &declared));
        Ok(Self(read.map_err(Failure::from)?))
    }

    /// Takes tensors.
    #[staticmethod]
    fn from_tensors(
        py: Python<'_>,
        name: &str,
        tensors: Vec<TensorIn<'_>>,
        declared: &str,
    ) -> PyResult<Self> {
        let declared = parse_declared(declared)?;
        let taken = taken(tensors)?;
        let read = py.detach(|| from_tensors(name, taken, &declared));
        Ok(Self(read.map_err(Failure::from)?))
    }

    /// The family of the layers.
    #[getter]
    fn family(&self) -> &'static str {
        self.0.family()
    }

    /// The names of the layers.
    #[getter]
    fn layers(&self) -> Vec<&str> {
        let blocks = self.0.model.blocks().iter();
        blocks.map(|block| block.name()).collect()
    }

    /// Stored states of every channel of every layer, those backwards in time last.
    #[getter]
    fn orders(&self) -> Vec<Vec<usize>> {
        let blocks = self.0.model.blocks().iter();
        let orders = blocks.map(|block| block.all_systems().map(|s| s.order()).collect());
        orders.collect()
    }

    /// Inputs of every layer.
    #[getter]
    fn channels(&self) -> Vec<usize> {
        let blocks = self.0.model.blocks().iter();
        blocks.map(|block| block.channels()).collect()
    }

    /// What was assumed because nothing declared it.
    #[getter]
    fn assumptions(&self) -> Vec<String> {
        let assumptions = self.0.assumptions().iter();
        assumptions.map(|text| in_python(text)).collect()
    }

    /// What a person should know about the file.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().iter().map(|text| in_python(text)).collect()
    }

    /// What was declared or assumed, as JSON.
    #[getter]
    fn declared(&self) -> PyResult<String> {
        json(&self.0.declared())
    }

    /// Whether the whole network is known, so that it can be run.
    #[getter]
    fn runs(&self) -> bool {
        self.0.model.head().is_some()
    }

    /// Whether the network takes tokens; nothing where it has no encoder.
    #[getter]
    fn tokens(&self) -> Option<bool> {
        let encoder = self.0.model.encoder()?;
        Some(matches!(encoder.takes(), InputKind::Tokens { .. }))
    }

    /// Numbers of a step that the network takes, where it is known.
    #[getter]
    fn inputs(&self) -> Option<usize> {
        self.0.model.inputs()
    }

    /// The names of the tensors of one layer's systems.
    fn system_tensors(&self, layer: usize) -> PyResult<Vec<String>> {
        self.require_layer(layer)?;
        Ok(self.0.system_tensors(layer))
    }

    /// The systems of one layer, those backwards in time last.
    fn systems<'py>(&self, py: Python<'py>, layer: usize) -> PyResult<Vec<ArraysOut<'py>>> {
        self.require_layer(layer)?;
        let systems = self.0.model.blocks()[layer].all_systems();
        Ok(systems.map(|system| arrays(py, system)).collect())
    }

    /// Hankel singular values and stability of all channels.
    #[pyo3(signature = (time, realisation, progress))]
    fn inspect<'py>(
        &self,
        py: Python<'py>,
        time: Option<&str>,
        realisation: &str,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<SpectrumOut<'py>>> {
        let time: Option<TimeBase> = time.map(parse).transpose()?;
        let time = time.unwrap_or(Suited::to(&self.0).time);
        let realisation: Realisation = parse(realisation)?;
        let model = &self.0.model;
        let spectra = watched(py, progress.as_ref(), |observer| {
            inspect(model, time, realisation, observer)
        })?;
        let spectra = spectra.map_err(Failure::from)?;
        let layers = spectra.into_iter();
        Ok(layers.map(|one| spectrum(py, one, realisation)).collect())
    }

    /// A smaller checkpoint for white noise, and its records as JSON. `plan` is JSON.
    #[pyo3(signature = (plan, progress))]
    fn reduce(
        &self,
        py: Python<'_>,
        plan: &str,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Self, String)> {
        let plan = PlanIn::parse(plan)?.plan(&self.0)?;
        let model = &self.0.model;
        let reduced = watched(py, progress.as_ref(), |observer| {
            reduce_observed(model, &plan, observer)
        })?;
        let reduced = reduced.map_err(Failure::from)?;
        let records = json(&reduced.records)?;
        let method = json(&plan.method())?.trim_matches('"').to_string();
        let smaller = self.0.with_model(reduced.model);
        Ok((
            Self(self.noted(smaller, &reduced.records, (&method, None))),
            records,
        ))
    }

    /// A smaller checkpoint for the inputs that its layers get; records and choice as JSON.
    #[pyo3(signature = (layers, requested, progress))]
    fn reduce_by_statistics(
        &self,
        py: Python<'_>,
        layers: Vec<LayerIn<'_>>,
        requested: &str,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Self, String, String)> {
        let requested = Requested::parse(requested)?;
        let gathered = Gathered::new(&layers)?;
        let model = &self.0.model;
        let reduced = watched(py, progress.as_ref(), |observer| {
            gathered.reduce(model, &requested, observer)
        })??;
        self.calibrated(reduced)
    }

    /// A smaller checkpoint by sequences that the network itself runs on.
    #[pyo3(signature = (sequences, requested, progress))]
    fn reduce_by_sequences(
        &self,
        py: Python<'_>,
        sequences: Sequences<'_>,
        requested: &str,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Self, String, String)> {
        let requested = Requested::parse(requested)?;
        let settings = requested.settings()?;
        let owned = sequences.owned();
        let reduced = watched(py, progress.as_ref(), |observer| {
            let listed = owned.borrowed();
            let reduction = self.balanced((&owned, &listed), &requested.origin, observer)?;
            Ok::<_, Failure>(reduction.reduce(&settings)?)
        })??;
        self.calibrated(reduced)
    }

    /// A smaller checkpoint by layer inputs, and perhaps gradients, that the caller captured.
    #[pyo3(signature = (tensors, requested, progress))]
    fn reduce_by_captured(
        &self,
        py: Python<'_>,
        tensors: Vec<TensorIn<'_>>,
        requested: &str,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Self, String, String)> {
        let requested = Requested::parse(requested)?;
        let settings = requested.settings()?;
        let (taken, model) = (taken(tensors)?, &self.0.model);
        let reduced = watched(py, progress.as_ref(), |observer| {
            let captured = Captured::in_memory(&requested.origin, taken, model)?;
            reduced_by_captured(model, &captured, &settings, &requested.origin, observer)
        })??;
        self.calibrated(reduced)
    }

    /// As above, from a file.
    #[pyo3(signature = (path, requested, progress))]
    fn reduce_by_captured_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        requested: &str,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Self, String, String)> {
        let requested = Requested::parse(requested)?;
        let settings = requested.settings()?;
        let model = &self.0.model;
        let reduced = watched(py, progress.as_ref(), |observer| {
            let captured = Captured::open(&path, model, usize::MAX)?;
            reduced_by_captured(model, &captured, &settings, &requested.origin, observer)
        })??;
        self.calibrated(reduced)
    }

    /// A smaller checkpoint within a size of the whole model; its records, plan and changes of the
    /// logits as JSON, and its image.
    #[pyo3(signature = (sequences, wanted, progress))]
    fn reduce_to_target<'py>(
        &self,
        py: Python<'py>,
        sequences: Sequences<'_>,
        wanted: &str,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<TargetedOut<'py>> {
        let wanted = Wanted::parse(wanted)?;
        let owned = sequences.owned();
        let met = watched(py, progress.as_ref(), |observer| {
            self.with_sizes(&owned, &wanted, observer, |sizes| {
                Ok::<_, Failure>(sizes.meet(&wanted.size)?)
            })
        })??;
        self.targeted(py, &wanted, &met)
    }

    /// Calls `accept` with the smaller checkpoints of the sizes that are tried, from large to small,
    /// each as `reduce_to_target` gives it: whether it does.
    #[pyo3(signature = (sequences, wanted, accept, progress))]
    fn reduce_to_smallest(
        &self,
        sequences: Sequences<'_>,
        wanted: &str,
        accept: Bound<'_, PyAny>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (py, accept) = (accept.py(), accept.unbind());
        let wanted = Wanted::parse(wanted)?;
        let owned = sequences.owned();
        let accepts = |met: &Targeted| {
            Python::attach(|py| {
                let made = self.targeted(py, &wanted, met)?;
                accept.call1(py, made)?.extract(py)
            })
        };
        watched(py, progress.as_ref(), |observer| {
            self.with_sizes(&owned, &wanted, observer, |sizes| {
                let found = sizes.smallest(|_, met| accepts(met).map_err(Stop::Raised));
                found.map(drop)
            })
        })??;
        Ok(())
    }

    /// The numbers of another checkpoint of this network, with the bits that this one records, and
    /// their image.
    fn trained<'py>(
        &self,
        py: Python<'py>,
        other: &Self,
    ) -> PyResult<(Self, Bound<'py, PyArray1<u8>>)> {
        let (made, image) = py.detach(|| trained(&self.0, &other.0.model))?;
        Ok((Self(made), PyArray1::from_slice(py, image.as_bytes())))
    }

    /// Bytes of the image and of the state of one stream, all numbers in single precision.
    fn image_size(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let model = &self.0.model;
        let size = py.detach(|| Size::of(model, &Storage::single(model)));
        let size = size.map_err(Failure::from)?;
        Ok((size.weights, size.state))
    }

    /// Logits of every sequence.
    #[pyo3(signature = (sequences, progress))]
    fn logits(
        &self,
        py: Python<'_>,
        sequences: Sequences<'_>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Vec<f64>>> {
        let owned = sequences.owned();
        let model = &self.0.model;
        let logits = watched(py, progress.as_ref(), |observer| {
            let network = Network::new(model, owned.steps(model), Path::Auto)?;
            network.observed(observer).logits_of_all(&owned.borrowed())
        })?;
        Ok(logits.map_err(Failure::from)?)
    }

    /// The tensors as they would be written: all of them, or those that differ from what was read.
    fn tensors<'py>(&self, py: Python<'py>, all: bool) -> PyResult<Vec<TensorOut<'py>>> {
        let made = py.detach(|| {
            let archive = self.0.encode()?.into_archive();
            match all {
                true => all_tensors(&archive),
                false => Ok(changed_tensors(archive)),
            }
        });
        let tensors: Vec<(String, RawTensor)> = made?;
        let out = tensors.into_iter().map(|(name, tensor)| {
            let (dtype, shape) = (tensor.dtype().to_string(), tensor.shape().to_vec());
            let bytes = PyArray1::from_vec(py, tensor.into_bytes());
            (name, dtype, shape, bytes)
        });
        Ok(out.collect())
    }

    /// Writes a file; which container it is follows from the name.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| hankelite::write(&self.0, path));
        Ok(written.map(drop).map_err(Failure::from)?)
    }

    /// The same systems in the tensors of another family.
    fn convert(&self, py: Python<'_>, family: &str) -> PyResult<Self> {
        let family: Family = parse(family)?;
        let converted = py.detach(|| self.0.converted(family));
        Ok(Self(converted.map_err(Failure::from)?))
    }

    /// Real numbers in all tensors.
    fn parameters(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.0.parameters()).map_err(Failure::from)?)
    }

    /// The model one sample at a time, its state at zero.
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        self.require_network("StreamError", "step them in your own forward pass")?;
        Ok(py.detach(|| Stream::new(&self.0.model))?)
    }

    /// Writes one step, or whole sequences, as an ONNX file.
    fn write_onnx(&self, py: Python<'_>, path: PathBuf, sequence: bool) -> PyResult<()> {
        self.require_network("ExportError", "torch.onnx exports your own forward pass")?;
        Ok(py.detach(|| write_graph(&self.0, &path, sequence))?)
    }
}

impl Checkpoint {
    /// Models of several sizes from sequences, of which every fifth is held out.
    fn with_sizes<T, E: From<TargetError>>(
        &self,
        owned: &Owned,
        wanted: &Wanted,
        observer: &dyn ProgressSink,
        work: impl FnOnce(&Sizes<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let listed = owned.borrowed();
        let HeldApart { used, held_out } = held_apart(&listed);
        let reduction = self
            .balanced((owned, &used), &wanted.origin, observer)
            .map_err(TargetError::from)?;
        work(&Sizes::new(&reduction, &held_out, wanted.only)?)
    }

    /// All channels balanced for their inputs in some of the sequences.
    fn balanced<'b>(
        &'b self,
        (owned, some): (&Owned, &'b [Sequence<'b>]),
        origin: &'b str,
        observer: &'b dyn ProgressSink,
    ) -> Result<CalibratedReduction<'b>, CalibrateError> {
        let model = &self.0.model;
        let run = CalibrationRun {
            sequences: some,
            length: owned.steps(model),
            origin,
        };
        CalibratedReduction::of_sequences(model, run, WeightChoice::Auto, observer)
    }

    fn targeted<'py>(
        &self,
        py: Python<'py>,
        wanted: &Wanted,
        met: &Targeted,
    ) -> PyResult<TargetedOut<'py>> {
        let (records, choice) = (json(&met.records)?, json(&wanted.record(met))?);
        let image = PyArray1::from_slice(py, image_of(met)?.as_bytes());
        let smaller = self.0.with_model(met.model.clone());
        let way = "states and maps to a target, balanced for the layers' inputs, refined";
        let smaller = self.noted(smaller, &met.records, (way, Some(&wanted.origin)));
        let smaller = Self(smaller.with_storage(met.plan.storage()));
        Ok((smaller, records, choice, image))
    }

    fn calibrated(&self, reduced: Calibrated) -> PyResult<(Self, String, String)> {
        let (records, choice) = (json(&reduced.records)?, json(&reduced.choice)?);
        let weight = reduced.choice.weight;
        let way = format!("balanced for the layers' inputs by their {weight}, refined");
        let smaller = self.0.with_model(reduced.model);
        let on = Some(reduced.choice.origin.as_str());
        let smaller = self.noted(smaller, &reduced.records, (&way, on));
        Ok((Self(smaller), records, choice))
    }

    /// With what the model card of a folder says: how the layers were made smaller, and on which data.
    fn noted(
        &self,
        smaller: hankelite::checkpoint::Checkpoint,
        records: &[LayerRecord],
        (method, calibration): (&str, Option<&str>),
    ) -> hankelite::checkpoint::Checkpoint {
        let Some(folder) = self.0.folder() else {
            return smaller;
        };
        let error = |layer: &LayerRecord| {
            let weighted = layer.relative_weighted_error;
            weighted.unwrap_or(layer.relative_kernel_error)
        };
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        smaller.with_provenance(Provenance {
            source: name.to_string_lossy().into_owned(),
            source_sha256: String::new(),
            method: method.to_string(),
            orders_before: records.iter().map(|layer| layer.order_before).collect(),
            orders: records.iter().map(|layer| layer.order).collect(),
            calibration: calibration.map(str::to_string),
            errors: records.iter().map(error).collect(),
            logit_change: None,
            calibrated_steps: None,
            change_of_pairs: None,
            version: env!("CARGO_PKG_VERSION").to_string(),
        })
    }

    fn require_network(&self, class: &'static str, hint: &str) -> Outcome<()> {
        match self.0.is_layers_alone() {
            false => Ok(()),
            true => Err(Failure::new(
                class,
                format!(
                    "only the layers of this network are known, expected a whole network: {hint}"
                ),
            )),
        }
    }

    fn require_layer(&self, layer: usize) -> Outcome<()> {
        let layers = self.0.model.blocks().len();
        match layer < layers {
            true => Ok(()),
            false => Err(Failure::setting(format!(
                "layer {layer} of {layers}, expected 0 to {}",
                layers.saturating_sub(1)
            ))),
        }
    }
}

fn reduced_by_captured(
    model: &Model,
    captured: &Captured,
    settings: &Settings,
    origin: &str,
    observer: &dyn ProgressSink,
) -> Outcome<Calibrated> {
    let calibration = captured.statistics(origin, observer)?;
    let choice = WeightChoice::Auto;
    let reduction =
        CalibratedReduction::of_captured(model, &calibration, captured, choice, observer)?;
    Ok(reduction.reduce(settings)?)
}

/// Tensors by name.
fn taken(tensors: Vec<TensorIn<'_>>) -> PyResult<BTreeMap<String, RawTensor>> {
    let mut taken = BTreeMap::new();
    for (name, dtype, shape, bytes) in tensors {
        let dtype: Dtype = parse(&dtype)?;
        let tensor = RawTensor::new(dtype, shape, bytes.as_slice()?.to_vec());
        let tensor = tensor.map_err(|error| Failure::from(error.of(&name)))?;
        taken.insert(name, tensor);
    }
    Ok(taken)
}

/// The tensors that differ from what was read, under every name that shares them.
fn changed_tensors(archive: Archive) -> Vec<(String, RawTensor)> {
    let tied = archive.names().filter_map(|name| {
        let first = archive.tied_to(name)?;
        Some((name.to_string(), first.to_string()))
    });
    let tied: Vec<_> = tied.collect();
    let Changes::InMemory(mut changed) = archive.into_changes() else {
        unreachable!("a checkpoint in memory encodes into memory");
    };
    for (name, first) in tied {
        if let Some(tensor) = changed.get(&first).cloned() {
            changed.insert(name, tensor);
        }
    }
    changed.into_iter().collect()
}

fn all_tensors(archive: &Archive) -> Outcome<Vec<(String, RawTensor)>> {
    let tensors = archive.names().map(|name| {
        let tensor = archive.tensor(name)?;
        Ok((name.to_string(), tensor))
    });
    tensors.collect()
}

fn spectrum(py: Python<'_>, layer: LayerSpectrum, realisation: Realisation) -> SpectrumOut<'_> {
    let channels = &layer.channels;
    let found = channels.iter().map(|c| c.hankel_singular_values.len());
    let each = if realisation == Realisation::Real {
        2
    } else {
        1
    };
    // Real poles have one value and not two.
    let most = found.max().unwrap_or(0).max(each * layer.order);
    let mut values = numpy::ndarray::Array2::zeros((channels.len(), most));
    for (mut row, channel) in values.outer_iter_mut().zip(channels) {
        match channel.stable {
            true => {
                let found = channel.hankel_singular_values.iter();
                row.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
            }
            false => row.fill(f64::NAN),
        }
    }
    (
        layer.name,
        PyArray2::from_owned_array(py, values),
        channels.iter().map(|channel| channel.states).collect(),
        channels.iter().map(|channel| channel.step).collect(),
        channels
            .iter()
            .map(|channel| channel.slowest_pole)
            .collect(),
        channels
            .iter()
            .map(|channel| channel.unstable_modes.clone())
            .collect(),
    )
}

/// Sequences of equal length: numbers (sequences × (steps · inputs)) or tokens (sequences × steps).
#[derive(FromPyObject)]
enum Sequences<'py> {
    Values(PyReadonlyArray2<'py, f32>),
    Tokens(PyReadonlyArray2<'py, u32>),
}

enum Owned {
    Values(Vec<Vec<f32>>),
    Tokens(Vec<Vec<u32>>),
}

impl Sequences<'_> {
    fn owned(&self) -> Owned {
        fn rows<T: Copy>(array: numpy::ndarray::ArrayView2<'_, T>) -> Vec<Vec<T>> {
            array.outer_iter().map(|row| row.to_vec()).collect()
        }
        match self {
            Sequences::Values(values) => Owned::Values(rows(values.as_array())),
            Sequences::Tokens(tokens) => Owned::Tokens(rows(tokens.as_array())),
        }
    }
}

impl Owned {
    fn borrowed(&self) -> Vec<Sequence<'_>> {
        match self {
            Owned::Values(rows) => rows.iter().map(|row| Sequence::Values(row)).collect(),
            Owned::Tokens(rows) => rows.iter().map(|row| Sequence::Tokens(row)).collect(),
        }
    }

    fn steps(&self, model: &Model) -> usize {
        match self {
            Owned::Values(rows) => {
                let inputs = model.inputs().unwrap_or(1).max(1);
                rows.first().map_or(0, |row| row.len() / inputs)
            }
            Owned::Tokens(rows) => rows.first().map_or(0, Vec::len),
        }
    }
}

/// The settings of a reduction for white noise as Python gives them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanIn {
    order: Option<usize>,
    energy: Option<f64>,
    tolerance: Option<f64>,
    /// Those of [`Suited`] where they are not given.
    method: Option<Method>,
    time: Option<TimeBase>,
    realisation: RealisationChoice,
    length: Option<usize>,
    unstable: bool,
    share_poles: bool,
}

impl PlanIn {
    fn parse(text: &str) -> Outcome<Self> {
        serde_json::from_str(text).map_err(Failure::setting)
    }

    fn plan(self, checkpoint: &hankelite::checkpoint::Checkpoint) -> Outcome<Plan> {
        let rule = match (self.order, self.energy, self.tolerance) {
            (Some(order), None, None) => Rule::Order(order),
            (None, Some(share), None) => Rule::Energy(share),
            (None, None, Some(tolerance)) => Rule::Tolerance(tolerance),
            _ => {
                let expected = "expected one of order, energy and tolerance";
                return Err(Failure::setting(expected));
            }
        };
        let suited = Suited::to(checkpoint);
        let plan = Plan::new(rule)?
            .with_method(self.method.unwrap_or(suited.method))?
            .with_time(self.time.unwrap_or(suited.time))?
            .with_realisation(self.realisation)
            .with_unstable(self.unstable)?
            .with_shared_poles(self.share_poles)?;
        Ok(match self.length.or(checkpoint.declared().length) {
            Some(length) => plan.with_kernel_length(length),
            None => plan,
        })
    }
}

fn parse_declared(text: &str) -> Outcome<Declared> {
    serde_json::from_str(text).map_err(Failure::setting)
}

/// A word out of a closed set.
fn parse<T: serde::de::DeserializeOwned>(word: &str) -> Outcome<T> {
    let word = serde_json::Value::String(word.to_string());
    serde_json::from_value(word).map_err(Failure::setting)
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    let text = serde_json::to_string(value);
    text.map_err(|error| Failure::new("HankeliteError", error).into())
}
