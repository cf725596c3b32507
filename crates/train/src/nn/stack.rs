//! All blocks of a network as one differentiable step on the processor.
//!
//! candle runs elementwise operations on one thread and keeps every intermediate tensor. Here a
//! slab of a few sequences goes through a whole block while it is in the cache, all cores work on
//! slabs, and only the input and the response of the state space of each block are kept for the
//! backward pass; everything else is formed again.
//!
//! Gradients of the parameters are summed over fixed groups of slabs, and those sums in order:
//! the same bits for any number of threads.

use hankelite::model::Placement;
use hankelite_kernels::{
    Affine, AffineGradient, ChannelStatistics, Lanes, Lease, Means, Mix, MixGradient, MixScratch,
    Workspace, add, layer_norm, layer_norm_backward,
};
use rayon::prelude::*;

use crate::nn::Penalty;
use crate::nn::penalty::{BlockPenalty, InputMoments};
use crate::nn::plan::{BlockPlan, NormKind, Size};
use crate::nn::real::Real;
use crate::nn::space::{SpaceNumbers, SpaceScratch, SpaceSums, StateSpace};

/// Groups of slabs that gradients are summed over: also the most threads that a backward pass
/// keeps busy.
const SEGMENTS: usize = 16;

/// Numbers that the mixing works on at a time: a few such tiles fit into the first caches.
const TILE: usize = 4096;

/// What the backward pass needs of one block.
pub(super) struct SavedBlock<T> {
    /// The block's input.
    input: Lease<T>,
    /// The state space's output.
    response: Lease<T>,
    /// Its states, where the way back needs them.
    states: Lease<T>,
    space: StateSpace<T>,
    /// Of a batch norm.
    pub(super) statistics: Option<ChannelStatistics<T>>,
    /// Of the filters, where it is requested.
    pub(super) penalty: Option<BlockPenalty<T>>,
}

impl<T> SavedBlock<T> {
    /// The block's input, batch × L × H.
    pub(super) fn input(&self) -> &[T] {
        &self.input
    }
}

impl<T: Real> SavedBlock<T> {
    /// The states of some sequences; empty where none are kept.
    fn states_of(&self, first: usize, count: usize) -> &[T] {
        let each = self.space.states();
        &self.states[first * each..(first + count) * each]
    }
}

/// Buffers of one thread.
struct Scratch<T> {
    space: SpaceScratch<T>,
    mix: MixScratch<T>,
    /// A slab.
    slab: Lease<T>,
    /// A tile.
    tile: Lease<T>,
}

impl<T: Real> Scratch<T> {
    fn new(block: &Block<'_, T>, space: &StateSpace<T>) -> Self {
        let (workspace, slab) = (block.workspace, block.lanes.slab());
        Self {
            space: space.scratch(workspace, slab),
            mix: MixScratch::default(),
            slab: workspace.numbers(slab),
            tile: workspace.numbers(block.tile()),
        }
    }
}

/// Some sequences: a slab, or several in a row.
#[derive(Clone, Copy)]
struct Slab<'a, T> {
    /// The place of the first slab among all.
    index: usize,
    /// The block's input.
    x: &'a [T],
    /// The state space's output.
    y: &'a [T],
}

/// Gradients of a slab.
struct SlabSlopes<'a, T> {
    /// Of the block's output, then of its input.
    g: &'a mut [T],
    /// Of the state space's input or output.
    z: &'a mut [T],
}

/// One block with its parameters as slices.
struct Block<'a, T> {
    plan: &'a BlockPlan,
    size: Size,
    lanes: Lanes,
    parameters: &'a [T],
    workspace: &'a Workspace<T>,
    inner: Vec<T>,
    outer: Vec<T>,
}

impl<'a, T: Real> Block<'a, T> {
    fn new(
        plan: &'a BlockPlan,
        size: Size,
        parameters: &'a [T],
        workspace: &'a Workspace<T>,
    ) -> Self {
        let numbers = |mask: &[f64]| mask.iter().map(|&x| T::of(x)).collect();
        Self {
            plan,
            size,
            lanes: Lanes::new(size.channels, size.length),
            parameters,
            workspace,
            inner: numbers(&plan.inner_mask),
            outer: numbers(&plan.outer_mask),
        }
    }

