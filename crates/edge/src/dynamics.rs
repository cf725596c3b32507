//! The state space layers: s ← a s + u, y = Re Σ r s + D u.
//!
//! A pole is stored as d = a − 1, and a s is s + d s. A slow mode, a near 1, forgets over thousands of
//! steps; rounding d instead of a moves it that much less.

use crate::entries::{Full, Half, Modes};
use crate::streams::Streams;
use crate::{ImageView, LANES, Layer, Processor, Real, StepFault, Unit, code, matrix, padded};

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
    /// The same, for inputs that are rounded.
    pub(crate) room: &'a mut [T],
    /// The same, for what the channels take and give in the order of their lanes.
    pub(crate) lanes: &'a mut [T],
}

/// y of one system for each channel. The residues hold B, so that a mode costs six numbers.
#[inline(always)]
pub(crate) fn channels<T: Real, U: Unit<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: &Layer,
    first: &mut usize,
    vectors: Vectors<'_, T>,
) -> Result<(), StepFault> {
    let bank = Bank {
        image,
        layer,
        first,
        vectors,
    };
    match (layer.lanes, layer.numbers) {
        (4, code::HALF) => bank.step::<U, U::Four, Half, 4>(unit, unit.four()),
        (4, _) => bank.step::<U, U::Four, Full, 4>(unit, unit.four()),
        (8, code::HALF) => bank.step::<U, U::Eight, Half, 8>(unit, unit.eight()),
        (8, _) => bank.step::<U, U::Eight, Full, 8>(unit, unit.eight()),
        (_, code::HALF) => bank.step::<U, U, Half, LANES>(unit, unit),
        _ => bank.step::<U, U, Full, LANES>(unit, unit),
    }
}

/// The systems of a layer.
struct Bank<'i, 's, 'v, T> {
    image: &'s ImageView<'i, T>,
    layer: &'s Layer,
    /// The place of the layer's states in those of a stream; moved on.
    first: &'s mut usize,
    vectors: Vectors<'v, T>,
}

impl<T: Real> Bank<'_, '_, '_, T> {
    /// One step, L channels side by side. `wide` has the widest vectors, for what is no row of L.
    #[inline(always)]
    fn step<W: Unit<T>, U: Unit<T>, E: Modes<T>, const L: usize>(
        self,
        wide: W,
        unit: U,
    ) -> Result<(), StepFault> {
        let Bank {
            image,
            layer,
            first,
            vectors,
        } = self;
        let width = image.width();
        let places = image.places(layer)?;
        let scales = [power(layer.pole_exponent), power(layer.residue_exponent)];
        let streams = vectors.channel_inputs.len() / width;
        // All channels are put in order before, and back after: a vector that is read right behind the
        // single numbers that were written into it waits for them.
        let (sorted, made) = vectors.lanes.split_at_mut(streams * width);
        let (inputs, outputs) = match places {
            None => (vectors.channel_inputs, &mut *vectors.channel_outputs),
            Some(places) => {
                places.gather(vectors.channel_inputs, sorted);
                (&*sorted, &mut made[..streams * width])
            }
        };
        let mut at = layer.systems_at;
        for (group, &modes) in image.group_modes(layer)?.iter().enumerate() {
            let count = usize::from(modes) * 4 * L;
            let systems: &[E::Entry] = image.slice(at, count, "poles and residues")?;
            at += (count * size_of::<E::Entry>()) as u32;
            for stream in 0..streams {
                let lanes = stream * width + group * L;
                let state = stream * vectors.state_len + *first;
                let state = &mut vectors.state[state..state + count / 2];
                let states: &mut [[T; L]] = state.as_chunks_mut().0;
                let u = &inputs[lanes..].as_chunks().0[0];
                let modes = ModesOf {
                    systems: systems.as_chunks::<L>().0.as_chunks().0,
                    states: states.as_chunks_mut().0,
                };
                let y = modes.recur::<W, U, E>(wide, unit, u, scales);
                outputs[lanes..lanes + L].copy_from_slice(&y);
            }
            *first += count / 2;
        }
        if let Some(d) = image.feedthrough(layer)? {
            let each = inputs
                .chunks_exact(width)
                .zip(outputs.chunks_exact_mut(width));
            for (u, y) in each {
                d.add_products(u, y);
            }
        }
        if let Some(places) = places {
            places.scatter(&made[..streams * width], vectors.channel_outputs);
        }
        Ok(())
    }
}

/// 2 to the power of an exponent.
#[inline(always)]
fn power<T: Real>(exponent: i8) -> T {
    let bits = (1023 + i64::from(exponent)) << 52;
    T::from_f64(f64::from_bits(bits.cast_unsigned()))
}

/// The modes of L channels.
struct ModesOf<'a, N, T, const L: usize> {
    /// Re d, Im d, Re r, Im r of each.
    systems: &'a [[[N; L]; 4]],
    /// Re s, Im s of each.
    states: &'a mut [[[T; L]; 2]],
}

