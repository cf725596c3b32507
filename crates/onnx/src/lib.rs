//! Diagonal state space models as ONNX files.
//!
//! A [`Form::Step`] takes a sample and the states of all layers and gives logits and new states. A
//! [`Form::Sequence`] takes all samples: everything but the recurrences runs on all steps at once, and
//! each recurrence is a `Scan`. All arithmetic is real, a complex mode is a pair of numbers. Maps of few
//! bits stay integers in the file, with `DequantizeLinear` behind them.
//!
//! ```
//! use hankelite::rounding::{Entries, GROUP, Storage};
//! use hankelite_onnx::{Form, export};
//!
//! # std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
//! let file = "models/waves/model.safetensors";
//! let model = hankelite::read(file, &hankelite::Declared::default())?.model;
//! let storage = Storage::nearest(&model, Entries::Int8, GROUP)?;
//! let exported = export(&model, &storage, Form::Step, &[])?;
//! assert_eq!(exported.inputs[0].name, "sample");
//! assert_eq!(exported.outputs[0].name, "logits");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod graph;
mod map;
mod network;
mod port;
mod recurrence;
mod schema;

#[cfg(test)]
#[path = "../../../tests/common/draws.rs"]
mod draws;
#[cfg(test)]
#[path = "../../../tests/common/models.rs"]
mod models;
#[cfg(test)]
mod tests;

use hankelite::model::Model;
use hankelite::rounding::{MapStorage, RoundingError, Storage};
use hankelite_control::SystemError;
use network::Writer;
pub use port::{Extent, Port, PortEntries};
use prost::Message;
use schema::{ModelProto, OperatorSetIdProto, StringStringEntryProto};

/// What a graph computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One step, with the states as inputs and outputs.
    Step,
    /// A whole sequence.
    Sequence,
}

/// A written graph.
#[derive(Debug, Clone)]
pub struct Exported {
    /// The file.
    pub bytes: Vec<u8>,
    /// What the graph takes: samples or tokens first, then the states.
    pub inputs: Vec<Port>,
    /// What it gives: logits first, then the new states in the order of the inputs.
    pub outputs: Vec<Port>,
    /// The version of the operators that a runtime has to know.
    pub opset: i64,
}

/// Why a model cannot be written as a graph.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// A step of a layer that also runs backwards in time.
    #[error(
        "layer `{layer}` is bidirectional: its output depends on samples that have not come yet, \
         expected a causal layer for a graph of one step"
    )]
    Bidirectional {
        /// Name of the layer.
        layer: String,
    },
    /// Systems of several inputs or outputs, of which there are several, or with other outputs than
    /// inputs.
    #[error(
        "layer `{layer}` has systems of several inputs or outputs, expected one system for each \
         channel or one for all channels"
    )]
    Systems {
        /// Name of the layer.
        layer: String,
    },
    /// Layers alone that do not follow one another.
    #[error("layer `{layer}` takes {found} channels, expected {expected}")]
    Channels {
        /// Name of the layer.
        layer: String,
        /// What it takes.
        found: usize,
        /// What the layer before gives.
        expected: usize,
    },
    /// A number that single precision cannot hold.
    #[error("a number of `{name}` is {value:e}, which is no finite number in single precision")]
    NotFinite {
        /// The constant.
        name: String,
        /// The number.
        value: f64,
    },
    /// More bytes than a protobuf message may have.
    #[error("the graph takes {bytes} bytes, expected less than 2 GiB")]
    TooLarge {
        /// Bytes of the graph.
        bytes: usize,
    },
    /// A storage that does not fit the model.
    #[error(transparent)]
    Rounding(#[from] RoundingError),
    /// A system without the numbers that are requested.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Operators of every graph, and of one with integers in blocks or of four bits.
const OPSETS: [i64; 2] = [18, 21];
/// The file formats that came with these.
const IR_VERSIONS: [i64; 2] = [8, 10];
/// Bytes of the largest message, less one.
const MOST: usize = i32::MAX as usize;

/// Writes a model as a storage lists; what is not integers or bfloat16 is in single precision. It
/// computes [`Storage::applied`]. `metadata` stands in the file as it is.
///
/// # Errors
/// An [`OnnxError`] that states why the model cannot be written.
pub fn export(
    model: &Model,
    storage: &Storage,
    form: Form,
    metadata: &[(String, String)],
) -> Result<Exported, OnnxError> {
    let applied = storage.applied(model)?;
    let writer = Writer::written(&applied, storage, form)?;
    let (graph, inputs, outputs) = writer.finish(match form {
        Form::Step => "step",
        Form::Sequence => "sequence",
    });
    let newer = usize::from(has_integers(storage));
    let entry = |(key, value): &(String, String)| StringStringEntryProto {
        key: key.clone(),
        value: value.clone(),
    };
    let file = ModelProto {
        ir_version: IR_VERSIONS[newer],
        producer_name: "hankelite".to_string(),
        producer_version: env!("CARGO_PKG_VERSION").to_string(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: OPSETS[newer],
        }],
        metadata_props: metadata.iter().map(entry).collect(),
    };
    let bytes = file.encoded_len();
    if bytes > MOST {
        return Err(OnnxError::TooLarge { bytes });
    }
    Ok(Exported {
        bytes: file.encode_to_vec(),
        inputs,
        outputs,
        opset: OPSETS[newer],
    })
}

fn has_integers(storage: &Storage) -> bool {
    let layers = storage.layers.iter();
    let of_layers =
        layers.flat_map(|layer| [&layer.map, &layer.shared.input, &layer.shared.output]);
    let mut all = of_layers.chain([&storage.encoder, &storage.head]);
    all.any(|map| matches!(map, MapStorage::Integers(_)))
}
