//! The place of several files that belong together: all appear, or none.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::container::is_index;
use crate::destination::{folder_of, keep_permissions, require_replaceable, unnamed};
use crate::error::ArchiveError;
use crate::temporary::{Claimed, claimed, lock, sweep};

/// Where the files go.
pub(crate) struct Place {
    /// As the user wrote it, for errors.
    shown: PathBuf,
    folder: PathBuf,
    /// Whether the folder is to be made.
    new: bool,
    /// Name of the file that comes last: the index, or the only file of tensors.
    main: String,
}

impl Place {
    /// Of an index, or of a folder that gets one of the name `index`.
    pub(crate) fn of_index(path: &Path, index: &str) -> Result<Place, ArchiveError> {
        let name = path.file_name().and_then(OsStr::to_str);
        match (is_index(path), name) {
            (true, Some(name)) => Self::new(path, folder_of(path), name),
            _ => Self::new(path, path, index),
        }
    }

    /// Of a folder, shown as `path`.
    fn new(path: &Path, folder: &Path, main: &str) -> Result<Place, ArchiveError> {
        let (shown, folder, main) = (path.to_owned(), folder.to_owned(), main.to_owned());
        if folder.is_dir() {
            let new = false;
            return Ok(Place {
                shown,
                folder,
                new,
                main,
            });
        }
        if folder.exists() {
            return Err(ArchiveError::NotAFolder { path: shown });
        }
        let outer = folder_of(&folder);
        if is_index(path) || !outer.is_dir() {
            let folder = if is_index(path) { &folder } else { outer };
            let folder = folder.to_owned();
            return Err(ArchiveError::MissingFolder {
                path: shown,
                folder,
            });
        }
        Ok(Place {
            shown,
            folder,
            new: true,
            main,
        })
    }

    /// Of a folder with a main file of that name.
    pub(crate) fn of_folder(path: &Path, main: &str) -> Result<Place, ArchiveError> {
        Self::new(path, path, main)
    }

    /// Name of the file that comes last.
    pub(crate) fn main(&self) -> &str {
        &self.main
    }

    /// None of the files may be one that is being read, nor a folder.
    pub(crate) fn check(&self, files: &[&Path], inputs: &[&Path]) -> Result<(), ArchiveError> {
        let inputs: Vec<PathBuf> = inputs
            .iter()
            .filter_map(|input| input.canonicalize().ok())
            .collect();
        for name in files.iter().copied().chain([Path::new(&self.main)]) {
            let path = self.folder.join(name);
            if path.is_dir() {
                return Err(ArchiveError::folder(path));
            }
            let same = path
                .canonicalize()
                .is_ok_and(|place| inputs.contains(&place));
            if same {
                return Err(ArchiveError::SameFile { path });
            }
            require_replaceable(&path)?;
        }
        Ok(())
    }

    /// A folder on the same file system, so that renaming moves no bytes.
    pub(crate) fn temporary(&self) -> io::Result<Claimed<TempDir>> {
        let beside = folder_of(&self.folder);
        let outer = match self.new {
            true => beside,
            // A program that was killed while the folder was new left its own beside it.
            false => {
                sweep(beside);
                &self.folder
            }
        };
        claimed(outer, 0o777, |builder: &Builder<'_, '_>, folder| {
            builder.tempdir_in(folder)
        })
    }

    /// A new folder appears at once. In one that exists an old main file goes first and the new one
    /// comes last, so that at no time an index stands beside files of another checkpoint; of
    /// several programs one waits for the other.
    pub(crate) fn move_in(&self, temporary: TempDir, files: &[&Path]) -> io::Result<()> {
        // Another program may have made the folder meanwhile.
        if self.new && !self.folder.exists() {
            std::fs::rename(temporary.path(), &self.folder)?;
            // There is nothing left for it to remove.
            drop(temporary.keep());
            return Ok(());
        }
        let _lock = lock(&self.folder);
        for name in files.iter().copied().chain([Path::new(&self.main)]) {
            keep_permissions(&temporary.path().join(name), &self.folder.join(name))?;
        }
        let main = self.folder.join(&self.main);
        match std::fs::remove_file(&main) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut moved = Vec::new();
        for file in files {
            let place = self.folder.join(file);
            if let Err(error) = moved_to(&temporary.path().join(file), &place) {
                for place in moved {
                    let _best_effort = std::fs::remove_file(place);
                }
                return Err(error);
            }
            moved.push(place);
        }
        std::fs::rename(temporary.path().join(&self.main), &main)
    }

    /// What the system reported about this place, without the names of temporary files.
    pub(crate) fn failed(&self, source: io::Error) -> ArchiveError {
        ArchiveError::write(&self.shown)(unnamed(source))
    }

    pub(crate) fn renamed(&self, error: ArchiveError) -> ArchiveError {
        match error {
            ArchiveError::Write { source, .. } => self.failed(source),
            other => other,
        }
    }
}

/// Renames a file; the folders that it stands in are made first.
fn moved_to(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent().filter(|folder| !folder.is_dir()) {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::rename(from, to)
}
