//! A file that is read in pieces, and must stay as it is meanwhile.

use std::fmt::Debug;
use std::fs::{File, Metadata};
use std::io;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Bytes that are read in pieces and stay as they are: those in memory, or a file that somebody else
/// holds, such as a web page.
pub trait ReadAt: Debug + Send + Sync {
    /// How many there are.
    fn length(&self) -> u64;

    /// Fills `into` with those from `at` on. Nothing beyond the end is asked for.
    ///
    /// # Errors
    /// They can no longer be read.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for Vec<u8> {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok();
        let found = from.and_then(|from| self.get(from..)?.get(..into.len()));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Shared, for who also reads them elsewhere.
impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read_at(at, into)
    }
}

/// An open file whose every read fails once its length or its time of change is another than when
/// it was opened: pieces of two versions make no checkpoint. A file that takes its name is not
/// looked at, the one that was opened is read to its end. A change within one tick of the system's
/// clock, some milliseconds, is not seen.
///
/// [`ReadAt`] stands for a file that nobody changes, or whose owner sees it.
#[derive(Debug)]
pub(crate) enum UnchangingFile {
    Disk {
        file: File,
        seen: Version,
    },
    Given {
        bytes: Box<dyn ReadAt>,
        at: AtomicU64,
    },
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
        Ok(Self::Disk { file, seen })
    }

    pub(crate) fn given(bytes: Box<dyn ReadAt>) -> Self {
        let at = AtomicU64::new(0);
        Self::Given { bytes, at }
    }

    /// Its bytes when it was opened.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Disk { seen, .. } => seen.length,
            Self::Given { bytes, .. } => bytes.length(),
        }
    }

    /// As it was opened; `None` for [`ReadAt`].
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::Disk { seen, .. } => Some(*seen),
            Self::Given { .. } => None,
        }
    }
}

impl Read for &UnchangingFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            UnchangingFile::Disk { file, seen } => {
                let mut file = file;
                let read = file.read(into)?;
                seen.require(&file.metadata()?)?;
                Ok(read)
            }
            UnchangingFile::Given { bytes, at } => {
                let from = at.load(Ordering::Relaxed).min(bytes.length());
                let left = usize::try_from(bytes.length() - from).unwrap_or(usize::MAX);
                let read = into.len().min(left);
                bytes.read_at(from, &mut into[..read])?;
                at.store(from + read as u64, Ordering::Relaxed);
                Ok(read)
            }
        }
    }
}

impl Seek for &UnchangingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            UnchangingFile::Disk { file, .. } => {
                let mut file = file;
                file.seek(to)
            }
            UnchangingFile::Given { bytes, at } => {
                let to = match to {
                    SeekFrom::Start(to) => Some(to),
                    SeekFrom::End(by) => bytes.length().checked_add_signed(by),
                    SeekFrom::Current(by) => at.load(Ordering::Relaxed).checked_add_signed(by),
                };
                let to = to.ok_or(io::ErrorKind::InvalidInput)?;
                at.store(to, Ordering::Relaxed);
                Ok(to)
            }
        }
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
