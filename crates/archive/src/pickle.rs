//! A pickle machine that can only build data.
//!
//! A pickle is a program for a small stack machine, and Python's own machine
//! lets that program import any module and call anything in it. This one has no
//! such power: a name is looked up in a list that the caller gives, and a call
//! is kept as a record of what was to be called with what. Nothing is ever run.
//!
//! Values live in an arena and refer to each other by index, as a pickle fills
//! containers after it has stored them, shares them and may close a loop. Few
//! bytes of a pickle can request many values, or copies of long ones. So both the
//! machine and what unfolds its values into a tree ([`Values::plain`]) work against
//! an amount of memory that grows with the pickle, and against a [`Budget`] of steps:
//! neither a list that holds itself nor a chain of doublings can hang the reader.

mod budget;
mod machine;
pub(super) mod writer;

pub(super) use budget::Budget;

use crate::pickle::budget::{DEPTH_LIMIT, STEP_LIMIT};
use crate::pickle::machine::Machine;

/// Index of a value in the arena.
pub(super) type Id = usize;

/// More values than any checkpoint holds.
const VALUE_LIMIT: usize = 1 << 24;

/// The last protocol that Python defines.
const PROTOCOL_MAX: u8 = 5;

/// Why a pickle cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The pickle ends within an instruction, or before STOP.
    #[error("the pickle ends at byte {offset}, expected {wanted} more bytes")]
    Truncated {
        /// Where the missing bytes were expected.
        offset: usize,
        /// How many were expected.
        wanted: u64,
    },
    /// An instruction outside protocols 2 to 5 as PyTorch writes them.
    #[error(
        "the pickle has instruction 0x{found:02x} at byte {offset}, expected one that builds data"
    )]
    Instruction {
        /// Where the instruction stands.
        offset: usize,
        /// The instruction's byte.
        found: u8,
    },
    /// A protocol that Python has not defined.
    #[error("the pickle declares protocol {found}, expected at most {PROTOCOL_MAX}")]
    Protocol {
        /// The protocol declared.
        found: u8,
    },
    /// An instruction needs a value or a mark that is not on the stack.
    #[error("the pickle's stack lacks {expected} at byte {offset}")]
    Stack {
        /// Where the instruction stands.
        offset: usize,
        /// What it needs.
        expected: &'static str,
    },
    /// A reference to a memo entry that was never stored.
    #[error("the pickle refers to memo entry {index} at byte {offset}, which was never stored")]
    Memo {
        /// Where the reference stands.
        offset: usize,
        /// The entry requested.
        index: usize,
    },
    /// Text that is not UTF-8, or not of the form the instruction takes.
    #[error("the pickle has malformed text before byte {offset}, expected {expected}")]
    Text {
        /// Where the text ends.
        offset: usize,
        /// What the text should be.
        expected: &'static str,
    },
    /// An instruction meets a value of the wrong kind.
    #[error("the pickle has a value of type `{found}` before byte {offset}, expected {expected}")]
    Kind {
        /// Where the instruction ends.
        offset: usize,
        /// The kind found.
        found: &'static str,
        /// The kinds that would do.
        expected: &'static str,
    },
    /// The pickle names a Python object that is not in the caller's list.
    #[error("the pickle names `{name}` at byte {offset}")]
    Global {
        /// Where the request stands.
        offset: usize,
        /// Module and name, joined by a dot.
        name: String,
    },
    /// More values than any checkpoint holds.
    #[error("the pickle builds more than {VALUE_LIMIT} values")]
    TooManyValues,
    /// Values that take much more memory than the pickle.
    #[error("the pickle builds values that take more than {limit} bytes")]
    Memory {
        /// The limit for a pickle of its length.
        limit: usize,
    },
    /// Values nested too deeply; also a container that holds itself.
    #[error(
        "the pickle nests values deeper than {DEPTH_LIMIT} levels (a container may hold itself)"
    )]
    TooDeep,
    /// Values shared so often that unfolding them would not end in time, or not fit in memory.
    #[error(
        "the pickle unfolds into more than {STEP_LIMIT} values, or more memory than its length \
         accounts for"
    )]
    TooLarge,
}

