//! Writing the tree of a MessagePack file again, or a new one.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::PoisonError;

use crate::contents::Contents;
use crate::error::ArchiveError;
use crate::msgpack_file::{Array, COMPLEX_DOUBLE, MsgpackFile, Piece, Range, SEPARATOR, TYPES};
use crate::tensor::{Dtype, RawTensor};

/// The extension that flax keeps an array in.
const ARRAY: i8 = 1;
/// Bytes copied at once.
const BLOCK: u64 = 1 << 20;

/// Writes the contents array by array, into the tree of `source` if there is one.
pub(crate) fn write(
    out: &mut impl Write,
    path: &Path,
    contents: &Contents<'_>,
    source: Option<&MsgpackFile>,
) -> Result<(), ArchiveError> {
    let mut writing = Writing {
        out,
        path,
        contents,
    };
    match source {
        Some(source) => writing.again(source),
        None => {
            let names: Vec<&str> = contents.headers().map(|header| header.name).collect();
            let tree = Node::tree(&names);
            writing.node(&tree)
        }
    }
}

struct Writing<'a, W> {
    out: &'a mut W,
    path: &'a Path,
    contents: &'a Contents<'a>,
}

impl<W: Write> Writing<'_, W> {
    /// The pieces of the source, with changed arrays in their places.
    fn again(&mut self, source: &MsgpackFile) -> Result<(), ArchiveError> {
        for piece in &source.pieces {
            match piece {
                Piece::New(bytes) => self.put(bytes)?,
                Piece::Copied(range) => self.copy(source, *range)?,
                Piece::Array(name) if self.contents.is_changed(name) => {
                    let Array { code, double, .. } = source.arrays[name];
                    self.array(name, code, double)?;
                }
                Piece::Array(name) => self.copy(source, source.arrays[name].whole)?,
            }
        }
        Ok(())
    }

    fn copy(&mut self, source: &MsgpackFile, range: Range) -> Result<(), ArchiveError> {
        let read = ArchiveError::read(&source.path);
        let mut file = source.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(range.start)).map_err(&read)?;
        let mut left = range.length;
        let mut block = Vec::new();
        while left > 0 {
            block.resize(left.min(BLOCK) as usize, 0);
            file.read_exact(&mut block).map_err(&read)?;
            self.put(&block)?;
            left -= block.len() as u64;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node<'_>) -> Result<(), ArchiveError> {
        match node {
            Node::Array(name) => self.array(name, ARRAY, false),
            Node::Map(entries) => {
                self.put(&map_head(entries.len()))?;
                for (key, node) in entries {
                    self.put(&text(key))?;
                    self.node(node)?;
                }
                Ok(())
            }
        }
    }

    /// An array, of complex128 where that is `double` and pairs of float64 are at hand.
    fn array(&mut self, name: &str, code: i8, double: bool) -> Result<(), ArchiveError> {
        let tensor = self.contents.tensor(name)?;
        let double = double && tensor.dtype() == Dtype::F64 && tensor.shape().last() == Some(&2);
        let head = array_head(&tensor, code, double).ok_or_else(|| self.no_place(name, &tensor))?;
        self.put(&head)?;
        self.put(tensor.bytes())
    }

    fn no_place(&self, name: &str, tensor: &RawTensor) -> ArchiveError {
        let (path, tensor_name) = (self.path.to_owned(), name.to_owned());
        if TYPES.iter().any(|(_, known)| *known == tensor.dtype()) {
            return ArchiveError::TensorTooLong {
                path,
                tensor: tensor_name,
                found: tensor.bytes().len(),
            };
        }
        ArchiveError::NoDtype {
            path,
            tensor: tensor_name,
            found: tensor.dtype(),
            container: "MessagePack",
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        let written = self.out.write_all(bytes);
        written.map_err(ArchiveError::write(self.path))
    }
}

/// The maps that names with separators stand for.
enum Node<'a> {
    Array(&'a str),
    Map(BTreeMap<&'a str, Node<'a>>),
}

