//! Files that the page has.

use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;

use hankelite::archive::ReadAt;

use crate::place::{File, NewFile};

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    /// Fills a place from a file: 0, or 1 where that went wrong.
    fn read(file: u32, at: f64, into: *mut u8, length: usize) -> i32;
    /// Writes to the new file, likewise.
    fn write(at: f64, from: *const u8, length: usize) -> i32;
}

/// By this number [`read`] knows the new file.
const NEW: u32 = u32::MAX;

/// One of those that were given, by its place in the list, or the new one.
#[derive(Debug)]
pub(crate) struct PageFile {
    pub(crate) number: u32,
    pub(crate) length: u64,
}

impl ReadAt for PageFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        if at.saturating_add(into.len() as u64) > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A file has less than 2^53 bytes.
        // SAFETY: the page fills these bytes before it returns.
        match unsafe { read(self.number, at as f64, into.as_mut_ptr(), into.len()) } {
            0 => Ok(()),
            _ => Err(io::Error::other(
                "the browser can no longer read the file, expected it to stay as it is: it was \
                 changed, moved or deleted since it was opened",
            )),
        }
    }
}

/// The new file. There is one at a time.
#[derive(Debug, Default)]
pub(crate) struct PageNewFile {
    at: u64,
    length: u64,
}

impl NewFile for PageNewFile {
    fn again(&self) -> File {
        Arc::new(PageFile {
            number: NEW,
            length: self.length,
        })
    }
}

impl Write for PageNewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the page reads these bytes before it returns.
        if unsafe { write(self.at as f64, bytes.as_ptr(), bytes.len()) } != 0 {
            return Err(io::Error::other("the browser has no room for the new file"));
        }
        self.at += bytes.len() as u64;
        self.length = self.length.max(self.at);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for PageNewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
