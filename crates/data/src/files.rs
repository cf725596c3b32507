//! Files of a folder or of an archive, compressed or not.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use rayon::prelude::*;

use crate::DataError;
use crate::error::{content, io};

/// Memory that an xz file may take: more than its strongest preset takes.
const XZ_MEMORY_KIB: u32 = 256 << 10;

/// A file of a data set.
pub(super) struct Entry {
    /// Where it stands, for errors; an archive's name stands before the name inside it.
    pub(super) path: PathBuf,
    /// Its name without folders.
    pub(super) name: String,
    /// Its first bytes, as many as were requested.
    pub(super) bytes: Vec<u8>,
}

/// Which files are wanted: those in the folder `within` (which may have folders before it) whose
/// names end in `ending`.
pub(super) struct Wanted<'a> {
    pub(super) within: &'a str,
    pub(super) ending: &'static str,
    /// Bytes read of each.
    pub(super) most: usize,
}

/// The wanted files, sorted by name, of a folder or of an archive (.tar, .tar.gz, .tgz, .tar.xz).
pub(super) fn entries(place: &Path, wanted: &[Wanted<'_>]) -> Result<Vec<Vec<Entry>>, DataError> {
    let mut groups = match place.is_dir() {
        true => wanted
            .iter()
            .map(|wanted| of_folder(&place.join(wanted.within), wanted))
            .collect::<Result<_, _>>()?,
        false => of_archive(place, wanted)?,
    };
    for (group, wanted) in groups.iter_mut().zip(wanted) {
        group.sort_by(|a: &Entry, b| a.name.cmp(&b.name));
        if group.is_empty() {
            let found = format!("no file {}/*{}", wanted.within, wanted.ending);
            return Err(content(place, found, "at least one"));
        }
    }
    Ok(groups)
}

fn of_folder(folder: &Path, wanted: &Wanted<'_>) -> Result<Vec<Entry>, DataError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let name = entry.map_err(io(folder))?.file_name();
        let name = name.to_string_lossy().into_owned();
        if name.ends_with(wanted.ending) {
            names.push(name);
        }
    }
    let read = |name: String| {
        let path = folder.join(&name);
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(io(&path))?;
        let most = wanted.most as u64;
        file.take(most).read_to_end(&mut bytes).map_err(io(&path))?;
        Ok(Entry { path, name, bytes })
    };
    names.sort();
    let entries: Vec<_> = names.into_par_iter().map(read).collect();
    entries.into_iter().collect()
}

fn of_archive(place: &Path, wanted: &[Wanted<'_>]) -> Result<Vec<Vec<Entry>>, DataError> {
    let mut groups: Vec<Vec<Entry>> = wanted.iter().map(|_| Vec::new()).collect();
    let mut archive = tar::Archive::new(open(place)?);
    for entry in archive.entries().map_err(io(place))? {
        let entry = entry.map_err(io(place))?;
        let inside = entry.path().map_err(io(place))?.into_owned();
        let name = inside.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let folder = inside.parent().unwrap_or(Path::new(""));
        let group = wanted
            .iter()
            .position(|wanted| folder.ends_with(wanted.within) && name.ends_with(wanted.ending));
        let Some(group) = group.filter(|_| entry.header().entry_type().is_file()) else {
            continue;
        };
        let path = place.join(&inside);
        let mut bytes = Vec::new();
        let most = wanted[group].most as u64;
        entry
            .take(most)
            .read_to_end(&mut bytes)
            .map_err(io(&path))?;
        groups[group].push(Entry { path, name, bytes });
    }
    Ok(groups)
}

/// Opens a file and takes off its compression, which its ending names: .gz, .tgz or .xz.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, DataError> {
    let file = BufReader::new(File::open(path).map_err(io(path))?);
    let kind = path.extension().unwrap_or_default().to_string_lossy();
    Ok(match kind.to_ascii_lowercase().as_str() {
        "gz" | "tgz" => Box::new(MultiGzDecoder::new(file)),
        "xz" => Box::new(XzReader::new_mem_limit(file, true, XZ_MEMORY_KIB)),
        _ => Box::new(file),
    })
}

/// Reads a whole file of at most `most` bytes, decompressed.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let reader = open(path)?.take(most + 1);
    BufReader::new(reader)
        .read_to_end(&mut bytes)
        .map_err(io(path))?;
    if bytes.len() as u64 > most {
        return Err(content(path, format!("more than {most} bytes"), "less"));
    }
    Ok(bytes)
}
