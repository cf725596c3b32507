//! Vectors of numbers that lie in a temporary file, not in memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};

/// A file without a name in the folder for temporary files (`TMPDIR`), which goes when the last owner of it
/// does, however the program ends. Takes its bytes one vector after the other.
#[derive(Debug)]
pub(crate) struct NumberStore {
    file: Mutex<File>,
}

/// Where a vector lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    first: u64,
    count: usize,
}

impl NumberStore {
    /// An empty one.
    ///
    /// # Errors
    /// Where no temporary file can be made.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            file: Mutex::new(tempfile::tempfile()?),
        })
    }

    /// Writes a vector behind the others.
    pub(super) fn put(&self, numbers: &[f64]) -> io::Result<Place> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let first = file.seek(SeekFrom::End(0))?;
        file.write_all(&bytes)?;
        let count = numbers.len();
        Ok(Place { first, count })
    }

    /// Reads a vector.
    pub(super) fn get(&self, place: Place) -> io::Result<Vec<f64>> {
        let mut bytes = vec![0; 8 * place.count];
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(place.first))?;
            file.read_exact(&mut bytes)?;
        }
        let (numbers, _) = bytes.as_chunks::<8>();
        Ok(numbers.iter().map(|&x| f64::from_le_bytes(x)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_back_from_any_place_bit_for_bit() {
        let store = NumberStore::new().unwrap();
        let vectors = [
            vec![1.5, -0.0, f64::MIN_POSITIVE],
            vec![],
            vec![1e300; 5000],
        ];
        let places: Vec<Place> = vectors.iter().map(|x| store.put(x).unwrap()).collect();
        for (place, vector) in places.iter().zip(&vectors).rev() {
            let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&store.get(*place).unwrap()), bits(vector));
        }
    }
}
