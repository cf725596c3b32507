//! Long vectors that lie in a temporary file, not in memory.

use std::borrow::Cow;
#[cfg(not(target_family = "wasm"))]
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use hankelite_control::{PartedChannel, WeightedChannel};

use crate::compress::ChannelFault;

/// Where there are no files, memory stands for one.
#[cfg(target_family = "wasm")]
type File = io::Cursor<Vec<u8>>;

/// Bytes on their way to the file or from it.
const BUFFER: usize = 1 << 16;

/// A file without a name in the folder for temporary files (`TMPDIR`), which goes when the last owner of it
/// does, however the program ends. Takes its bytes one vector after the other.
#[derive(Debug)]
pub(crate) struct NumberStore {
    file: Mutex<File>,
}

/// Where a vector lies.
#[derive(Debug)]
pub(crate) struct Place<T> {
    first: u64,
    count: usize,
    numbers: PhantomData<T>,
}

/// Numbers that a store takes.
pub(crate) trait Stored: Copy {
    fn append(self, bytes: &mut Vec<u8>);
    /// From as many bytes as it has.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! stored {
    ($($number:ty),*) => {$(
        impl Stored for $number {
            fn append(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )*};
}

stored!(f32, f64);

impl NumberStore {
    /// An empty one.
    ///
    /// # Errors
    /// Where no temporary file can be made.
    pub(crate) fn new() -> io::Result<Self> {
        #[cfg(not(target_family = "wasm"))]
        let file = tempfile::tempfile()?;
        #[cfg(target_family = "wasm")]
        let file = File::default();
        let file = Mutex::new(file);
        Ok(Self { file })
    }

    /// Writes a vector behind the others.
    pub(crate) fn put<T: Stored>(&self, numbers: &[T]) -> io::Result<Place<T>> {
        let first = self.write(SeekFrom::End(0), numbers)?;
        Ok(Place {
            first,
            count: numbers.len(),
            numbers: PhantomData,
        })
    }

    /// A place for so many numbers, which hold anything before they are written.
    pub(crate) fn reserve<T: Stored>(&self, count: usize) -> io::Result<Place<T>> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let first = file.seek(SeekFrom::End(0))?;
        let end = first + (count * size_of::<T>()) as u64;
        #[cfg(not(target_family = "wasm"))]
        file.set_len(end)?;
        #[cfg(target_family = "wasm")]
        file.get_mut().resize(end as usize, 0);
        Ok(Place {
            first,
            count,
            numbers: PhantomData,
        })
    }

    /// Writes another vector of the same length in the place of one.
    pub(crate) fn replace<T: Stored>(&self, place: &Place<T>, numbers: &[T]) -> io::Result<()> {
        assert_eq!(place.count, numbers.len(), "a place takes what it took");
        self.write(SeekFrom::Start(place.first), numbers)?;
        Ok(())
    }

    /// Writes numbers and returns where they begin.
    fn write<T: Stored>(&self, from: SeekFrom, numbers: &[T]) -> io::Result<u64> {
        let mut bytes = Vec::with_capacity(BUFFER);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let first = file.seek(from)?;
        for few in numbers.chunks(BUFFER / size_of::<T>()) {
            bytes.clear();
            few.iter().for_each(|x| x.append(&mut bytes));
            file.write_all(&bytes)?;
        }
        Ok(first)
    }

    /// Reads a vector.
    pub(crate) fn get(&self, place: &Place<f64>) -> io::Result<Vec<f64>> {
        let mut numbers = vec![0.0; place.count];
        self.read(place, &mut numbers)?;
        Ok(numbers)
    }

    /// Reads a vector into numbers of the same length.
    pub(crate) fn read<T: Stored>(&self, place: &Place<T>, numbers: &mut [T]) -> io::Result<()> {
        assert_eq!(place.count, numbers.len(), "a place gives what it took");
        let mut bytes = [0; BUFFER];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(place.first))?;
        for few in numbers.chunks_mut(BUFFER / size_of::<T>()) {
            let own = &mut bytes[..size_of_val(few)];
            file.read_exact(own)?;
            let each = own.chunks_exact(size_of::<T>());
            few.iter_mut()
                .zip(each)
                .for_each(|(number, bytes)| *number = T::from_bytes(bytes));
        }
        Ok(())
    }
}

impl<T> Place<T> {
    /// Of some of its numbers.
    pub(crate) fn part(&self, from: usize, count: usize) -> Self {
        assert!(from + count <= self.count, "a part of the place");
        Self {
            first: self.first + (from * size_of::<T>()) as u64,
            count,
            numbers: PhantomData,
        }
    }

    /// Numbers of the vector.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

/// A channel under the weight of its input.
pub(super) enum Target {
    Held(WeightedChannel),
    /// Its long vectors lie in a file.
    Stored {
        channel: PartedChannel,
        store: Arc<NumberStore>,
        place: Place<f64>,
    },
}

impl Target {
    /// In memory, or with its vectors in the store.
    pub(super) fn new(
        channel: WeightedChannel,
        store: Option<&Arc<NumberStore>>,
    ) -> Result<Self, ChannelFault> {
        let Some(store) = store else {
            return Ok(Self::Held(channel));
        };
        let (channel, numbers) = channel.part();
        Ok(Self::Stored {
            place: store.put(&numbers)?,
            store: Arc::clone(store),
            channel,
        })
    }

    /// The channel, read from the file where it lies there.
    pub(super) fn channel(&self) -> Result<Cow<'_, WeightedChannel>, ChannelFault> {
        match self {
            Self::Held(channel) => Ok(Cow::Borrowed(channel)),
            Self::Stored {
                channel,
                store,
                place,
            } => {
                let joined = channel.joined(store.get(place)?);
                let fault = || io::Error::from(io::ErrorKind::UnexpectedEof);
                Ok(Cow::Owned(joined.ok_or_else(fault)?))
            }
        }
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
        let places: Vec<Place<f64>> = vectors.iter().map(|x| store.put(x).unwrap()).collect();
        for (place, vector) in places.iter().zip(&vectors).rev() {
            let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&store.get(place).unwrap()), bits(vector));
        }
    }

    #[test]
    fn parts_of_a_place_are_written_in_any_order() {
        let store = NumberStore::new().unwrap();
        let (place, behind) = (store.reserve::<f64>(5).unwrap(), store.put(&[9.0]).unwrap());
        store.replace(&place.part(3, 2), &[4.0, 5.0]).unwrap();
        store.replace(&place.part(0, 3), &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(store.get(&place).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(store.get(&behind).unwrap(), [9.0]);
    }

    #[test]
    fn a_vector_takes_the_place_of_another_between_its_neighbours() {
        let store = NumberStore::new().unwrap();
        let [first, second, third] =
            [1.0f32, 2.0, 3.0].map(|x| store.put(&vec![x; 40_000]).unwrap());
        store.replace(&second, &vec![-7.5; 40_000]).unwrap();
        for (place, value) in [(first, 1.0), (second, -7.5), (third, 3.0)] {
            let mut found = vec![0.0; 40_000];
            store.read(&place, &mut found).unwrap();
            assert_eq!(found, vec![value; 40_000]);
        }
    }
}
