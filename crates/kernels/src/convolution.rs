//! The state space of one layer as a long convolution.
//!
//! ```text
//! y[t] = D u[t] + Σ_{j≥0} k[j] u[t−j] + Σ_{j≥0} k'[j] u[t+1+j]
//! ```
//!
//! k' is the kernel of a bidirectional layer. D is added to k[0], so that it costs nothing.

use std::sync::Arc;

use rayon::prelude::*;

use crate::fourier::{LaneTransform, Point};
use crate::kernel::Modes;
use crate::lanes::Lanes;
use crate::pool::{Lease, Workspace};
use crate::real::{LANE_WIDTH, LaneReal, add};

/// Modes, and so kernels, of every channel of a layer.
pub struct Dynamics<'a, T> {
    /// Of the causal kernel.
    pub forward: &'a [Modes],
    /// Of the other direction; empty for a causal layer.
    pub backward: &'a [Modes],
    /// D of every channel.
    pub feedthrough: &'a [T],
}

/// The gradients of [`Dynamics`].
pub struct DynamicsGradient<T> {
    /// Of the causal modes (∂/∂Re + i ∂/∂Im).
    pub forward: Vec<Modes>,
    /// Of those of the other direction.
    pub backward: Vec<Modes>,
    /// Of D.
    pub feedthrough: Vec<T>,
}

/// A layer's kernels as spectra.
pub struct Convolution<T> {
    lanes: Lanes,
    plan: Arc<LaneTransform<T>>,
    /// One stored spectrum after another for each group, scaled by 1/size.
    spectra: Lease<Point<T>>,
    /// The forward kernels without D, where they are kept.
    pub kernels: Vec<Vec<T>>,
}

/// The kernels of one group of channels.
struct GroupKernels<'a, T> {
    group: usize,
    forward: Vec<Vec<T>>,
    /// Empty for a causal layer.
    backward: Vec<Vec<T>>,
    feedthrough: &'a [T],
}

impl<T: LaneReal> Convolution<T> {
    pub fn new(
        lanes: Lanes,
        dynamics: &Dynamics<'_, T>,
        workspace: &Workspace<T>,
        keep: bool,
    ) -> Self {
        let kernels = |modes: &[Modes]| -> Vec<Vec<T>> {
            let modes = modes.par_iter();
            modes.map(|modes| modes.kernel(lanes.length)).collect()
        };
        let mut made = Self::empty(lanes, workspace);
        let Self { plan, spectra, .. } = &mut made;
        let groups = spectra.par_chunks_exact_mut(plan.stored()).enumerate();
        let kept = groups.map(|(group, stored)| {
            let own = GroupKernels::new(lanes, group, dynamics, kernels);
            own.store_spectrum(lanes, plan, workspace, stored);
            if keep { own.forward } else { Vec::new() }
        });
        made.kernels = kept.flatten_iter().collect();
        made
    }

    /// As [`Convolution::new`], on the caller's thread, with the kernels of one group in memory at a
    /// time.
    pub fn on_one_thread(
        lanes: Lanes,
        dynamics: &Dynamics<'_, T>,
        workspace: &Workspace<T>,
    ) -> Self {
        let kernels = |modes: &[Modes]| -> Vec<Vec<T>> {
            let modes = modes.iter();
            modes.map(|modes| modes.kernel(lanes.length)).collect()
        };
        let mut made = Self::empty(lanes, workspace);
        let Self { plan, spectra, .. } = &mut made;
        let groups = spectra.chunks_exact_mut(plan.stored()).enumerate();
        for (group, stored) in groups {
            let own = GroupKernels::new(lanes, group, dynamics, kernels);
            own.store_spectrum(lanes, plan, workspace, stored);
        }
        made
    }

    /// Without the numbers of its spectra.
    fn empty(lanes: Lanes, workspace: &Workspace<T>) -> Self {
        let plan = workspace.plan(2 * lanes.length);
        Self {
            lanes,
            spectra: workspace.points(plan.stored() * lanes.groups),
            plan,
            kernels: Vec::new(),
        }
    }

    /// Rows of a slab, and zeros up to where the transforms read.
    fn pack(&self, slab: &[T], group: usize, points: &mut [Point<T>]) {
        self.lanes.pack(slab, group, points);
        points[self.lanes.length..self.plan.size() / 2].fill(Point::zero());
    }

    /// y ← the layer's output on a slab.
    pub fn forward(&self, u: &[T], y: &mut [T], scratch: &mut [Lease<Point<T>>; 2]) {
        y.copy_from_slice(u);
        self.apply(y, scratch);
    }

    /// As [`Convolution::forward`], in place.
    pub fn apply(&self, y: &mut [T], scratch: &mut [Lease<Point<T>>; 2]) {
        let points = &mut scratch[0][..self.plan.size()];
        for (group, spectrum) in self.spectra.chunks_exact(self.plan.stored()).enumerate() {
            self.pack(y, group, points);
            self.plan.convolve(points, spectrum);
            self.lanes.unpack(points, group, y);
        }
    }

