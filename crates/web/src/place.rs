//! Where files are: in memory, or where a page has them.

use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::sync::Arc;

use hankelite::archive::ReadAt;
use sha2::{Digest, Sha256};

/// A file to read from.
pub type File = Arc<dyn ReadAt>;

/// A file that is made.
pub trait NewFile: Write + Seek {
    /// What was written.
    fn again(&self) -> File;
}

/// One in memory.
#[derive(Debug, Clone, Default)]
pub struct InMemory(Cursor<Vec<u8>>);

impl NewFile for InMemory {
    fn again(&self) -> File {
        Arc::new(self.0.get_ref().clone())
    }
}

impl Write for InMemory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for InMemory {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// The hash of a file, in hexadecimal digits.
pub(crate) fn sha256(file: &dyn ReadAt) -> io::Result<String> {
    const PIECE: usize = 1 << 20;
    let (mut hash, mut at, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
    while at < file.length() {
        let left = usize::try_from(file.length() - at).unwrap_or(PIECE);
        let piece = &mut piece[..left.min(PIECE)];
        file.read_at(at, piece)?;
        hash.update(&*piece);
        at += piece.len() as u64;
    }
    let digits = hash.finalize();
    Ok(digits.iter().map(|byte| format!("{byte:02x}")).collect())
}