    fn numbers<'b>(&'b self, modes: &'b [f64]) -> SpaceNumbers<'b, T> {
        SpaceNumbers {
            plan: self.plan,
            size: self.size,
            modes,
            parameters: self.parameters,
        }
    }

    fn affine(&self, epsilon: f64) -> Affine<'_, T> {
        let places = self.plan.places(self.size.channels);
        Affine {
            weight: &self.parameters[places.norm_weight],
            bias: &self.parameters[places.norm_bias],
            epsilon,
        }
    }

    /// The mixing with the masks of one sequence.
    fn mix(&self, sequence: usize) -> Mix<'_, T> {
        let channels = self.size.channels;
        let places = self.plan.places(channels);
        let row = sequence * channels..(sequence + 1) * channels;
        Mix {
            mixing: self.plan.mixing,
            gelu: self.plan.gelu,
            channels,
            weight: &self.parameters[places.weight],
            bias: &self.parameters[places.bias],
            inner: self.inner.get(row.clone()),
            outer: self.outer.get(row),
        }
    }

    fn norm(&self, kind: NormKind, placement: Placement) -> Option<f64> {
        let norm = self.plan.norm.as_ref();
        let norm = norm.filter(|norm| norm.kind == kind && norm.placement == placement);
        norm.map(|norm| norm.epsilon)
    }

    /// Sequences before slab `index`.
    fn sequences_before(&self, index: usize) -> usize {
        index * 2 * self.lanes.stacked
    }

    /// Room for so many numbers of each sequence, and what a slab takes of it: one number where none
    /// are needed, so that all go side by side.
    fn beside(&self, each: usize) -> (Lease<T>, usize) {
        let of_slab = self.sequences_before(1);
        let slabs = self.size.batch.div_ceil(of_slab);
        match each {
            0 => (self.workspace.numbers(slabs), 1),
            _ => (
                self.workspace.numbers(self.size.batch * each),
                of_slab * each,
            ),
        }
    }

    /// Numbers of one tile; tiles never span two sequences.
    fn tile(&self) -> usize {
        (TILE / self.size.channels).max(8) * self.size.channels
    }

    fn is_normalised_first(&self) -> bool {
        let norm = self.plan.norm.as_ref();
        norm.is_some_and(|norm| norm.placement == Placement::Pre)
    }

    /// The input of the state space for a slab of the block's input.
    fn normalised(&self, slab: &mut [T], statistics: Option<&ChannelStatistics<T>>) {
        if let Some(epsilon) = self.norm(NormKind::Layer, Placement::Pre) {
            layer_norm(slab, self.affine(epsilon));
        }
        if let (Some(epsilon), Some(statistics)) =
            (self.norm(NormKind::Batch, Placement::Pre), statistics)
        {
            statistics.apply(slab, self.affine(epsilon));
        }
    }

    /// o + x for a slab: what a post-norm normalises.
    fn mixed(&self, slab: Slab<'_, T>, out: &mut [T], scratch: &mut MixScratch<T>) {
        let row = self.size.length * self.size.channels;
        let sequences = slab.x.chunks(row).zip(slab.y.chunks(row));
        for (item, ((x, y), out)) in sequences.zip(out.chunks_mut(row)).enumerate() {
            let mix = self.mix(self.sequences_before(slab.index) + item);
            let tiles = x.chunks(self.tile()).zip(y.chunks(self.tile()));
            for ((x, y), out) in tiles.zip(out.chunks_mut(self.tile())) {
                mix.forward(y, out, scratch);
                if self.plan.norm.is_some() {
                    add(out, x);
                }
                if let Some(epsilon) = self.norm(NormKind::Layer, Placement::Post) {
                    layer_norm(out, self.affine(epsilon));
                }
            }
        }
    }
}

/// All blocks of a network on one batch.
pub(super) struct Stack<'a, T> {
    pub(super) plans: &'a [BlockPlan],
    pub(super) size: Size,
    /// Of all blocks, flat.
    pub(super) modes: &'a [f64],
    /// Of all blocks, flat.
    pub(super) parameters: &'a [T],
    pub(super) workspace: &'a Workspace<T>,
}

