//! How long this machine takes to read so many bytes: what no step can beat.

use std::hint::black_box;
use std::time::Instant;

use pulp::{Arch, Simd, WithSimd};

use crate::stream::aligned::Aligned;

/// Sums side by side, so that no load waits for an addition.
const SUMS: usize = 8;
/// The shortest time that is measured as one.
const ROUND_SECONDS: f64 = 2e-3;
const ROUNDS: usize = 5;

struct Sum<'a>(&'a [f32]);

impl WithSimd for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (vectors, _) = S::as_simd_f32s(self.0);
        let mut sums = [simd.splat_f32s(0.0); SUMS];
        for some in vectors.as_chunks::<SUMS>().0 {
            for (sum, vector) in sums.iter_mut().zip(some) {
                *sum = simd.add_f32s(*sum, *vector);
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += simd.reduce_sum_f32s(sum);
        }
        total
    }
}

/// Nanoseconds to read `bytes` bytes over and over with the vectors of this machine, from the
/// level of cache that holds them: the floor of a step that reads as many. The best of a few
/// rounds; takes some ten milliseconds.
pub fn read_nanoseconds(bytes: usize) -> f64 {
    let buffer = Aligned::copied(&vec![1.0f32; (bytes / size_of::<f32>()).max(1)]);
    let read = || black_box(Arch::new().dispatch(Sum(black_box(buffer.as_slice()))));
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (start, mut passes) = (Instant::now(), 0u32);
        while start.elapsed().as_secs_f64() < ROUND_SECONDS {
            for _ in 0..8 {
                read();
            }
            passes += 8;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(passes));
    }
    best * 1e9
}
