//! The state space of a block on slabs of a batch: one system for each channel, or one for all.

use hankelite_kernels::{
    Dynamics, Lanes, Lease, Modes, Operator, Point, SharedDynamics, SharedScan, SharedWay,
    Workspace, add,
};

use crate::nn::plan::{
    BlockPlan, Size, pack_exponents, pack_modes, unpack_exponents, unpack_modes,
};
use crate::nn::real::Real;

/// The numbers of a block that its state space is made of.
#[derive(Clone, Copy)]
pub(super) struct SpaceNumbers<'a, T> {
    pub(super) plan: &'a BlockPlan,
    pub(super) size: Size,
    pub(super) modes: &'a [f64],
    /// All parameters of the block.
    pub(super) parameters: &'a [T],
}

impl<'a, T: Real> SpaceNumbers<'a, T> {
    fn systems(self) -> Vec<Vec<Modes>> {
        unpack_modes(self.plan, self.size.channels, self.modes)
    }

    fn dynamics<'b>(self, systems: &'b [Vec<Modes>]) -> Dynamics<'b, T>
    where
        'a: 'b,
    {
        Dynamics {
            forward: &systems[0],
            backward: systems.get(1).map_or(&[], Vec::as_slice),
            feedthrough: &self.parameters[self.plan.places(self.size.channels).feedthrough],
        }
    }
}

/// The state space of a block.
pub(super) enum StateSpace<T> {
    /// One system for each channel.
    Bank(Operator<T>),
    /// One for all.
    Shared(SharedScan<T>),
}

/// Buffers of one thread.
pub(super) struct SpaceScratch<T> {
    points: [Lease<Point<T>>; 2],
    rows: Lease<T>,
    /// The gradient of a slab's input.
    of_input: Lease<T>,
}

/// Sums of gradients over slabs.
pub(super) struct SpaceSums<T> {
    pub(super) points: Lease<Point<T>>,
    pub(super) numbers: Lease<T>,
}

impl<T: Real> StateSpace<T> {
    /// With `keep` the kernels stay at hand for [`StateSpace::kernels`].
    pub(super) fn new(
        numbers: SpaceNumbers<'_, T>,
        lanes: Lanes,
        workspace: &Workspace<T>,
        keep: bool,
    ) -> Self {
        let SpaceNumbers {
            plan,
            size,
            parameters,
            ..
        } = numbers;
        if plan.shared.is_none() {
            let systems = numbers.systems();
            let dynamics = numbers.dynamics(&systems);
            return Self::Bank(Operator::new(lanes, &dynamics, workspace, keep));
        }
        let places = plan.places(size.channels);
        let dynamics = SharedDynamics {
            channels: size.channels,
            exponents: &unpack_exponents(numbers.modes),
            input: &parameters[places.input],
            output: &parameters[places.output],
            feedthrough: &parameters[places.feedthrough],
        };
        Self::Shared(SharedScan::new(size.length, dynamics))
    }

    /// The forward kernel of every channel, D in its first sample.
    pub(super) fn kernels(&self, numbers: SpaceNumbers<'_, T>) -> Vec<Vec<T>> {
        match self {
            Self::Bank(operator) => {
                operator.kernels(&numbers.dynamics(&numbers.systems()), numbers.size.length)
            }
            Self::Shared(_) => unreachable!("penalties on shared modes are refused"),
        }
    }

    /// Numbers of the states of one sequence that the way back needs.
    pub(super) fn states(&self) -> usize {
        match self {
            Self::Bank(_) => 0,
            Self::Shared(scan) => scan.states(),
        }
    }

    /// Buffers for slabs of so many numbers.
    pub(super) fn scratch(&self, workspace: &Workspace<T>, slab: usize) -> SpaceScratch<T> {
        let (points, rows, of_input) = match self {
            Self::Bank(operator) => (operator.scratch(), 0, 0),
            Self::Shared(scan) => (0, scan.scratch(), slab),
        };
        SpaceScratch {
            points: [workspace.points(points), workspace.points(points)],
            rows: workspace.numbers(rows),
            of_input: workspace.numbers(of_input),
        }
    }

    /// Sums that are 0.
    pub(super) fn sums(&self, workspace: &Workspace<T>) -> SpaceSums<T> {
        let (points, count) = match self {
            Self::Bank(operator) => (operator.sums(), 0),
            Self::Shared(scan) => (0, scan.sums()),
        };
        let mut numbers = workspace.numbers(count);
        numbers.fill(T::zero());
        SpaceSums {
            points: workspace.zero_points(points),
            numbers,
        }
    }

    /// y ← the output on a slab u, and its states.
    pub(super) fn forward(
        &self,
        u: &[T],
        y: &mut [T],
        states: &mut [T],
        scratch: &mut SpaceScratch<T>,
    ) {
        match self {
            Self::Bank(operator) => operator.forward(u, y, &mut scratch.points),
            Self::Shared(scan) => scan.forward(u, y, states),
        }
    }

    /// u ← its gradient, from the gradient `g` of y and the states of the slab.
    pub(super) fn backward(
        &self,
        (g, states): (&[T], &[T]),
        u: &mut [T],
        sums: &mut SpaceSums<T>,
        scratch: &mut SpaceScratch<T>,
    ) {
        match self {
            Self::Bank(operator) => {
                operator.backward(g, u, &mut sums.points, &mut scratch.points);
            }
            Self::Shared(scan) => {
                let of_input = &mut scratch.of_input[..u.len()];
                let way = SharedWay { u, g, states };
                scan.backward(way, of_input, &mut sums.numbers, &mut scratch.rows);
                u.copy_from_slice(of_input);
            }
        }
    }

    /// The gradient of the modes from the sums over all slabs; those of the parameters are added.
    /// `further` is a gradient of the kernels of every channel beside that of the outputs.
    pub(super) fn gradient(
        &self,
        numbers: SpaceNumbers<'_, T>,
        sums: &mut SpaceSums<T>,
        further: Option<&[Vec<T>]>,
        of_parameters: &mut [T],
    ) -> Vec<f64> {
        let places = numbers.plan.places(numbers.size.channels);
        match self {
            Self::Bank(operator) => {
                let systems = numbers.systems();
                let dynamics = numbers.dynamics(&systems);
                let gradient = operator.gradient(&dynamics, &mut sums.points, further);
                add(
                    &mut of_parameters[places.feedthrough],
                    &gradient.feedthrough,
                );
                pack_modes(numbers.plan, &[gradient.forward, gradient.backward])
            }
            Self::Shared(scan) => {
                let exponents = unpack_exponents(numbers.modes);
                let gradient = scan.gradient(&exponents, &sums.numbers);
                add(
                    &mut of_parameters[places.feedthrough],
                    &gradient.feedthrough,
                );
                add(&mut of_parameters[places.input], &gradient.input);
                add(&mut of_parameters[places.output], &gradient.output);
                pack_exponents(&gradient.exponents)
            }
        }
    }
}
