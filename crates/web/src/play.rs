//! The full and the smaller network, sample by sample.

use hankelite::checkpoint::Checkpoint;
use hankelite::model::InputKind;
use hankelite::rounding::{Entries, GROUP, Storage};
use hankelite::stream::{Image, Runner};
use serde::Deserialize;

use crate::{Fault, Session};

/// Which of the two networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// As it was opened.
    Full,
    /// As the smaller file holds it.
    Reduced,
}

/// A network and its state.
pub(crate) struct Player {
    pub(crate) runner: Runner<f32>,
}

impl Player {
    /// Of a checkpoint, laid out as `pack` does it: every tensor as the file records, else in single
    /// precision.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self, Fault> {
        if checkpoint.is_layers_alone() {
            return Err("the network around the layers is not known".into());
        }
        let storage = storage(checkpoint)?;
        let image = Image::packed(&checkpoint.model, &storage)?;
        let runner = Runner::from_image(image)?;
        Ok(Self { runner })
    }

    /// The outputs of every step. The bytes are the f32 of all steps, or u32 tokens, little-endian.
    fn play(&mut self, bytes: &[u8]) -> Result<Vec<f32>, Fault> {
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(format!("{} bytes, expected four for each number", bytes.len()).into());
        }
        let mut outputs = Vec::with_capacity(words.len() * self.runner.outputs());
        match self.runner.takes() {
            InputKind::Tokens { .. } => {
                for &word in words {
                    outputs
                        .extend_from_slice(self.runner.step_tokens(&[u32::from_le_bytes(word)])?);
                }
            }
            InputKind::Numbers { width } => {
                let numbers: Vec<f32> =
                    words.iter().map(|&word| f32::from_le_bytes(word)).collect();
                for step in numbers.chunks(width) {
                    outputs.extend_from_slice(self.runner.step(step)?);
                }
            }
        }
        Ok(outputs)
    }
}

/// How the tensors of a checkpoint are stored in an image: as it records, else in single precision.
pub(crate) fn storage(checkpoint: &Checkpoint) -> Result<Storage, Fault> {
    let model = &checkpoint.model;
    Ok(match checkpoint.storage() {
        Some(choice) => Storage::chosen(model, choice)?,
        None => Storage::nearest(model, Entries::Full, GROUP)?,
    })
}

impl Session {
    /// Sets the states of both networks to zero: a new signal begins.
    pub fn rewind(&mut self) {
        let players = self.players.iter_mut().flatten();
        players.for_each(|player| player.runner.reset());
    }

    /// Runs one of the networks over the next samples and gives the outputs of every step, one after
    /// the other; with mean pooling those of the mean of all steps since [`Session::rewind`].
    ///
    /// # Errors
    /// Where there is no such network, or it does not stream, and for samples that it does not take.
    pub fn play(&mut self, which: Which, samples: &[u8]) -> Result<Vec<f32>, Fault> {
        let mut player = match self.players[which as usize].take() {
            Some(player) => player,
            None => match which {
                Which::Full => self.player()?,
                Which::Reduced => self.made()?.player()?,
            },
        };
        let outputs = player.play(samples);
        self.players[which as usize] = Some(player);
        outputs
    }
}
