//! The state space of a block: a convolution, or a recurrence where that is cheaper.

use crate::nn::convolution::Convolution;
use crate::nn::convolution::Dynamics;
use crate::nn::convolution::DynamicsGradient;
use crate::nn::fourier::Point;
use crate::nn::kernel::Modes;
use crate::nn::lanes::Lanes;
use crate::nn::pool::Lease;
use crate::nn::pool::Workspace;
use crate::nn::real::Real;
use crate::nn::scan::Scan;

/// The largest number of modes for which the recurrence is taken: `docs/performance.md` has the
/// measurement.
const SCAN_MODES: usize = 8;

/// The state space of a block in the form that is cheaper.
pub(super) enum Operator<T> {
    Convolution(Convolution<T>),
    Scan(Scan<T>),
}

impl<T: Real> Operator<T> {
    pub(super) fn new(lanes: Lanes, dynamics: &Dynamics<'_, T>, workspace: &Workspace<T>) -> Self {
        let few = |modes: &Modes| {
            modes.exponents.len() <= SCAN_MODES && modes.exponents.iter().all(|z| z.re <= 0.0)
        };
        if dynamics.backward.is_empty() && dynamics.forward.iter().all(few) {
            Operator::Scan(Scan::new(lanes, dynamics))
        } else {
            Operator::Convolution(Convolution::new(lanes, dynamics, workspace))
        }
    }

    pub(super) fn forward(&self, u: &[T], y: &mut [T], points: &mut [Lease<Point<T>>; 2]) {
        match self {
            Operator::Convolution(convolution) => convolution.forward(u, y, points),
            Operator::Scan(scan) => scan.forward(u, y, points),
        }
    }

    pub(super) fn sums(&self) -> usize {
        match self {
            Operator::Convolution(convolution) => convolution.sums(),
            Operator::Scan(scan) => scan.sums(),
        }
    }

    pub(super) fn scratch(&self) -> usize {
        match self {
            Operator::Convolution(convolution) => convolution.scratch(),
            Operator::Scan(scan) => scan.scratch(),
        }
    }

    pub(super) fn backward(
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

    pub(super) fn gradient(
        &self,
        dynamics: &Dynamics<'_, T>,
        sums: &mut [Point<T>],
    ) -> DynamicsGradient<T> {
        match self {
            Operator::Convolution(convolution) => convolution.gradient(dynamics, sums),
            Operator::Scan(scan) => scan.gradient(dynamics, sums),
        }
    }
}
