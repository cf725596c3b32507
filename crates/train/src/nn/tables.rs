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
    /// Cosines and sines of −2π ij/period, rows × columns.
    Waves {
        rows: usize,
        columns: usize,
        period: usize,
    },
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
            Table::Waves {
                rows,
                columns,
                period,
            } => {
                let angle = |at: usize| {
                    let turns = (at / columns) * (at % columns) % period;
                    -2.0 * std::f64::consts::PI * turns as f64 / period as f64
                };
                let part = |f: fn(f64) -> f64| {
                    let values: Vec<f64> = (0..rows * columns).map(|at| f(angle(at))).collect();
                    Tensor::from_vec(values, (rows, columns), device)?.to_dtype(dtype)
                };
                Ok(vec![part(f64::cos)?, part(f64::sin)?])
            }
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
        let waves = on(
            Table::Waves {
                rows: 2,
                columns: 3,
                period: 4,
            },
            DType::F64,
        );
        for (part, expected) in waves.iter().zip([
            [[1.0, 1.0, 1.0], [1.0, 0.0, -1.0]],
            [[0.0, 0.0, 0.0], [0.0, -1.0, 0.0]],
        ]) {
            for (found, expected) in part.to_vec2::<f64>().unwrap().iter().zip(expected) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-15);
                }
            }
        }
    }
}
