//! The stack machine: one instruction after the other, building values and nothing else.

use std::collections::BTreeMap;

use crate::pickle::budget::{ROOM, ROOM_PER_BYTE};
use crate::pickle::{Call, Dict, Id, PROTOCOL_MAX, PickleError, Value};

/// Bytes that an entry of the memo takes.
const MEMO_ENTRY: usize = 4 * size_of::<Id>();

/// Stack, marks and memo of one run.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Id>,
    /// Height of the stack at each MARK.
    marks: Vec<usize>,
    memo: BTreeMap<usize, Id>,
    values: Vec<Value>,
    limit: usize,
    /// Bytes that values may still take. What lies in the pickle once is not counted.
    room: usize,
    allowed: fn(&str) -> bool,
}

impl Machine<'_> {
    /// Runs a pickle to its end. Gives all values and which of them it stands for.
    pub(super) fn run(
        bytes: &[u8],
        limit: usize,
        allowed: fn(&str) -> bool,
    ) -> Result<(Vec<Value>, Id), PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
            values: Vec::new(),
            limit,
            room: room(bytes),
            allowed,
        };
        let root = machine.steps()?;
        Ok((machine.values, root))
    }

    fn steps(&mut self) -> Result<Id, PickleError> {
        loop {
            let offset = self.at;
            let [instruction] = self.take_array()?;
            if instruction == b'.' {
                return self.pop();
            }
            let known = self.scalar(instruction)?
                || self.text_or_bytes(instruction)?
                || self.container(instruction)?
                || self.stack_and_memo(instruction)?
                || self.object(instruction)?;
            if !known {
                return Err(PickleError::Instruction {
                    offset,
                    found: instruction,
                });
            }
        }
    }

    /// None, booleans and numbers.
    fn scalar(&mut self, instruction: u8) -> Result<bool, PickleError> {
        let value = match instruction {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i64::from(i32::from_le_bytes(self.take_array()?))),
            b'K' => Value::Int(i64::from(u8::from_le_bytes(self.take_array()?))),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(self.take_array()?))),
            0x8a => {
                let length = self.length1()?;
                integer(self.take(length)?)
            }
            0x8b => {
                let length = self.length4()?;
                integer(self.take(length)?)
            }
            b'G' => Value::Float(f64::from_be_bytes(self.take_array()?)),
            b'I' => match self.line()? {
                "00" => Value::Bool(false),
                "01" => Value::Bool(true),
                text => Value::Int(self.parse(text, "an integer")?),
            },
            b'L' => {
                let text = self.line()?.trim_end_matches('L');
                Value::Int(self.parse(text, "an integer of 64 bits")?)
            }
            b'F' => {
                let text = self.line()?;
                Value::Float(self.parse(text, "a number")?)
            }
            _ => return Ok(false),
        };
        self.push(value)?;
        Ok(true)
    }

    fn text_or_bytes(&mut self, instruction: u8) -> Result<bool, PickleError> {
        let length = match instruction {
            b'V' => {
                let text = self.line()?;
                let text = raw_unicode(text).ok_or(self.malformed("escaped text"))?;
                self.push(Value::Text(text))?;
                return Ok(true);
            }
            0x8c | b'U' | b'C' => self.length1()?,
            b'X' | b'T' | b'B' => self.length4()?,
            0x8d | 0x8e | 0x96 => self.length8()?,
            _ => return Ok(false),
        };
        let bytes = self.take(length)?.to_vec();
        let value = match instruction {
            0x8c | b'X' | 0x8d => {
                Value::Text(String::from_utf8(bytes).map_err(|_| self.malformed("UTF-8"))?)
            }
            // A `str` of Python 2, which held text and bytes alike.
            b'U' | b'T' => String::from_utf8(bytes)
                .map_or_else(|error| Value::Bytes(error.into_bytes()), Value::Text),
            _ => Value::Bytes(bytes),
        };
        self.push(value)?;
        Ok(true)
    }

    fn container(&mut self, instruction: u8) -> Result<bool, PickleError> {
        match instruction {
            b'}' => self.push(Value::Dict(Box::default()))?,
            b']' => self.push(Value::List(Vec::new()))?,
            b')' => self.push(Value::Tuple(Vec::new()))?,
            0x8f => self.push(Value::Set(Vec::new()))?,
            b't' => self.build_marked(Value::Tuple)?,
            b'l' => self.build_marked(Value::List)?,
            0x85 => self.push_tuple(1)?,
            0x86 => self.push_tuple(2)?,
            0x87 => self.push_tuple(3)?,
            b'd' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Dict(Box::default()))?;
                self.set_items(&items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set_items(&items)?;
            }
            0x90 => {
                let items = self.pop_to_mark()?;
                self.add_items(&items)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn stack_and_memo(&mut self, instruction: u8) -> Result<bool, PickleError> {
        match instruction {
            0x80 => self.protocol()?,
            0x95 => {
                // Frames only show a stream how much to fetch.
                self.length8()?;
            }
            b'(' => {
                self.hold(size_of::<usize>())?;
                self.marks.push(self.stack.len());
            }
            b'0' => self.pop_or_unmark()?,
            b'1' => {
                self.pop_to_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.push_again(top)?;
            }
            b'q' => {
                let index = self.length1()?;
                self.remember(index)?;
            }
            b'r' => {
                let index = self.length4()?;
                self.remember(index)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' => {
                let index = self.length1()?;
                self.recall(index)?;
            }
            b'j' => {
                let index = self.length4()?;
                self.recall(index)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Names, calls that are not made, and what lies outside the pickle.
    fn object(&mut self, instruction: u8) -> Result<bool, PickleError> {
        match instruction {
            b'c' => {
                let offset = self.at - 1;
                let module = self.line()?;
                let name = format!("{module}.{}", self.line()?);
                self.push_global(offset, name)?;
            }
            0x93 => {
                let offset = self.at - 1;
                let name = self.pop_text()?;
                let module = self.pop_text()?;
                self.push_global(offset, format!("{module}.{name}"))?;
            }
            b'R' | 0x81 => self.call()?,
            0x92 => {
                // Arguments by name: only the machine that made the object knew what they mean.
                self.pop()?;
                self.call()?;
            }
            b'b' => self.set_state()?,
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::Persistent(id))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        let [found] = self.take_array()?;
        if found > PROTOCOL_MAX {
            return Err(PickleError::Protocol { found });
        }
        Ok(())
    }

    fn push_global(&mut self, offset: usize, name: String) -> Result<(), PickleError> {
        if !(self.allowed)(&name) {
            return Err(PickleError::Global { offset, name });
        }
        self.hold(name.len())?;
        self.push(Value::Global(name))
    }

    fn call(&mut self) -> Result<(), PickleError> {
        let arguments = self.pop()?;
        let function = self.pop()?;
        let Value::Tuple(arguments) = &self.values[arguments] else {
            return Err(self.wrong_kind(arguments, "a tuple of arguments"));
        };
        let Value::Global(function) = &self.values[function] else {
            return Err(self.wrong_kind(function, "a name to call"));
        };
        let copied = size_of_val(arguments.as_slice()) + function.len() + size_of::<Call>();
        self.room = self.room.checked_sub(copied).ok_or(self.no_room())?;
        let arguments = arguments.clone();
        if function == "collections.OrderedDict" {
            return self.push_ordered_dict(&arguments);
        }
        let function = function.clone();
        self.push(Value::Call(Box::new(Call {
            function,
            arguments,
            contents: Vec::new(),
            entries: Vec::new(),
            state: None,
        })))
    }

    /// `OrderedDict()`, or `OrderedDict([[key, value], …])` as Python 2 wrote it.
    fn push_ordered_dict(&mut self, arguments: &[Id]) -> Result<(), PickleError> {
        let mut dict = Dict {
            ordered: true,
            ..Dict::default()
        };
        for pairs in arguments {
            self.hold(self.sequence(*pairs)?.len() * size_of::<(Id, Id)>())?;
            let pairs = self.sequence(*pairs)?;
            for pair in pairs {
                match self.sequence(*pair)? {
                    [key, value] => dict.entries.push((*key, *value)),
                    _ => return Err(self.wrong_kind(*pair, "a key and a value")),
                }
            }
        }
        self.push(Value::Dict(Box::new(dict)))
    }

    fn sequence(&self, id: Id) -> Result<&[Id], PickleError> {
        match &self.values[id] {
            Value::Tuple(items) | Value::List(items) => Ok(items),
            _ => Err(self.wrong_kind(id, "a list or tuple")),
        }
    }

    fn set_state(&mut self) -> Result<(), PickleError> {
        let state = self.pop()?;
        let target = self.top()?;
        match &mut self.values[target] {
            Value::Dict(dict) => dict.attributes = Some(state),
            Value::Call(call) => call.state = Some(state),
            _ => return Err(self.wrong_kind(target, "an object with attributes")),
        }
        Ok(())
    }

    fn append(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let target = self.top()?;
        match &mut self.values[target] {
            Value::List(list) => list.extend_from_slice(items),
            Value::Call(call) => call.contents.extend_from_slice(items),
            _ => return Err(self.wrong_kind(target, "a list")),
        }
        Ok(())
    }

    fn add_items(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let target = self.top()?;
        match &mut self.values[target] {
            Value::Set(set) => set.extend_from_slice(items),
            _ => return Err(self.wrong_kind(target, "a set")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.lacking("a value for the last key"));
        }
        let pairs = pairs.iter().map(|[key, value]| (*key, *value));
        let target = self.top()?;
        match &mut self.values[target] {
            Value::Dict(dict) => dict.entries.extend(pairs),
            Value::Call(call) => call.entries.extend(pairs),
            _ => return Err(self.wrong_kind(target, "a dict")),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= self.limit {
            return Err(PickleError::TooManyValues);
        }
        self.hold(size_of::<Value>() + size_of::<Id>())?;
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    /// A value that is in the arena already.
    fn push_again(&mut self, id: Id) -> Result<(), PickleError> {
        self.hold(size_of::<Id>())?;
        self.stack.push(id);
        Ok(())
    }

    /// Pays for memory.
    fn hold(&mut self, bytes: usize) -> Result<(), PickleError> {
        let left = self.room.checked_sub(bytes);
        self.room = left.ok_or_else(|| self.no_room())?;
        Ok(())
    }

    fn no_room(&self) -> PickleError {
        PickleError::Memory {
            limit: room(self.bytes),
        }
    }

    fn push_tuple(&mut self, length: usize) -> Result<(), PickleError> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::Tuple(items))
    }

    fn build_marked(&mut self, build: fn(Vec<Id>) -> Value) -> Result<(), PickleError> {
        let items = self.pop_to_mark()?;
        self.push(build(items))
    }

    /// Height below which the current mark's values may not be taken.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Id, PickleError> {
        let above = self.stack.get(self.floor()..).and_then(<[Id]>::last);
        above.copied().ok_or(self.lacking("a value"))
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    fn pop_or_unmark(&mut self) -> Result<(), PickleError> {
        if self.stack.len() > self.floor() {
            self.stack.pop();
            return Ok(());
        }
        self.marks.pop().ok_or(self.lacking("a value"))?;
        Ok(())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or(self.lacking("a mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn pop_text(&mut self) -> Result<String, PickleError> {
        let id = self.pop()?;
        match &self.values[id] {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(self.wrong_kind(id, "the name of a module or of something in it")),
        }
    }

    fn remember(&mut self, index: usize) -> Result<(), PickleError> {
        let top = self.top()?;
        self.hold(MEMO_ENTRY)?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Result<(), PickleError> {
        let offset = self.at;
        let id = self.memo.get(&index);
        let id = id.ok_or(PickleError::Memo { offset, index })?;
        self.push_again(*id)
    }

    fn take(&mut self, length: usize) -> Result<&[u8], PickleError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..length) else {
            return Err(PickleError::Truncated {
                offset: self.bytes.len(),
                wanted: (length - rest.len()) as u64,
            });
        };
        self.at += length;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn length1(&mut self) -> Result<usize, PickleError> {
        Ok(usize::from(u8::from_le_bytes(self.take_array()?)))
    }

    fn length4(&mut self) -> Result<usize, PickleError> {
        let length = u32::from_le_bytes(self.take_array()?);
        self.address(u64::from(length))
    }

    fn length8(&mut self) -> Result<usize, PickleError> {
        let length = u64::from_le_bytes(self.take_array()?);
        self.address(length)
    }

    /// A length beyond this machine's memory is certainly beyond the pickle.
    fn address(&self, length: u64) -> Result<usize, PickleError> {
        usize::try_from(length).map_err(|_| PickleError::Truncated {
            offset: self.bytes.len(),
            wanted: length,
        })
    }
}

impl<'a> Machine<'a> {
    /// The text up to the next line feed, which is taken too.
    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.bytes[self.at..];
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            return Err(PickleError::Truncated {
                offset: self.bytes.len(),
                wanted: 1,
            });
        };
        self.at += length + 1;
        std::str::from_utf8(&rest[..length]).map_err(|_| self.malformed("UTF-8"))
    }

    fn parse<T: std::str::FromStr>(
        &self,
        text: &str,
        expected: &'static str,
    ) -> Result<T, PickleError> {
        text.trim().parse().map_err(|_| self.malformed(expected))
    }

    fn malformed(&self, expected: &'static str) -> PickleError {
        PickleError::Text {
            offset: self.at,
            expected,
        }
    }

    fn lacking(&self, expected: &'static str) -> PickleError {
        PickleError::Stack {
            offset: self.at,
            expected,
        }
    }

    fn wrong_kind(&self, id: Id, expected: &'static str) -> PickleError {
        PickleError::Kind {
            offset: self.at,
            found: self.values[id].kind(),
            expected,
        }
    }
}

/// Bytes that the values of a pickle may take.
fn room(pickle: &[u8]) -> usize {
    ROOM + ROOM_PER_BYTE * pickle.len()
}

/// A two's complement integer, little endian, of any length.
fn integer(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::BigInt(bytes.to_vec());
    }
    let negative = bytes.last().is_some_and(|last| *last >= 0x80);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}

/// Undoes Python's `raw-unicode-escape`: only `\uXXXX` and `\UXXXXXXXX` count.
fn raw_unicode(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let digits = match rest.as_bytes().get(at + 1) {
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        if digits == 0 {
            out.push('\\');
            rest = &rest[at + 1..];
            continue;
        }
        let code = rest.get(at + 2..at + 2 + digits)?;
        out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        rest = &rest[at + 2 + digits..];
    }
    out.push_str(rest);
    Some(out)
}
