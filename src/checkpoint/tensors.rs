//! Checked access to the tensors of one model: names without their prefix, shapes, finiteness,
//! and which of them have been used.

use std::cell::RefCell;
use std::collections::BTreeSet;

use num_complex::Complex64;

use crate::checkpoint::Archive;
use crate::checkpoint::error::Fault;

/// The tensors below one prefix. Every read is remembered, so that what is left over shows.
pub(super) struct Tensors<'a> {
    archive: &'a Archive,
    prefix: String,
    used: RefCell<BTreeSet<String>>,
}

/// A tensor in double precision.
pub(super) struct Values {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(archive: &'a Archive, prefix: &str) -> Self {
        Self {
            archive,
            prefix: prefix.to_string(),
            used: RefCell::default(),
        }
    }

    /// The name in the file.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.archive.contains(&self.full(name))
    }

    /// A tensor of any shape, finite throughout.
    pub(super) fn values(&self, name: &str, expected: &str) -> Result<Values, Fault> {
        let full = self.full(name);
        if !self.archive.contains(&full) {
            return Err(Fault::Missing {
                tensor: full,
                expected: expected.to_string(),
            });
        }
        let raw = self.archive.tensor(&full)?;
        let data = raw.to_f64(&full)?;
        if let Some(index) = data.iter().position(|value| !value.is_finite()) {
            return Err(Fault::NotFinite {
                tensor: full,
                value: data[index],
                index,
            });
        }
        self.used.borrow_mut().insert(full);
        Ok(Values {
            shape: raw.shape,
            data,
        })
    }

    /// Lets a tensor pass that takes no part, if it is there.
    pub(super) fn set_aside(&self, name: &str) {
        self.used.borrow_mut().insert(self.full(name));
    }

    /// A tensor of one of the given shapes; `expected` says which in words.
    pub(super) fn shaped(
        &self,
        name: &str,
        shapes: &[&[usize]],
        expected: &str,
    ) -> Result<Values, Fault> {
        let values = self.values(name, expected)?;
        if shapes.contains(&values.shape.as_slice()) {
            return Ok(values);
        }
        Err(self.wrong_shape(name, values.shape, expected))
    }

    /// D of every channel, stored as [channels] or [1, channels]; 0 where a bare kernel has none.
    pub(super) fn feedthrough(
        &self,
        name: Option<&str>,
        channels: usize,
    ) -> Result<Vec<f64>, Fault> {
        let Some(name) = name else {
            return Ok(vec![0.0; channels]);
        };
        let shapes: [&[usize]; 2] = [&[channels], &[1, channels]];
        let expected = format!("[{channels}] or [1, {channels}]");
        Ok(self.shaped(name, &shapes, &expected)?.data)
    }

    pub(super) fn wrong_shape(&self, name: &str, found: Vec<usize>, expected: &str) -> Fault {
        Fault::Shape {
            tensor: self.full(name),
            found,
            expected: expected.to_string(),
        }
    }

    /// An error when any tensor of the file was not used.
    pub(super) fn require_all_used(&self) -> Result<(), Fault> {
        let used = self.used.borrow();
        let names = self.archive.names().filter(|name| !used.contains(*name));
        let tensors: Vec<String> = names.map(str::to_string).collect();
        if tensors.is_empty() {
            Ok(())
        } else {
            Err(Fault::Unconsumed { tensors })
        }
    }
}

impl Values {
    /// The trailing axis of two as real and imaginary part.
    pub(super) fn to_complex(&self) -> Vec<Complex64> {
        let pairs = self.data.chunks_exact(2);
        pairs.map(|pair| Complex64::new(pair[0], pair[1])).collect()
    }
}

/// Real and imaginary parts, interleaved.
pub(super) fn interleave(values: &[Complex64]) -> Vec<f64> {
    values
        .iter()
        .flat_map(|value| [value.re, value.im])
        .collect()
}
