//! The state space of a block: a convolution, or a recurrence where that is cheaper.

use rayon::prelude::*;

use crate::convolution::{Convolution, Dynamics, DynamicsGradient};
use crate::fourier::Point;
use crate::kernel::Modes;
use crate::lanes::Lanes;
use crate::pool::{Lease, Workspace};
use crate::real::LaneReal;
use crate::scan::Scan;

/// The largest number of modes for which the recurrence is taken: `docs/notebook/performance.md` has the
/// measurement.
const SCAN_MODES: usize = 8;

/// The state space of a block in the form that is cheaper.
pub enum Operator<T> {
    /// By FFT.
    Convolution(Convolution<T>),
    /// By the recurrence.
    Scan(Scan<T>),
}

impl<T: LaneReal> Operator<T> {
    /// With `keep` the kernels stay at hand for [`Operator::kernels`].
    pub fn new(
        lanes: Lanes,
        dynamics: &Dynamics<'_, T>,
        workspace: &Workspace<T>,
        keep: bool,
    ) -> Self {
        match is_recurrent(dynamics) {
            true => Operator::Scan(Scan::new(lanes, dynamics)),
            false => {
                let made = Convolution::new(lanes, dynamics, workspace, keep);
                Operator::Convolution(made)
            }
        }
    }

    /// As [`Operator::new`] without the kernels, on the caller's thread: for one that is needed for a
    /// moment by work that runs on all cores already.
    pub fn on_one_thread(
        lanes: Lanes,
        dynamics: &Dynamics<'_, T>,
        workspace: &Workspace<T>,
    ) -> Self {
        match is_recurrent(dynamics) {
            true => Operator::Scan(Scan::new(lanes, dynamics)),
            false => {
                let made = Convolution::on_one_thread(lanes, dynamics, workspace);
                Operator::Convolution(made)
            }
        }
    }

    /// The forward kernel of every channel, D in its first sample. Cost that of the kernels for a
    /// recurrence, and for a convolution that did not keep them.
    pub fn kernels(&self, dynamics: &Dynamics<'_, T>, length: usize) -> Vec<Vec<T>> {
        let mut kernels = match self {
            Operator::Convolution(convolution) if !convolution.kernels.is_empty() => {
                convolution.kernels.clone()
            }
            _ => {
                let modes = dynamics.forward.par_iter();
                modes.map(|modes| modes.kernel(length)).collect()
            }
        };
        for (kernel, d) in kernels.iter_mut().zip(dynamics.feedthrough) {
            kernel[0] += *d;
        }
        kernels
    }

    /// y ← the output of the state space on a slab u. `points` are two buffers of [`Operator::scratch`].
    pub fn forward(&self, u: &[T], y: &mut [T], points: &mut [Lease<Point<T>>; 2]) {
        match self {
            Operator::Convolution(convolution) => convolution.forward(u, y, points),
            Operator::Scan(scan) => scan.forward(u, y, points),
        }
    }

    /// As [`Operator::forward`], in place.
    pub fn apply(&self, y: &mut [T], points: &mut [Lease<Point<T>>; 2]) {
        match self {
            Operator::Convolution(convolution) => convolution.apply(y, points),
            Operator::Scan(scan) => scan.apply(y, points),
        }
    }

    /// Points of the sums of gradients over slabs.
    pub fn sums(&self) -> usize {
        match self {
            Operator::Convolution(convolution) => convolution.sums(),
            Operator::Scan(scan) => scan.sums(),
        }
    }

    /// Points of each of the two buffers that a pass works in.
    pub fn scratch(&self) -> usize {
        match self {
            Operator::Convolution(convolution) => convolution.scratch(),
            Operator::Scan(scan) => scan.scratch(),
        }
    }

    /// Points of each of the two buffers that [`Operator::apply`] works in.
    pub fn apply_scratch(&self) -> [usize; 2] {
        match self {
            Operator::Convolution(convolution) => [convolution.scratch(), 0],
            Operator::Scan(scan) => scan.apply_scratch(),
        }
    }

    /// u ← its gradient, from the gradient `g` of y; adds to the `sums` for [`Operator::gradient`].
    pub fn backward(
        &self,
        g: &[T],
        u: &mut [T],
        sums: &mut [Point<T>],
        points: &mut [Lease<Point<T>>; 2],
    ) {
        match self {
            Operator::Convolution(convolution) => convolution.backward(g, u, sums, points),
            Operator::Scan(scan) => scan.backward(g, u, sums, points),
        }
    }

    /// The gradients of the dynamics from the sums over all slabs; `further` is a gradient of the
    /// forward kernels, with D in the first sample, beside that of the outputs.
    pub fn gradient(
        &self,
        dynamics: &Dynamics<'_, T>,
        sums: &mut [Point<T>],
        further: Option<&[Vec<T>]>,
    ) -> DynamicsGradient<T> {
        let scan = match self {
            Operator::Convolution(convolution) => {
                return convolution.gradient(dynamics, sums, further);
            }
            Operator::Scan(scan) => scan,
        };
        let mut gradient = scan.gradient(dynamics, sums);
        let Some(further) = further else {
            return gradient;
        };
        let channels = gradient.forward.par_iter_mut().zip(dynamics.forward);
        channels.zip(further).for_each(|((sum, modes), further)| {
            let own = modes.gradient(further);
            let parts = sum.exponents.iter_mut().chain(&mut sum.weights);
            let others = own.exponents.iter().chain(&own.weights);
            parts.zip(others).for_each(|(a, b)| *a += b);
        });
        for (d, further) in gradient.feedthrough.iter_mut().zip(further) {
            *d += further[0];
        }
        gradient
    }
}

/// Whether modes are so few, and all run forward in time and decay, that the recurrence is cheaper.
pub fn is_recurrent<T>(dynamics: &Dynamics<'_, T>) -> bool {
    let few = |modes: &Modes| {
        modes.exponents.len() <= SCAN_MODES && modes.exponents.iter().all(|z| z.re <= 0.0)
    };
    dynamics.backward.is_empty() && dynamics.forward.iter().all(few)
}
