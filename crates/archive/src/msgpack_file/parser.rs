//! One walk through a MessagePack file, which finds the arrays and keeps nothing else.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};

use crate::msgpack_file::writer::map_head;
use crate::msgpack_file::{Array, COMPLEX_DOUBLE, MsgpackError, Piece, Range, SEPARATOR, TYPES};
use crate::tensor::byte_length;
use crate::unchanging::UnchangingFile;

/// Nesting that is followed.
const DEPTH_LIMIT: usize = 64;
/// Bytes of the longest name.
const NAME_LIMIT: usize = 1000;
/// Bytes of all names of a short file; keys around many arrays stand in the file once, but in each
/// of their names.
const NAMES_LIMIT: u64 = 8 << 20;
/// Axes of an array; NumPy has at most 64.
const AXES_LIMIT: u64 = 64;
/// By this key flax marks an array of several pieces.
const CHUNKED: &str = "__msgpack_chunked_array__";
/// What the state of an optimiser is called: `opt_state` in a `TrainState`.
const OPTIMISER: &str = "opt";

/// What the number of steps is called there.
const COUNTER: &str = "step";

/// What a value's first bytes declare.
enum Head {
    /// Nil, a truth value or a number: as many bytes follow.
    Number(u64),
    /// A whole number of at most 64 bits.
    Whole(u64),
    Text(u64),
    Bytes(u64),
    Extension(i8, u64),
    List(u64),
    Map(u64),
}

/// The head of an extension.
#[derive(Clone, Copy)]
struct Extension {
    /// Where the head starts.
    start: u64,
    code: i8,
    /// Bytes behind the head.
    length: u64,
}

/// What is known of a file.
pub(super) struct Parsed {
    pub(super) arrays: BTreeMap<String, Array>,
    pub(super) pieces: Vec<Piece>,
    pub(super) notes: Vec<String>,
}

pub(super) struct Parser<'a> {
    file: BufReader<&'a UnchangingFile>,
    at: u64,
    end: u64,
    /// From here on nothing is in a piece yet.
    copied: u64,
    /// Whether arrays are part of the model.
    keep: bool,
    /// Bytes of the names so far.
    names: u64,
    /// Arrays met outside the model.
    set_aside: usize,
    parsed: Parsed,
}

type Outcome<T> = Result<T, MsgpackError>;

