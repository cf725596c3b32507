//! What is saved of a smaller model: the checkpoint, and what `pack` and `export` make of that file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use hankelite::advanced::read_dynamics_of_files;
use hankelite::checkpoint::Checkpoint;
use hankelite::stream::c_header;
use hankelite_onnx::Form;
use serde::Deserialize;

use crate::place::{File, sha256};
use crate::play::{Player, storage};
use crate::record::Reduced;
use crate::{Fault, Session};

/// A file that is made of the smaller checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Download {
    /// What devices run.
    Image,
    /// The image as C.
    Header,
    /// One step as an ONNX graph.
    Onnx,
}

/// A smaller model.
pub(crate) struct Made {
    /// Of its file.
    pub(crate) name: String,
    pub(crate) file: File,
    /// As the file holds it; absent where the full one was read by parts.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// What was done.
    pub(crate) record: Reduced,
}

impl Session {
    /// The smaller checkpoint.
    ///
    /// # Errors
    /// Before [`Session::reduce`].
    pub fn smaller(&self) -> Result<File, Fault> {
        Ok(File::clone(&self.made()?.file))
    }

    pub(crate) fn made(&self) -> Result<&Made, Fault> {
        Ok(self.made.as_ref().ok_or("no smaller model yet")?)
    }

    /// A file of the smaller model; `name` is that of the file to be.
    ///
    /// # Errors
    /// Before [`Session::reduce`], and where the model cannot be one: [`c_header`] and the image need a
    /// network that streams, a graph as [`hankelite_onnx::export`].
    pub fn save(&self, what: Download, name: &str) -> Result<Vec<u8>, Fault> {
        let made = self.made()?;
        match what {
            Download::Image => Ok(made.player()?.runner.image().as_bytes().to_vec()),
            Download::Header => {
                let text = c_header(Path::new(name), &made.name, &made.player()?.runner);
                Ok(text.into_bytes())
            }
            Download::Onnx => made.onnx(),
        }
    }
}

impl Made {
    pub(crate) fn player(&self) -> Result<Player, Fault> {
        Player::of(self.checkpoint()?)
    }

    /// The checkpoint, of which the systems of its layers are there; `full` is the one it was made of.
    pub(crate) fn systems(&self, full: &Checkpoint) -> Result<Cow<'_, Checkpoint>, Fault> {
        if let Some(whole) = &self.checkpoint {
            return Ok(Cow::Borrowed(whole));
        }
        let (file, none) = (Box::new(File::clone(&self.file)), BTreeMap::new());
        let read = read_dynamics_of_files(&self.name, file, none, &full.declared())?;
        Ok(Cow::Owned(read))
    }

    fn checkpoint(&self) -> Result<&Checkpoint, Fault> {
        let checkpoint = self.checkpoint.as_ref();
        Ok(checkpoint.ok_or("of this file the systems alone were read")?)
    }

    fn onnx(&self) -> Result<Vec<u8>, Fault> {
        let checkpoint = self.checkpoint()?;
        if checkpoint.is_layers_alone() {
            return Err("the network around the layers is not known".into());
        }
        let entry = |(key, value): (&str, String)| (format!("hankelite.{key}"), value);
        let mut metadata = vec![
            ("source", self.name.clone()),
            ("source_sha256", sha256(&self.file)?),
        ];
        if let Some(made) = checkpoint.provenance() {
            metadata.push(("provenance", serde_json::to_string(made)?));
        }
        let metadata: Vec<_> = metadata.into_iter().map(entry).collect();
        let storage = storage(checkpoint)?;
        let exported = hankelite_onnx::export(&checkpoint.model, &storage, Form::Step, &metadata)?;
        Ok(exported.bytes)
    }
}
