//! The state spaces of a layer in single precision.

use hankelite_control::DiagonalSystem;
use hankelite_kernels::{
    Dynamics, Lanes, Lease, Modes, Operator, Point, SharedDynamics, SharedGradient, SharedScan,
    SharedWay, Workspace, is_recurrent,
};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::model::Block;

/// The state spaces of a layer.
pub(super) enum Space {
    /// One for each channel.
    Held(Operator<f32>),
    /// What an operator of these is formed from.
    Formed(LayerModes),
    /// One for all channels.
    Shared(SharedSpace),
}

/// One system for each channel.
pub(super) struct LayerModes {
    forward: Vec<Modes>,
    backward: Vec<Modes>,
    feedthrough: Vec<f32>,
}

/// One system for all channels, in one direction of time or in both.
pub(super) struct SharedSpace {
    scan: SharedScan<f32>,
    exponents: Vec<Complex64>,
}

/// State spaces that are at hand, or for as long as they are needed.
pub(super) enum Prepared<'a> {
    Held(&'a Operator<f32>),
    Formed(Operator<f32>),
    Shared(&'a SharedSpace),
}

/// What state spaces work in.
pub(super) struct SpaceScratch {
    points: [Lease<Point<f32>>; 2],
    /// Where channels share modes: one sequence, its states, and what the way back works in.
    row: Lease<f32>,
    states: Lease<f32>,
    back: Lease<f32>,
}

/// Sizes of the buffers of a [`SpaceScratch`].
#[derive(Clone, Copy, Default)]
pub(super) struct ScratchSizes {
    points: [usize; 2],
    row: usize,
    states: usize,
    back: usize,
}

impl ScratchSizes {
    pub(super) fn largest(self, other: Self) -> Self {
        Self {
            points: std::array::from_fn(|i| self.points[i].max(other.points[i])),
            row: self.row.max(other.row),
            states: self.states.max(other.states),
            back: self.back.max(other.back),
        }
    }

    pub(super) fn leased(self, workspace: &Workspace<f32>) -> SpaceScratch {
        SpaceScratch {
            points: self.points.map(|count| workspace.points(count)),
            row: workspace.numbers(self.row),
            states: workspace.numbers(self.states),
            back: workspace.numbers(self.back),
        }
    }
}

pub(super) fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// The modes of some systems; `None` where numbers overflow.
fn modes_of(systems: &[DiagonalSystem], length: usize) -> Option<Vec<Modes>> {
    let modes = systems.iter().map(|system| {
        let exponents = system.scaled_exponents();
        let residues = system.as_siso().ok()?.residues();
        let anchored = residues.zip(&exponents).map(|(w, z)| match z.re > 0.0 {
            true => w * (z * (length as f64 - 1.0)).exp(),
            false => w,
        });
        let weights: Vec<Complex64> = anchored.collect();
        let fine = weights.iter().all(|w| w.re.is_finite() && w.im.is_finite());
        fine.then_some(Modes { exponents, weights })
    });
    modes.collect()
}

/// Kernels that start at the current sample as D and kernels that start at the next one; `None`
/// for growing modes, which are anchored at their end.
fn lag_by_one(modes: &mut [Modes], feedthrough: &mut [f64]) -> Option<()> {
    for (modes, d) in modes.iter_mut().zip(feedthrough) {
        for (z, w) in modes.exponents.iter().zip(&mut modes.weights) {
            if z.re > 0.0 {
                return None;
            }
            *d += w.re;
            *w *= z.exp();
        }
    }
    Some(())
}

impl LayerModes {
    fn of(block: &Block, length: usize) -> Option<Self> {
        let forward = modes_of(block.systems(), length)?;
        let mut backward = modes_of(block.backward(), length)?;
        let feedthrough = block.systems().iter().map(|s| s.feedthrough()[(0, 0)]);
        let mut feedthrough: Vec<f64> = feedthrough.collect();
        if block.backward_from() == 0 {
            lag_by_one(&mut backward, &mut feedthrough)?;
        }
        Some(Self {
            forward,
            backward,
            feedthrough: narrow(&feedthrough),
        })
    }

    pub(super) fn dynamics(&self) -> Dynamics<'_, f32> {
        Dynamics {
            forward: &self.forward,
            backward: &self.backward,
            feedthrough: &self.feedthrough,
        }
    }
}