impl<'a> Parser<'a> {
    pub(super) fn new(file: &'a UnchangingFile) -> Outcome<Parser<'a>> {
        Ok(Parser {
            end: file.length(),
            file: BufReader::new(file),
            at: 0,
            copied: 0,
            keep: true,
            names: 0,
            set_aside: 0,
            parsed: Parsed {
                arrays: BTreeMap::new(),
                pieces: Vec::new(),
                notes: Vec::new(),
            },
        })
    }

    /// The whole file: a map. What belongs to an optimiser is left out.
    pub(super) fn run(mut self) -> Outcome<Parsed> {
        let Head::Map(count) = self.head()? else {
            return Err(MsgpackError::NotAMap);
        };
        // The count is written anew once it is known what is left out.
        self.copied = self.at;
        self.parsed.pieces.push(Piece::New(Vec::new()));
        let mut left = 0;
        for _ in 0..count {
            let start = self.at;
            let key = self.key()?;
            let before = self.parsed.pieces.len();
            self.keep = !key.starts_with(OPTIMISER);
            self.set_aside = 0;
            self.value(&key, 1)?;
            if self.keep {
                left += 1;
            } else {
                debug_assert_eq!(before, self.parsed.pieces.len());
                self.copy_to(start);
                self.copied = self.at;
                let arrays = self.set_aside;
                self.parsed.notes.push(format!(
                    "`{key}` ({arrays} arrays) is not part of the model and is left out of what \
                     is written"
                ));
            }
        }
        self.copy_to(self.end);
        if self.at != self.end {
            return Err(MsgpackError::Trailing { offset: self.at });
        }
        if self.parsed.arrays.is_empty() {
            return Err(MsgpackError::NoTensors);
        }
        self.parsed.pieces[0] = Piece::New(map_head(left));
        Ok(self.parsed)
    }

    /// All bytes before `end` that are in no piece yet become one.
    fn copy_to(&mut self, end: u64) {
        if end > self.copied {
            let (start, length) = (self.copied, end - self.copied);
            let piece = Piece::Copied(Range { start, length });
            self.parsed.pieces.push(piece);
            self.copied = end;
        }
    }

    fn value(&mut self, name: &str, depth: usize) -> Outcome<()> {
        if depth > DEPTH_LIMIT {
            return Err(MsgpackError::TooDeep {
                offset: self.at,
                limit: DEPTH_LIMIT,
            });
        }
        let start = self.at;
        match self.head()? {
            Head::Whole(_) => Ok(()),
            Head::Number(length) | Head::Text(length) | Head::Bytes(length) => self.skip(length),
            Head::Extension(code @ (1 | 3), length) => {
                let extension = Extension {
                    start,
                    code,
                    length,
                };
                self.array(name, extension, depth)
            }
            Head::Extension(_, length) => self.skip(length),
            Head::List(count) => {
                for index in 0..count {
                    let name = self.joined(name, &index.to_string())?;
                    self.value(&name, depth + 1)?;
                }
                Ok(())
            }
            Head::Map(count) => {
                for _ in 0..count {
                    let key = self.key()?;
                    if key == CHUNKED && self.keep {
                        let tensor = name.to_owned();
                        return Err(MsgpackError::Chunked { tensor });
                    }
                    let name = self.joined(name, &key)?;
                    self.value(&name, depth + 1)?;
                }
                Ok(())
            }
        }
    }

    fn joined(&self, name: &str, key: &str) -> Outcome<String> {
        if name.len() + key.len() >= NAME_LIMIT {
            return Err(self.too_long());
        }
        Ok(format!("{name}{SEPARATOR}{key}"))
    }

    fn too_long(&self) -> MsgpackError {
        MsgpackError::NameLength {
            offset: self.at,
            limit: NAME_LIMIT,
        }
    }

    fn key(&mut self) -> Outcome<String> {
        let offset = self.at;
        match self.head()? {
            Head::Text(length) if length > NAME_LIMIT as u64 => Err(self.too_long()),
            Head::Text(length) => {
                let bytes = self.bytes(length)?;
                String::from_utf8(bytes).map_err(|_| MsgpackError::Key { offset })
            }
            Head::Whole(number) => Ok(number.to_string()),
            _ => Err(MsgpackError::Key { offset }),
        }
    }

    fn array(&mut self, name: &str, extension: Extension, depth: usize) -> Outcome<()> {
        if !self.keep {
            self.set_aside += 1;
            return self.skip(extension.length);
        }
        let array = self.array_of_extension(name, extension)?;
        // The counter of a training state is no tensor of the model.
        if depth == 1 && name == COUNTER && array.shape.is_empty() {
            return Ok(());
        }
        self.names += name.len() as u64;
        let limit = NAMES_LIMIT + self.end;
        if self.names > limit {
            let offset = self.at;
            return Err(MsgpackError::Names { offset, limit });
        }
        self.copy_to(extension.start);
        self.copied = self.at;
        self.parsed.pieces.push(Piece::Array(name.to_owned()));
        match self.parsed.arrays.insert(name.to_owned(), array) {
            None => Ok(()),
            Some(_) => Err(MsgpackError::Twice {
                tensor: name.to_owned(),
            }),
        }
    }

    fn array_of_extension(&mut self, name: &str, extension: Extension) -> Outcome<Array> {
        let wrong = |expected| MsgpackError::Array {
            tensor: name.to_owned(),
            expected,
        };
        self.room(extension.length)?;
        let end = self.at + extension.length;
        let (mut shape, type_name) = self.array_head(name)?;
        let Head::Bytes(length) = self.head()? else {
            return Err(wrong("its bytes"));
        };
        let start = self.at;
        if start + length != end {
            return Err(wrong("bytes up to the end of its extension"));
        }
        let double = type_name == COMPLEX_DOUBLE;
        if double {
            shape.push(2);
        }
        let known = if double {
            "float64"
        } else {
            type_name.as_str()
        };
        let dtype = TYPES.iter().find(|(name, _)| *name == known);
        let Some(&(_, dtype)) = dtype else {
            return Err(MsgpackError::ElementType {
                tensor: name.to_owned(),
                found: type_name,
            });
        };
        if byte_length(dtype, &shape).map(|bytes| bytes as u64) != Some(length) {
            return Err(wrong("as many bytes as its shape takes"));
        }
        self.skip(length)?;
        Ok(Array {
            dtype,
            shape,
            double,
            code: extension.code,
            whole: Range {
                start: extension.start,
                length: end - extension.start,
            },
            elements: Range { start, length },
        })
    }

    /// Shape and name of the element type.
    fn array_head(&mut self, name: &str) -> Outcome<(Vec<usize>, String)> {
        let wrong = |expected| MsgpackError::Array {
            tensor: name.to_owned(),
            expected,
        };
        let Head::List(3) = self.head()? else {
            return Err(wrong("three parts"));
        };
        let axes = match self.head()? {
            Head::List(axes) if axes <= AXES_LIMIT => axes,
            _ => return Err(wrong("a shape")),
        };
        let mut shape = Vec::new();
        for _ in 0..axes {
            match self.head()? {
                Head::Whole(extent) => shape.push(extent as usize),
                _ => return Err(wrong("a shape of whole numbers")),
            }
        }
        let type_name = match self.head()? {
            Head::Text(length) | Head::Bytes(length) if length <= NAME_LIMIT as u64 => {
                self.bytes(length)?
            }
            _ => return Err(wrong("the name of its type")),
        };
        Ok((shape, String::from_utf8_lossy(&type_name).into_owned()))
    }

    fn head(&mut self) -> Outcome<Head> {
        let offset = self.at;
        let [found] = self.array_of()?;
        Ok(match found {
            0x00..=0x7f => Head::Whole(u64::from(found)),
            0x80..=0x8f => Head::Map(u64::from(found & 0x0f)),
            0x90..=0x9f => Head::List(u64::from(found & 0x0f)),
            0xa0..=0xbf => Head::Text(u64::from(found & 0x1f)),
            0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Head::Number(0),
            0xc1 => return Err(MsgpackError::Head { offset, found }),
            0xc4..=0xc6 => Head::Bytes(self.number(found - 0xc4)?),
            0xc7..=0xc9 => {
                let length = self.number(found - 0xc7)?;
                let [code] = self.array_of()?;
                Head::Extension(code as i8, length)
            }
            0xca => Head::Number(4),
            0xcb => Head::Number(8),
            0xcc..=0xcf => Head::Whole(self.number(found - 0xcc)?),
            0xd0..=0xd3 => Head::Number(1 << (found - 0xd0)),
            0xd4..=0xd8 => {
                let [code] = self.array_of()?;
                Head::Extension(code as i8, 1 << (found - 0xd4))
            }
            0xd9..=0xdb => Head::Text(self.number(found - 0xd9)?),
            0xdc | 0xdd => Head::List(self.number(found - 0xdc + 1)?),
            0xde | 0xdf => Head::Map(self.number(found - 0xde + 1)?),
        })
    }

    /// A number of 2^`power` bytes, big endian.
    fn number(&mut self, power: u8) -> Outcome<u64> {
        Ok(match power {
            0 => u64::from(u8::from_be_bytes(self.array_of()?)),
            1 => u64::from(u16::from_be_bytes(self.array_of()?)),
            2 => u64::from(u32::from_be_bytes(self.array_of()?)),
            _ => u64::from_be_bytes(self.array_of()?),
        })
    }

    fn room(&self, length: u64) -> Outcome<()> {
        let left = self.end - self.at;
        match length.checked_sub(left) {
            None | Some(0) => Ok(()),
            Some(wanted) => Err(MsgpackError::Truncated {
                offset: self.end,
                wanted,
            }),
        }
    }

    fn array_of<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        self.room(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn bytes(&mut self, length: u64) -> Outcome<Vec<u8>> {
        self.room(length)?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes)?;
        self.at += length;
        Ok(bytes)
    }

    fn skip(&mut self, length: u64) -> Outcome<()> {
        self.room(length)?;
        // Lengths are of at most 32 bits.
        self.file.seek_relative(length as i64)?;
        self.at += length;
        Ok(())
    }
}
