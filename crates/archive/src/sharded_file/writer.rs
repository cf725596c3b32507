//! Writing safetensors files with an index, all or none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::archive::{Contents, METADATA_KEY, borrowed};
use crate::archive_error::ArchiveError;
use crate::destination::folder_of;
use crate::safetensors_file;
use crate::safetensors_file::Header;
use crate::sharded_file::{INDEX_NAME, index_in, is_index};
use crate::tensor::byte_length;

/// Bytes of tensors in one file of a checkpoint that was not sharded before, as in the
/// `transformers` library.
const SHARD_BYTES: usize = 5_000_000_000;

/// One file to be written.
struct Shard<'a> {
    name: String,
    tensors: Vec<Header<'a>>,
    texts: BTreeMap<&'a str, &'a str>,
}

/// Writes all files under temporary names, shows the index to `accept`, and then puts them in
/// their places, the index last.
pub(crate) fn write<E: From<ArchiveError>>(
    path: &Path,
    contents: &Contents<'_>,
    accept: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let shards = match contents.sharded() {
        Some(_) => as_before(contents),
        None => by_size(contents, SHARD_BYTES),
    };
    let place = Place::new(path, contents)?;
    place.check(&shards, contents)?;
    let temporary = place.temporary().map_err(|error| place.failed(error))?;
    for shard in &shards {
        let written = write_shard(&temporary.path().join(&shard.name), shard, contents);
        written.map_err(|error| place.renamed(error))?;
    }
    let index = temporary.path().join(&place.index);
    let written = write_file(&index, index_text(&shards, contents).as_bytes());
    written.map_err(|error| place.failed(error))?;
    accept(&index)?;
    let moved = place.move_in(temporary, &shards);
    Ok(moved.map_err(|error| place.failed(error))?)
}

/// The files of the source with their own tensors.
fn as_before<'a>(contents: &Contents<'a>) -> Vec<Shard<'a>> {
    let Some(source) = contents.sharded() else {
        return Vec::new();
    };
    let mut shards: BTreeMap<&str, Shard<'a>> = BTreeMap::new();
    for (name, file) in &source.shards {
        let shard = Shard {
            name: name.clone(),
            tensors: Vec::new(),
            texts: borrowed(file.texts()),
        };
        shards.insert(name, shard);
    }
    for header in contents.tensors() {
        let shard = shards.get_mut(source.weight_map[header.0].as_str());
        shard
            .expect("every tensor is in a file")
            .tensors
            .push(header);
    }
    shards.into_values().collect()
}

/// New files, in the order of the names.
fn by_size<'a>(contents: &Contents<'a>, limit: usize) -> Vec<Shard<'a>> {
    let groups = groups(contents.tensors(), limit);
    let count = groups.len();
    let mut texts = contents.texts();
    texts.remove(METADATA_KEY);
    let groups = groups.into_iter().enumerate();
    let shards = groups.map(|(index, tensors)| Shard {
        name: format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        tensors,
        texts: texts.clone(),
    });
    shards.collect()
}

/// Groups of at most so many bytes; a larger tensor stands alone.
fn groups<'a>(tensors: impl Iterator<Item = Header<'a>>, limit: usize) -> Vec<Vec<Header<'a>>> {
    let mut groups: Vec<Vec<Header<'a>>> = vec![Vec::new()];
    let mut filled = 0;
    for header in tensors {
        let length = byte_length(header.1, header.2).expect("lengths were checked on reading");
        let last = groups.last_mut().expect("there is a first group");
        if filled + length > limit && !last.is_empty() {
            groups.push(vec![header]);
            filled = length;
        } else {
            last.push(header);
            filled += length;
        }
    }
    groups
}

