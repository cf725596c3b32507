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

    /// The vectors `part` of pole and residue of one mode of L channels.
    fn mode<U: Unit<T>, const L: usize>(
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
    fn mode<U: Unit<T>, const L: usize>(
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
    fn mode<U: Unit<T>, const L: usize>(
        unit: U,
        stored: &[[u16; L]; 4],
        part: usize,
    ) -> [U::Vector; 4] {
        let at = part * U::WIDTH;
        let [d_re, d_im, r_re, r_im] = stored;
        [
            unit.halves(&d_re[at..]),
            unit.halves(&d_im[at..]),
            unit.halves(&r_re[at..]),
            unit.halves(&r_im[at..]),
        ]
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
    #[cfg_attr(not(target_os = "none"), inline(always))]
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

    /// The vector `part`.
    #[inline(always)]
    fn vector<U: Unit<T>>(self, unit: U, part: usize) -> U::Vector {
        match self {
            Numbers::Full(numbers) => U::vectors(numbers)[part],
            Numbers::Half(numbers) => unit.halves(&numbers[part * U::WIDTH..][..U::WIDTH]),
        }
    }

    /// x ← x + these. Here as below whole vectors.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn add_to<U: Unit<T>>(self, unit: U, x: &mut [T]) {
        for (part, x) in U::vectors_mut(x).iter_mut().enumerate() {
            *x = unit.add(*x, self.vector(unit, part));
        }
    }

    /// x ← x times these.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn scale<U: Unit<T>>(self, unit: U, x: &mut [T]) {
        for (part, x) in U::vectors_mut(x).iter_mut().enumerate() {
            *x = unit.mul(*x, self.vector(unit, part));
        }
    }

    /// y ← y + u times these.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn add_products<U: Unit<T>>(self, unit: U, u: &[T], y: &mut [T]) {
        let u = U::vectors(u);
        for (part, y) in U::vectors_mut(y).iter_mut().enumerate() {
            *y = unit.mul_add(self.vector(unit, part), u[part], *y);
        }
    }
}
