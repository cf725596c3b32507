//! Points in classes: a data set that a few training steps learn.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;

use hankelite_archive::{Dtype, RawTensor, write_arrays};
use hankelite_data::{Dataset, Source};

/// Classes of points.
pub(crate) const CLASSES: usize = 3;

/// Numbers of a step.
const WIDTH: usize = 2;

/// Sequences of noise around one of three points of the plane; the class is the point.
pub(crate) fn points(folder: &Path, count: usize) -> Dataset {
    let mut state = 12345u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1u32 << 24) - 0.5
    };
    let centres = [(1.0, 0.0), (-0.5, 0.8), (-0.5, -0.8)];
    let (mut inputs, mut labels) = (vec![], vec![]);
    for index in 0..count {
        let (x, y) = centres[index % CLASSES];
        labels.extend((index as i64 % CLASSES as i64).to_le_bytes());
        (0..4).for_each(|_| inputs.extend([x + noise(), y + noise()]));
    }
    let path = folder.join("points.safetensors");
    let inputs = RawTensor::from_f64(Dtype::F32, vec![count, 4, WIDTH], &inputs).unwrap();
    let labels = RawTensor::new(Dtype::I64, vec![count], labels).unwrap();
    write_arrays(&path, [("inputs", inputs), ("labels", labels)], "").unwrap();
    Dataset::read(&Source::Arrays(path), None).unwrap()
}
