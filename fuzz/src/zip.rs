//! A zip file of stored records around one that changes: its checksum is right, so that what is
//! in it is looked at.

/// Records one after the other, and the directory of them.
#[derive(Clone, Default)]
pub struct Zip {
    /// Length of the records that stand before these bytes.
    start: usize,
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

impl Zip {
    /// Adds a record.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        let (at, length) = (self.start + self.bytes.len(), content.len() as u32);
        let mut head = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        head.extend(crc32fast::hash(content).to_le_bytes());
        head.extend([length.to_le_bytes(), length.to_le_bytes()].concat());
        head.extend((name.len() as u32).to_le_bytes());
        self.bytes.extend(b"PK\x03\x04");
        self.bytes.extend(&head);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(content);
        self.directory.extend(b"PK\x01\x02\x14\x00");
        self.directory.extend(&head);
        self.directory.extend([0; 10]);
        self.directory.extend((at as u32).to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.count += 1;
    }

    /// The bytes of the records so far, taken out: later records follow them.
    pub fn take_records(&mut self) -> Vec<u8> {
        self.start += self.bytes.len();
        std::mem::take(&mut self.bytes)
    }

    /// The records and the directory.
    pub fn finish(mut self) -> Vec<u8> {
        let at = (self.start + self.bytes.len()) as u32;
        let length = self.directory.len() as u32;
        self.bytes.append(&mut self.directory);
        self.bytes.extend(b"PK\x05\x06\0\0\0\0");
        let count = self.count.to_le_bytes();
        self.bytes.extend([count, count].concat());
        self.bytes
            .extend([length.to_le_bytes(), at.to_le_bytes()].concat());
        self.bytes.extend([0, 0]);
        self.bytes
    }
}
