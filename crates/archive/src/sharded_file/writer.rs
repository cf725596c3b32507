//! Writing safetensors files with an index, all or none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::container::INDEX_NAME;
use crate::contents::{Contents, METADATA_KEY, Shapes, Ties};
use crate::error::ArchiveError;
use crate::safetensors_file::Part;
use crate::several::Place;
use crate::sharded_file::ShardedFile;
use crate::tensor::{Header, byte_length};
use crate::torch_file::TorchFile;
use crate::{safetensors_file, torch_file};

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
    let name = scheme.source.and_then(ShardedFile::index_name);
    let place = Place::of_index(path, name.unwrap_or(INDEX_NAME))?;
    let names: Vec<&Path> = shards.iter().map(|shard| Path::new(&shard.name)).collect();
    place.check(&names, &scheme.inputs)?;
    let failed = |error| place.failed(error);
    let (temporary, _lock) = place.temporary().map_err(failed)?;
    for shard in &shards {
        let written = write_shard(&temporary.path().join(&shard.name), shard, contents);
        written.map_err(|error| place.renamed(error))?;
    }
    let index = temporary.path().join(place.main());
    let text = index_text(&shards, scheme.source, contents.metadata);
    write_file(&index, text.as_bytes()).map_err(failed)?;
    check(&index)?;
    Ok(place.move_in(temporary, &names).map_err(failed)?)
}

/// Writes the files of a source, and its index, into a folder under the names that they have.
pub(crate) fn fill(
    folder: &Path,
    contents: &Contents<'_>,
    source: &ShardedFile,
) -> Result<(), ArchiveError> {
    let shards = as_before(contents, source);
    for shard in &shards {
        let place = folder.join(&shard.name);
        match &source.shards[&shard.name] {
            super::Shard::Safetensors(_) => write_shard(&place, shard, contents)?,
            super::Shard::Torch(file) => write_torch_shard(&place, shard, contents, file)?,
        }
    }
    let index = folder.join(source.index_name().unwrap_or(INDEX_NAME));
    let text = index_text(&shards, Some(source), contents.metadata);
    write_file(&index, text.as_bytes()).map_err(ArchiveError::write(&index))
}

/// Writes one file of PyTorch again, with the changes of its own tensors in memory.
fn write_torch_shard(
    path: &Path,
    shard: &Shard<'_>,
    contents: &Contents<'_>,
    file: &TorchFile,
) -> Result<(), ArchiveError> {
    let held = |name: &str| shard.tensors.iter().any(|header| header.name == name);
    let ties = contents.ties.iter();
    let ties: Ties = ties
        .filter(|(name, first)| held(name) && held(first))
        .map(|(name, first)| (name.clone(), first.clone()))
        .collect();
    let mut changes = BTreeMap::new();
    for header in &shard.tensors {
        if contents.is_changed(header.name) && !ties.contains_key(header.name) {
            let tensor = contents.tensor(header.name)?.into_owned();
            changes.insert(header.name.to_owned(), tensor);
        }
    }
    let shapes = shard.tensors.iter();
    let shapes = shapes.map(|h| (h.name.to_owned(), (h.dtype, h.shape.to_vec())));
    let (shapes, changes) = (shapes.collect::<Shapes>(), changes.into());
    let own = Contents {
        path: file.path(),
        file,
        changes: &changes,
        ties: &ties,
        shapes: &shapes,
        metadata: "",
    };
    let failed = ArchiveError::write(path);
    let mut out = BufWriter::new(File::create_new(path).map_err(&failed)?);
    torch_file::writer::write(&mut out, path, &own, Some(file))?;
    let file = out.into_inner().map_err(|error| failed(error.into()))?;
    file.sync_all().map_err(failed)
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
