//! Tables of constants on the device, made once for each size.
//!
//! A step on a GPU must not wait for the host: what depends on sizes alone is made at the first step and
//! kept, for as long as the program runs and the tables are few.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};

/// Tables that are kept; beyond that all are dropped and made again.
const MOST: usize = 256;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Table {
    /// The real transform of a cycle's columns, cosines and then −sines of the frequencies up to the
    /// half, and its inverse over the whole cycle, which counts most of them twice.
    Columns { columns: usize, steps: usize },
    /// The complex transform of its rows: what gives real and what gives imaginary parts of the
    /// frequencies from both parts of each row. The inverse is the transpose, but for the factor.
    Rows { rows: usize },
    /// The step of each cell of a cycle of rows and columns, `length` for those without one, and the
    /// cell of each step.
    Cells {
        rows: usize,
        columns: usize,
        length: usize,
    },
    /// 1 × count.
    Ones { count: usize },
    /// length − 1, …, 0.
    Backwards { length: usize },
    /// 0, stride, 2 stride, …, as 1 × 1 × count.
    Steps { stride: usize, count: usize },
}

type Key = (Table, DType, DeviceLocation);

/// Tables by size, number type and device.
#[derive(Default)]
struct Tables(Mutex<HashMap<Key, Vec<Tensor>>>);

static TABLES: LazyLock<Tables> = LazyLock::new(Tables::default);

impl Tables {
    fn get(&self, table: Table, device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
        let key = (table, dtype, device.location());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.get(&key) {
            return Ok(found.clone());
        }
        let made = table.make(device, dtype)?;
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(key, made.clone());
        Ok(made)
    }
}

impl Table {
    /// The tensors of the table, made at the first request.
    pub(super) fn on(self, device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
        TABLES.get(self, device, dtype)
    }

    fn make(self, device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
        match self {
            Table::Columns { columns, steps } => {
                let half = columns / 2 + 1;
                let of = |row: usize, t: usize| wave(row, half, t, columns);
                let there = matrix(2 * half, columns, of);
                let back = matrix(columns, 2 * half, |t, row| {
                    let alone = (row % half * 2).is_multiple_of(columns);
                    of(row, t) * if alone { 1.0 } else { 2.0 } / steps as f64
                });
                on(vec![there, back], device, dtype)
            }
            Table::Rows { rows } => {
                let re = matrix(rows, 2 * rows, |k, at| {
                    // Re e^{−iθ}(x + iy) = x cos θ + y sin θ.
                    let (t, part) = (at / 2, at % 2);
                    if part == 0 {
                        turn(k * t, rows).cos()
                    } else {
                        turn(k * t, rows).sin()
                    }
                });
                let im = matrix(rows, 2 * rows, |k, at| {
                    let (t, part) = (at / 2, at % 2);
                    if part == 0 {
                        -turn(k * t, rows).sin()
                    } else {
                        turn(k * t, rows).cos()
                    }
                });
                on(vec![re, im], device, dtype)
            }
            Table::Cells {
                rows,
                columns,
                length,
            } => {
                let cell = |t: usize| t % rows * columns + t % columns;
                let mut steps = vec![length as u32; rows * columns];
                (0..length).for_each(|t| steps[cell(t)] = t as u32);
                let cells: Vec<u32> = (0..length).map(|t| cell(t) as u32).collect();
                Ok(vec![
                    Tensor::from_vec(steps, rows * columns, device)?,
                    Tensor::from_vec(cells, length, device)?,
                ])
            }
            Table::Ones { count } => Ok(vec![Tensor::ones((1, count), dtype, device)?]),
            Table::Backwards { length } => {
                let order: Vec<u32> = (0..length as u32).rev().collect();
                Ok(vec![Tensor::from_vec(order, length, device)?])
            }
            Table::Steps { stride, count } => {
                let steps: Vec<f64> = (0..count).map(|j| (stride * j) as f64).collect();
                let steps = Tensor::from_vec(steps, (1, 1, count), device)?;
                Ok(vec![steps.to_dtype(dtype)?])
            }
        }
    }
}

/// 2π k/n.
fn turn(k: usize, n: usize) -> f64 {
    2.0 * std::f64::consts::PI * (k % n) as f64 / n as f64
}

/// The cosine of a frequency at step t in the first half of the rows, −its sine in the other.
fn wave(row: usize, half: usize, t: usize, n: usize) -> f64 {
    let angle = turn(row % half * t, n);
    if row < half {
        angle.cos()
    } else {
        -angle.sin()
    }
}

/// Numbers with their rows and columns.
type Matrix = (Vec<f64>, usize, usize);

fn matrix(rows: usize, columns: usize, entry: impl Fn(usize, usize) -> f64) -> Matrix {
    let numbers = (0..rows * columns).map(|at| entry(at / columns, at % columns));
    (numbers.collect(), rows, columns)
}

fn on(matrices: Vec<Matrix>, device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
    let tensor = |(numbers, rows, columns): Matrix| {
        Tensor::from_vec(numbers, (rows, columns), device)?.to_dtype(dtype)
    };
    matrices.into_iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_made_once_for_each_size_and_type() {
        let tables = Tables::default();
        let id = |table: Table, dtype: DType| {
            let found = tables.get(table, &Device::Cpu, dtype).unwrap();
            found[0].id()
        };
        let steps = |count: usize| Table::Steps { stride: 3, count };
        let first = id(steps(5), DType::F64);
        assert_eq!(id(steps(5), DType::F64), first);
        assert_ne!(id(steps(5), DType::F32), first);
        assert_ne!(id(steps(6), DType::F64), first);
        for count in 10..10 + MOST {
            id(steps(count), DType::F64);
        }
        assert_ne!(id(steps(5), DType::F64), first, "too many, and made again");
        assert!(tables.0.lock().unwrap().len() <= MOST);
    }

    #[test]
    fn tables_hold_what_they_are_named_for() {
        let on = |table: Table, dtype: DType| table.on(&Device::Cpu, dtype).unwrap();
        let steps = Table::Steps {
            stride: 3,
            count: 4,
        };
        let steps = on(steps, DType::F64)[0].flatten_all().unwrap();
        assert_eq!(steps.to_vec1::<f64>().unwrap(), [0.0, 3.0, 6.0, 9.0]);
        let order = &on(Table::Backwards { length: 3 }, DType::U32)[0];
        assert_eq!(order.to_vec1::<u32>().unwrap(), [2, 1, 0]);
        let cells = Table::Cells {
            rows: 2,
            columns: 3,
            length: 4,
        };
        let [steps, cells] = [0, 1].map(|at| on(cells, DType::U32)[at].to_vec1::<u32>().unwrap());
        // Steps 0 to 3 stand in rows 0, 1, 0, 1 and columns 0, 1, 2, 0.
        assert_eq!(steps, [0, 4, 2, 3, 1, 4]);
        assert_eq!(cells, [0, 4, 2, 3]);
    }
}
