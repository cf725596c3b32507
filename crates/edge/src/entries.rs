//! Numbers as an image stores them.

use bytemuck::Pod;

use crate::{Real, Unit};

/// How the entries of a matrix are stored that is no integer one.
pub(crate) trait Entries<T: Real> {
    /// One number.
    type Entry: Pod;

    /// The vector `part` of some lanes.
    fn vector<U: Unit<T>>(unit: U, lanes: &[Self::Entry], part: usize) -> U::Vector;
}

/// How poles and residues are stored.
pub(crate) trait Modes<T: Real> {
    /// One number.
    type Entry: Pod;
    /// Whether a power of two for the whole layer stands beside them.
    const SCALED: bool;

    /// The vectors `part` of pole and residue of one mode of L channels. `wide` has the widest vectors,
    /// for several rows at once.
    fn mode<W: Unit<T>, U: Unit<T>, const L: usize>(
        wide: W,
        unit: U,
        stored: &[[Self::Entry; L]; 4],
        part: usize,
    ) -> [U::Vector; 4];
}

/// In the image's precision.
pub(crate) struct Full;
/// The upper halves of f32.
pub(crate) struct Bf16;
/// IEEE half precision.
pub(crate) struct Half;

impl<T: Real> Entries<T> for Full {
    type Entry = T;

    #[inline(always)]
    fn vector<U: Unit<T>>(_: U, lanes: &[T], part: usize) -> U::Vector {
        U::vectors(lanes)[part]
    }
}

impl<T: Real> Entries<T> for Bf16 {
    type Entry = u16;

    #[inline(always)]
    fn vector<U: Unit<T>>(unit: U, lanes: &[u16], part: usize) -> U::Vector {
        unit.bf16s(&lanes[part * U::WIDTH..])
    }
}

impl<T: Real> Modes<T> for Full {
    type Entry = T;
    const SCALED: bool = false;

    #[inline(always)]
    fn mode<W: Unit<T>, U: Unit<T>, const L: usize>(
        _: W,
        _: U,
        [d_re, d_im, r_re, r_im]: &[[T; L]; 4],
        part: usize,
    ) -> [U::Vector; 4] {
        [
            U::vectors(d_re)[part],
            U::vectors(d_im)[part],
            U::vectors(r_re)[part],
            U::vectors(r_im)[part],
        ]
    }
}

impl<T: Real> Modes<T> for Half {
    type Entry = u16;
    const SCALED: bool = true;

    #[inline(always)]
    fn mode<W: Unit<T>, U: Unit<T>, const L: usize>(
        wide: W,
        unit: U,
        stored: &[[u16; L]; 4],
        part: usize,
    ) -> [U::Vector; 4] {
        if L > U::WIDTH {
            let at = part * U::WIDTH;
            let [d_re, d_im, r_re, r_im] = stored;
            return [
                unit.halves(&d_re[at..]),
                unit.halves(&d_im[at..]),
                unit.halves(&r_re[at..]),
                unit.halves(&r_im[at..]),
            ];
        }
        let (halves, mut numbers) = (stored.as_flattened(), [[T::default(); L]; 4]);
        let made = W::vectors_mut(numbers.as_flattened_mut());
        for index in 0..4 * L / W::WIDTH {
            made[index] = wide.halves(&halves[index * W::WIDTH..]);
        }
        Full::mode(wide, unit, &numbers, 0)
    }
}

/// A vector of an image.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a, T> {
    Full(&'a [T]),
    Half(&'a [u16]),
}

impl<'a, T: Real> Numbers<'a, T> {
    /// The first `count` numbers and the rest.
    #[inline(always)]
    pub(crate) fn halves(self, count: usize) -> [Self; 2] {
        match self {
            Numbers::Full(numbers) => {
                let (first, rest) = numbers.split_at(count);
                [Numbers::Full(first), Numbers::Full(rest)]
            }
            Numbers::Half(numbers) => {
                let (first, rest) = numbers.split_at(count);
                [Numbers::Half(first), Numbers::Half(rest)]
            }
        }
    }

    /// x ← x + these.
    #[inline(always)]
    pub(crate) fn add_to(self, x: &mut [T]) {
        match self {
            Numbers::Full(numbers) => {
                for (x, number) in x.iter_mut().zip(numbers) {
                    *x += *number;
                }
            }
            Numbers::Half(numbers) => {
                for (x, number) in x.iter_mut().zip(numbers) {
                    *x += T::from_half(*number);
                }
            }
        }
    }

    /// x ← x times these.
    #[inline(always)]
    pub(crate) fn scale(self, x: &mut [T]) {
        match self {
            Numbers::Full(numbers) => {
                for (x, number) in x.iter_mut().zip(numbers) {
                    *x = *x * *number;
                }
            }
            Numbers::Half(numbers) => {
                for (x, number) in x.iter_mut().zip(numbers) {
                    *x = *x * T::from_half(*number);
                }
            }
        }
    }

    /// y ← y + u times these.
    #[inline(always)]
    pub(crate) fn add_products(self, u: &[T], y: &mut [T]) {
        match self {
            Numbers::Full(numbers) => {
                for ((y, u), d) in y.iter_mut().zip(u).zip(numbers) {
                    *y += *d * *u;
                }
            }
            Numbers::Half(numbers) => {
                for ((y, u), d) in y.iter_mut().zip(u).zip(numbers) {
                    *y += T::from_half(*d) * *u;
                }
            }
        }
    }
}