impl<N, T: Real, const L: usize> ModesOf<'_, N, T, L> {
    /// One step: Re Σ r s of each channel. `scales` are those of d and of r, where the numbers have them.
    #[inline(always)]
    fn recur<W: Unit<T>, U: Unit<T>, E: Modes<T, Entry = N>>(
        self,
        wide: W,
        unit: U,
        u: &[T; L],
        scales: [T; 2],
    ) -> [T; L] {
        let mut y = [T::default(); L];
        let [d_scale, r_scale] = [unit.splat(scales[0]), unit.splat(scales[1])];
        for (part, out) in U::vectors_mut(&mut y).iter_mut().enumerate() {
            let u = unit.add(U::vectors(u)[part], unit.splat(T::TINY));
            // Two sums, so that neither waits for the other.
            let mut real = unit.splat(T::default());
            let mut imaginary = real;
            // Nothing here is a closure: those would be compiled without the features of the unit.
            for (stored, [s_re, s_im]) in self.systems.iter().zip(&mut *self.states) {
                let [d_re, d_im, r_re, r_im] = E::mode(wide, unit, stored, part);
                let (s_re, s_im) = (U::vectors_mut(s_re), U::vectors_mut(s_im));
                let (x, z) = (s_re[part], s_im[part]);
                let (re, im) = if E::SCALED {
                    let crossed = unit.sub(unit.mul(d_re, x), unit.mul(d_im, z));
                    let turned = unit.mul_add(d_re, z, unit.mul(d_im, x));
                    let re = unit.add(x, unit.mul_add(crossed, d_scale, u));
                    (re, unit.mul_add(turned, d_scale, z))
                } else {
                    let crossed = unit.sub(u, unit.mul(d_im, z));
                    let re = unit.add(x, unit.mul_add(d_re, x, crossed));
                    (re, unit.add(z, unit.mul_add(d_re, z, unit.mul(d_im, x))))
                };
                s_re[part] = re;
                s_im[part] = im;
                real = unit.mul_add(r_re, re, real);
                imaginary = unit.mul_add(r_im, im, imaginary);
            }
            *out = unit.sub(real, imaginary);
            if E::SCALED {
                *out = unit.mul(*out, r_scale);
            }
        }
        y
    }
}

/// y of one system that all channels share: s ← a s + B u, y = Re(C s) + D u. The products with B and
/// with C (beside it D, where that is dense) are matrices over the real and imaginary parts.
#[inline(always)]
pub(crate) fn shared<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    layer: &Layer,
    first: &mut usize,
    vectors: Vectors<'_, T>,
) -> Result<(), StepFault> {
    let width = image.width();
    let system = image.shared_system(layer)?;
    let modes = system.modes as usize;
    let parts = padded(2 * modes);
    let poles = image
        .numbers(system.poles_at, 2 * modes, "poles")?
        .split_at(modes);
    let (input, output) = (
        image.matrix(system.input_at)?,
        image.matrix(system.output_at)?,
    );
    let feedthrough = image.feedthrough(layer)?;
    let channel_inputs = vectors.channel_inputs.chunks_exact(width);
    let channel_outputs = vectors.channel_outputs.chunks_exact_mut(width);
    let states = vectors.state.chunks_exact_mut(vectors.state_len);
    let Vectors { scratch, room, .. } = vectors;
    for ((channel_inputs, channel_outputs), state) in
        channel_inputs.zip(channel_outputs).zip(states)
    {
        let (drive, beside) = scratch[..parts + width].split_at_mut(parts);
        if parts > 0 {
            let inputs = Streams::one(channel_inputs, drive);
            matrix::apply(unit, image, &input, room, inputs)?;
        }
        let state = &mut state[*first..*first + parts];
        advance(poles, drive, state);
        drive.copy_from_slice(state);
        beside.copy_from_slice(channel_inputs);
        let driven = Streams::one(&scratch[..parts + width], channel_outputs);
        matrix::apply(unit, image, &output, room, driven)?;
        if let Some(d) = feedthrough {
            d.add_products(channel_inputs, channel_outputs);
        }
    }
    *first += parts;
    Ok(())
}

/// s ← a s + drive, a = 1 + d; the real parts of all modes stand before the imaginary ones.
#[inline(always)]
fn advance<T: Real>((d_re, d_im): (&[T], &[T]), drive: &[T], state: &mut [T]) {
    let modes = d_re.len();
    let (s_re, s_im) = state[..2 * modes].split_at_mut(modes);
    let (u_re, u_im) = drive[..2 * modes].split_at(modes);
    let d_im = &d_im[..modes];
    for mode in 0..modes {
        let (re, im) = (s_re[mode], s_im[mode]);
        let (u, v) = (u_re[mode] + T::TINY, u_im[mode] + T::TINY);
        s_re[mode] = re + (d_re[mode] * re - d_im[mode] * im + u);
        s_im[mode] = im + (d_re[mode] * im + d_im[mode] * re + v);
    }
}