    /// Points of each of the two buffers that a pass works in.
    pub fn scratch(&self) -> usize {
        self.plan.size()
    }

    /// Points of the sums of gradients over slabs.
    pub fn sums(&self) -> usize {
        self.plan.size() * self.lanes.groups
    }

    /// u ← its gradient, from the gradient `g` of y.
    pub fn backward(
        &self,
        g: &[T],
        u: &mut [T],
        sums: &mut [Point<T>],
        [first, second]: &mut [Lease<Point<T>>; 2],
    ) {
        let size = self.plan.size();
        let (of_y, of_u) = (&mut first[..size], &mut second[..size]);
        let spectra = self.spectra.chunks_exact(self.plan.stored());
        let groups = spectra.zip(sums.chunks_exact_mut(size));
        for (group, (spectrum, sum)) in groups.enumerate() {
            self.pack(g, group, of_y);
            self.pack(u, group, of_u);
            self.plan.correlate(of_y, of_u, spectrum, sum);
            self.lanes.unpack(of_y, group, u);
        }
    }

    /// The gradients of the dynamics from the sums over all slabs.
    pub fn gradient(
        &self,
        dynamics: &Dynamics<'_, T>,
        sums: &mut [Point<T>],
        further: Option<&[Vec<T>]>,
    ) -> DynamicsGradient<T> {
        let size = self.plan.size();
        sums.par_chunks_exact_mut(size)
            .for_each(|sum| self.plan.inverse(sum));
        let scale = T::of(1.0 / size as f64);
        let of_kernel = |h: usize, at: &dyn Fn(usize) -> usize| -> Vec<T> {
            let (group, width) = (h / LANE_WIDTH, self.lanes.channels_of(h / LANE_WIDTH).1);
            let sum = &sums[group * size..(group + 1) * size];
            let copies = (0..self.lanes.stacked).map(|copy| h % LANE_WIDTH + copy * width);
            let tap = |l: usize| {
                let values = copies.clone().map(|lane| sum[at(l)].re[lane]);
                values.fold(T::zero(), |total, value| total + value) * scale
            };
            (0..self.lanes.length).map(tap).collect()
        };
        let channels = 0..self.lanes.channels;
        let forward = dynamics.forward.par_iter().zip(channels.clone());
        let forward = forward.map(|(modes, h)| {
            let mut gradient = of_kernel(h, &|l| l);
            if let Some(further) = further {
                add(&mut gradient, &further[h]);
            }
            (modes.gradient(&gradient), gradient[0])
        });
        let (forward, feedthrough) = forward.unzip();
        let backward = dynamics.backward.par_iter().zip(channels);
        let backward = backward.map(|(modes, h)| modes.gradient(&of_kernel(h, &|l| size - 1 - l)));
        DynamicsGradient {
            forward,
            backward: backward.collect(),
            feedthrough,
        }
    }
}

/// What belongs to the channels of a group; nothing of an empty list.
fn of_group<E>(lanes: Lanes, group: usize, all: &[E]) -> &[E] {
    let (first, width) = lanes.channels_of(group);
    all.get(first..first + width).unwrap_or(&[])
}

impl<'a, T: LaneReal> GroupKernels<'a, T> {
    fn new(
        lanes: Lanes,
        group: usize,
        dynamics: &Dynamics<'a, T>,
        kernels: impl Fn(&[Modes]) -> Vec<Vec<T>>,
    ) -> Self {
        Self {
            group,
            forward: kernels(of_group(lanes, group, dynamics.forward)),
            backward: kernels(of_group(lanes, group, dynamics.backward)),
            feedthrough: of_group(lanes, group, dynamics.feedthrough),
        }
    }

    /// Both directions' kernels and D as one spectrum, scaled by 1/size.
    fn store_spectrum(
        &self,
        lanes: Lanes,
        plan: &LaneTransform<T>,
        workspace: &Workspace<T>,
        stored: &mut [Point<T>],
    ) {
        let scale = T::of(1.0 / plan.size() as f64);
        let first = lanes.channels_of(self.group).0;
        let mut points = workspace.zero_points(plan.size());
        for lane in 0..LANE_WIDTH {
            let Some(h) = lanes.channel_of_lane(self.group, lane) else {
                continue;
            };
            let own = h - first;
            for (point, k) in points.iter_mut().zip(&self.forward[own]) {
                point.re[lane] = *k * scale;
            }
            points[0].re[lane] += self.feedthrough[own] * scale;
            if let Some(backward) = self.backward.get(own) {
                for (point, k) in points.iter_mut().rev().zip(backward) {
                    point.re[lane] = *k * scale;
                }
            }
        }
        plan.forward(&mut points);
        plan.store(&points, stored);
    }
}
