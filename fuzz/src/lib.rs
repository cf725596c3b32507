//! What the fuzz targets share: an allocator with a limit, files in memory, and archives built
//! around the part that is fuzzed.

mod limit;
mod memory_file;
mod zip;

use hankelite_archive::Archive;
use hankelite_data::{Dataset, Source};
pub use limit::{Limited, within};
pub use memory_file::{MemoryFile, folder};
pub use zip::Zip;

/// Tensors of one file that are read: more would only repeat the work.
const TENSORS: usize = 6;

/// Opens a file and reads what it describes, tensor by tensor.
pub fn read_archive(file: &MemoryFile) {
    within(file.len(), || {
        let Ok(archive) = Archive::open(file.path()) else {
            return;
        };
        let _ = (archive.metadata(), archive.settings(), archive.notes());
        let _ = (archive.wrapper(), archive.elements());
        for name in archive.names().take(TENSORS) {
            let _ = (archive.tied_to(name), archive.repeats(name));
            let _ = archive.tensor(name);
            let extent = archive.shape(name).and_then(|shape| shape.first());
            if let Some(&extent) = extent {
                let _ = archive.rows(name, extent / 2..extent);
            }
        }
    });
}

/// Reads a file as a data set.
pub fn read_data(file: &MemoryFile, kind: &str, options: &str) {
    let source = format!("{kind}:{}{options}", file.path().display());
    let source: Source = source.parse().expect("a source");
    within(file.len(), || {
        let _ = Dataset::read(&source, None);
    });
}

/// The bytes of a safetensors file of tensors: name, type, shape and bytes of each.
pub fn safetensors(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let mut end = 0;
    let entries = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let start = end;
        end += bytes.len();
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let length = (header.len() as u64).to_le_bytes();
    let bytes = tensors.iter().map(|(.., bytes)| *bytes);
    let front = [&length[..], header.as_bytes()];
    front.into_iter().chain(bytes).collect::<Vec<_>>().concat()
}