/// One value in the arena.
#[derive(Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: two's complement, little endian.
    BigInt(Vec<u8>),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Set(Vec<Id>),
    Dict(Box<Dict>),
    /// A name, not what it stands for.
    Global(String),
    Call(Box<Call>),
    /// How PyTorch describes a storage that lies outside the pickle.
    Persistent(Id),
}

/// A dictionary in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Dict {
    /// Whether it is a `collections.OrderedDict`.
    pub(super) ordered: bool,
    pub(super) entries: Vec<(Id, Id)>,
    /// Attributes set on the object; PyTorch keeps `_metadata` there.
    pub(super) attributes: Option<Id>,
}

/// A call that was requested and not made.
#[derive(Debug)]
pub(super) struct Call {
    /// Module and name, joined by a dot.
    pub(super) function: String,
    pub(super) arguments: Vec<Id>,
    /// What the pickle then appended to the object, as to a list.
    pub(super) contents: Vec<Id>,
    /// What the pickle then put into the object, as into a dictionary.
    pub(super) entries: Vec<(Id, Id)>,
    /// The attributes that the pickle then set.
    pub(super) state: Option<Id>,
}

/// Something in a class, by its name.
pub(super) struct Attribute<'a> {
    owner: &'a str,
    name: &'a str,
}

impl Value {
    /// Python's word for the kind of value.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::BigInt(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::Bytes(_) => "bytes",
            Value::Tuple(_) => "tuple",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Dict(_) => "dict",
            Value::Global(_) => "class or function",
            Value::Call(_) => "Python object",
            Value::Persistent(_) => "storage",
        }
    }
}

/// The values of one pickle.
#[derive(Debug)]
pub(super) struct Values {
    values: Vec<Value>,
    root: Id,
}

impl Values {
    /// Runs the machine over a pickle. `allowed` decides which names
    /// (`module.name`) may stand in it.
    pub(super) fn read(bytes: &[u8], allowed: fn(&str) -> bool) -> Result<Values, PickleError> {
        Values::read_at_most(VALUE_LIMIT, bytes, allowed)
    }

    fn read_at_most(
        limit: usize,
        bytes: &[u8],
        allowed: fn(&str) -> bool,
    ) -> Result<Values, PickleError> {
        let (values, root) = Machine::run(bytes, limit, allowed)?;
        Ok(Values { values, root })
    }

    /// How many there are; ids are below it.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// What the pickle stands for.
    pub(super) fn root(&self) -> Id {
        self.root
    }

    /// A value; ids come from the arena itself, so they always exist.
    pub(super) fn get(&self, id: Id) -> &Value {
        &self.values[id]
    }

    /// The text of a value, if it is text.
    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The class or function that a call is about, whatever way the pickle took to name it.
    pub(super) fn class<'a>(&'a self, call: &'a Call) -> &'a str {
        let indirect = ["copyreg", "copy_reg"].iter().any(|module| {
            let rest = call.function.strip_prefix(module);
            rest == Some("._reconstructor") || rest == Some(".__newobj__")
        });
        match call.arguments.first().map(|first| self.get(*first)) {
            Some(Value::Global(class)) if indirect => class,
            _ => &call.function,
        }
    }

    /// The class and the name of what a call of `getattr` names; `None` for one of anything else
    /// than the plain name of something in a class.
    pub(super) fn attribute<'a>(&'a self, call: &'a Call) -> Option<Attribute<'a>> {
        let [owner, name] = call.arguments[..] else {
            return None;
        };
        let name = self.text(name).filter(|name| !name.starts_with("__"))?;
        match self.get(owner) {
            Value::Global(owner) => Some(Attribute { owner, name }),
            _ => None,
        }
    }

    /// What a call is about, in words for a note.
    pub(super) fn described(&self, call: &Call) -> String {
        let attribute = call.function.ends_with(".getattr");
        match self.attribute(call).filter(|_| attribute) {
            Some(Attribute { owner, name }) => format!("{owner}.{name}"),
            None => self.class(call).to_owned(),
        }
    }

