//! The idx files of MNIST, read row by row as sequences of pixels / 255.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::draw::Draw;
use crate::error::content;
use crate::{DataError, Dataset, Split, Targets};

const IMAGES_MAGIC: u32 = 2051;
const LABELS_MAGIC: u32 = 2049;
/// More than any published idx file holds; a header that claims more is not believed.
const BYTES_MAX: u64 = 4 << 30;

/// The pictures of an idx file.
pub(super) struct Images {
    /// The file.
    pub(super) path: PathBuf,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pixels: Vec<u8>,
}

impl Images {
    pub(super) fn count(&self) -> usize {
        self.pixels.len() / (self.rows * self.columns)
    }

    /// Picture `index`, row by row, scaled to 0 … 1.
    pub(super) fn one(&self, index: usize) -> Vec<f32> {
        let length = self.rows * self.columns;
        let pixels = self.pixels[index * length..(index + 1) * length].iter();
        pixels.map(|&pixel| f32::from(pixel) / 255.0).collect()
    }
}

/// The pictures of a part.
pub(super) fn images(folder: &Path, split: Split) -> Result<Images, DataError> {
    let (stem, pattern) = match split {
        // The data set has no validation part; the caller requests none.
        Split::Test | Split::Validation => ("t10k", "t10k*images-idx3-ubyte[.gz]"),
        Split::Train => ("train", "train*images-idx3-ubyte[.gz]"),
    };
    let path = find_images(folder, stem, pattern)?;
    let (counts, pixels) = read_idx(&path, IMAGES_MAGIC, 3)?;
    if pixels.is_empty() {
        let found = format!("images of {counts:?}");
        return Err(content(&path, found, "at least one image of one pixel"));
    }
    let (rows, columns) = (counts[1], counts[2]);
    Ok(Images {
        path,
        rows,
        columns,
        pixels,
    })
}

pub(super) fn read(folder: &Path, split: Split) -> Result<Dataset, DataError> {
    labelled(images(folder, split)?)
}

/// As [`read`], with the lowest row of every image first.
pub(super) fn read_bottom_up(folder: &Path, split: Split) -> Result<Dataset, DataError> {
    let images = images(folder, split)?;
    let (rows, columns) = (images.rows, images.columns);
    let order = (0..rows * columns).map(|t| (rows - 1 - t / columns) * columns + t % columns);
    let order: Vec<usize> = order.collect();
    Ok(labelled(images)?.reordered(&order))
}

fn labelled(images: Images) -> Result<Dataset, DataError> {
    let name = images.path.file_name().unwrap_or_default();
    let name = name.to_string_lossy().replace("images-idx3", "labels-idx1");
    let labels_path = images.path.with_file_name(name);
    let (label_counts, labels) = read_idx(&labels_path, LABELS_MAGIC, 1)?;
    let count = images.count();
    if label_counts[0] != count {
        let found = format!("{} labels", label_counts[0]);
        return Err(content(
            &labels_path,
            found,
            format!("{count}, one for each image"),
        ));
    }
    let length = images.rows * images.columns;
    let pixels = images.pixels.iter();
    let pixels = pixels.map(|&pixel| f32::from(pixel) / 255.0).collect();
    let labels: Vec<usize> = labels.into_iter().map(usize::from).collect();
    // Ten digits, also where a small file lacks some; other sets of this format have more.
    let classes = labels.iter().fold(10, |most, &label| most.max(label + 1));
    let targets = Targets::Classes { labels, classes };
    Ok(Dataset::from_values(pixels, 1, length).with_targets(targets))
}

/// The seed of the one order of the pixels that all permuted sets share.
const PERMUTATION_SEED: u64 = 0;

/// As [`read`], with the pixels of every image in one fixed random order.
pub(super) fn read_permuted(folder: &Path, split: Split) -> Result<Dataset, DataError> {
    let data = read(folder, split)?;
    let order = Draw::new(PERMUTATION_SEED, 0).order(data.length());
    Ok(data.reordered(&order))
}