/// The rows of a real matrix, in single precision.
fn by_rows(matrix: &DMatrix<f64>) -> Vec<f32> {
    narrow(matrix.transpose().as_slice())
}

impl SharedSpace {
    /// `None` for other shapes than one system in one direction or both, with the same modes and
    /// input weights and as many outputs as inputs, for modes that do not decay, and where numbers
    /// overflow.
    fn of(block: &Block, length: usize) -> Option<Self> {
        let [system] = block.systems() else {
            return None;
        };
        let (input, channels) = (system.input(), block.channels());
        let alike = |other: &DiagonalSystem| {
            block.backward_from() == 0
                && (other.exponents(), other.input()) == (system.exponents(), input)
        };
        let fits = input.ncols() == channels && system.output().nrows() == channels;
        if !fits || block.backward().len() > 1 || !block.backward().iter().all(alike) {
            return None;
        }
        let exponents = system.scaled_exponents();
        let parts = [input.map(|b| b.re), input.map(|b| b.im)];
        let input = parts.iter().flat_map(by_rows).collect::<Vec<f32>>();
        let output = block.all_systems().flat_map(|system| {
            let rows = system.output().row_iter();
            let rows = rows.flat_map(|row| {
                let (re, im) = (row.map(|c| c.re as f32), row.map(|c| -c.im as f32));
                let both: Vec<f32> = re.iter().chain(im.iter()).copied().collect();
                both
            });
            rows.collect::<Vec<f32>>()
        });
        let output: Vec<f32> = output.collect();
        let through = system.feedthrough();
        let feedthrough = match *through == DMatrix::from_diagonal(&through.diagonal()) {
            true => narrow(through.diagonal().as_slice()),
            false => by_rows(through),
        };
        let mut numbers = input.iter().chain(&output).chain(&feedthrough);
        let decay = exponents.iter().all(|z| z.re < 0.0 && z.im.is_finite());
        if !decay || !numbers.all(|x| x.is_finite()) {
            return None;
        }
        let dynamics = SharedDynamics {
            channels,
            exponents: &exponents,
            input: &input,
            output: &output,
            feedthrough: &feedthrough,
        };
        Some(Self {
            scan: SharedScan::new(length, dynamics),
            exponents,
        })
    }
}

impl Space {
    /// No operator is formed yet. `None` for systems that only double precision has.
    pub(super) fn of(block: &Block, length: usize) -> Option<Self> {
        match block.is_siso() {
            true => Some(Self::Formed(LayerModes::of(block, length)?)),
            false => Some(Self::Shared(SharedSpace::of(block, length)?)),
        }
    }

    /// Forms the operator to be held.
    pub(super) fn hold(&mut self, lanes: Lanes, workspace: &Workspace<f32>) {
        if let Self::Formed(modes) = self {
            *self = Self::Held(Operator::new(lanes, &modes.dynamics(), workspace, false));
        }
    }

    /// Bytes that the spectra take.
    pub(super) fn spectra(&self, lanes: Lanes) -> usize {
        let points = match self {
            Self::Formed(modes) if !is_recurrent(&modes.dynamics()) => lanes.groups * lanes.length,
            _ => 0,
        };
        points * size_of::<Point<f32>>()
    }

