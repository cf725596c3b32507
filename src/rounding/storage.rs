//! How every tensor of a model is stored.

use std::sync::Arc;

use hankelite_control::{DiagonalSystem, SystemError};

use crate::model::{
    Block, BlockParts, Encoder, Head, Linear, Model, ModelParts, Norm, OutputLinear,
};
use crate::rounding::{
    Entries, LayerChoice, MapChoice, Numbers, RoundedMatrix, RoundingError, SharedMaps,
    StorageChoice, half, same,
};

/// How a map is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum MapStorage {
    /// As all other numbers.
    #[default]
    Full,
    /// The upper halves of single precision.
    Bf16,
    /// These integers and scales, for W as the model has it (inputs × outputs).
    Integers(RoundedMatrix),
}

impl MapStorage {
    /// The nearest entries of a kind; `group` inputs share a scale.
    ///
    /// # Errors
    /// As [`RoundedMatrix::nearest`].
    pub fn nearest(linear: &Linear, entries: Entries, group: usize) -> Result<Self, RoundingError> {
        Ok(match (entries, entries.bits()) {
            (_, Some(bits)) => Self::Integers(RoundedMatrix::nearest(&linear.weight, bits, group)?),
            (Entries::Bf16, None) => Self::Bf16,
            _ => Self::Full,
        })
    }

    /// The map that is stored.
    pub(crate) fn applied(&self, linear: &Linear, numbers: Numbers) -> Linear {
        let weight = match self {
            Self::Full => Arc::clone(&linear.weight),
            Self::Bf16 => Arc::new(linear.weight.map(|w| ::half::bf16::from_f64(w).to_f64())),
            Self::Integers(rounded) => Arc::new(rounded.weight()),
        };
        let bias = linear.bias.as_ref();
        let bias = bias.map(|bias| vector(bias, numbers));
        Linear { weight, bias }
    }
}

/// How a layer is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerStorage {
    /// The map between the channels.
    pub map: MapStorage,
    /// B and C of a system that all channels share.
    pub shared: SharedStorage,
    /// Poles, residues, feedthroughs, the norm, and the bias of the map. The poles and a diagonal D
    /// of a system that all channels share stay in single precision.
    pub(crate) numbers: Numbers,
}

/// How the matrices of a system that all channels share are stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SharedStorage {
    /// B.
    pub input: MapStorage,
    /// C, and D where it is dense.
    pub output: MapStorage,
}

impl SharedStorage {
    fn nearest(block: &Block, entries: Entries, group: usize) -> Result<Self, RoundingError> {
        let [one] = block.systems() else {
            return Ok(Self::default());
        };
        if one.as_siso().is_ok() {
            return Ok(Self::default());
        }
        let channels = one.input().ncols();
        one.require_size(channels, channels)?;
        let maps = SharedMaps::of(one);
        Ok(Self {
            input: MapStorage::nearest(&maps.input, entries, group)?,
            output: MapStorage::nearest(&maps.output, entries, group)?,
        })
    }

    fn applied(&self, system: &DiagonalSystem) -> Result<DiagonalSystem, SystemError> {
        if *self == Self::default() {
            return Ok(system.clone());
        }
        let mut maps = SharedMaps::of(system);
        maps.input = self.input.applied(&maps.input, Numbers::F32);
        maps.output = self.output.applied(&maps.output, Numbers::F32);
        maps.system(system)
    }
}

/// How a model is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Storage {
    /// The encoder; embeddings are never stored as integers.
    pub encoder: MapStorage,
    /// The layers, first to last.
    pub layers: Vec<LayerStorage>,
    /// The head.
    pub head: MapStorage,
    /// Biases of encoder and head, and the last norm.
    pub(crate) numbers: Numbers,
}

impl Storage {
    /// Everything in single precision but the maps between channels, and B and C where these share
    /// a system, whose entries are rounded to the nearest; `group` inputs share a scale.
    ///
    /// # Errors
    /// As [`RoundedMatrix::nearest`].
    pub fn nearest(model: &Model, entries: Entries, group: usize) -> Result<Self, RoundingError> {
        let choice = MapChoice { entries, group };
        let layer = LayerChoice {
            map: Some(choice),
            systems: Some(choice),
            numbers: Numbers::F32,
        };
        let choice = StorageChoice {
            layers: vec![layer; model.blocks().len()],
            encoder: None,
            head: None,
            numbers: Numbers::F32,
        };
        Self::chosen(model, &choice)
    }

