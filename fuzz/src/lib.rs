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