    /// The operator, formed on all cores where it is not held, or on the caller's thread.
    pub(super) fn prepared(
        &self,
        lanes: Lanes,
        workspace: &Workspace<f32>,
        on_all_cores: bool,
    ) -> Prepared<'_> {
        match self {
            Self::Held(operator) => Prepared::Held(operator),
            Self::Shared(shared) => Prepared::Shared(shared),
            Self::Formed(modes) if on_all_cores => {
                Prepared::Formed(Operator::new(lanes, &modes.dynamics(), workspace, false))
            }
            Self::Formed(modes) => {
                let dynamics = modes.dynamics();
                Prepared::Formed(Operator::on_one_thread(lanes, &dynamics, workspace))
            }
        }
    }

    /// Numbers of the states of one sequence that the way back can keep.
    pub(super) fn states(&self) -> usize {
        match self {
            Self::Shared(SharedSpace { scan, .. }) => scan.states(),
            _ => 0,
        }
    }

    pub(super) fn scratch(&self, lanes: Lanes, workspace: &Workspace<f32>) -> ScratchSizes {
        match self {
            Self::Held(operator) => ScratchSizes {
                points: operator.apply_scratch(),
                ..ScratchSizes::default()
            },
            Self::Formed(_) => ScratchSizes {
                points: [workspace.convolution_points(lanes.length), 0],
                ..ScratchSizes::default()
            },
            Self::Shared(SharedSpace { scan, .. }) => ScratchSizes {
                row: lanes.length * lanes.channels,
                states: scan.states(),
                back: scan.scratch(),
                ..ScratchSizes::default()
            },
        }
    }
}

/// The way back through the state spaces of a layer.
pub(super) struct SpaceBack<'a> {
    pub(super) channels: usize,
    /// What they take, of one sequence.
    pub(super) input: &'a [f32],
    /// Their states on the way forwards; none where they are to be found again.
    pub(super) states: &'a [f32],
    /// Gets the derivatives by the numbers of a system that channels share, one for each gradient, where
    /// they are requested.
    pub(super) slopes: Option<&'a mut Vec<SharedGradient<f32>>>,
}

impl Prepared<'_> {
    /// y ← what the state spaces give, from what they take; whole sequences.
    pub(super) fn apply(&self, y: &mut [f32], scratch: &mut SpaceScratch) {
        self.apply_with(y, scratch, &mut []);
    }

    /// The same for one sequence, whose states stay in `kept`.
    pub(super) fn apply_with(&self, y: &mut [f32], scratch: &mut SpaceScratch, kept: &mut [f32]) {
        let shared = match self {
            Self::Held(operator) => return operator.apply(y, &mut scratch.points),
            Self::Formed(operator) => return operator.apply(y, &mut scratch.points),
            Self::Shared(shared) => shared,
        };
        let SpaceScratch { row, states, .. } = scratch;
        let states = match kept {
            [] => &mut states[..shared.scan.states()],
            kept => kept,
        };
        for y in y.chunks_exact_mut(row.len()) {
            row.copy_from_slice(y);
            shared.scan.forward(row, y, states);
        }
    }

    /// z ← the gradients at one sequence by what the state spaces take, from those by what they give.
    pub(super) fn pull(&self, back: SpaceBack<'_>, z: &mut [f32], scratch: &mut SpaceScratch) {
        let Self::Shared(shared) = self else {
            // The adjoint of a convolution is the convolution in reversed time.
            turn(z, back.input.len(), back.channels);
            self.apply(z, scratch);
            return turn(z, back.input.len(), back.channels);
        };
        let SpaceScratch {
            row,
            states,
            back: work,
            ..
        } = scratch;
        let states = match back.states {
            [] => {
                let states = &mut states[..shared.scan.states()];
                shared.scan.forward(back.input, row, states);
                states
            }
            kept => kept,
        };
        let mut slopes = back.slopes;
        let mut sums = vec![0.0; shared.scan.sums()];
        for z in z.chunks_exact_mut(row.len()) {
            row.copy_from_slice(z);
            let way = SharedWay {
                u: back.input,
                g: row,
                states,
            };
            shared.scan.backward(way, z, &mut sums, work);
            if let Some(slopes) = &mut slopes {
                slopes.push(shared.scan.gradient(&shared.exponents, &sums));
                sums.fill(0.0);
            }
        }
    }
}

/// Puts the rows of every sequence in reversed order.
fn turn(rows: &mut [f32], row: usize, channels: usize) {
    for sequence in rows.chunks_exact_mut(row) {
        let middle = row / channels / 2 * channels;
        let (early, late) = sequence.split_at_mut(middle);
        let pairs = early
            .chunks_exact_mut(channels)
            .zip(late.rchunks_exact_mut(channels));
        pairs.for_each(|(a, b)| a.swap_with_slice(b));
    }
}
