//! Names of modules that something was wrapped around: a compiled layer, a layer of a distributed
//! model. The names of its tensors contain that of the wrapper.

use std::sync::Arc;

use hankelite_archive::Archive;

use crate::checkpoint::declared::Declared;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::OwnLayout;
use crate::checkpoint::tree::{Shared, Structure};

/// What `torch.compile`, distributed training and the checkpointing of activations put into names.
const WRAPPERS: [&str; 4] = [
    "_orig_mod",
    "module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
];

/// A file with its structure.
pub(super) struct Structured {
    pub(super) archive: Archive,
    pub(super) structure: Structure,
    /// For a person, where names of wrappers were left out.
    pub(super) note: Option<String>,
}

impl Structured {
    /// The structure of a file whose layers are not to be compared.
    ///
    /// # Errors
    /// As [`Structure::detect`].
    pub(super) fn apart(archive: Archive, declared: Declared) -> Result<Self, Fault> {
        let shared = Shared::apart(archive);
        Ok(Self {
            structure: Structure::detect(&shared, None, declared)?,
            archive: shared.archive,
            note: None,
        })
    }

    /// The structure of a file by the names that are in it; where that is no known network and is one
    /// without the names of wrappers, by those.
    ///
    /// # Errors
    /// As [`Structure::detect`], by the names that are in the file.
    pub(super) fn find(
        archive: Archive,
        own: Option<&Arc<OwnLayout>>,
        declared: Declared,
    ) -> Result<Self, Fault> {
        let shared = Shared::find(archive, own)?;
        let structure = Structure::detect(&shared, own, declared);
        let known =
            |found: &Result<Structure, Fault>| found.as_ref().is_ok_and(Structure::is_known);
        if !known(&structure)
            && let Some(archive) = unwrapped(&shared.archive)
        {
            let shared = Shared::find(archive, own)?;
            let found = Structure::detect(&shared, own, declared);
            if known(&found) {
                return Ok(Self {
                    structure: found?,
                    note: note(&shared.archive),
                    archive: shared.archive,
                });
            }
        }
        Ok(Self {
            structure: structure?,
            archive: shared.archive,
            note: None,
        })
    }
}

/// The file by names without those of wrappers; `None` where there are no such names, or two tensors
/// would have one.
fn unwrapped(archive: &Archive) -> Option<Archive> {
    let wrapped = archive.names().any(|name| without_wrappers(name) != name);
    wrapped
        .then(|| archive.renamed(|name| Some(without_wrappers(name))))
        .flatten()
}

/// A name without those of wrappers but at its beginning, where they stand around the network.
fn without_wrappers(name: &str) -> String {
    let mut around = true;
    let parts = name.split('.').filter(|part| {
        let wrapper = WRAPPERS.contains(part);
        around = around && wrapper;
        around || !wrapper
    });
    parts.collect::<Vec<_>>().join(".")
}

/// One name that is in the file, for a person.
fn note(archive: &Archive) -> Option<String> {
    let mut names = archive.names();
    let name = names.find(|name| archive.name_in_file(name) != *name)?;
    let in_file = archive.name_in_file(name);
    Some(format!(
        "modules are wrapped (`{in_file}` is read as `{name}`): names are written as they were"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_go_from_within_a_name_and_stay_around_it() {
        let cases = [
            ("module._orig_mod.a.0._orig_mod.w", "module._orig_mod.a.0.w"),
            ("a._fsdp_wrapped_module.module.w", "a.w"),
            ("a.modules.w", "a.modules.w"),
        ];
        for (name, expected) in cases {
            assert_eq!(without_wrappers(name), expected);
        }
    }
}
