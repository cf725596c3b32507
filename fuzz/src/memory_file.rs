//! A file for readers that take a path. `run` puts the folder of temporary files into memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file that is written anew for every execution.
pub struct MemoryFile {
    path: PathBuf,
    file: File,
    length: usize,
}

impl MemoryFile {
    /// A file of this name in the folder of this process.
    pub fn new(name: &str) -> Self {
        let path = folder().join(name);
        let file = File::create(&path).expect("the folder can be written to");
        Self {
            path,
            file,
            length: 0,
        }
    }

    /// The same with other bytes.
    pub fn fill(&mut self, bytes: &[u8]) -> &Self {
        self.fill_from(0, bytes)
    }

    /// The same with the bytes of a safetensors file, the length of whose header is put right.
    pub fn fill_safetensors(&mut self, bytes: &[u8]) -> &Self {
        let repaired = with_header_length(bytes);
        self.fill(repaired.as_deref().unwrap_or(bytes))
    }

    /// The same with other bytes from `start` on.
    pub fn fill_from(&mut self, start: usize, bytes: &[u8]) -> &Self {
        let written = self.file.write_all_at(bytes, start as u64);
        written.expect("the file can be written");
        if start + bytes.len() < self.length {
            let cut = self.file.set_len((start + bytes.len()) as u64);
            cut.expect("the file can be cut");
        }
        self.length = start + bytes.len();
        self
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// A folder for the files of this process.
pub fn folder() -> PathBuf {
    let path = std::env::temp_dir().join(format!("hankelite-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("the folder can be made");
    path
}

/// A safetensors file whose first word is the length of its header as the braces show it: without
/// this, hardly any change of a header would reach its parser.
fn with_header_length(bytes: &[u8]) -> Option<Vec<u8>> {
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
