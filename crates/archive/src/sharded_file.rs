//! Checkpoints of several files with an index, as Hugging Face writes them: of safetensors files, or
//! of those of PyTorch, which are read and not written.
//!
//! ```text
//! {"metadata": {"total_size": …}, "weight_map": {"encoder.weight": "model-00001-of-00002.safetensors", …}}
//! ```
//!
//! The headers of all files are read and checked when the index is opened; the bytes of a tensor
//! are read when they are requested.

mod error;
pub(super) mod writer;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Seek};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::{fmt, io};

pub use error::ShardError;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::contents::{METADATA_KEY, Read as TensorRead, TensorFile, Ties, borrowed};
use crate::error::ArchiveError;
use crate::safetensors_file;
use crate::safetensors_file::SafetensorsFile;
use crate::sharded_file::error::INDEX_LIMIT;
use crate::tensor::Header;
use crate::torch_file::TorchFile;
use crate::unchanging::{ReadAt, UnchangingFile};
use crate::zip_records::{is_zip, open_zip};

/// What becomes of an index of files of PyTorch.
const TORCH_NOTE: &str = "its files of PyTorch are written as one file, or as safetensors files with \
                          an index";

/// An open sharded checkpoint.
#[derive(Debug)]
pub(super) struct ShardedFile {
    index: PathBuf,
    /// By file name.
    shards: BTreeMap<String, Shard>,
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
    metadata: Map<String, Value>,
    /// What the files hold that will be left out.
    notes: Vec<String>,
}

/// Whether a file that starts with these bytes can be a JSON object.
pub(super) fn is_json(start: &[u8]) -> bool {
    start.trim_ascii_start().first() == Some(&b'{')
}

/// Where the files of an index are.
pub(super) enum Beside {
    /// In its folder.
    Folder,
    /// Given, by their names.
    Given(BTreeMap<String, Box<dyn ReadAt>>),
}

impl Beside {
    /// `None` for what is no file.
    fn open(&mut self, path: &Path, name: &str) -> io::Result<Option<UnchangingFile>> {
        match self {
            Beside::Folder if !std::fs::metadata(path)?.is_file() => Ok(None),
            Beside::Folder => UnchangingFile::open(path).map(Some),
            Beside::Given(files) => {
                let bytes = files.remove(name).ok_or(io::ErrorKind::NotFound)?;
                Ok(Some(UnchangingFile::given(bytes)))
            }
        }
    }
}

/// One of the files.
#[derive(Debug)]
enum Shard {
    Safetensors(SafetensorsFile),
    Torch(TorchFile),
}

impl Shard {
    fn file(&self) -> &dyn TensorFile {
        match self {
            Shard::Safetensors(file) => file,
            Shard::Torch(file) => file,
        }
    }

    fn path(&self) -> &Path {
        match self {
            Shard::Safetensors(file) => file.path(),
            Shard::Torch(file) => file.path(),
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Shard::Safetensors(file) => file.contains(name),
            Shard::Torch(file) => file.contains(name),
        }
    }

    /// The texts in the header of a safetensors file; of one of PyTorch, the one that PyTorch's
    /// writers put there.
    fn texts(&self) -> BTreeMap<&str, &str> {
        match self {
            Shard::Safetensors(file) => borrowed(file.texts()),
            Shard::Torch(_) => BTreeMap::from([("format", "pt")]),
        }
    }
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    #[serde(deserialize_with = "each_once")]
    weight_map: BTreeMap<String, String>,
}