/// The first file in name order that starts with `stem` and holds images.
fn find_images(folder: &Path, stem: &str, expected: &'static str) -> Result<PathBuf, DataError> {
    let io = |source| DataError::Io {
        path: folder.to_path_buf(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry
            .map_err(io)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        let ending = name.ends_with("images-idx3-ubyte") || name.ends_with("images-idx3-ubyte.gz");
        if name.starts_with(stem) && ending {
            found.push(name);
        }
    }
    found.sort();
    let first = found.first().ok_or_else(|| DataError::NoFile {
        folder: folder.to_path_buf(),
        expected,
    })?;
    Ok(folder.join(first))
}

/// Sizes along each axis, and the bytes.
fn read_idx(path: &Path, magic: u32, axes: usize) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    let io = |source| DataError::Io {
        path: path.to_path_buf(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut reader: Box<dyn Read> = if path.extension().is_some_and(|kind| kind == "gz") {
        Box::new(MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    };
    let mut header = vec![0; 4 + 4 * axes];
    reader.read_exact(&mut header).map_err(io)?;
    let words: Vec<u32> = header
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    if words[0] != magic {
        return Err(content(
            path,
            format!("magic number {}", words[0]),
            magic.to_string(),
        ));
    }
    let sizes: Vec<usize> = words[1..].iter().map(|&size| size as usize).collect();
    let bytes = words[1..]
        .iter()
        .try_fold(1u64, |total, &size| total.checked_mul(size.into()));
    let Some(expected) = bytes.filter(|&bytes| bytes <= BYTES_MAX) else {
        let found = format!("a header that claims {sizes:?}");
        return Err(content(path, found, format!("at most {BYTES_MAX} bytes")));
    };
    let mut data = Vec::new();
    reader
        .take(expected + 1)
        .read_to_end(&mut data)
        .map_err(io)?;
    if data.len() as u64 != expected {
        let found = format!("{} bytes of data (or more)", data.len());
        return Err(content(
            path,
            found,
            format!("{expected} as its header declares"),
        ));
    }
    Ok((sizes, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(magic: u32, sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        sizes
            .iter()
            .for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn folder(images: &[u8], labels: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t10k-images-idx3-ubyte"), images).unwrap();
        std::fs::write(folder.path().join("t10k-labels-idx1-ubyte"), labels).unwrap();
        folder
    }

    #[test]
    fn pixels_come_row_by_row_and_scaled() {
        let images = idx(2051, &[1, 2, 2], &[0, 255, 51, 102]);
        let folder = folder(&images, &idx(2049, &[1], &[7]));
        let data = read(folder.path(), Split::Test).unwrap();
        assert_eq!((data.len(), data.length()), (1, 4));
        assert_eq!(data.labels(), Some(&[7][..]));
        let hankelite::model::Sequence::Values(values) = data.sequence(0) else {
            panic!("pixels are numbers");
        };
        assert_eq!(values, [0.0, 1.0, 0.2, 0.4]);
    }

    #[test]
    fn a_short_file_a_wrong_magic_and_a_huge_header_are_named() {
        let labels = idx(2049, &[1], &[7]);
        let short = folder(&idx(2051, &[1, 2, 2], &[0]), &labels);
        let error = read(short.path(), Split::Test).unwrap_err().to_string();
        assert!(
            error.contains("1 bytes of data") && error.contains("expected 4"),
            "{error}"
        );
        let wrong = folder(&idx(2050, &[1, 2, 2], &[0; 4]), &labels);
        let error = read(wrong.path(), Split::Test).unwrap_err().to_string();
        assert!(
            error.contains("magic number 2050, expected 2051"),
            "{error}"
        );
        let huge = folder(&idx(2051, &[u32::MAX; 3], &[0; 4]), &labels);
        let error = read(huge.path(), Split::Test).unwrap_err().to_string();
        assert!(error.contains("a header that claims"), "{error}");
    }

    #[test]
    fn a_missing_split_is_named() {
        let folder = folder(&idx(2051, &[1, 1, 1], &[0]), &idx(2049, &[1], &[7]));
        let error = read(folder.path(), Split::Train).unwrap_err();
        assert!(matches!(error, DataError::NoFile { .. }), "{error}");
    }
}