/// Gradients of what the blocks give.
pub(super) struct Slopes<'a, T: 'static + Copy> {
    /// Of the output of the last block.
    pub(super) g: Lease<T>,
    /// Of the outputs of all blocks, one after the other.
    pub(super) layers: Option<&'a [T]>,
    /// Of the numbers for the filters.
    pub(super) penalties: &'a [T],
}

impl<T: Real> Stack<'_, T> {
    /// The output of the last block, and what the backward pass needs if one is to follow.
    pub(super) fn forward(&self, mut x: Lease<T>, keep: bool) -> (Lease<T>, Vec<SavedBlock<T>>) {
        let (mut modes, mut parameters) = (self.modes, self.parameters);
        let mut saved: Vec<SavedBlock<T>> = Vec::with_capacity(self.plans.len());
        for plan in self.plans {
            let (own, rest) = modes.split_at(plan.mode_numbers(self.size.channels));
            modes = rest;
            let (own_parameters, rest) = parameters.split_at(plan.parameters(self.size.channels));
            parameters = rest;
            let block = Block::new(plan, self.size, own_parameters, self.workspace);
            let (out, record) = block_forward(&block, x, own);
            if keep {
                saved.push(record);
            }
            x = out;
        }
        (x, saved)
    }

    /// The gradients of input and modes; those of the parameters are added.
    pub(super) fn backward(
        &self,
        mut saved: Vec<SavedBlock<T>>,
        slopes: Slopes<'_, T>,
        of_parameters: &mut [T],
    ) -> (Lease<T>, Vec<f64>) {
        let (size, mut g) = (self.size, slopes.g);
        let mut of_modes = vec![0.0; self.modes.len()];
        let (mut modes_end, mut parameters_end) = (self.modes.len(), self.parameters.len());
        let mut of_penalties = slopes.penalties.len();
        for (index, plan) in self.plans.iter().enumerate().rev() {
            if let Some(layers) = slopes.layers {
                let whole = g.len();
                add(&mut g, &layers[index * whole..(index + 1) * whole]);
            }
            of_penalties -= usize::from(plan.penalty.is_some());
            let modes_start = modes_end - plan.mode_numbers(size.channels);
            let start = parameters_end - plan.parameters(size.channels);
            let own = &self.parameters[start..parameters_end];
            let block = Block::new(plan, size, own, self.workspace);
            let Some(mut record) = saved.pop() else { break };
            if let Some(penalty) = &mut record.penalty {
                penalty.scale(slopes.penalties[of_penalties]);
            }
            let own = &self.modes[modes_start..modes_end];
            let out = &mut of_parameters[start..parameters_end];
            let gradient = block_backward(&block, own, &record, &mut g, out);
            of_modes[modes_start..modes_end].copy_from_slice(&gradient);
            (modes_end, parameters_end) = (modes_start, start);
        }
        (g, of_modes)
    }
}

