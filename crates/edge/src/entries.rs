//! Numbers as an image stores them.

use bytemuck::Pod;

use crate::{Real, Unit};

/// How numbers side by side are stored.
pub(crate) trait Entries<T: Real> {
    /// One number.
    type Entry: Pod;
    /// Whether a power of two for the whole layer stands beside them.
    const SCALED: bool;

    /// The vector `part` of some lanes.
    fn vector<U: Unit<T>>(unit: U, lanes: &[Self::Entry], part: usize) -> U::Vector;
}

/// In the image's precision.
pub(crate) struct Full;
/// The upper halves of f32.
pub(crate) struct Bf16;
/// IEEE half precision.
pub(crate) struct Half;

impl<T: Real> Entries<T> for Full {
    type Entry = T;
    const SCALED: bool = false;

    #[inline(always)]
    fn vector<U: Unit<T>>(_: U, lanes: &[T], part: usize) -> U::Vector {
        U::vectors(lanes)[part]
    }
}

impl<T: Real> Entries<T> for Bf16 {
    type Entry = u16;
    const SCALED: bool = false;

    #[inline(always)]
    fn vector<U: Unit<T>>(unit: U, lanes: &[u16], part: usize) -> U::Vector {
        unit.bf16s(&lanes[part * U::WIDTH..])
    }
}

impl<T: Real> Entries<T> for Half {
    type Entry = u16;
    const SCALED: bool = true;

    #[inline(always)]
    fn vector<U: Unit<T>>(unit: U, lanes: &[u16], part: usize) -> U::Vector {
        unit.halves(&lanes[part * U::WIDTH..])
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

    /// y ← y + u times these, from `first` on.
    #[inline(always)]
    pub(crate) fn add_products(self, first: usize, u: &[T], y: &mut [T]) {
        match self {
            Numbers::Full(numbers) => {
                for ((y, u), d) in y.iter_mut().zip(u).zip(&numbers[first..]) {
                    *y += *d * *u;
                }
            }
            Numbers::Half(numbers) => {
                for ((y, u), d) in y.iter_mut().zip(u).zip(&numbers[first..]) {
                    *y += T::from_half(*d) * *u;
                }
            }
        }
    }
}