    /// The values directly inside a value.
    pub(super) fn children(&self, id: Id) -> Vec<Id> {
        match self.get(id) {
            Value::Tuple(items) | Value::List(items) | Value::Set(items) => items.clone(),
            Value::Dict(dict) => {
                let pairs = dict.entries.iter().flat_map(|(key, value)| [*key, *value]);
                pairs.chain(dict.attributes).collect()
            }
            Value::Call(call) => {
                let pairs = call.entries.iter().flat_map(|(key, value)| [*key, *value]);
                let listed = call.arguments.iter().chain(&call.contents).copied();
                listed.chain(pairs).chain(call.state).collect()
            }
            Value::Persistent(id) => vec![*id],
            _ => Vec::new(),
        }
    }

    /// Unfolds a value into a tree of plain data. `None` when it holds anything
    /// else: a class, a call, a storage, a set.
    pub(super) fn plain(&self, id: Id, budget: &mut Budget) -> Result<Option<Plain>, PickleError> {
        budget.enter()?;
        let plain = match self.get(id) {
            Value::None => Some(Plain::None),
            Value::Bool(value) => Some(Plain::Bool(*value)),
            Value::Int(value) => Some(Plain::Int(*value)),
            Value::BigInt(bytes) => {
                budget.hold(bytes.len())?;
                Some(Plain::BigInt(bytes.clone()))
            }
            Value::Float(value) => Some(Plain::Float(*value)),
            Value::Text(text) => {
                budget.hold(text.len())?;
                Some(Plain::Text(text.clone()))
            }
            Value::Bytes(bytes) => {
                budget.hold(bytes.len())?;
                Some(Plain::Bytes(bytes.clone()))
            }
            Value::Tuple(items) => self.plain_items(items, budget)?.map(Plain::Tuple),
            Value::List(items) => self.plain_items(items, budget)?.map(Plain::List),
            Value::Dict(dict) => self.plain_dict(dict, budget)?,
            Value::Call(call) => {
                let bytes = self.encoded_bytes(call);
                budget.hold(bytes.as_ref().map_or(0, Vec::len))?;
                bytes.map(Plain::Bytes)
            }
            Value::Set(_) | Value::Global(_) | Value::Persistent(_) => None,
        };
        budget.leave();
        Ok(plain)
    }