impl<'a> Node<'a> {
    /// Maps inside maps; one flat map where a tensor has the name of a map.
    fn tree(names: &[&'a str]) -> Node<'a> {
        let mut root = BTreeMap::new();
        for name in names {
            if !Node::place(&mut root, name, name) {
                let flat = names.iter().map(|name| (*name, Node::Array(name)));
                return Node::Map(flat.collect());
            }
        }
        Node::Map(root)
    }

    /// Whether there was a place for a tensor.
    fn place(map: &mut BTreeMap<&'a str, Node<'a>>, rest: &'a str, name: &'a str) -> bool {
        match rest.split_once(SEPARATOR) {
            None => map.insert(rest, Node::Array(name)).is_none(),
            Some((key, rest)) => {
                let inner = map.entry(key).or_insert_with(|| Node::Map(BTreeMap::new()));
                match inner {
                    Node::Map(inner) => Node::place(inner, rest, name),
                    Node::Array(_) => false,
                }
            }
        }
    }
}

/// All of an array but its elements, as Python's `msgpack.packb` writes it. `None` where there is
/// no name for the type, or the length has more than 32 bits.
fn array_head(tensor: &RawTensor, code: i8, double: bool) -> Option<Vec<u8>> {
    let (name, _) = TYPES.iter().find(|(_, known)| *known == tensor.dtype())?;
    let (name, shape) = match (double, tensor.shape()) {
        (true, [shape @ .., _]) => (&COMPLEX_DOUBLE, shape),
        (_, shape) => (name, shape),
    };
    let mut inner = vec![0x93];
    inner.extend(match shape.len() {
        axes @ 0..16 => vec![0x90 | axes as u8],
        axes => [&[0xdc][..], &u16::try_from(axes).ok()?.to_be_bytes()].concat(),
    });
    for extent in shape {
        inner.extend(whole(*extent as u64));
    }
    inner.extend(text(name));
    let length = u32::try_from(tensor.bytes().len()).ok()?;
    inner.extend(sized(0xc4, length));
    let length = length.checked_add(inner.len() as u32)?;
    let mut head = match length {
        1 | 2 | 4 | 8 | 16 => vec![0xd4 + length.ilog2() as u8],
        _ => sized(0xc7, length),
    };
    head.push(code as u8);
    head.extend(inner);
    Some(head)
}

/// One of three heads for lengths of 8, 16 and 32 bits.
fn sized(first: u8, length: u32) -> Vec<u8> {
    match length {
        0..=0xff => vec![first, length as u8],
        0x100..=0xffff => [&[first + 1][..], &(length as u16).to_be_bytes()].concat(),
        _ => [&[first + 2][..], &length.to_be_bytes()].concat(),
    }
}

fn whole(number: u64) -> Vec<u8> {
    match number {
        0..=0x7f => vec![number as u8],
        0x80..=0xff => vec![0xcc, number as u8],
        0x100..=0xffff => [&[0xcd][..], &(number as u16).to_be_bytes()].concat(),
        0x1_0000..=0xffff_ffff => [&[0xce][..], &(number as u32).to_be_bytes()].concat(),
        _ => [&[0xcf][..], &number.to_be_bytes()].concat(),
    }
}

fn text(text: &str) -> Vec<u8> {
    let length = text.len();
    let head = match length {
        0..32 => vec![0xa0 | length as u8],
        // Names of tensors are short.
        _ => sized(0xd9, length as u32),
    };
    [&head, text.as_bytes()].concat()
}

/// The head of a map of so many entries.
pub(super) fn map_head(count: usize) -> Vec<u8> {
    match count {
        0..16 => vec![0x80 | count as u8],
        16..=0xffff => [&[0xde][..], &(count as u16).to_be_bytes()].concat(),
        // A file of more entries has more than 2^32 bytes of heads alone.
        _ => [&[0xdf][..], &(count as u32).to_be_bytes()].concat(),
    }
}