fn block_forward<T: Real>(
    block: &Block<'_, T>,
    input: Lease<T>,
    modes: &[f64],
) -> (Lease<T>, SavedBlock<T>) {
    let x = &input[..];
    let numbers = block.numbers(modes);
    let requested = block.plan.penalty;
    let space = StateSpace::new(numbers, block.lanes, block.workspace, requested.is_some());
    let mut statistics = block
        .norm(NormKind::Batch, Placement::Pre)
        .map(|epsilon| channel_statistics(block, x, epsilon));
    let slab = block.lanes.slab();
    let mut response = block.workspace.numbers(x.len());
    let mut out = block.workspace.numbers(x.len());
    // The input of the state space, where it is requested and is not that of the block.
    let keep = requested == Some(Penalty::Measure) && block.is_normalised_first();
    let row = block.size.length * block.size.channels;
    let (mut kept, share) = block.beside(if keep { row } else { 0 });
    let (mut states, of_states) = block.beside(space.states());
    let slabs = x.par_chunks(slab).zip(response.par_chunks_mut(slab));
    let slabs = slabs.zip(out.par_chunks_mut(slab));
    let slabs = slabs.zip(kept.par_chunks_mut(share));
    let slabs = slabs.zip(states.par_chunks_mut(of_states)).enumerate();
    let scratch = || Scratch::new(block, &space);
    slabs.for_each_init(
        scratch,
        |scratch, (index, ((((x, y), out), kept), states))| {
            let z = match keep {
                true => kept,
                false => &mut scratch.slab[..x.len()],
            };
            z.copy_from_slice(x);
            block.normalised(z, statistics.as_ref());
            space.forward(z, y, states, &mut scratch.space);
            block.mixed(Slab { index, x, y }, out, &mut scratch.mix);
        },
    );
    let penalty = requested.map(|requested| {
        let all = if keep { &kept[..] } else { x };
        let moments = (requested == Penalty::Measure).then(|| InputMoments::of(all, block.size));
        BlockPenalty::new(&space.kernels(numbers), moments.as_ref())
    });
    drop(kept);
    if let Some(epsilon) = block.norm(NormKind::Batch, Placement::Post) {
        let found = channel_statistics(block, &out, epsilon);
        let affine = block.affine(epsilon);
        out.par_chunks_mut(slab)
            .for_each(|out| found.apply(out, affine));
        statistics = Some(found);
    }
    let record = SavedBlock {
        input,
        response,
        states,
        space,
        statistics,
        penalty,
    };
    (out, record)
}

/// Mean and population variance of every channel over all rows, or the given running ones.
fn channel_statistics<T: Real>(
    block: &Block<'_, T>,
    x: &[T],
    epsilon: f64,
) -> ChannelStatistics<T> {
    let numbers = |values: &[f64]| values.iter().map(|&v| T::of(v)).collect();
    if let Some((mean, variance)) = &block.plan.running {
        return ChannelStatistics::new(numbers(mean), numbers(variance), epsilon);
    }
    let channels = block.size.channels;
    let share = channels as f64 / x.len() as f64;
    let average = |term: &(dyn Fn(usize, f64) -> f64 + Sync)| -> Vec<f64> {
        let of_slab = |slab: &[T]| {
            let mut sums = vec![0.0; channels];
            for row in slab.chunks_exact(channels) {
                for (h, (sum, value)) in sums.iter_mut().zip(row).enumerate() {
                    *sum += term(h, value.to_f64());
                }
            }
            sums
        };
        let slabs = x.par_chunks(block.lanes.slab()).map(of_slab);
        let mut total = vec![0.0; channels];
        for sums in slabs.collect::<Vec<_>>() {
            total
                .iter_mut()
                .zip(sums)
                .for_each(|(a, b)| *a += b * share);
        }
        total
    };
    let mean = average(&|_, value| value);
    let variance = average(&|h, value| (value - mean[h]).powi(2));
    ChannelStatistics::new(numbers(&mean), numbers(&variance), epsilon)
}

/// Sums of gradients over some slabs.
struct Sums<T: Real> {
    space: SpaceSums<T>,
    parameters: Vec<T>,
}

/// g ← the gradient of the block's input; gives that of the modes and adds to `of_parameters`.
fn block_backward<T: Real>(
    block: &Block<'_, T>,
    modes: &[f64],
    saved: &SavedBlock<T>,
    g: &mut [T],
    of_parameters: &mut [T],
) -> Vec<f64> {
    let x = &saved.input[..];
    if let (Some(_), Some(statistics)) = (
        block.norm(NormKind::Batch, Placement::Post),
        &saved.statistics,
    ) {
        batch_post_backward(block, saved, statistics, g, of_parameters);
    }
    let segment = block.lanes.slab() * x.len().div_ceil(block.lanes.slab()).div_ceil(SEGMENTS);
    // The gradient of the state space's input; a batch norm needs it for all sequences at once.
    let mut of_input = block.workspace.numbers(x.len());
    let segments = x
        .par_chunks(segment)
        .zip(saved.response.par_chunks(segment));
    let outputs = g
        .par_chunks_mut(segment)
        .zip(of_input.par_chunks_mut(segment));
    let segments = segments.zip(outputs).enumerate();
    let scratch = || Scratch::new(block, &saved.space);
    let sums = segments.map_init(scratch, |scratch, (index, ((x, y), (g, z)))| {
        let index = index * segment / block.lanes.slab();
        segment_backward(
            block,
            saved,
            Slab { index, x, y },
            SlabSlopes { g, z },
            scratch,
        )
    });
    let mut sums = total_of(sums.collect());
    of_parameters
        .iter_mut()
        .zip(&sums.parameters)
        .for_each(|(a, b)| *a += *b);
    if let (Some(_), Some(statistics)) = (
        block.norm(NormKind::Batch, Placement::Pre),
        &saved.statistics,
    ) {
        batch_norm_backward(block, x, statistics, &mut of_input, of_parameters);
        g.par_chunks_mut(segment)
            .zip(of_input.par_chunks(segment))
            .for_each(|(g, z)| add(g, z));
    }
    let further = saved.penalty.as_ref().map(BlockPenalty::slopes);
    let numbers = block.numbers(modes);
    saved
        .space
        .gradient(numbers, &mut sums.space, further, of_parameters)
}

