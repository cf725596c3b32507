//! Normalisation over the channels of one step.

use crate::{ImageView, LANES, Layer, Piece, Processor, Real, StepFault, code};

/// x ← norm(x), for every stream.
#[cfg_attr(not(target_os = "none"), inline(always))]
pub(crate) fn apply<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: &Layer,
    x: &mut [T],
) -> Result<(), StepFault> {
    unit.apart(Norm {
        unit,
        image,
        layer,
        x,
    })
}

struct Norm<'i, 's, 'v, T, U> {
    unit: U,
    image: &'s ImageView<'i, T>,
    layer: &'s Layer,
    x: &'v mut [T],
}

impl<T: Real, U: Processor<T>> Piece for Norm<'_, '_, '_, T, U> {
    type Output = Result<(), StepFault>;

    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn run(self) -> Self::Output {
        let (unit, image) = (self.unit, self.image);
        let width = image.width();
        let (epsilon, [factors, offsets]) = image.norm(self.layer)?;
        let channels = image.header().channels as usize;
        for x in self.x.chunks_exact_mut(width) {
            if self.layer.norm == code::LAYER_NORM {
                standardise(x, channels, epsilon);
            }
            factors.scale(unit, x);
            offsets.add_to(unit, x);
        }
        Ok(())
    }
}

/// Mean 0 and variance 1, short of ε, over the channels. What pads the vector stays finite.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn standardise<T: Real>(x: &mut [T], channels: usize, epsilon: T) {
    let count = T::from_f64(channels as f64);
    let x = x.get_mut(..channels).unwrap_or_default();
    let mean = sum(x, |x| x) / count;
    x.iter_mut().for_each(|x| *x = *x - mean);
    let variance = sum(x, |x| x * x) / count;
    let scale = T::from_f64(1.0) / (variance + epsilon).sqrt();
    x.iter_mut().for_each(|x| *x = *x * scale);
}

/// Σ f(x), sixteen sums side by side and then in pairs.
#[cfg_attr(not(target_os = "none"), inline(always))]
fn sum<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    let mut sums = [T::default(); LANES];
    let (rows, rest) = x.as_chunks::<LANES>();
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f(*x));
    }
    sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += f(*x));
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            let other = sums[lane + half];
            sums[lane] += other;
        }
        half /= 2;
    }
    sums[0]
}
