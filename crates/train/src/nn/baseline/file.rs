//! A baseline in a safetensors file: its parameters by name, and its architecture in the metadata.

use std::collections::BTreeSet;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use hankelite_archive::{Archive, Dtype, RawTensor, write_arrays};
use serde::{Deserialize, Serialize};

use crate::nn::baseline::{BaselineArchitecture, BaselineNetwork};
use crate::nn::{NetworkError, SequenceModel, host};

/// The text beside the tensors.
#[derive(Serialize, Deserialize)]
struct Metadata {
    hankelite: String,
    baseline: BaselineArchitecture,
}

impl BaselineNetwork {
    /// Writes parameters, in single precision, and architecture, whole or not at all.
    ///
    /// # Errors
    /// [`NetworkError::Archive`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), NetworkError> {
        let mut arrays = Vec::new();
        for parameter in self.parameters() {
            let (shape, numbers) = (parameter.var.dims().to_vec(), host(&parameter.var)?);
            let array = RawTensor::from_f64(Dtype::F32, shape, &numbers);
            let array = array.map_err(|error| error.of(&parameter.name))?;
            arrays.push((parameter.name.as_str(), array));
        }
        let metadata = Metadata {
            hankelite: env!("CARGO_PKG_VERSION").to_string(),
            baseline: self.architecture.clone(),
        };
        let text = serde_json::to_string(&metadata).expect("plain fields serialise");
        Ok(write_arrays(path, arrays, &text)?)
    }

    /// Whether the metadata of a file describe a baseline; `false` too for one that cannot be read.
    pub fn is_file(path: impl AsRef<Path>) -> bool {
        #[derive(Deserialize)]
        struct Mark {
            #[serde(rename = "baseline")]
            _baseline: serde_json::Value,
        }
        let archive = Archive::open(path.as_ref()).ok();
        let text = archive.as_ref().and_then(Archive::metadata);
        text.is_some_and(|text| serde_json::from_str::<Mark>(text).is_ok())
    }

    /// A baseline from its file.
    ///
    /// # Errors
    /// [`NetworkError::Archive`]; [`NetworkError::File`] where metadata or tensors are not those of
    /// a baseline; [`NetworkError::Architecture`].
    pub fn read(
        path: impl AsRef<Path>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self, NetworkError> {
        let path = path.as_ref();
        let archive = Archive::open(path)?;
        let fault = |what: String| NetworkError::File {
            path: path.to_path_buf(),
            what,
        };
        let text = archive.metadata().unwrap_or_default();
        let metadata: Metadata = serde_json::from_str(text)
            .map_err(|error| fault(format!("no baseline in the metadata: {error}")))?;
        let architecture = metadata.baseline;
        architecture.check()?;
        let numbers = |name: &str| {
            archive.shape(name).map_or(0, |shape| {
                shape.iter().fold(1usize, |all, n| all.saturating_mul(*n))
            })
        };
        let stored = archive.names().map(numbers).fold(0, usize::saturating_add);
        // A network is only made where the file could fill it.
        if stored < architecture.least_numbers() {
            return Err(fault(format!(
                "{stored} numbers are too few for its layers"
            )));
        }
        let network = Self::random(&architecture, 0, dtype, device)?;
        network.require_names(&archive).map_err(fault)?;
        for parameter in network.parameters() {
            let array = archive.tensor(&parameter.name)?;
            if array.shape() != parameter.var.dims() {
                return Err(fault(format!(
                    "tensor `{}` has shape {:?}, expected {:?}",
                    parameter.name,
                    array.shape(),
                    parameter.var.dims()
                )));
            }
            let numbers = array.to_f64().map_err(|error| error.of(&parameter.name))?;
            let tensor = Tensor::from_vec(numbers, array.shape(), device)?;
            parameter.var.set(&tensor.to_dtype(dtype)?)?;
        }
        Ok(network)
    }

    /// The names in the file must be those of the parameters, no more and no fewer.
    fn require_names(&self, archive: &Archive) -> Result<(), String> {
        let found: BTreeSet<&str> = archive.names().collect();
        let expected = self.parameters().iter();
        let expected: BTreeSet<&str> = expected.map(|one| one.name.as_str()).collect();
        if let Some(name) = expected.difference(&found).next() {
            return Err(format!("no tensor `{name}`"));
        }
        match found.difference(&expected).next() {
            None => Ok(()),
            Some(name) => Err(format!("tensor `{name}` is not one of this network")),
        }
    }
}