fn segment_backward<T: Real>(
    block: &Block<'_, T>,
    saved: &SavedBlock<T>,
    segment: Slab<'_, T>,
    slopes: SlabSlopes<'_, T>,
    scratch: &mut Scratch<T>,
) -> Sums<T> {
    let mut sums = Sums {
        space: saved.space.sums(block.workspace),
        parameters: vec![T::zero(); block.parameters.len()],
    };
    let row = block.size.length * block.size.channels;
    let slab = block.lanes.slab();
    let slabs = segment.x.chunks(slab).zip(segment.y.chunks(slab));
    let outputs = slopes.g.chunks_mut(slab).zip(slopes.z.chunks_mut(slab));
    for (index, ((x, y), (g, z))) in slabs.zip(outputs).enumerate() {
        z.copy_from_slice(x);
        block.normalised(z, saved.statistics.as_ref());
        let mut whole = std::mem::replace(&mut scratch.slab, block.workspace.numbers(0));
        let of_y = &mut whole[..x.len()];
        let index = segment.index + index;
        let slopes = SlabSlopes { g, z: of_y };
        let sums_of = &mut sums.parameters;
        mix_backward(block, Slab { index, x, y }, slopes, sums_of, scratch);
        let states = saved.states_of(block.sequences_before(index), x.len() / row);
        let space = &saved.space;
        space.backward((of_y, states), z, &mut sums.space, &mut scratch.space);
        scratch.slab = whole;
        if let Some(epsilon) = block.norm(NormKind::Layer, Placement::Pre) {
            let gradient = affine_gradient(block, &mut sums.parameters);
            layer_norm_backward(x, z, block.affine(epsilon), gradient);
        }
        match block.norm(NormKind::Batch, Placement::Pre) {
            Some(_) => {}
            None if block.plan.norm.is_some() => add(g, z),
            None => g.copy_from_slice(z),
        }
    }
    sums
}

/// of_y ← the gradient of the response; g ← that of the block's output before a post-norm.
fn mix_backward<T: Real>(
    block: &Block<'_, T>,
    slab: Slab<'_, T>,
    slopes: SlabSlopes<'_, T>,
    sums: &mut [T],
    scratch: &mut Scratch<T>,
) {
    let (row, tile) = (block.size.length * block.size.channels, block.tile());
    let places = block.plan.places(block.size.channels);
    let post = block.norm(NormKind::Layer, Placement::Post);
    let sequences = slab.x.chunks(row).zip(slab.y.chunks(row));
    let outputs = slopes.g.chunks_mut(row).zip(slopes.z.chunks_mut(row));
    for (item, ((x, y), (g, of_y))) in sequences.zip(outputs).enumerate() {
        let mix = block.mix(block.sequences_before(slab.index) + item);
        let tiles = x.chunks(tile).zip(y.chunks(tile));
        let outputs = g.chunks_mut(tile).zip(of_y.chunks_mut(tile));
        for ((x, y), (g, of_y)) in tiles.zip(outputs) {
            let work = &mut scratch.tile[..x.len()];
            if let Some(epsilon) = post {
                mix.forward(y, work, &mut scratch.mix);
                add(work, x);
                let gradient = affine_gradient(block, sums);
                layer_norm_backward(work, g, block.affine(epsilon), gradient);
            }
            work.copy_from_slice(g);
            let (head, bias) = sums.split_at_mut(places.bias.start);
            let gradient = MixGradient {
                y: of_y,
                weight: &mut head[places.weight.clone()],
                bias,
            };
            mix.backward(y, work, gradient, &mut scratch.mix);
        }
    }
}

