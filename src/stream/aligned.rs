//! Memory that starts at a line of cache.

/// Bytes of a line of cache, and of the widest vector.
pub(super) const LINE: usize = 64;

/// Numbers whose first lies at a multiple of 64 bytes.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    numbers: Vec<T>,
    start: usize,
    length: usize,
}

impl<T: Copy + Default> Aligned<T> {
    pub(super) fn zero(length: usize) -> Self {
        let numbers = vec![T::default(); length + LINE / size_of::<T>()];
        let start = numbers.as_ptr().align_offset(LINE);
        // Where the offset is unknown, the numbers lie as they lie: slower, not wrong.
        let start = start.min(numbers.len() - length);
        Self {
            numbers,
            start,
            length,
        }
    }

    pub(super) fn copied(from: &[T]) -> Self {
        let mut aligned = Self::zero(from.len());
        aligned.as_mut_slice().copy_from_slice(from);
        aligned
    }

    pub(super) fn as_slice(&self) -> &[T] {
        &self.numbers[self.start..self.start + self.length]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.numbers[self.start..self.start + self.length]
    }
}

impl<T: Copy + Default> Clone for Aligned<T> {
    fn clone(&self) -> Self {
        Self::copied(self.as_slice())
    }
}
