//! The state space layers: s ← a s + u, y = Re Σ r s + D u.
//!
//! A pole is stored as d = a − 1, and a s is s + d s. A slow mode, a near 1, forgets over thousands of
//! steps; rounding d instead of a moves it that much less.

use crate::matrix::Streams;
use crate::{ImageView, LANES, Layer, Real, StepFault, Unit, matrix};

/// Vectors of several streams, one after the other, each padded to whole groups of sixteen.
pub(crate) struct Vectors<'a, T> {
    /// What the channels take.
    pub(crate) channel_inputs: &'a [T],
    /// What they give.
    pub(crate) channel_outputs: &'a mut [T],
    /// The states of all streams, one stream after the other.
    pub(crate) state: &'a mut [T],
    /// Numbers of one stream's state.
    pub(crate) state_len: usize,
    /// Numbers of any value, to work in.
    pub(crate) scratch: &'a mut [T],
}

/// GELU(y) of one system for each channel. The residues hold B, so that a mode costs six numbers.
#[inline(always)]
pub(crate) fn channels<T: Real, U: Unit<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: &Layer,
    first: &mut usize,
    vectors: Vectors<'_, T>,
) -> Result<(), StepFault> {
    let width = image.width();
    let modes = image.group_modes(layer)?;
    let places = image.places(layer)?;
    let feedthrough = match layer.feedthrough_at {
        0 => None,
        at => Some(image.lanes(at, width, "feedthrough")?),
    };
    let mut at = layer.systems_at;
    for (group, &modes) in modes.iter().enumerate() {
        let modes = modes as usize;
        let systems = image.lanes(at, modes * 4 * LANES, "poles and residues")?;
        at += (modes * 4 * LANES) as u32 * T::BYTES;
        let d = feedthrough.and_then(|d| d.get(group));
        let lanes = group * LANES..(group + 1) * LANES;
        let channel_inputs = vectors.channel_inputs.chunks_exact(width);
        let channel_outputs = vectors.channel_outputs.chunks_exact_mut(width);
        let states = vectors.state.chunks_exact_mut(vectors.state_len);
        for ((channel_inputs, channel_outputs), state) in
            channel_inputs.zip(channel_outputs).zip(states)
        {
            let mut u = [T::default(); LANES];
            match places {
                None => u.copy_from_slice(&channel_inputs[lanes.clone()]),
                Some(places) => {
                    for (u, &place) in u.iter_mut().zip(&places[lanes.clone()]) {
                        *u = channel_inputs[place as usize];
                    }
                }
            }
            let state = &mut state[*first..*first + modes * 2 * LANES];
            let mut y = recur(unit, systems, state.as_chunks_mut().0, &u);
            if let Some(d) = d {
                for ((y, u), d) in y.iter_mut().zip(&u).zip(d) {
                    *y += *d * *u;
                }
            }
            y.iter_mut().for_each(|y| *y = y.gelu());
            match places {
                None => channel_outputs[lanes.clone()].copy_from_slice(&y),
                Some(places) => {
                    for (y, &place) in y.iter().zip(&places[lanes.clone()]) {
                        channel_outputs[place as usize] = *y;
                    }
                }
            }
        }
        *first += modes * 2 * LANES;
    }
    Ok(())
}

