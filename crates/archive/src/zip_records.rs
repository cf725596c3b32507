//! The records of a zip file that stores them plain, as `torch.save` and `numpy.savez` do.

mod writer;

use std::collections::BTreeMap;
use std::io;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

pub(crate) use writer::RecordWriter;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::error::ArchiveError;
use crate::unchanging::UnchangingFile;

/// A record of a zip file.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) index: usize,
    pub(crate) length: u64,
}

/// An open zip file.
pub(crate) type Zip = ZipArchive<BufReader<UnchangingFile>>;

/// Whether a file that starts with these bytes can be a zip file.
pub(crate) fn is_zip(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06")
}

/// Reads the directory of a zip file, where the record at the file's end says that it lies.
pub(crate) fn open_zip(path: &Path, file: UnchangingFile) -> Result<Zip, ArchiveError> {
    // Left to itself the crate looks for what may stand before the first record. It then takes the
    // second entry of a directory for the first wherever that one is as long as the 76 bytes that
    // PyTorch writes between the directory and the file's end.
    let config = Config {
        archive_offset: ArchiveOffset::Known(0),
    };
    Zip::with_config(config, BufReader::new(file)).map_err(zip_error(path))
}

fn zip_error(path: &Path) -> impl Fn(ZipError) -> ArchiveError + '_ {
    |source| ArchiveError::Zip {
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Every record by its name; no two may share one.
pub(crate) fn list_records(
    path: &Path,
    zip: &mut Zip,
) -> Result<BTreeMap<String, Record>, ArchiveError> {
    if zip.has_duplicate_names() {
        return Err(ArchiveError::DuplicateRecord {
            path: path.to_owned(),
        });
    }
    let mut records = BTreeMap::new();
    for index in 0..zip.len() {
        let entry = zip.by_index_data(index).map_err(zip_error(path))?;
        let name = entry.name().map_err(zip_error(path))?.into_owned();
        let record = Record {
            name: name.clone(),
            index,
            length: entry.size(),
        };
        records.insert(name, record);
    }
    Ok(records)
}

/// A record that is text.
pub(crate) fn read_text(
    path: &Path,
    zip: &mut Zip,
    record: &Record,
) -> Result<String, ArchiveError> {
    let bytes = read_record(path, zip, record)?;
    String::from_utf8(bytes).map_err(|error| {
        record_error(
            path,
            record,
            io::Error::new(io::ErrorKind::InvalidData, error),
        )
    })
}

/// Reads a whole record; the zip crate then compares its checksum.
pub(crate) fn read_record(
    path: &Path,
    zip: &mut Zip,
    record: &Record,
) -> Result<Vec<u8>, ArchiveError> {
    check_stored(path, zip, record)?;
    read_all(zip, record).map_err(|source| record_error(path, record, source))
}

fn read_all(zip: &mut Zip, record: &Record) -> io::Result<Vec<u8>> {
    let mut entry = zip.by_index(record.index)?;
    let mut bytes = Vec::with_capacity(usize::try_from(record.length).unwrap_or(0));
    entry.read_to_end(&mut bytes)?;
    if bytes.len() as u64 != record.length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// A record that is compressed, encrypted or longer than the file cannot be read.
pub(crate) fn check_stored(
    path: &Path,
    zip: &mut Zip,
    record: &Record,
) -> Result<(), ArchiveError> {
    let entry = zip.by_index_data(record.index).map_err(zip_error(path))?;
    if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
        return Err(ArchiveError::CompressedRecord {
            path: path.to_owned(),
            record: record.name.clone(),
        });
    }
    // The directory lies behind the records.
    let room = zip.central_directory_start();
    if record.length > room {
        return Err(ArchiveError::RecordLength {
            path: path.to_owned(),
            record: record.name.clone(),
            found: room,
            expected: record.length,
        });
    }
    Ok(())
}

/// Reads a part of a record, which [`check_stored`] has seen.
pub(crate) fn read_range(
    zip: &mut Zip,
    index: usize,
    start: u64,
    bytes: &mut [u8],
) -> io::Result<()> {
    let mut entry = zip.by_index_seek(index)?;
    entry.seek(SeekFrom::Start(start))?;
    entry.read_exact(bytes)
}

/// What the system reported about a record.
pub(crate) fn record_error(path: &Path, record: &Record, source: io::Error) -> ArchiveError {
    ArchiveError::Record {
        path: path.to_owned(),
        record: record.name.clone(),
        source,
    }
}
