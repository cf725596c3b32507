//! Where the numbers of a report came from: files, and the command that was typed.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use crate::cli::common::{grouped, quoted};

/// The files that a report is about, by their names.
pub(in crate::cli) fn title(source: &Path, other: Option<&str>) -> String {
    let name = file_name(source);
    match other {
        Some(other) => format!("{name} → {}", file_name(Path::new(other))),
        None => name,
    }
}

/// Files, what else is known, command and version.
///
/// # Errors
/// Files that cannot be read.
pub(in crate::cli) fn origin_rows(
    source: &Path,
    other: Option<&str>,
    more: impl IntoIterator<Item = (String, String)>,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut all = vec![("Source".to_string(), identified(source)?)];
    if let Some(other) = other.map(Path::new).filter(|path| path.is_file()) {
        all.push(("Smaller model".to_string(), identified(other)?));
    }
    all.extend(more);
    all.extend(made_by());
    Ok(all)
}

/// The command and the version that make a report.
pub(in crate::cli) fn made_by() -> [(String, String); 2] {
    let version = format!("compress-model {}", env!("CARGO_PKG_VERSION"));
    [
        ("Command".to_string(), typed_command()),
        ("Version".to_string(), version),
    ]
}

/// The command as it was typed, quoted for a shell.
pub(in crate::cli) fn typed_command() -> String {
    let words = typed_words();
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("compress-model {}", words.join(" "))
}

/// Its words, without the program's name.
pub(in crate::cli) fn typed_words() -> Vec<String> {
    let words = std::env::args_os().skip(1);
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// A file by its path, its bytes and its hash.
pub(in crate::cli) fn identified(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    if path.is_dir() {
        return Ok(format!("{shown}, a folder"));
    }
    let (bytes, hash) = hash_of(path).with_context(|| shown.to_string())?;
    Ok(format!(
        "{shown}, {} bytes, SHA-256 {hash}",
        grouped(bytes as usize)
    ))
}

/// Bytes and SHA-256 of a file.
pub(in crate::cli) fn hash_of(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = std::fs::File::open(path)?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
    let mut hash = String::new();
    for byte in hasher.finalize() {
        let _ = write!(hash, "{byte:02x}");
    }
    Ok((bytes, hash))
}

/// With the folder that it lies in.
fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let above = path.parent().and_then(Path::file_name);
    let named = above.map_or(PathBuf::from(name), |above| PathBuf::from(above).join(name));
    named.to_string_lossy().into_owned()
}