fn affine_gradient<'a, T: Real>(
    block: &Block<'_, T>,
    parameters: &'a mut [T],
) -> AffineGradient<'a, T> {
    let places = block.plan.places(block.size.channels);
    let (head, bias) = parameters.split_at_mut(places.norm_bias.start);
    AffineGradient {
        weight: &mut head[places.norm_weight],
        bias: &mut bias[..places.norm_bias.len()],
    }
}

/// Adds the sums of the segments in their order, entry by entry.
fn total_of<T: Real>(mut parts: Vec<Sums<T>>) -> Sums<T> {
    let rest = parts.split_off(1);
    let mut total = parts.remove(0);
    let piece = 1024;
    let pieces = total.space.points.par_chunks_mut(piece).enumerate();
    pieces.for_each(|(index, points)| {
        for part in &rest {
            let part = &part.space.points[index * piece..];
            for (a, b) in points.iter_mut().zip(part) {
                add(&mut a.re, &b.re);
                add(&mut a.im, &b.im);
            }
        }
    });
    for part in &rest {
        add(&mut total.space.numbers, &part.space.numbers);
        add(&mut total.parameters, &part.parameters);
    }
    total
}

/// g ← the gradient of the batch norm's input `x`; adds those of weight and bias.
fn batch_norm_backward<T: Real>(
    block: &Block<'_, T>,
    x: &[T],
    statistics: &ChannelStatistics<T>,
    g: &mut [T],
    of_parameters: &mut [T],
) {
    let (channels, slab) = (block.size.channels, block.lanes.slab());
    let of_slab = |(x, g): (&[T], &[T])| {
        let (mut weight, mut bias) = (vec![T::zero(); channels], vec![T::zero(); channels]);
        let sums = AffineGradient {
            weight: &mut weight,
            bias: &mut bias,
        };
        statistics.sums(x, g, sums);
        (weight, bias)
    };
    let slabs = x.par_chunks(slab).zip(g.par_chunks(slab)).map(of_slab);
    let (mut weight, mut bias) = (vec![T::zero(); channels], vec![T::zero(); channels]);
    for (more_weight, more_bias) in slabs.collect::<Vec<_>>() {
        add(&mut weight, &more_weight);
        add(&mut bias, &more_bias);
    }
    let places = block.plan.places(channels);
    let of_weight = &block.parameters[places.norm_weight.clone()];
    let share = T::of(channels as f64 / x.len() as f64);
    let mean = |sums: &[T]| -> Vec<T> { sums.iter().map(|sum| *sum * share).collect() };
    let (tilted, plain) = (mean(&weight), mean(&bias));
    let means = Means {
        tilted: &tilted,
        plain: &plain,
    };
    x.par_chunks(slab)
        .zip(g.par_chunks_mut(slab))
        .for_each(|(x, g)| statistics.backward(x, g, of_weight, means));
    add(&mut of_parameters[places.norm_weight], &weight);
    add(&mut of_parameters[places.norm_bias], &bias);
}

/// The same for a batch norm after the block, whose input is formed again.
fn batch_post_backward<T: Real>(
    block: &Block<'_, T>,
    saved: &SavedBlock<T>,
    statistics: &ChannelStatistics<T>,
    g: &mut [T],
    of_parameters: &mut [T],
) {
    let (slab, x) = (block.lanes.slab(), &saved.input[..]);
    let mut before = block.workspace.numbers(x.len());
    let slabs = x.par_chunks(slab).zip(saved.response.par_chunks(slab));
    let slabs = slabs.zip(before.par_chunks_mut(slab)).enumerate();
    slabs.for_each_init(MixScratch::default, |scratch, (index, ((x, y), out))| {
        block.mixed(Slab { index, x, y }, out, scratch);
    });
    batch_norm_backward(block, &before, statistics, g, of_parameters);
}
