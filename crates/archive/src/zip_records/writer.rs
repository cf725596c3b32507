//! Writing a zip file record by record, each stored plain and aligned.

use std::io;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, System, ZipWriter};

use crate::error::ArchiveError;

/// Where `torch.save` aligns the bytes of each record.
const ALIGNMENT: u16 = 64;

/// Writes a zip file record by record.
pub(crate) struct RecordWriter<'a, W: Write + Seek> {
    path: &'a Path,
    /// What the name of every record starts with.
    prefix: String,
    zip: ZipWriter<Sink<W>>,
}

impl<'a, W: Write + Seek> RecordWriter<'a, W> {
    pub(crate) fn new(path: &'a Path, out: W, prefix: String) -> Self {
        RecordWriter {
            path,
            prefix,
            zip: ZipWriter::new(Sink::new(out)),
        }
    }

    /// One record, given in parts.
    pub(crate) fn write(&mut self, name: &str, parts: &[&[u8]]) -> Result<(), ArchiveError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .system(System::Unix)
            .unix_permissions(0o644)
            .with_alignment(ALIGNMENT)
            .large_file(length as u64 >= u64::from(u32::MAX));
        let name = format!("{}{name}", self.prefix);
        let mut written = self.zip.start_file(name, options);
        for part in parts {
            written = written.and_then(|()| Ok(self.zip.write_all(part)?));
        }
        written.map_err(|source| write_error(self.path, source))
    }

    /// The comment of the file.
    pub(crate) fn comment(&mut self, text: &str) -> Result<(), ArchiveError> {
        let commented = self.zip.set_comment(text);
        commented.map_err(|source| write_error(self.path, source))
    }

    /// Writes the directory, unless a record already failed.
    pub(crate) fn finish(self, written: Result<(), ArchiveError>) -> Result<(), ArchiveError> {
        if let Err(error) = written {
            // Dropped, the writer would try to complete a file that is thrown
            // away. What it holds besides memory belongs to the caller.
            std::mem::forget(self.zip);
            return Err(error);
        }
        let finished = self.zip.finish();
        let flushed = finished.and_then(|mut sink| Ok(sink.flush()?));
        flushed.map_err(|source| write_error(self.path, source))
    }
}

fn write_error(path: &Path, source: ZipError) -> ArchiveError {
    ArchiveError::Write {
        path: path.to_owned(),
        source: match source {
            ZipError::Io(source) => source,
            other => other.into(),
        },
    }
}

/// Reports the first failure and takes everything after it for granted.
///
/// A `ZipWriter` that fails to write its directory tries once more when it is
/// dropped, and complains on stderr when that fails too; a library keeps quiet,
/// and the file is thrown away in any case. Its assertions compare positions,
/// so after a failure they are taken from the end, behind all it remembers.
struct Sink<W> {
    out: W,
    at: u64,
    end: u64,
    failed: bool,
}

impl<W> Sink<W> {
    fn new(out: W) -> Sink<W> {
        Sink {
            out,
            at: 0,
            end: 0,
            failed: false,
        }
    }

    fn attempt<T>(
        &mut self,
        after_failure: T,
        action: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.failed {
            return Ok(after_failure);
        }
        let result = action(&mut self.out);
        let interrupted = |error: &io::Error| error.kind() == io::ErrorKind::Interrupted;
        self.failed = result.as_ref().is_err_and(|error| !interrupted(error));
        result
    }
}

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.attempt(bytes.len(), |out| out.write(bytes))?;
        self.at += written as u64;
        self.end = self.end.max(self.at);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt((), W::flush)
    }
}

impl<W: Seek> Seek for Sink<W> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        let after_failure = match position {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(_) | SeekFrom::End(_) => self.end,
        };
        self.at = self.attempt(after_failure, |out| out.seek(position))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A medium that accepts so many bytes.
    struct Small {
        bytes: Cursor<Vec<u8>>,
        room: usize,
        failures: usize,
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let Some(room) = self.room.checked_sub(bytes.len()) else {
                self.failures += 1;
                return Err(io::ErrorKind::StorageFull.into());
            };
            self.room = room;
            self.bytes.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Small {
        fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(position)
        }
    }

    #[test]
    fn a_full_medium_is_reported_once_and_then_left_alone() {
        for room in 0..500 {
            let mut medium = Small {
                bytes: Cursor::new(Vec::new()),
                room,
                failures: 0,
            };
            let mut records = RecordWriter::new(Path::new("x.pth"), &mut medium, "x/".to_owned());
            let written = records
                .write("version", &[b"3\n"])
                .and_then(|()| records.write("data/0", &[&[0; 100], &[0; 200]]));
            let written = records.finish(written);
            let full = matches!(&written, Err(ArchiveError::Write { source, .. })
                if source.kind() == io::ErrorKind::StorageFull);
            assert!(full, "{room}");
            assert_eq!(medium.failures, 1, "{room}");
        }
    }
}