/// One step of sixteen channels: Re Σ r s of each.
#[inline(always)]
fn recur<T: Real, U: Unit<T>>(
    unit: U,
    systems: &[[T; LANES]],
    state: &mut [[T; LANES]],
    u: &[T; LANES],
) -> [T; LANES] {
    let mut y = [T::default(); LANES];
    for (part, out) in U::vectors_mut(&mut y).iter_mut().enumerate() {
        let u = unit.add(U::vectors(u)[part], unit.splat(T::TINY));
        // Two sums, so that neither waits for the other.
        let mut real = unit.splat(T::default());
        let mut imaginary = real;
        let modes = systems.as_chunks::<4>().0.iter();
        for ([d_re, d_im, r_re, r_im], [s_re, s_im]) in modes.zip(state.as_chunks_mut::<2>().0) {
            let (d_re, d_im) = (U::vectors(d_re)[part], U::vectors(d_im)[part]);
            let (s_re, s_im) = (U::vectors_mut(s_re), U::vectors_mut(s_im));
            let (x, z) = (s_re[part], s_im[part]);
            let crossed = unit.sub(u, unit.mul(d_im, z));
            let re = unit.add(x, unit.mul_add(d_re, x, crossed));
            let im = unit.add(z, unit.mul_add(d_re, z, unit.mul(d_im, x)));
            s_re[part] = re;
            s_im[part] = im;
            real = unit.mul_add(U::vectors(r_re)[part], re, real);
            imaginary = unit.mul_add(U::vectors(r_im)[part], im, imaginary);
        }
        *out = unit.sub(real, imaginary);
    }
    y
}

/// GELU(y) of one system that all channels share: s ← a s + B u, y = Re(C s) + D u. The products
/// with B and with C (beside it D, where that is dense) are matrices over the real and imaginary
/// parts, sixteen modes side by side.
#[inline(always)]
pub(crate) fn shared<T: Real, U: Unit<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: &Layer,
    first: &mut usize,
    vectors: Vectors<'_, T>,
) -> Result<(), StepFault> {
    let width = image.width();
    let parts = 2 * LANES * layer.groups as usize;
    let poles = image.lanes(layer.systems_at, parts, "poles")?;
    let (input, output) = (
        image.matrix(layer.input_at)?,
        image.matrix(layer.output_at)?,
    );
    let channel_inputs = vectors.channel_inputs.chunks_exact(width);
    let channel_outputs = vectors.channel_outputs.chunks_exact_mut(width);
    let states = vectors.state.chunks_exact_mut(vectors.state_len);
    let scratch = vectors.scratch;
    for ((channel_inputs, channel_outputs), state) in
        channel_inputs.zip(channel_outputs).zip(states)
    {
        let (drive, beside) = scratch[..parts + width].split_at_mut(parts);
        if parts > 0 {
            matrix::apply(unit, image, &input, Streams::one(channel_inputs, drive))?;
        }
        let state = &mut state[*first..*first + parts];
        advance(poles, drive, state.as_chunks_mut().0);
        drive.copy_from_slice(state);
        beside.copy_from_slice(channel_inputs);
        matrix::apply(
            unit,
            image,
            &output,
            Streams::one(&scratch[..parts + width], channel_outputs),
        )?;
        if layer.feedthrough_at != 0 {
            let d = image.numbers(layer.feedthrough_at, width, "feedthrough")?;
            let each = channel_outputs.iter_mut().zip(channel_inputs).zip(d);
            each.for_each(|((y, u), d)| *y += *d * *u);
        }
        channel_outputs.iter_mut().for_each(|y| *y = y.gelu());
    }
    *first += parts;
    Ok(())
}

/// s ← a s + drive, a = 1 + d.
#[inline(always)]
fn advance<T: Real>(poles: &[[T; LANES]], drive: &[T], state: &mut [[T; LANES]]) {
    let drive = drive.as_chunks::<LANES>().0.as_chunks::<2>().0;
    let poles = poles.as_chunks::<2>().0.iter();
    let state = state.as_chunks_mut::<2>().0.iter_mut();
    for (([d_re, d_im], [u_re, u_im]), [s_re, s_im]) in poles.zip(drive).zip(state) {
        for lane in 0..LANES {
            let (re, im) = (s_re[lane], s_im[lane]);
            let (u, v) = (u_re[lane] + T::TINY, u_im[lane] + T::TINY);
            s_re[lane] = re + (d_re[lane] * re - d_im[lane] * im + u);
            s_im[lane] = im + (d_re[lane] * im + d_im[lane] * re + v);
        }
    }
}
