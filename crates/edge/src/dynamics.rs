//! The state space layers: s ← a s + u, y = Re Σ r s + D u.
//!
//! A pole is stored as d = a − 1, and a s is s + d s. A slow mode, a near 1, forgets over thousands of
//! steps; rounding d instead of a moves it that much less.

use crate::entries::{Full, Half, Modes};
use crate::image::Places;
use crate::streams::Streams;
use crate::{
    ImageView, Kept, LANES, Layer, Piece, Processor, Real, StepFault, Unit, code, matrix, padded,
};

/// Vectors of several rows, one after the other, each padded to whole groups of sixteen. A row is a
/// step of a stream: all streams of the first step, then those of the next.
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
pub(crate) struct Channels<'i, 's, 'v, T, U> {
    pub(crate) unit: U,
    pub(crate) image: &'s ImageView<'i, T>,
    pub(crate) kept: &'s Kept<'s>,
    /// Where the states of the layer start in those of a stream; then those of the next layer.
    pub(crate) first: &'s mut usize,
    pub(crate) vectors: Vectors<'v, T>,
}

impl<T: Real, U: Processor<T>> Piece for Channels<'_, '_, '_, T, U> {
    type Output = Result<(), StepFault>;

    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn run(self) -> Self::Output {
        let Channels {
            unit,
            image,
            kept,
            first,
            vectors,
        } = self;
        let (layer, width) = (&kept.layer, image.width());
        let count = vectors.channel_inputs.len();
        let places = image.places(layer)?;
        // All channels are put in order before, and back after: a vector that is read right behind the
        // single numbers that were written into it waits for them.
        let (sorted, made) = vectors.lanes.split_at_mut(count);
        let (inputs, outputs) = match places {
            None => (vectors.channel_inputs, &mut *vectors.channel_outputs),
            Some(places) => {
                places.gather(unit, vectors.channel_inputs, sorted);
                (&*sorted, &mut made[..count])
            }
        };
        let bank = Bank {
            image,
            layer,
            inputs,
            outputs: &mut *outputs,
            state: vectors.state,
            state_len: vectors.state_len,
            first: *first,
        };
        *first = match (layer.lanes, layer.numbers) {
            (4, code::HALF) => bank.step::<U::Four, Half, 4>(unit.four())?,
            (4, _) => bank.step::<U::Four, Full, 4>(unit.four())?,
            (8, code::HALF) => bank.step::<U::Eight, Half, 8>(unit.eight())?,
            (8, _) => bank.step::<U::Eight, Full, 8>(unit.eight())?,
            (_, code::HALF) => bank.step::<U, Half, LANES>(unit)?,
            _ => bank.step::<U, Full, LANES>(unit)?,
        };
        if let Some(d) = image.feedthrough(layer)? {
            for at in (0..count).step_by(width) {
                d.add_products(unit, &inputs[at..][..width], &mut outputs[at..][..width]);
            }
        }
        match (places, kept.back) {
            (None, _) => {}
            (_, Some(back)) => {
                let back = Places::Bytes(back);
                back.gather(unit, &made[..count], vectors.channel_outputs);
            }
            (Some(places), None) => places.scatter(&made[..count], vectors.channel_outputs),
        }
        Ok(())
    }
}

/// The systems of a layer, what they take and what they give.
struct Bank<'i, 's, 'v, T> {
    image: &'s ImageView<'i, T>,
    layer: &'s Layer,
    /// Of every row, in the order of the lanes.
    inputs: &'v [T],
    outputs: &'v mut [T],
    state: &'v mut [T],
    state_len: usize,
    /// The place of the layer's states in those of a stream.
    first: usize,
}

impl<T: Real> Bank<'_, '_, '_, T> {
    /// Takes every row, L channels side by side. Gives the place of the next layer's states.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn step<U: Unit<T>, E: Modes<T>, const L: usize>(self, unit: U) -> Result<usize, StepFault> {
        let Bank { image, layer, .. } = self;
        let width = image.width();
        let scales = [power(layer.pole_exponent), power(layer.residue_exponent)];
        let (mut at, mut first) = (layer.systems_at, self.first);
        for (group, &modes) in image.group_modes(layer)?.iter().enumerate() {
            let count = usize::from(modes) * 4 * L;
            let systems: &[E::Entry] = image.slice(at, count, "poles and residues")?;
            at += (count * size_of::<E::Entry>()) as u32;
            // Where the state of the next row's stream is.
            let mut state = first;
            for row in (0..self.inputs.len()).step_by(width) {
                let lanes = row + group * L;
                let states: &mut [[T; L]] = self.state[state..state + count / 2].as_chunks_mut().0;
                let u = &self.inputs[lanes..].as_chunks().0[0];
                let modes = ModesOf {
                    systems: systems.as_chunks::<L>().0.as_chunks().0,
                    states: states.as_chunks_mut().0,
                };
                let y = modes.recur::<U, E>(unit, u, scales);
                self.outputs[lanes..lanes + L].copy_from_slice(&y);
                state += self.state_len;
                if state >= self.state.len() {
                    state = first;
                }
            }
            first += count / 2;
        }
        Ok(first)
    }
}

/// 2 to the power of an exponent.
#[cfg_attr(not(target_os = "none"), inline(always))]
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
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn recur<U: Unit<T>, E: Modes<T, Entry = N>>(
        self,
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
            // Nothing here is a closure or a pair of iterators: those would be compiled without the
            // features of the unit.
            let count = self.systems.len().min(self.states.len());
            let (systems, states) = (&self.systems[..count], &mut self.states[..count]);
            for mode in 0..count {
                let [d_re, d_im, r_re, r_im] = E::mode(unit, &systems[mode], part);
                let [s_re, s_im] = &mut states[mode];
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
#[cfg_attr(not(target_os = "none"), inline(always))]
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
    let Vectors { scratch, room, .. } = vectors;
    let mut start = *first;
    for row in (0..vectors.channel_inputs.len()).step_by(width) {
        let channel_inputs = &vectors.channel_inputs[row..][..width];
        let channel_outputs = &mut vectors.channel_outputs[row..][..width];
        let (drive, beside) = scratch[..parts + width].split_at_mut(parts);
        if parts > 0 {
            let inputs = Streams::one(channel_inputs, drive);
            matrix::apply(unit, image, &input, room, inputs)?;
        }
        let state = &mut vectors.state[start..start + parts];
        advance(poles, drive, state);
        drive.copy_from_slice(state);
        beside.copy_from_slice(channel_inputs);
        let driven = Streams::one(&scratch[..parts + width], &mut *channel_outputs);
        matrix::apply(unit, image, &output, room, driven)?;
        if let Some(d) = feedthrough {
            d.add_products(unit, channel_inputs, channel_outputs);
        }
        start += vectors.state_len;
        if start >= vectors.state.len() {
            start = *first;
        }
    }
    *first += parts;
    Ok(())
}

/// s ← a s + drive, a = 1 + d; the real parts of all modes stand before the imaginary ones.
#[cfg_attr(not(target_os = "none"), inline(always))]
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