    fn plain_items(
        &self,
        items: &[Id],
        budget: &mut Budget,
    ) -> Result<Option<Vec<Plain>>, PickleError> {
        budget.hold(items.len() * size_of::<Plain>())?;
        let mut all = Vec::with_capacity(items.len());
        for item in items {
            match self.plain(*item, budget)? {
                Some(plain) => all.push(plain),
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    fn plain_dict(&self, dict: &Dict, budget: &mut Budget) -> Result<Option<Plain>, PickleError> {
        budget.hold(dict.entries.len() * size_of::<(Plain, Plain)>())?;
        let mut entries = Vec::with_capacity(dict.entries.len());
        for (key, value) in &dict.entries {
            let key = self.plain(*key, budget)?.filter(Plain::is_hashable);
            let value = self.plain(*value, budget)?;
            match (key, value) {
                (Some(key), Some(value)) => entries.push((key, value)),
                _ => return Ok(None),
            }
        }
        let ordered = dict.ordered;
        Ok(Some(Plain::Dict { ordered, entries }))
    }

    /// Protocol 2 has no instruction for bytes: Python 3 writes them as a call
    /// that encodes text whose characters are the bytes.
    fn encoded_bytes(&self, call: &Call) -> Option<Vec<u8>> {
        let [text, encoding] = call.arguments[..] else {
            return None;
        };
        if call.function != "_codecs.encode" || self.text(encoding)? != "latin1" {
            return None;
        }
        let characters = self.text(text)?.chars();
        characters
            .map(|c| u8::try_from(u32::from(c)).ok())
            .collect()
    }
}

/// Plain Python data, which can be written as it was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    None,
    Bool(bool),
    Int(i64),
    /// Two's complement, little endian.
    BigInt(Vec<u8>),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Plain>),
    List(Vec<Plain>),
    Dict {
        ordered: bool,
        entries: Vec<(Plain, Plain)>,
    },
}

impl Plain {
    /// Whether Python takes the value as a key.
    pub(super) fn is_hashable(&self) -> bool {
        match self {
            Plain::List(_) | Plain::Dict { .. } => false,
            Plain::Tuple(items) => items.iter().all(Plain::is_hashable),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only_ordered_dict(name: &str) -> bool {
        name == "collections.OrderedDict" || name == "_codecs.encode"
    }

    fn read(bytes: &[u8]) -> Result<Values, PickleError> {
        Values::read(bytes, only_ordered_dict)
    }

    fn plain(bytes: &[u8]) -> Plain {
        let values = read(bytes).unwrap();
        let plain = values.plain(values.root(), &mut Budget::new());
        plain.unwrap().unwrap()
    }

    fn text(text: &str) -> Plain {
        Plain::Text(text.to_owned())
    }

    #[test]
    fn every_instruction_for_numbers_is_understood() {
        let cases: [(&[u8], Plain); 16] = [
            (b"N.", Plain::None),
            (b"\x88.", Plain::Bool(true)),
            (b"\x89.", Plain::Bool(false)),
            (b"I01\n.", Plain::Bool(true)),
            (b"I00\n.", Plain::Bool(false)),
            (b"I-17\n.", Plain::Int(-17)),
            (b"L123L\n.", Plain::Int(123)),
            (b"K\xff.", Plain::Int(255)),
            (b"M\x01\x02.", Plain::Int(513)),
            (b"J\xff\xff\xff\xff.", Plain::Int(-1)),
            (b"\x8a\x00.", Plain::Int(0)),
            (b"\x8a\x02\x00\x80.", Plain::Int(-32768)),
            (b"\x8b\x02\x00\x00\x00\xff\x00.", Plain::Int(255)),
            (
                b"\x8a\x09\0\0\0\0\0\0\0\0\x01.",
                Plain::BigInt(vec![0, 0, 0, 0, 0, 0, 0, 0, 1]),
            ),
            (b"F1.5\n.", Plain::Float(1.5)),
            (b"G\x3f\xf8\0\0\0\0\0\0.", Plain::Float(1.5)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(plain(bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn every_instruction_for_text_and_bytes_is_understood() {
        let bytes = Plain::Bytes(vec![b'a', 0xff]);
        let cases: [(&[u8], Plain); 12] = [
            (b"Va\\u00e9\\x\n.", text("aé\\x")),
            (b"V\\U0001f600\n.", text("😀")),
            (b"X\x02\0\0\0ab.", text("ab")),
            (b"\x8c\x02ab.", text("ab")),
            (b"\x8d\x02\0\0\0\0\0\0\0ab.", text("ab")),
            (b"U\x02ab.", text("ab")),
            (b"T\x02\0\0\0ab.", text("ab")),
            (b"U\x02a\xff.", bytes.clone()),
            (b"B\x02\0\0\0a\xff.", bytes.clone()),
            (b"C\x02a\xff.", bytes.clone()),
            (b"\x8e\x02\0\0\0\0\0\0\0a\xff.", bytes.clone()),
            // Bytes as protocol 2 has to write them.
            (
                b"c_codecs\nencode\nX\x03\0\0\0a\xc3\xbfX\x06\0\0\0latin1\x86R.",
                bytes,
            ),
        ];
        for (bytes, expected) in cases {
            assert_eq!(plain(bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn containers_are_filled_after_they_are_stored() {
        let one = Plain::Int(1);
        let two = Plain::Int(2);
        let list = Plain::List(vec![one.clone(), two.clone()]);
        let tuple = Plain::Tuple(vec![one.clone(), two.clone()]);
        let dict = |ordered| Plain::Dict {
            ordered,
            entries: vec![(one.clone(), two.clone())],
        };
        let cases: [(&[u8], Plain); 13] = [
            (b"\x80\x02]q\x00(K\x01K\x02e.", list.clone()),
            (b"]K\x01aK\x02a.", list.clone()),
            (b"(K\x01K\x02l.", list.clone()),
            (b"(K\x01K\x02t.", tuple.clone()),
            (b"K\x01K\x02\x86.", tuple.clone()),
            (b"K\x01\x85.", Plain::Tuple(vec![one.clone()])),
            (b").", Plain::Tuple(vec![])),
            (b"}K\x01K\x02s.", dict(false)),
            (b"}(K\x01K\x02u.", dict(false)),
            (b"(K\x01K\x02d.", dict(false)),
            (b"ccollections\nOrderedDict\n)R(K\x01K\x02u.", dict(true)),
            (
                b"ccollections\nOrderedDict\n](K\x01K\x02\x86e\x85R.",
                dict(true),
            ),
            // MEMOIZE, POP, BINGET, DUP and POP_MARK, in a frame.
            (
                b"\x80\x04\x95\x09\0\0\0\0\0\0\0K\x01\x940]h\x00a(N1K\x02a20.",
                list,
            ),
        ];
        for (bytes, expected) in cases {
            assert_eq!(plain(bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_set_and_a_name_are_no_plain_data() {
        for bytes in [
            b"\x8f(K\x01\x90.".as_slice(),
            b"\x8c\x0bcollections\x8c\x0bOrderedDict\x93.",
        ] {
            let values = read(bytes).unwrap();
            let plain = values.plain(values.root(), &mut Budget::new()).unwrap();
            assert_eq!(plain, None);
        }
    }

    #[test]
    fn attributes_of_a_dictionary_are_kept_apart() {
        let values = read(b"ccollections\nOrderedDict\n)R}K\x01K\x02sb.").unwrap();
        let Value::Dict(dict) = values.get(values.root()) else {
            panic!("an OrderedDict is a dictionary");
        };
        assert!(dict.entries.is_empty());
        assert_eq!(values.get(dict.attributes.unwrap()).kind(), "dict");
    }

    #[test]
    fn a_call_into_the_system_is_refused_by_name() {
        let cases: [(&[u8], &str); 3] = [
            (b"cos\nsystem\nX\x02\0\0\0ls\x85R.", "os.system"),
            (b"\x8c\x08builtins\x8c\x04eval\x93.", "builtins.eval"),
            (b"c__builtin__\neval\n.", "__builtin__.eval"),
        ];
        for (bytes, expected) in cases {
            match read(bytes).unwrap_err() {
                PickleError::Global { name, .. } => assert_eq!(name, expected),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn each_malformation_has_its_error() {
        type Test = fn(&PickleError) -> bool;
        let cases: [(&[u8], Test); 22] = [
            (b"", |e| {
                matches!(e, PickleError::Truncated { wanted: 1, .. })
            }),
            (b"N", |e| {
                matches!(e, PickleError::Truncated { wanted: 1, .. })
            }),
            (b"J\x01", |e| {
                matches!(e, PickleError::Truncated { wanted: 3, .. })
            }),
            (b"cos\n", |e| matches!(e, PickleError::Truncated { .. })),
            // Lengths far beyond the file.
            (b"X\xff\xff\xff\xffa.", |e| {
                matches!(e, PickleError::Truncated { .. })
            }),
            (b"\x8b\xff\xff\xff\xffa.", |e| {
                matches!(e, PickleError::Truncated { .. })
            }),
            (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.", |e| {
                matches!(e, PickleError::Truncated { .. })
            }),
            (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa.", |e| {
                matches!(e, PickleError::Truncated { .. })
            }),
            (b"\x07.", |e| {
                matches!(
                    e,
                    PickleError::Instruction {
                        offset: 0,
                        found: 7
                    }
                )
            }),
            (b"\x80\x06N.", |e| {
                matches!(e, PickleError::Protocol { found: 6 })
            }),
            (b".", |e| matches!(e, PickleError::Stack { .. })),
            (b"K\x01\x86.", |e| matches!(e, PickleError::Stack { .. })),
            (b"t.", |e| matches!(e, PickleError::Stack { .. })),
            (b"N(0a.", |e| matches!(e, PickleError::Stack { .. })),
            (b"}(Nu.", |e| matches!(e, PickleError::Stack { .. })),
            (b"h\x05.", |e| {
                matches!(e, PickleError::Memo { index: 5, .. })
            }),
            (b"X\x01\0\0\0\xff.", |e| {
                matches!(e, PickleError::Text { .. })
            }),
            (b"I1x\n.", |e| matches!(e, PickleError::Text { .. })),
            (b"V\\ud800\n.", |e| matches!(e, PickleError::Text { .. })),
            (b"NNa.", |e| {
                matches!(e, PickleError::Kind { found: "None", .. })
            }),
            (b"N)R.", |e| matches!(e, PickleError::Kind { .. })),
            (b"N}b.", |e| matches!(e, PickleError::Kind { .. })),
        ];
        for (bytes, expected) in cases {
            let error = read(bytes).unwrap_err();
            assert!(expected(&error), "{}: {error}", bytes.escape_ascii());
        }
    }

    #[test]
    fn more_values_than_the_limit_are_refused() {
        let error = Values::read_at_most(3, b"NNNN.", only_ordered_dict).unwrap_err();
        assert!(matches!(error, PickleError::TooManyValues));
    }

    #[test]
    fn a_list_that_holds_itself_is_refused() {
        let values = read(b"]q\x00h\x00a.").unwrap();
        let error = values.plain(values.root(), &mut Budget::new()).unwrap_err();
        assert!(matches!(error, PickleError::TooDeep));
    }

    #[test]
    fn a_list_doubled_again_and_again_is_refused() {
        let mut bytes = b"]".to_vec();
        for _ in 0..40 {
            // list, list -> (list, list)
            bytes.extend(b"2\x86");
        }
        bytes.push(b'.');
        let values = read(&bytes).unwrap();
        let error = values.plain(values.root(), &mut Budget::new()).unwrap_err();
        assert!(matches!(error, PickleError::TooLarge));
    }

    #[test]
    fn values_that_would_take_much_more_memory_than_the_pickle_are_refused() {
        let refused = |bytes: &[u8]| {
            let error = Values::read(bytes, |_| true).unwrap_err();
            assert!(matches!(error, PickleError::Memory { .. }), "{error}");
        };
        // A list of a thousand, a name of a thousand letters, and pairs, taken again and again.
        let thousand = |item: &[u8]| [b"(".as_slice(), &item.repeat(1000)].concat();
        let list = [thousand(b"N").as_slice(), b"tq\x01"].concat();
        let name = [b"c".as_slice(), &b"m".repeat(1000), b"\nn\nq\x00"].concat();
        let calls = b"h\x00h\x01R0".repeat(5000);
        refused(&[name.as_slice(), &list, &calls, b"."].concat());
        let text = [b"X\xe8\x03\0\0".as_slice(), &b"m".repeat(1000), b"q\x00"].concat();
        let names = b"h\x00h\x00\x930".repeat(30_000);
        refused(&[text.as_slice(), &names, b"."].concat());
        let pairs = [thousand(b"NN\x86").as_slice(), b"t\x85q\x01"].concat();
        let ordered = b"ccollections\nOrderedDict\nq\x00";
        let calls = b"h\x00h\x01R0".repeat(5000);
        refused(&[ordered.as_slice(), &pairs, &calls, b"."].concat());
    }

    #[test]
    fn text_that_would_unfold_into_much_more_than_the_pickle_is_refused() {
        let text = [b"X\xe8\x03\0\0".as_slice(), &b"m".repeat(1000), b"q\x00"].concat();
        let shared = b"h\x00".repeat(40_000);
        let values = read(&[b"(".as_slice(), &text, &shared, b"l."].concat()).unwrap();
        let error = values.plain(values.root(), &mut Budget::new()).unwrap_err();
        assert!(matches!(error, PickleError::TooLarge));
    }

    #[test]
    fn no_damaged_byte_can_upset_the_machine() {
        let pickle = b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\0\0\0aG?\xf8\0\0\0\0\0\0K\x02](K\x01\x8a\x01\x05eu}b.";
        read(pickle).unwrap();
        for at in 0..pickle.len() {
            let error = read(&pickle[..at]).unwrap_err();
            assert!(
                matches!(error, PickleError::Truncated { .. }),
                "{at}: {error}"
            );
            for byte in 0..=u8::MAX {
                let mut damaged = pickle.to_vec();
                damaged[at] = byte;
                if let Ok(values) = read(&damaged) {
                    let _either_way = values.plain(values.root(), &mut Budget::new());
                }
            }
        }
    }
}
