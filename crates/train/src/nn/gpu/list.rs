//! Parameters, or what belongs to each, as kernels take them that work on all at once: `cuda/adamw.cu`,
//! `cuda/join.cu`.

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::{Device, Result, bail};

use super::Grid;

/// Numbers of a tile, and threads of a block, as in the kernels.
const TILE: usize = 1024;
pub(super) const THREADS: usize = 256;

/// Words in front of all pieces.
pub(super) const HEAD: usize = 2;

/// Pieces and their tiles on the device, with two words in front: addresses, and what keeps them.
pub(super) struct List {
    pub(super) head: u64,
    pub(super) pieces: u64,
    pub(super) tiles: u64,
    /// Of tiles.
    pub(super) count: usize,
    _words: CudaSlice<u64>,
}

impl List {
    /// Of pieces of so many numbers.
    pub(super) fn new<const WORDS: usize>(
        device: &Device,
        head: [u64; HEAD],
        pieces: Vec<[u64; WORDS]>,
        counts: impl Iterator<Item = usize>,
    ) -> Result<Self> {
        let Device::Cuda(device) = device else {
            bail!("expected tensors on a GPU");
        };
        let first_tile = HEAD + WORDS * pieces.len();
        let mut words = head.to_vec();
        words.extend(pieces.iter().flatten());
        for (piece, count) in counts.enumerate() {
            // The piece, then its first number, as two integers of 32 bits.
            let tiles = (0..count as u64).step_by(TILE);
            words.extend(tiles.map(|at| piece as u64 | at << 32));
        }
        let kept = device.clone_htod(&words)?;
        let start = kept.device_ptr(&device.cuda_stream()).0;
        let at = |word: usize| start + (word * size_of::<u64>()) as u64;
        Ok(Self {
            head: at(0),
            pieces: at(HEAD),
            tiles: at(first_tile),
            count: words.len() - first_tile,
            _words: kept,
        })
    }

    /// A block for each tile.
    pub(super) fn grid(&self) -> Grid {
        Grid {
            blocks: [self.count, 1, 1],
            threads: [THREADS, 1],
        }
    }
}
