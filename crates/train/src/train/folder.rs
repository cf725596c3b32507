//! The folder of a run: settings, metrics, snapshots.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use hankelite_archive::{is_temporary, write_whole};

use crate::train::TrainError;
use crate::train::observer::Entry;

/// The folder of a run:
///
/// ```text
/// config.toml        the settings, all of them
/// metrics.jsonl      one line for each epoch
/// last.safetensors   where the run goes on
/// best.safetensors   the best epoch so far
/// reduced-STEP.safetensors   the network behind a cut, where it becomes smaller on the way
/// lock               empty; locked while a program is at work in the folder
/// ```
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// `None` on a file system without locks.
    _lock: Option<File>,
}

impl Folder {
    /// What a finished run came to.
    pub const RECORD: &'static str = "record.json";

    /// Whether a new run may be put there: the folder is missing or empty. For a check before
    /// long work; nothing is made.
    ///
    /// # Errors
    /// [`TrainError::InUse`], [`TrainError::NotEmpty`]; [`TrainError::Io`].
    pub fn require_new(path: impl AsRef<Path>) -> Result<(), TrainError> {
        Self::require_free(&path)?;
        require_empty(path.as_ref())
    }

    /// Whether no program is at work there. For a check before long work; nothing is made.
    ///
    /// # Errors
    /// [`TrainError::InUse`].
    pub fn require_free(path: impl AsRef<Path>) -> Result<(), TrainError> {
        match File::open(path.as_ref().join(LOCK)) {
            Ok(file) => locked(path.as_ref(), file).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Makes the folder of a new run and writes its settings.
    ///
    /// # Errors
    /// [`TrainError::InUse`], [`TrainError::NotEmpty`]; [`TrainError::Io`] and
    /// [`TrainError::Archive`] when it cannot be made or written.
    pub fn create(path: impl AsRef<Path>, config: &str) -> Result<Self, TrainError> {
        let path = path.as_ref();
        Self::require_new(path)?;
        std::fs::create_dir_all(path).map_err(io(path))?;
        let folder = Self::claim(path)?;
        // Another program may have been there in the meantime.
        require_empty(path)?;
        folder.sweep()?;
        folder.write("config.toml", config.as_bytes())?;
        Ok(folder)
    }

    /// Opens the folder of a run that is to go on with the settings it was begun with.
    ///
    /// # Errors
    /// [`TrainError::InUse`], [`TrainError::NothingToResume`], [`TrainError::OtherSettings`],
    /// [`TrainError::Io`].
    pub fn resume(path: impl AsRef<Path>, config: &str) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let file = path.join("config.toml");
        if !file.is_file() {
            let path = path.to_path_buf();
            return Err(TrainError::NothingToResume { path });
        }
        let folder = Self::claim(path)?;
        let then = std::fs::read_to_string(&file).map_err(io(&file))?;
        if let Some((line, expected, found)) = first_difference(&then, config) {
            return Err(TrainError::OtherSettings {
                path: file,
                line,
                found,
                expected,
            });
        }
        folder.sweep()?;
        Ok(folder)
    }

    /// Keeps all other programs out of a folder for as long as this lives.
    fn claim(path: &Path) -> Result<Self, TrainError> {
        let place = path.join(LOCK);
        let file = OpenOptions::new().create(true).append(true).open(&place);
        let _lock = locked(path, file.map_err(io(&place))?)?;
        let path = path.to_path_buf();
        Ok(Self { path, _lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the run goes on.
    pub fn last(&self) -> PathBuf {
        self.path.join("last.safetensors")
    }

    /// The best epoch so far.
    pub fn best(&self) -> PathBuf {
        self.path.join("best.safetensors")
    }

    /// Takes the snapshot of the best epoch away, where there is one.
    pub(super) fn forget_best(&self) -> Result<(), TrainError> {
        let place = self.best();
        match std::fs::remove_file(&place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(&place)(error)),
            _ => Ok(()),
        }
    }

    /// One line for each epoch.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Writes a file of the folder whole or not at all.
    ///
    /// # Errors
    /// [`TrainError::Archive`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
        Ok(write_whole(self.path.join(name), bytes)?)
    }

    /// Appends a line to the metrics; returns their length in bytes.
    pub(super) fn append(&self, entry: &Entry) -> Result<u64, TrainError> {
        let place = self.metrics();
        let failed = io(&place);
        let mut line = serde_json::to_string(entry).expect("plain fields serialise");
        line.push('\n');
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&place)
            .map_err(&failed)?;
        file.write_all(line.as_bytes()).map_err(&failed)?;
        // What a snapshot counts on must not be lost before it.
        file.sync_data().map_err(&failed)?;
        Ok(file.metadata().map_err(&failed)?.len())
    }

    /// Takes away the metrics behind `bytes`, which no snapshot covers, and reads the others.
    pub(super) fn rewind(&self, bytes: u64) -> Result<Vec<Entry>, TrainError> {
        let place = self.metrics();
        let failed = io(&place);
        if bytes == 0 && !place.exists() {
            return Ok(Vec::new());
        }
        let file: File = OpenOptions::new()
            .write(true)
            .open(&place)
            .map_err(&failed)?;
        if file.metadata().map_err(&failed)?.len() < bytes {
            return Err(TrainError::Snapshot {
                path: place,
                what: "shorter than at the last snapshot".to_string(),
            });
        }
        file.set_len(bytes).map_err(&failed)?;
        let text = std::fs::read_to_string(&place).map_err(&failed)?;
        let entries = text.lines().map(serde_json::from_str);
        let entries: Result<Vec<Entry>, _> = entries.collect();
        entries.map_err(|error| TrainError::Snapshot {
            path: place.clone(),
            what: format!("a line cannot be read: {error}"),
        })
    }

    /// Removes the temporary files that a killed run left.
    fn sweep(&self) -> Result<(), TrainError> {
        for entry in std::fs::read_dir(&self.path).map_err(io(&self.path))? {
            let path = entry.map_err(io(&self.path))?.path();
            if is_temporary(&path) {
                std::fs::remove_file(&path).map_err(io(&path))?;
            }
        }
        Ok(())
    }
}

/// The file that is locked. It stays when the lock is gone: to remove it could let two programs
/// lock two files of this name.
const LOCK: &str = "lock";

/// The file of the lock on a folder, which the system takes away with the process; `None` where
/// there are no locks.
fn locked(folder: &Path, file: File) -> Result<Option<File>, TrainError> {
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(TrainError::InUse {
            path: folder.to_path_buf(),
        }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Whether a folder is missing, or holds nothing but what a killed program left.
fn require_empty(path: &Path) -> Result<(), TrainError> {
    if !path.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(io(path))? {
        let entry = entry.map_err(io(path))?;
        if entry.file_name() != LOCK && !is_temporary(entry.path()) {
            let path = path.to_path_buf();
            return Err(TrainError::NotEmpty { path });
        }
    }
    Ok(())
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> TrainError + use<> {
    let path = path.to_path_buf();
    move |source| TrainError::Io {
        path: path.clone(),
        source,
    }
}

/// The first line that differs, counted from 1, with both versions.
fn first_difference(then: &str, now: &str) -> Option<(usize, String, String)> {
    let (mut old, mut new) = (then.lines(), now.lines());
    for line in 1.. {
        match (old.next(), new.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => {
                let text = |line: Option<&str>| line.unwrap_or("").to_string();
                return Some((line, text(a), text(b)));
            }
        }
    }
    None
}