    /// The nearest entries of the kinds chosen for each tensor. A model whose numbers are those of
    /// such a storage keeps them.
    ///
    /// # Errors
    /// [`RoundingError::Matrix`] for a choice for another model, and as [`RoundedMatrix::nearest`].
    pub fn chosen(model: &Model, choice: &StorageChoice) -> Result<Self, RoundingError> {
        let (found, expected) = (choice.layers.len(), model.blocks().len());
        same("a storage", "layers", found, expected)?;
        let nearest = |linear: Option<&Linear>, choice: Option<MapChoice>| match (linear, choice) {
            (Some(linear), Some(choice)) => {
                MapStorage::nearest(linear, choice.entries, choice.group)
            }
            _ => Ok(MapStorage::Full),
        };
        let layers = model.blocks().iter().zip(&choice.layers);
        let layers = layers.map(|(block, choice)| {
            let shared = choice.systems.map_or(Ok(SharedStorage::default()), |own| {
                SharedStorage::nearest(block, own.entries, own.group)
            });
            Ok(LayerStorage {
                map: nearest(block.output().map(|output| &output.linear), choice.map)?,
                shared: shared?,
                numbers: choice.numbers,
            })
        });
        let encoder = match model.encoder() {
            Some(Encoder::Linear(linear)) => Some(linear),
            _ => None,
        };
        Ok(Self {
            encoder: nearest(encoder, choice.encoder)?,
            layers: layers.collect::<Result<_, RoundingError>>()?,
            head: nearest(model.head().map(|head| &head.linear), choice.head)?,
            numbers: choice.numbers,
        })
    }

    /// Everything in single precision.
    pub fn single(model: &Model) -> Self {
        Self {
            layers: vec![LayerStorage::default(); model.blocks().len()],
            ..Self::default()
        }
    }

    /// The same with all numbers beside the maps as given.
    #[must_use]
    pub fn with_numbers(mut self, numbers: Numbers) -> Self {
        self.numbers = numbers;
        for layer in &mut self.layers {
            layer.numbers = numbers;
        }
        self
    }

    /// The model whose numbers are those that are stored. Single precision is not rounded to: that
    /// is for whoever writes.
    ///
    /// # Errors
    /// [`RoundingError::Matrix`] for a storage of another model.
    pub fn applied(&self, model: &Model) -> Result<Model, RoundingError> {
        let (found, expected) = (self.layers.len(), model.blocks().len());
        same("a storage", "layers", found, expected)?;
        let encoder = model.encoder().map(|encoder| match encoder {
            Encoder::Linear(linear) => Encoder::Linear(self.encoder.applied(linear, self.numbers)),
            table @ Encoder::Embedding(_) => table.clone(),
        });
        let blocks = model.blocks().iter().zip(&self.layers);
        let blocks = blocks.map(|(block, layer)| layer.applied(block));
        let head = model.head().map(|head| Head {
            linear: self.head.applied(&head.linear, self.numbers),
            ..head.clone()
        });
        Ok(Model::new(ModelParts {
            encoder,
            blocks: blocks.collect::<Result<_, _>>()?,
            final_norm: model.final_norm().map(|n| norm(n, self.numbers)),
            head,
        })?)
    }
}

impl LayerStorage {
    fn applied(&self, block: &Block) -> Result<Block, RoundingError> {
        let systems = match self.numbers {
            Numbers::F16 if block.is_siso() => half::systems(block.systems())?,
            _ if block.is_siso() => block.systems().to_vec(),
            _ => {
                let systems = block.systems().iter();
                let systems = systems.map(|system| self.shared.applied(system));
                systems.collect::<Result<_, _>>()?
            }
        };
        Ok(Block::new(BlockParts {
            systems,
            output: block.output().map(|output| OutputLinear {
                linear: self.map.applied(&output.linear, self.numbers),
                gate: output.gate,
            }),
            norm: block
                .norm()
                .map(|(n, placement)| (norm(n, self.numbers), *placement)),
            ..block.clone().into_parts()
        })?)
    }
}

fn vector(values: &[f64], numbers: Numbers) -> Vec<f64> {
    match numbers {
        Numbers::F32 => values.to_vec(),
        Numbers::F16 => values.iter().map(|&value| half::rounded(value)).collect(),
    }
}

/// Weights and biases; statistics that training fixed keep their precision.
fn norm(norm: &Norm, numbers: Numbers) -> Norm {
    let mut norm = norm.clone();
    let (weight, bias) = match &mut norm {
        Norm::Layer(layer) => (&mut layer.weight, &mut layer.bias),
        Norm::Batch(batch) => (&mut batch.weight, &mut batch.bias),
    };
    *weight = vector(weight, numbers);
    *bias = vector(bias, numbers);
    norm
}
