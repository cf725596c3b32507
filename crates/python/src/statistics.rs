//! Statistics of layer inputs that were gathered in Python.

use std::path::PathBuf;

use hankelite::ProgressSink;
use hankelite::advanced::{Calibrated, CalibratedReduction, Settings, WeightChoice};
use hankelite::calibrate::{Calibration, Importance, Known, LayerCalibration, TargetSize};
use hankelite::compress::Allocation;
use hankelite::control::nalgebra::DMatrix;
use hankelite::control::{InputStatistics, InputWeight, Refinement};
use hankelite::model::Model;
use numpy::ndarray::Array2;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3,
};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::failure::{Failure, Outcome};

/// Of one layer, as it comes: H means, autocorrelation H × L, sequences, H importances, and the
/// products of all pairs of steps H × L × L where they were gathered.
pub(crate) type LayerIn<'py> = (
    PyReadonlyArray1<'py, f64>,
    PyReadonlyArray2<'py, f64>,
    usize,
    PyReadonlyArray1<'py, f64>,
    Option<PyReadonlyArray3<'py, f64>>,
);

/// Of all layers.
pub(crate) struct Gathered {
    layers: Vec<(InputStatistics, Vec<f64>)>,
    /// Γ of each channel; empty where only autocorrelations were gathered.
    products: Vec<Vec<DMatrix<f64>>>,
}

impl Gathered {
    /// Checks and copies what came.
    pub(crate) fn new(layers: &[LayerIn<'_>]) -> Outcome<Self> {
        let mut made = Self {
            layers: Vec::new(),
            products: Vec::new(),
        };
        for (mean, lags, sequences, importance, products) in layers {
            let lags = lags.as_array();
            let lags = DMatrix::from_fn(lags.ncols(), lags.nrows(), |m, h| lags[(h, m)]);
            let mean = mean.as_array().to_vec();
            let statistics = InputStatistics::new(mean, lags, *sequences);
            let statistics = statistics.map_err(|e| Failure::new("CalibrationError", e))?;
            made.layers
                .push((statistics, importance.as_array().to_vec()));
            if let Some(products) = products {
                let products = products.as_array();
                let (channels, length, _) = products.dim();
                let of = |h| DMatrix::from_fn(length, length, |s, t| products[(h, s, t)]);
                made.products.push((0..channels).map(of).collect());
            }
        }
        Ok(made)
    }

    /// A model reduced for these inputs.
    pub(crate) fn reduce(
        self,
        model: &Model,
        requested: &Requested,
        observer: &dyn ProgressSink,
    ) -> Outcome<Calibrated> {
        let settings = requested.settings()?;
        let names = model.blocks().iter().map(|block| block.name());
        let calibration = named(names, &self.layers, &requested.origin)?;
        calibration.check(model)?;
        let reduction = match self.products.len() == model.blocks().len() {
            true => CalibratedReduction::by_weights(
                model,
                &calibration,
                |layer, h| InputWeight::of_products(&self.products[layer][h]),
                observer,
            )?,
            false => CalibratedReduction::new(
                model,
                &calibration,
                &[],
                WeightChoice::Spectrum,
                observer,
            )?,
        };
        Ok(reduction.reduce(&settings)?)
    }
}

/// The statistics under names, in their order.
fn named<'n>(
    names: impl Iterator<Item = &'n str>,
    layers: &[(InputStatistics, Vec<f64>)],
    origin: &str,
) -> Outcome<Calibration> {
    let layers = names.zip(layers).map(|(name, (statistics, importance))| {
        LayerCalibration::new(name, statistics.clone(), importance.clone())
    });
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    // Where no gradients were gathered every channel counts the same.
    let mut all = layers.iter().flat_map(|layer| &layer.importance);
    let known = match all.all(|importance| *importance == 1.0) {
        true => Known::Inputs,
        false => Known::InputsAndGradients,
    };
    Ok(Calibration::new(layers, origin, known)?)
}

/// Writes a file of statistics, whole or not at all; products are left out.
#[pyfunction]
pub(crate) fn write_statistics(
    path: PathBuf,
    names: Vec<String>,
    layers: Vec<LayerIn<'_>>,
    origin: &str,
) -> PyResult<()> {
    let gathered = Gathered::new(&layers)?;
    let calibration = named(names.iter().map(String::as_str), &gathered.layers, origin)?;
    Ok(calibration.write(&path).map_err(Failure::from)?)
}

/// A layer's name, H means, autocorrelation H × L, sequences, and H importances.
type LayerOut<'py> = (
    String,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray2<f64>>,
    usize,
    Bound<'py, PyArray1<f64>>,
);

/// What a file of statistics holds, and where its sequences came from.
#[pyfunction]
pub(crate) fn read_statistics(
    py: Python<'_>,
    path: PathBuf,
) -> PyResult<(Vec<LayerOut<'_>>, String)> {
    let calibration = Calibration::read(&path).map_err(Failure::from)?;
    let layers = calibration.layers().iter().map(|layer| {
        let own = &layer.statistics;
        let lags = own.autocorrelation();
        let lags = Array2::from_shape_fn((lags.ncols(), lags.nrows()), |(h, m)| lags[(m, h)]);
        (
            layer.name.clone(),
            PyArray1::from_slice(py, own.mean()),
            lags.into_pyarray(py),
            own.sequences(),
            PyArray1::from_slice(py, &layer.importance),
        )
    });
    Ok((layers.collect(), calibration.origin().to_string()))
}

/// The settings of a calibrated reduction as Python gives them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requested {
    order: Option<usize>,
    budget: Option<f64>,
    max_error: Option<f64>,
    allocation: Option<Allocation>,
    importance: Option<Importance>,
    refinement: Option<Refinement>,
    #[serde(default)]
    sequential: bool,
    fit_logits: Option<bool>,
    /// Steps of the kernel error.
    pub(crate) length: Option<usize>,
    /// Where the sequences came from.
    #[serde(default)]
    pub(crate) origin: String,
}

impl Requested {
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        serde_json::from_str(text).map_err(Failure::setting)
    }

    pub(crate) fn settings(&self) -> Outcome<Settings> {
        let size = match (self.order, self.budget, self.max_error) {
            (Some(order), None, None) => TargetSize::Order(order),
            (None, Some(share), None) => TargetSize::Budget(share),
            (None, None, Some(error)) => TargetSize::Error(error),
            _ => {
                let expected = "expected one of order, budget and max_error";
                return Err(Failure::setting(expected));
            }
        };
        let mut settings = Settings::new(size);
        settings.allocation = self.allocation.unwrap_or(settings.allocation);
        settings.importance = self.importance.unwrap_or(settings.importance);
        settings.refinement = self.refinement.unwrap_or(settings.refinement);
        settings.sequential = self.sequential;
        settings.fit_logits = self.fit_logits.unwrap_or(settings.fit_logits);
        settings.kernel_length = self.length;
        Ok(settings)
    }
}
