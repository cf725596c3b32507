//! Names, types and shapes of tensors: the layout that they are of, and the model.
//!
//! A line for each tensor: `NAME TYPE SIZE,SIZE [VALUE]`. Without a value the numbers are of both
//! signs and small.
#![no_main]

use std::collections::BTreeMap;

use hankelite::Declared;
use hankelite::archive::{Dtype, RawTensor};
use hankelite::checkpoint::from_tensors;
use hankelite_fuzz::within;
use libfuzzer_sys::fuzz_target;

/// Numbers of all tensors together: more would only be slow.
const NUMBERS: usize = 1 << 12;

fuzz_target!(|text: &str| {
    let mut tensors = BTreeMap::new();
    let mut left = NUMBERS;
    for line in text.lines() {
        if let Some((name, tensor)) = tensor(line, &mut left) {
            tensors.insert(name, tensor);
        }
    }
    within(8 * (NUMBERS - left) + text.len(), || {
        let _ = from_tensors("the tensors", tensors, &Declared::default());
    });
});

fn tensor(line: &str, left: &mut usize) -> Option<(String, RawTensor)> {
    let mut words = line.split(' ');
    let name = words.next()?.to_string();
    let dtype = match words.next()? {
        "F64" => Dtype::F64,
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "C64" => Dtype::C64,
        "I64" => Dtype::I64,
        _ => return None,
    };
    let sizes = words.next().unwrap_or_default().split(',');
    let sizes = sizes.filter(|size| !size.is_empty()).map(str::parse);
    let shape: Vec<usize> = sizes.collect::<Result<_, _>>().ok()?;
    let product = |all: usize, &size: &usize| all.checked_mul(size);
    let complex = usize::from(dtype == Dtype::C64) + 1;
    let count = shape.iter().try_fold(complex, product)?;
    *left = left.checked_sub(count)?;
    let value: Option<f64> = words.next().and_then(|value| value.parse().ok());
    let seed = name.bytes().fold(1u32, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(byte.into())
    });
    let number = |index: usize| {
        let bits = (index as u32).wrapping_add(seed).wrapping_mul(0x9e37_79b9);
        f64::from(bits >> 8) / f64::from(1 << 24) - 0.5
    };
    let numbers: Vec<f64> = (0..count)
        .map(|index| value.unwrap_or_else(|| number(index)))
        .collect();
    let tensor = RawTensor::from_f64(dtype, shape, &numbers).ok()?;
    Some((name, tensor))
}
