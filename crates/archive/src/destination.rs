//! Where a file is to be written: checked before the work, filled beside its place, renamed last.

use std::fs::File;
use std::io;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::error::ArchiveError;
use crate::temporary::{Claimed, claimed};

/// Writes a small file whole or not at all, replacing one that was there.
///
/// # Errors
/// The path is that of a folder, a device or in a missing folder; [`ArchiveError::Write`].
pub fn write_whole(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), ArchiveError> {
    let destination = Destination::new(path.as_ref(), &[])?;
    let failed = |error| destination.failed(error);
    destination.write(
        |out| out.write_all(bytes.as_ref()).map_err(failed),
        |_| Ok(()),
    )
}

/// A checked place for a file.
pub(super) struct Destination {
    /// As the user wrote it, for errors.
    shown: PathBuf,
    /// The file itself, with links followed.
    place: PathBuf,
}

impl Destination {
    pub(super) fn new(path: &Path, inputs: &[&Path]) -> Result<Self, ArchiveError> {
        let shown = path.to_owned();
        let folder = folder_of(path);
        if !folder.is_dir() {
            let (path, folder) = (shown, folder.to_owned());
            return Err(ArchiveError::MissingFolder { path, folder });
        }
        // Only a path that exists has a canonical form. A link is followed, so that it stays.
        let Ok(place) = path.canonicalize() else {
            let place = shown.clone();
            return Ok(Self { shown, place });
        };
        if place.is_dir() {
            return Err(ArchiveError::folder(shown));
        }
        if !place.is_file() {
            return Err(ArchiveError::NotAFile { path: shown });
        }
        let same = |input: &&Path| input.canonicalize().is_ok_and(|input| input == place);
        if inputs.iter().any(same) {
            return Err(ArchiveError::SameFile { path: shown });
        }
        require_replaceable(&shown)?;
        Ok(Self { shown, place })
    }

    /// Writes the file whole or not at all: `fill` writes it beside its place, `check` looks at
    /// it there, and only then is it renamed.
    pub(super) fn write<E: From<ArchiveError>>(
        &self,
        fill: impl FnOnce(&mut BufWriter<&mut File>) -> Result<(), E>,
        accept: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut temporary, _lock) = self.temporary().map_err(|error| self.failed(error))?;
        let mut out = BufWriter::new(temporary.as_file_mut());
        fill(&mut out)?;
        let flushed = out.flush();
        drop(out);
        let synced = flushed.and_then(|()| temporary.as_file().sync_all());
        synced.map_err(|error| self.failed(error))?;
        accept(temporary.path())?;
        keep_permissions(temporary.path(), &self.place).map_err(|error| self.failed(error))?;
        let renamed = temporary.persist(&self.place);
        renamed
            .map(drop)
            .map_err(|error| self.failed(error.error).into())
    }

    /// A file beside the final place, so that renaming moves no bytes. It goes away when it is
    /// dropped before that.
    fn temporary(&self) -> io::Result<Claimed<NamedTempFile>> {
        claimed(
            folder_of(&self.place),
            mode_meanwhile(&self.place),
            |builder: &Builder<'_, '_>, folder| builder.tempfile_in(folder),
        )
    }

    /// What the system reported about this file, without the name of the temporary one.
    fn failed(&self, source: io::Error) -> ArchiveError {
        ArchiveError::write(&self.shown)(unnamed(source))
    }
}

/// A file that is there may be replaced, unless somebody took everybody's permission to write to
/// it. Renaming asks for permission for the folder alone, and the system's own manager has every
/// permission, so that the file is looked at.
pub(crate) fn require_replaceable(path: &Path) -> Result<(), ArchiveError> {
    match std::fs::metadata(path) {
        Ok(found) if found.permissions().readonly() => Err(ArchiveError::WriteProtected {
            path: path.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Gives a new file the permissions of the one whose place it takes, where there is one.
pub(crate) fn keep_permissions(new: &Path, old: &Path) -> io::Result<()> {
    match std::fs::metadata(old) {
        Ok(found) => std::fs::set_permissions(new, found.permissions()),
        Err(_) => Ok(()),
    }
}

/// Permissions of a file while it is written: whoever may not read the one that it replaces does
/// not read it either.
fn mode_meanwhile(place: &Path) -> u32 {
    const NEW: u32 = 0o666;
    #[cfg(unix)]
    if let Ok(found) = std::fs::metadata(place) {
        let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions());
        return mode & NEW | 0o600;
    }
    let _ = place;
    NEW
}

/// An error of the system without the name of the temporary file that it met.
pub(crate) fn unnamed(error: io::Error) -> io::Error {
    // The crate that makes them wraps the error of the system and gives it no more.
    let text = error.to_string();
    match (error.raw_os_error(), text.split_once(" at path ")) {
        (Some(code), _) => io::Error::from_raw_os_error(code),
        (None, Some((cause, _))) => io::Error::new(error.kind(), cause),
        (None, None) => error,
    }
}

/// The folder that a path is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
