//! A file that is read in pieces, and must stay as it is meanwhile.

use std::fs::{File, Metadata};
use std::io;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

/// An open file whose every read fails once its length or its time of change is another than when
/// it was opened: pieces of two versions make no checkpoint. A file that takes its name is not
/// looked at, the one that was opened is read to its end. A change within one tick of the system's
/// clock, some milliseconds, is not seen.
#[derive(Debug)]
pub(crate) struct UnchangingFile {
    file: File,
    seen: Version,
}

/// What a version of a file is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    length: u64,
    /// Not every system has one.
    modified: Option<SystemTime>,
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            length: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }

    /// Whether a path is still that of this version.
    pub(crate) fn require_at(self, path: &Path) -> io::Result<()> {
        self.require(&std::fs::metadata(path)?)
    }

    fn require(self, now: &Metadata) -> io::Result<()> {
        if Self::of(now) == self {
            return Ok(());
        }
        let (then, now) = (self.length, now.len());
        let bytes = match then == now {
            true => format!("{now} bytes"),
            false => format!("{then} bytes then, {now} now"),
        };
        Err(io::Error::other(format!(
            "the file has changed since it was opened ({bytes}), expected it to stay as it is \
             while it is read"
        )))
    }
}

impl UnchangingFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let seen = Version::of(&file.metadata()?);
        Ok(Self { file, seen })
    }

    /// Its bytes when it was opened.
    pub(crate) fn length(&self) -> u64 {
        self.seen.length
    }

    /// As it was opened.
    pub(crate) fn version(&self) -> Version {
        self.seen
    }
}

impl Read for &UnchangingFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = (&self.file).read(bytes)?;
        self.seen.require(&self.file.metadata()?)?;
        Ok(read)
    }
}

impl Seek for &UnchangingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&self.file).seek(to)
    }
}

impl Read for UnchangingFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self).read(bytes)
    }
}

impl Seek for UnchangingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
