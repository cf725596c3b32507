//! Checked access to the tensors of one model: names without their prefix, shapes, finiteness,
//! and which of them have been used.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use hankelite_archive::{Archive, Dtype};
use nalgebra::{DMatrix, Scalar};
use num_complex::Complex64;

use crate::checkpoint::error::Fault;

/// The tensors below one prefix. Every read is remembered, so that what is left over shows.
pub(super) struct Tensors<'a> {
    archive: &'a Archive,
    prefix: String,
    used: RefCell<BTreeSet<String>>,
    /// What the steps Δ of continuous systems are multiplied by.
    factor: f64,
    /// Whether steps have been multiplied.
    is_applied: Cell<bool>,
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
            factor: 1.0,
            is_applied: Cell::new(false),
        }
    }

    /// The same for signals of another rate.
    pub(super) fn with_steps_times(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// The steps Δ of continuous systems, for the rate at which the network runs. Layouts whose
    /// residues do not follow from the step leave theirs alone.
    pub(super) fn at_rate(&self, steps: Vec<f64>) -> Vec<f64> {
        self.is_applied.set(true);
        steps.into_iter().map(|step| step * self.factor).collect()
    }

    /// What [`Tensors::at_rate`] multiplies by.
    pub(super) fn factor(&self) -> f64 {
        self.factor
    }

    /// Whether the layer that was read last runs at the rate that was requested.
    pub(super) fn is_at_rate(&self) -> bool {
        self.is_applied.replace(false) || self.factor == 1.0
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
        let data = raw.to_f64().map_err(|error| error.of(&full))?;
        if let Some(index) = data.iter().position(|value| !value.is_finite()) {
            return Err(Fault::NotFinite {
                tensor: full,
                value: data[index],
                index,
            });
        }
        self.used.borrow_mut().insert(full);
        Ok(Values {
            shape: raw.shape().to_vec(),
            data,
        })
    }

    /// Lets a tensor pass that takes no part, if it is there.
    pub(super) fn set_aside(&self, name: &str) {
        self.used.borrow_mut().insert(self.full(name));
    }

    /// The same, by its name in the file.
    pub(super) fn set_aside_whole(&self, full: &str) {
        self.used.borrow_mut().insert(full.to_string());
    }

    /// A tensor of one of the given shapes; `expected` names them.
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

    /// Complex numbers of one of the given shapes, or of any: a complex tensor, or a real one with
    /// a last axis of two. The shape is that of the complex numbers.
    pub(super) fn complex(
        &self,
        name: &str,
        shapes: &[&[usize]],
    ) -> Result<(Vec<usize>, Vec<Complex64>), Fault> {
        let shown: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
        let expected = match shown.is_empty() {
            true => "complex numbers, or pairs of real ones".to_string(),
            false => format!(
                "complex numbers, or pairs of real ones, {}",
                shown.join(" or ")
            ),
        };
        let full = self.full(name);
        let (shape, values) = match self.archive.dtype(&full) {
            Some(Dtype::C64) => {
                let raw = self.archive.tensor(&full)?;
                let values = raw.to_c64().map_err(|error| error.of(&full))?;
                if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                    let value = values[index].re + values[index].im;
                    let tensor = full;
                    return Err(Fault::NotFinite {
                        tensor,
                        value,
                        index,
                    });
                }
                self.used.borrow_mut().insert(full);
                (raw.shape().to_vec(), values)
            }
            _ => {
                let found = self.values(name, &expected)?;
                match found.shape.split_last() {
                    Some((2, shape)) => (shape.to_vec(), found.to_complex()),
                    _ => return Err(self.wrong_shape(name, found.shape, &expected)),
                }
            }
        };
        if shapes.is_empty() || shapes.contains(&shape.as_slice()) {
            return Ok((shape, values));
        }
        Err(self.wrong_shape(name, shape, &expected))
    }

    /// A whole number in a tensor of one element.
    pub(super) fn count(&self, name: &str) -> Result<usize, Fault> {
        let full = self.full(name);
        let raw = self.archive.tensor(&full)?;
        let values = raw.to_i64().map_err(|error| error.of(&full))?;
        self.used.borrow_mut().insert(full);
        match values.as_slice() {
            &[value] if value >= 0 => Ok(value as usize),
            _ => {
                let shape = raw.shape().to_vec();
                Err(self.wrong_shape(name, shape, "one whole number that is not negative"))
            }
        }
    }

    /// The shape of a tensor, where it is there.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.archive.shape(&self.full(name))
    }

    /// The number format of a tensor, where it is there.
    pub(super) fn dtype(&self, name: &str) -> Option<Dtype> {
        self.archive.dtype(&self.full(name))
    }

    /// A complex matrix, of which an axis may have any length but none.
    pub(super) fn complex_matrix(
        &self,
        name: &str,
        axes: [Option<usize>; 2],
    ) -> Result<DMatrix<Complex64>, Fault> {
        let (shape, values) = self.complex(name, &[])?;
        let expected = format!("{} complex numbers", shown(axes));
        self.matrix(name, (shape, &values), axes, &expected)
    }

    /// The same of real numbers.
    pub(super) fn real_matrix(
        &self,
        name: &str,
        axes: [Option<usize>; 2],
    ) -> Result<DMatrix<f64>, Fault> {
        let expected = shown(axes);
        let found = self.values(name, &expected)?;
        self.matrix(name, (found.shape, &found.data), axes, &expected)
    }

    fn matrix<T: Scalar + Copy>(
        &self,
        name: &str,
        (shape, values): (Vec<usize>, &[T]),
        axes: [Option<usize>; 2],
        expected: &str,
    ) -> Result<DMatrix<T>, Fault> {
        let fits = |n: usize, wanted: Option<usize>| n > 0 && wanted.is_none_or(|w| w == n);
        match *shape.as_slice() {
            [rows, columns] if fits(rows, axes[0]) && fits(columns, axes[1]) => {
                Ok(DMatrix::from_row_slice(rows, columns, values))
            }
            _ => Err(self.wrong_shape(name, shape, expected)),
        }
    }

    /// The number of axes of a tensor, where it is there.
    pub(super) fn rank(&self, name: &str) -> Option<usize> {
        self.shape(name).map(<[usize]>::len)
    }

    /// D of every channel, one row for each of its outputs: stored as [channels] or [outputs,
    /// channels], with as many outputs as kernels, or half as many where the layer runs in both
    /// directions. Zeros where a bare kernel has none.
    pub(super) fn feedthrough(
        &self,
        name: Option<&str>,
        channels: usize,
        kernels: usize,
    ) -> Result<Vec<Vec<f64>>, Fault> {
        let Some(name) = name else {
            return Ok(vec![vec![0.0; channels]; kernels]);
        };
        let expected = format!("[{channels}] or [{kernels}, {channels}]");
        let found = self.values(name, &expected)?;
        let rows = match *found.shape.as_slice() {
            [h] if h == channels => 1,
            [rows, h] if h == channels => rows,
            _ => return Err(self.wrong_shape(name, found.shape, &expected)),
        };
        if rows != kernels && 2 * rows != kernels {
            return Err(self.wrong_shape(name, found.shape, &expected));
        }
        Ok(found.data.chunks(channels).map(<[f64]>::to_vec).collect())
    }

    pub(super) fn wrong_shape(&self, name: &str, found: Vec<usize>, expected: &str) -> Fault {
        Fault::Shape {
            tensor: self.full(name),
            found,
            expected: expected.to_string(),
        }
    }

    /// The tensors below some prefixes that were not used, or all such tensors of the file.
    pub(super) fn unused(&self, below: Option<&[String]>) -> Vec<String> {
        let used = self.used.borrow();
        let inside = |name: &str| below.is_none_or(|all| all.iter().any(|b| name.starts_with(b)));
        let names = self.archive.names();
        let names = names.filter(|name| !used.contains(*name) && inside(name));
        names.map(str::to_string).collect()
    }

    /// An error when any tensor of the file, or of those below some prefixes, was not used and does
    /// not pass.
    pub(super) fn require_all_used(
        &self,
        below: Option<&[String]>,
        passes: impl Fn(&str) -> bool,
    ) -> Result<(), Fault> {
        let mut tensors = self.unused(below);
        tensors.retain(|name| !passes(name));
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

/// The axes of a matrix in words.
fn shown(axes: [Option<usize>; 2]) -> String {
    let axes = axes.map(|n| n.map_or("any".to_string(), |n| n.to_string()));
    format!("[{}]", axes.join(", "))
}

/// Real and imaginary parts, interleaved.
pub(super) fn interleave(values: &[Complex64]) -> Vec<f64> {
    values
        .iter()
        .flat_map(|value| [value.re, value.im])
        .collect()
}
