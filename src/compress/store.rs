//! Channels whose long vectors lie in a temporary file, not in memory.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use hankelite_control::{PartedChannel, WeightedChannel};

use crate::compress::ChannelFault;

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
    fn put(&self, numbers: &[f64]) -> io::Result<Place> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let first = file.seek(SeekFrom::End(0))?;
        file.write_all(&bytes)?;
        let count = numbers.len();
        Ok(Place { first, count })
    }

    /// Reads a vector.
    fn get(&self, place: Place) -> io::Result<Vec<f64>> {
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

/// A channel under the weight of its input.
pub(super) enum Target {
    Held(WeightedChannel),
    /// Its long vectors lie in a file.
    Stored {
        channel: PartedChannel,
        store: Arc<NumberStore>,
        place: Place,
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
                let joined = channel.joined(store.get(*place)?);
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
        let places: Vec<Place> = vectors.iter().map(|x| store.put(x).unwrap()).collect();
        for (place, vector) in places.iter().zip(&vectors).rev() {
            let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&store.get(*place).unwrap()), bits(vector));
        }
    }
}
