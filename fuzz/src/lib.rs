//! What the fuzz targets share: an allocator with a limit, files in memory, and archives built
//! around the part that is fuzzed.

mod limit;
mod memory_file;
mod zip;

use hankelite_archive::Archive;
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

/// A safetensors file whose first word is the length of its header as the braces show it: without
/// this, hardly any change of a header would reach its parser.
pub fn with_header_length(bytes: &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let end = rest.iter().position(|&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })?;
    // Spaces may stand behind it.
    let spaces = rest[end + 1..].iter().take_while(|&&byte| byte == b' ');
    let found = (end + 1 + spaces.count()) as u64;
    (found != u64::from_le_bytes(*length)).then(|| [&found.to_le_bytes(), rest].concat())
}
