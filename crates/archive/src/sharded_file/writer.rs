//! Writing safetensors files with an index, all or none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::{Builder, TempDir};

use crate::container::is_index;
use crate::contents::{Contents, METADATA_KEY};
use crate::destination::{folder_of, keep_permissions, require_replaceable, unnamed};
use crate::error::ArchiveError;
use crate::safetensors_file;
use crate::safetensors_file::Part;
use crate::sharded_file::{INDEX_NAME, ShardedFile};
use crate::temporary::{Claimed, claimed, lock, sweep};
use crate::tensor::{Header, byte_length};

/// Bytes of tensors in one file of a checkpoint that was not sharded before, as in the
/// `transformers` library.
const SHARD_BYTES: usize = match usize::BITS {
    64 => 5_000_000_000_u64 as usize,
    _ => 2_000_000_000,
};

/// What the new files take from the archive they are made of.
pub(crate) struct Scheme<'a> {
    /// The sharded checkpoint whose distribution of tensors is kept, if it is one.
    pub(crate) source: Option<&'a ShardedFile>,
    /// The texts in the header of a safetensors file.
    pub(crate) texts: BTreeMap<&'a str, &'a str>,
    /// The files that are being read.
    pub(crate) inputs: Vec<&'a Path>,
}

/// One file to be written.
struct Shard<'a> {
    name: String,
    tensors: Vec<Header<'a>>,
    texts: BTreeMap<&'a str, &'a str>,
}

/// Writes all files under temporary names, shows the index to `check`, and then puts them in
/// their places, the index last.
pub(crate) fn write<'a, E: From<ArchiveError>>(
    path: &Path,
    contents: &Contents<'a>,
    scheme: &Scheme<'a>,
    check: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let shards = match scheme.source {
        Some(source) => as_before(contents, source),
        None => by_size(contents, &scheme.texts),
    };
    let place = Place::new(path, scheme.source)?;
    place.check(&shards, &scheme.inputs)?;
    let failed = |error| place.failed(error);
    let (temporary, _lock) = place.temporary().map_err(failed)?;
    for shard in &shards {
        let written = write_shard(&temporary.path().join(&shard.name), shard, contents);
        written.map_err(|error| place.renamed(error))?;
    }
    let index = temporary.path().join(&place.index);
    let text = index_text(&shards, scheme.source, contents.metadata);
    write_file(&index, text.as_bytes()).map_err(failed)?;
    check(&index)?;
    Ok(place.move_in(temporary, &shards).map_err(failed)?)
}

/// The files of the source with their own tensors.
fn as_before<'a>(contents: &Contents<'a>, source: &'a ShardedFile) -> Vec<Shard<'a>> {
    let shards = source.shards.iter().map(|(name, file)| {
        let held = |header: &Header<'_>| source.weight_map.get(header.name) == Some(name);
        Shard {
            name: name.clone(),
            tensors: contents.headers().filter(held).collect(),
            texts: file.texts(),
        }
    });
    shards.collect()
}

/// New files, in the order of the names.
fn by_size<'a>(contents: &Contents<'a>, texts: &BTreeMap<&'a str, &'a str>) -> Vec<Shard<'a>> {
    let groups = groups(contents.headers(), SHARD_BYTES);
    let count = groups.len();
    let mut texts = texts.clone();
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
        let length =
            byte_length(header.dtype, header.shape).expect("lengths were checked on reading");
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
    let failed = ArchiveError::write(path);
    let mut out = BufWriter::new(File::create_new(path).map_err(&failed)?);
    let part = Part {
        tensors: shard.tensors.clone(),
        texts: shard.texts.clone(),
    };
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
fn index_text(shards: &[Shard<'_>], source: Option<&ShardedFile>, text: &str) -> String {
    let mut metadata = source.map_or_else(Map::new, |source| source.metadata.clone());
    let all = || shards.iter().flat_map(|shard| &shard.tensors);
    let bytes = all().filter_map(|header| byte_length(header.dtype, header.shape));
    metadata.insert("total_size".into(), json!(bytes.sum::<usize>()));
    if metadata.contains_key("total_parameters") {
        let numbers = all().map(|header| header.shape.iter().product::<usize>());
        metadata.insert("total_parameters".into(), json!(numbers.sum::<usize>()));
    }
    metadata.remove(METADATA_KEY);
    if !text.is_empty() {
        metadata.insert(METADATA_KEY.into(), json!(text));
    }
    let mut weight_map = Map::new();
    for shard in shards {
        for header in &shard.tensors {
            weight_map.insert(header.name.into(), json!(shard.name));
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
    fn new(path: &Path, source: Option<&ShardedFile>) -> Result<Place, ArchiveError> {
        let shown = path.to_owned();
        let file_name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
        let (folder, index) = match is_index(path) {
            true => (folder_of(path).to_owned(), file_name(path)),
            false => {
                let index = source.and_then(|source| file_name(&source.index));
                (path.to_owned(), index)
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
    fn check(&self, shards: &[Shard<'_>], inputs: &[&Path]) -> Result<(), ArchiveError> {
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
            require_replaceable(&path)?;
        }
        Ok(())
    }

    /// A folder on the same file system, so that renaming moves no bytes.
    fn temporary(&self) -> io::Result<Claimed<TempDir>> {
        let beside = folder_of(&self.folder);
        let outer = match self.new {
            true => beside,
            // A program that was killed while the folder was new left its own beside it.
            false => {
                sweep(beside);
                &self.folder
            }
        };
        claimed(outer, 0o777, |builder: &Builder<'_, '_>, folder| {
            builder.tempdir_in(folder)
        })
    }

    /// A new folder appears at once. In one that exists an old index goes first and the new one
    /// comes last, so that at no time an index stands beside files of another checkpoint; of
    /// several programs one waits for the other.
    fn move_in(&self, temporary: TempDir, shards: &[Shard<'_>]) -> io::Result<()> {
        // Another program may have made the folder meanwhile.
        if self.new && !self.folder.exists() {
            std::fs::rename(temporary.path(), &self.folder)?;
            // There is nothing left for it to remove.
            drop(temporary.keep());
            return Ok(());
        }
        let _lock = lock(&self.folder);
        let names = shards.iter().map(|shard| &shard.name);
        for name in names.chain([&self.index]) {
            keep_permissions(&temporary.path().join(name), &self.folder.join(name))?;
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

    /// What the system reported about this place, without the names of temporary files.
    fn failed(&self, source: io::Error) -> ArchiveError {
        ArchiveError::write(&self.shown)(unnamed(source))
    }

    fn renamed(&self, error: ArchiveError) -> ArchiveError {
        match error {
            ArchiveError::Write { source, .. } => self.failed(source),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    #[test]
    fn tensors_are_grouped_up_to_the_limit() {
        let shapes: [&[usize]; 6] = [&[3], &[5], &[1], &[20], &[4], &[6]];
        let tensors = shapes.iter().map(|shape| Header {
            name: "x",
            dtype: Dtype::U8,
            shape,
        });
        let sizes = |group: Vec<Header<'_>>| group.iter().map(|header| header.shape[0]).collect();
        let found: Vec<Vec<usize>> = groups(tensors, 9).into_iter().map(sizes).collect();
        assert_eq!(found, [vec![3, 5, 1], vec![20], vec![4], vec![6]]);
    }
}