fn write_shard(
    path: &Path,
    shard: &Shard<'_>,
    contents: &Contents<'_>,
) -> Result<(), ArchiveError> {
    let failed = |source| ArchiveError::Write {
        path: path.to_owned(),
        source,
    };
    let mut out = BufWriter::new(File::create_new(path).map_err(failed)?);
    let part = (shard.tensors.clone(), shard.texts.clone());
    safetensors_file::write_part(&mut out, path, contents, part)?;
    let file = out.into_inner().map_err(|error| failed(error.into()))?;
    file.sync_all().map_err(failed)
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// As Python's `json.dumps(index, indent=2, sort_keys=True) + "\n"`.
fn index_text(shards: &[Shard<'_>], contents: &Contents<'_>) -> String {
    let mut metadata = contents
        .sharded()
        .map_or_else(Map::new, |source| source.metadata.clone());
    let all = || shards.iter().flat_map(|shard| &shard.tensors);
    let bytes = all().filter_map(|(_, dtype, shape)| byte_length(*dtype, shape));
    metadata.insert("total_size".into(), json!(bytes.sum::<usize>()));
    if metadata.contains_key("total_parameters") {
        let numbers = all().map(|(.., shape)| shape.iter().product::<usize>());
        metadata.insert("total_parameters".into(), json!(numbers.sum::<usize>()));
    }
    metadata.remove(METADATA_KEY);
    if !contents.metadata().is_empty() {
        metadata.insert(METADATA_KEY.into(), json!(contents.metadata()));
    }
    let mut weight_map = Map::new();
    for shard in shards {
        for (name, ..) in &shard.tensors {
            weight_map.insert((*name).into(), json!(shard.name));
        }
    }
    let index = json!({"metadata": Value::Object(metadata), "weight_map": weight_map});
    format!("{index:#}\n")
}

/// Where the files go.
struct Place {
    /// As the user wrote it, for errors.
    shown: PathBuf,
    folder: PathBuf,
    /// Whether the folder is to be made.
    new: bool,
    /// Name of the index.
    index: String,
}

impl Place {
    fn new(path: &Path, contents: &Contents<'_>) -> Result<Place, ArchiveError> {
        let shown = path.to_owned();
        let file_name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
        let (folder, index) = match is_index(path) {
            true => (folder_of(path).to_owned(), file_name(path)),
            false => {
                let source = contents.sharded();
                (
                    path.to_owned(),
                    source.and_then(|source| file_name(&source.index)),
                )
            }
        };
        let index = index.unwrap_or_else(|| INDEX_NAME.to_owned());
        if folder.is_dir() {
            let new = false;
            return Ok(Place {
                shown,
                folder,
                new,
                index,
            });
        }
        if folder.exists() {
            return Err(ArchiveError::NotAFolder { path: shown });
        }
        let outer = folder_of(&folder);
        if is_index(path) || !outer.is_dir() {
            let folder = if is_index(path) { &folder } else { outer };
            let folder = folder.to_owned();
            return Err(ArchiveError::MissingFolder {
                path: shown,
                folder,
            });
        }
        Ok(Place {
            shown,
            folder,
            new: true,
            index,
        })
    }

    /// None of the files may be one that is being read, nor a folder.
    fn check(&self, shards: &[Shard<'_>], contents: &Contents<'_>) -> Result<(), ArchiveError> {
        let inputs = contents.inputs();
        let inputs: Vec<PathBuf> = inputs
            .iter()
            .filter_map(|input| input.canonicalize().ok())
            .collect();
        let names = shards.iter().map(|shard| shard.name.as_str());
        for name in names.chain([self.index.as_str()]) {
            let path = self.folder.join(name);
            if path.is_dir() {
                return Err(ArchiveError::Folder { path });
            }
            let same = path
                .canonicalize()
                .is_ok_and(|place| inputs.contains(&place));
            if same {
                return Err(ArchiveError::SameFile { path });
            }
        }
        Ok(())
    }

    /// A folder on the same file system, so that renaming moves no bytes.
    fn temporary(&self) -> io::Result<TempDir> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".hankelite-").suffix(".part");
        // From 0777 the user's umask takes what it takes from any new folder.
        #[cfg(unix)]
        let open_to_umask = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        #[cfg(unix)]
        builder.permissions(open_to_umask);
        let outer = if self.new {
            folder_of(&self.folder)
        } else {
            &self.folder
        };
        builder.tempdir_in(outer)
    }

    /// A new folder appears at once. In one that exists an old index goes first and the new one
    /// comes last, so that at no time an index stands beside files of another checkpoint.
    fn move_in(&self, temporary: TempDir, shards: &[Shard<'_>]) -> io::Result<()> {
        if self.new {
            std::fs::rename(temporary.path(), &self.folder)?;
            // There is nothing left for it to remove.
            drop(temporary.keep());
            return Ok(());
        }
        let index = self.folder.join(&self.index);
        match std::fs::remove_file(&index) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut moved = Vec::new();
        for shard in shards {
            let place = self.folder.join(&shard.name);
            if let Err(error) = std::fs::rename(temporary.path().join(&shard.name), &place) {
                for place in moved {
                    let _best_effort = std::fs::remove_file(place);
                }
                return Err(error);
            }
            moved.push(place);
        }
        std::fs::rename(temporary.path().join(&self.index), &index)
    }

    /// The system's word about this place, without the names of temporary files.
    fn failed(&self, source: io::Error) -> ArchiveError {
        let source = match source.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => source,
        };
        ArchiveError::Write {
            path: self.shown.clone(),
            source,
        }
    }

    fn renamed(&self, error: ArchiveError) -> ArchiveError {
        match error {
            ArchiveError::Write { source, .. } => self.failed(source),
            other => other,
        }
    }
}

/// Whether a sharded checkpoint could be written to a path: the folder of an index, or a folder
/// that is there or can be made.
pub(crate) fn check_place(path: &Path, inputs: &[&Path]) -> Result<(), ArchiveError> {
    let folder = if is_index(path) {
        folder_of(path)
    } else {
        path
    };
    let outer = match is_index(path) {
        true => folder,
        false => folder_of(path),
    };
    if !outer.is_dir() {
        return Err(ArchiveError::MissingFolder {
            path: path.to_owned(),
            folder: outer.to_owned(),
        });
    }
    if folder.exists() && !folder.is_dir() {
        return Err(ArchiveError::NotAFolder {
            path: path.to_owned(),
        });
    }
    let Ok(place) = path.canonicalize() else {
        return Ok(());
    };
    for input in inputs {
        let index = index_in(input).unwrap_or(input.to_path_buf());
        let taken = [index.as_path(), folder_of(&index)];
        let same = |taken: &Path| taken.canonicalize().is_ok_and(|taken| taken == place);
        if taken.into_iter().any(same) {
            return Err(ArchiveError::SameFile {
                path: path.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    #[test]
    fn tensors_are_grouped_up_to_the_limit() {
        let shapes: [&[usize]; 6] = [&[3], &[5], &[1], &[20], &[4], &[6]];
        let tensors = shapes.iter().map(|shape| ("x", Dtype::U8, *shape));
        let sizes = |group: Vec<Header<'_>>| group.iter().map(|header| header.2[0]).collect();
        let found: Vec<Vec<usize>> = groups(tensors, 9).into_iter().map(sizes).collect();
        assert_eq!(found, [vec![3, 5, 1], vec![20], vec![4], vec![6]]);
    }
}
