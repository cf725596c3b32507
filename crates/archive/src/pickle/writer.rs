//! The counterpart of the machine: plain data as a pickle.

use crate::pickle::Plain;

/// Writes a pickle of protocol 2, which every PyTorch reads.
///
/// Only instructions that `torch.load(weights_only=True)` accepts are used.
#[derive(Debug)]
pub(crate) struct PickleWriter {
    bytes: Vec<u8>,
}

impl PickleWriter {
    /// A pickle that holds nothing yet.
    pub(crate) fn new() -> PickleWriter {
        PickleWriter {
            bytes: vec![0x80, 2],
        }
    }

    /// Ends the pickle.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// An instruction without operand.
    pub(crate) fn instruction(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// A name.
    pub(crate) fn global(&mut self, module: &str, name: &str) {
        self.bytes.push(b'c');
        self.bytes.extend_from_slice(module.as_bytes());
        self.bytes.push(b'\n');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
    }

    /// Text.
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        self.length4(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// An integer in its shortest form.
    pub(crate) fn int(&mut self, value: i64) {
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.bytes.push(b'M');
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(word) = i32::try_from(value) {
            self.bytes.push(b'J');
            self.bytes.extend(word.to_le_bytes());
        } else {
            self.bytes.extend([0x8a, 8]);
            self.bytes.extend(value.to_le_bytes());
        }
    }

    /// A size, which may in principle exceed a signed integer.
    pub(crate) fn size(&mut self, value: usize) {
        match i64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => self.big_int(&[value.to_le_bytes().as_slice(), &[0]].concat()),
        }
    }

    /// A tuple of sizes.
    pub(crate) fn sizes(&mut self, values: &[usize]) {
        self.instruction(b'(');
        for value in values {
            self.size(*value);
        }
        self.instruction(b't');
    }

    /// An empty dictionary, to be filled with `(`, pairs, `u`.
    pub(crate) fn empty_dict(&mut self, ordered: bool) {
        if ordered {
            self.global("collections", "OrderedDict");
            self.bytes.extend(b")R");
        } else {
            self.instruction(b'}');
        }
    }

    /// Plain data.
    pub(crate) fn plain(&mut self, plain: &Plain) {
        match plain {
            Plain::None => self.instruction(b'N'),
            Plain::Bool(true) => self.instruction(0x88),
            Plain::Bool(false) => self.instruction(0x89),
            Plain::Int(value) => self.int(*value),
            Plain::BigInt(bytes) => self.big_int(bytes),
            Plain::Float(value) => {
                self.instruction(b'G');
                self.bytes.extend(value.to_be_bytes());
            }
            Plain::Text(text) => self.text(text),
            Plain::Bytes(bytes) => self.encoded_bytes(bytes),
            Plain::Tuple(items) => {
                self.instruction(b'(');
                items.iter().for_each(|item| self.plain(item));
                self.instruction(b't');
            }
            Plain::List(items) => {
                self.bytes.extend(b"](");
                items.iter().for_each(|item| self.plain(item));
                self.instruction(b'e');
            }
            Plain::Dict { ordered, entries } => {
                self.empty_dict(*ordered);
                self.instruction(b'(');
                for (key, value) in entries {
                    self.plain(key);
                    self.plain(value);
                }
                self.instruction(b'u');
            }
        }
    }

    fn big_int(&mut self, bytes: &[u8]) {
        if let Ok(length) = u8::try_from(bytes.len()) {
            self.bytes.extend([0x8a, length]);
        } else {
            self.instruction(0x8b);
            self.length4(bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn encoded_bytes(&mut self, bytes: &[u8]) {
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        self.global("_codecs", "encode");
        self.text(&text);
        self.text("latin1");
        self.bytes.extend([0x86, b'R']);
    }

    fn length4(&mut self, length: usize) {
        // Names and texts come from a pickle of the same limits, or are short.
        let length = u32::try_from(length).expect("texts are shorter than 4 GiB");
        self.bytes.extend(length.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pickle::{Budget, Values};

    fn round_trip(plain: &Plain) -> Plain {
        let mut writer = PickleWriter::new();
        writer.plain(plain);
        let values = Values::read(&writer.finish(), |_| true).unwrap();
        let read = values.plain(values.root(), &mut Budget::new());
        read.unwrap().unwrap()
    }

    #[test]
    fn plain_data_survive_a_round_trip() {
        let integers = [0, 255, 256, 65_535, 65_536, -1, i64::MAX, i64::MIN];
        let mut all: Vec<Plain> = integers.map(Plain::Int).to_vec();
        all.extend([
            Plain::None,
            Plain::Bool(true),
            Plain::Bool(false),
            Plain::Float(-0.1),
            Plain::Text("λ\n".to_owned()),
            Plain::Bytes((0..=255).collect()),
            Plain::BigInt(vec![7; 9]),
            Plain::BigInt(vec![7; 300]),
            Plain::Tuple(vec![]),
            Plain::Tuple(vec![Plain::None]),
            Plain::List(vec![]),
        ]);
        let entries = vec![(Plain::Int(1), Plain::List(all.clone()))];
        for ordered in [false, true] {
            let entries = entries.clone();
            all.push(Plain::Dict { ordered, entries });
        }
        for plain in &all {
            assert_eq!(round_trip(plain), *plain);
        }
        let together = Plain::List(all);
        assert_eq!(round_trip(&together), together);
    }

    #[test]
    fn a_size_beyond_a_signed_integer_stays_positive() {
        let mut writer = PickleWriter::new();
        writer.size(usize::MAX);
        let values = Values::read(&writer.finish(), |_| true).unwrap();
        let read = values.plain(values.root(), &mut Budget::new()).unwrap();
        let mut bytes = usize::MAX.to_le_bytes().to_vec();
        bytes.push(0);
        // On a 32-bit machine every size is a signed integer.
        let expected = i64::try_from(usize::MAX).map_or(Plain::BigInt(bytes), Plain::Int);
        assert_eq!(read, Some(expected));
    }
}