impl ShardedFile {
    /// Reads the index and the headers of all files, and compares them.
    pub(super) fn open(
        path: &Path,
        file: UnchangingFile,
        mut beside: Beside,
    ) -> Result<ShardedFile, ArchiveError> {
        let index = read_index(path, &file)?;
        let wrong = |source| wrong(path, source);
        if index.weight_map.is_empty() {
            return Err(wrong(ShardError::NoTensors));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut shards = BTreeMap::new();
        for shard in index.weight_map.values() {
            if !shards.contains_key(shard) {
                let file = open_shard(folder, shard, &mut beside).map_err(|error| match error {
                    OpenError::Shard(source) => wrong(source),
                    OpenError::Archive(error) => error,
                })?;
                shards.insert(shard.clone(), file);
            }
        }
        // A program that writes here takes the index away before it touches another file.
        let version = file.version();
        let in_place = version.map_or(Ok(()), |version| version.require_at(path));
        in_place.map_err(ArchiveError::read(path))?;
        let mut sharded = ShardedFile {
            index: path.to_owned(),
            notes: Vec::new(),
            shards,
            weight_map: index.weight_map,
            metadata: index.metadata.unwrap_or_default(),
        };
        sharded.check().map_err(wrong)?;
        sharded.notes = sharded.notes_of_shards();
        Ok(sharded)
    }

    fn notes_of_shards(&self) -> Vec<String> {
        let torch = self.is_of_torch().then(|| TORCH_NOTE.to_owned());
        let shards = self.shards.values();
        let beside = shards.flat_map(|shard| shard.file().notes().iter().cloned());
        torch.into_iter().chain(beside).collect()
    }

    /// The index and the files have the same tensors in the same places.
    fn check(&self) -> Result<(), ShardError> {
        for (tensor, shard) in &self.weight_map {
            if !self.shards[shard].contains(tensor) {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                return Err(ShardError::Lacking { tensor, shard });
            }
        }
        for (shard, file) in &self.shards {
            for Header { name: tensor, .. } in file.file().headers() {
                let elsewhere = match self.weight_map.get(tensor) {
                    Some(listed) if listed == shard => continue,
                    Some(listed) => format!("in the file `{listed}`"),
                    None => "nowhere".to_owned(),
                };
                return Err(ShardError::Unlisted {
                    tensor: tensor.to_owned(),
                    shard: shard.clone(),
                    elsewhere,
                });
            }
        }
        Ok(())
    }

    /// The texts in the headers of all files; of a key that stands in several, the first.
    pub(super) fn texts(&self) -> BTreeMap<&str, &str> {
        let mut texts = BTreeMap::new();
        for file in self.shards.values().rev() {
            texts.extend(file.texts());
        }
        texts
    }

    /// Whether some of the files are those of PyTorch.
    pub(super) fn is_of_torch(&self) -> bool {
        let mut shards = self.shards.values();
        shards.any(|shard| matches!(shard, Shard::Torch(_)))
    }

    /// The file of a tensor.
    fn shard(&self, name: &str) -> Option<&dyn TensorFile> {
        Some(self.shards[self.weight_map.get(name)?].file())
    }

    /// Name of the index.
    pub(super) fn index_name(&self) -> Option<&str> {
        self.index.file_name().and_then(OsStr::to_str)
    }

    /// Where the files lie.
    pub(super) fn shard_paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.values().map(Shard::path)
    }
}

impl TensorFile for ShardedFile {
    fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_> {
        Box::new(
            self.shards
                .values()
                .flat_map(|shard| shard.file().headers()),
        )
    }

    fn tensor(&self, name: &str) -> Option<TensorRead<'_>> {
        self.shard(name)?.tensor(name)
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Option<TensorRead<'_>> {
        self.shard(name)?.rows(name, rows)
    }

    fn metadata(&self) -> Option<&str> {
        self.metadata.get(METADATA_KEY).and_then(Value::as_str)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn ties(&self) -> Ties {
        let shards = self.shards.values();
        shards.flat_map(|shard| shard.file().ties()).collect()
    }

    fn repeats(&self, name: &str) -> bool {
        self.shard(name).is_some_and(|shard| shard.repeats(name))
    }
}

fn read_index(path: &Path, file: &UnchangingFile) -> Result<Index, ArchiveError> {
    let read = ArchiveError::read(path);
    let found = file.length();
    if found > INDEX_LIMIT {
        return Err(wrong(path, ShardError::IndexLength { found }));
    }
    let mut text = Vec::new();
    file.take(INDEX_LIMIT)
        .read_to_end(&mut text)
        .map_err(&read)?;
    serde_json::from_slice(&text).map_err(|error| wrong(path, error.into()))
}

fn wrong(path: &Path, source: ShardError) -> ArchiveError {
    ArchiveError::Sharded {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

enum OpenError {
    Shard(ShardError),
    Archive(ArchiveError),
}

fn open_shard(folder: &Path, shard: &str, beside: &mut Beside) -> Result<Shard, OpenError> {
    let name = || shard.to_owned();
    let mut components = Path::new(shard).components();
    let first = components.next();
    // A backslash is a separator elsewhere.
    let plain = matches!(first, Some(Component::Normal(only)) if only == OsStr::new(shard));
    if !plain || components.next().is_some() || shard.contains('\\') {
        return Err(OpenError::Shard(ShardError::Outside { shard: name() }));
    }
    let path = folder.join(shard);
    let read = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Shard(ShardError::Missing { shard: name() }),
        _ => OpenError::Archive(ArchiveError::Read {
            path: path.clone(),
            source,
        }),
    };
    let Some(file) = beside.open(&path, shard).map_err(&read)? else {
        return Err(OpenError::Shard(ShardError::Foreign { shard: name() }));
    };
    let mut start = Vec::new();
    (&file).take(9).read_to_end(&mut start).map_err(&read)?;
    (&file).rewind().map_err(&read)?;
    let opened = if is_zip(&start) {
        open_zip(&path, file)
            .and_then(|zip| TorchFile::open(&path, zip))
            .map(Shard::Torch)
    } else if safetensors_file::is_safetensors(&start) {
        SafetensorsFile::open(&path, file).map(Shard::Safetensors)
    } else {
        return Err(OpenError::Shard(ShardError::Foreign { shard: name() }));
    };
    opened.map_err(OpenError::Archive)
}

/// A map of texts; JSON itself would let the last of several equal keys win.
fn each_once<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Once;
    impl<'de> Visitor<'de> for Once {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object of file names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                if all.contains_key(&tensor) {
                    return Err(A::Error::custom(format!(
                        "two entries for tensor `{tensor}`"
                    )));
                }
                all.insert(tensor, shard);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_map(Once)
}
