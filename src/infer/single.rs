//! A network on a few sequences at a time in single precision: the fast path of this room.
//!
//! Numbers stand as sequence × step × channel. A slab of sequences goes through all layers on one
//! thread while it is in the cache; slabs run on all cores. The way back takes any number of
//! gradients at the same sequence, for which everything but the gradients themselves is formed
//! once.

use std::sync::{Arc, Mutex, PoisonError};

use hankelite_kernels::{
    Affine, AffineGradient, ChannelStatistics, GeluForm, Lanes, Lease, Mix, MixScratch, MixSlopes,
    Mixing, RowMajor, Scan, SharedGradient, Workspace, add, gelu, layer_norm, layer_norm_backward,
    multiply_rows,
};

use crate::infer::layer::StepSums;
use crate::infer::space::{Prepared, ScratchSizes, Space, SpaceBack, SpaceScratch, narrow};
use crate::model::{
    Block, Encoder, Gate, Linear, Model, Nonlinearity, Norm, Placement, Pooling, Sequence,
};

/// Numbers that the mixing works on at a time: the handful of such tiles that the way back takes fit into
/// half a MiB, and a product of so many rows hardly sees how its factors are put in order.
const TILE: usize = 16384;

/// Bytes that the spectra of all layers may take. Beyond that those of a layer are formed when it runs.
const SPECTRA_HELD: usize = 96 << 20;

/// Bytes of spectra, and of what the state spaces of all layers gave, that the way back may hold. Beyond that
/// it runs the state spaces again.
const TRACES_HELD: usize = 80 << 20;

/// Bytes of sequences that wait in memory before a layer; those of more lie in a temporary file.
const STREAMS_HELD: usize = 1 << 28;

/// The same where a sequence alone takes 4 MiB.
const LONG_STREAMS_HELD: usize = 1 << 25;
const LONG_STREAM: usize = 1 << 22;

/// Numbers of gradients that the way back takes at a time, 32 MiB, or as many sequences as run together.
const GRADIENTS: usize = 1 << 23;

/// What networks of the fast path may have in common.
pub(crate) struct Setup {
    /// Buffers of networks that run one after the other.
    workspace: Arc<Workspace<f32>>,
    slopes: Arc<SlopesPool>,
    /// Bytes that the spectra of all layers may take.
    pub(super) spectra_held: usize,
}

/// What maps leave for the way back, of as many threads as run: for each layer, tile by tile.
type SlopesPool = Mutex<Vec<LayerSlopes>>;
type LayerSlopes = Vec<Vec<MixSlopes<f32>>>;

impl Setup {
    /// For a network through each of whose layers all sequences go once, one layer after the other.
    pub(crate) fn of_a_walk() -> Self {
        Self {
            spectra_held: 0,
            ..Self::default()
        }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            workspace: Arc::new(Workspace::new()),
            slopes: Arc::default(),
            spectra_held: SPECTRA_HELD,
        }
    }
}

/// A model prepared for sequences of one length.
pub(super) struct Single {
    lanes: Lanes,
    workspace: Arc<Workspace<f32>>,
    slopes: Arc<SlopesPool>,
    encoder: Encode,
    layers: Vec<SingleLayer>,
    final_norm: Option<SingleNorm>,
    /// Numbers of gradients that go back at a time.
    pub(super) gradients: usize,
    /// Bytes of sequences that wait in memory before a layer.
    pub(super) streams_held: usize,
    /// Whether the way back has at hand what the state spaces gave on the way forwards.
    pub(super) keeps_responses: bool,
    /// Whether the way back of one gradient has at hand what maps and shared modes left on the way forwards.
    keeps_slopes: bool,
}

enum Encode {
    Linear {
        inputs: usize,
        weight: Vec<f32>,
        bias: Vec<f32>,
    },
    /// One row for each token.
    Embedding(Vec<f32>),
}

struct SingleLayer {
    channels: usize,
    space: Space,
    /// For derivatives by the residues, where every channel has a system of its own.
    scan: Option<Scan<f32>>,
    gelu: GeluForm,
    mixing: Mixing,
    weight: Vec<f32>,
    bias: Vec<f32>,
    norm: Option<(SingleNorm, Placement)>,
}

struct SingleNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f64,
    /// Of a batch norm.
    channels: Option<ChannelStatistics<f32>>,
}

/// Buffers of one thread.
pub(super) struct Buffers {
    /// What the state spaces take, and then what they give.
    y: Lease<f32>,
    tile: Lease<f32>,
    space: SpaceScratch,
    mix: MixScratch<f32>,
}

/// Derivatives of some combinations of the logits by the numbers of one layer.
pub(crate) struct NumberSlopes {
    /// Index of the layer.
    pub(crate) layer: usize,
    /// The first of these combinations.
    pub(crate) first: usize,
    /// For each combination and channel: by Re w_n, Im w_n of every mode and, last, by D.
    pub(crate) residues: Vec<Vec<Vec<f64>>>,
    /// For each combination by biases and norms; empty where not requested.
    pub(crate) vectors: Vec<VectorSlopes>,
}

/// Derivatives of one combination by numbers that act at every step.
#[derive(Default)]
pub(crate) struct VectorSlopes {
    /// By the bias of the map between the channels.
    pub(crate) bias: StepSums,
    /// By the factors of the norm.
    pub(crate) factors: StepSums,
    /// By its offsets.
    pub(crate) offsets: StepSums,
}

/// What a layer shows on the way back.
pub(super) struct Pulled<'a> {
    pub(super) layer: usize,
    /// The first of the combinations that are shown.
    pub(super) first: usize,
    /// What the state spaces take, L × H.
    pub(super) input: &'a [f32],
    /// For each combination the derivative by what they give, L × H.
    pub(super) outputs: &'a [f32],
    pub(super) vectors: Vec<VectorSlopes>,
    /// For each combination by the system that the channels share; empty where not requested, and
    /// where every channel has its own.
    pub(super) systems: Vec<SharedGradient<f32>>,
    /// Where it is requested.
    pub(super) map: Option<MapSums>,
}

/// What is requested on the way back.
#[derive(Clone, Copy, Default)]
pub(super) struct Wanted {
    /// The lowest layer that counts.
    pub(super) lowest: usize,
    /// Derivatives by biases and norms.
    pub(super) vectors: bool,
    /// Derivatives by systems that channels share.
    pub(super) systems: bool,
    /// Derivatives by the map between the channels of the lowest layer.
    pub(super) map: bool,
}

/// Derivatives by the map between the channels of one layer.
#[derive(Default)]
pub(super) struct MapSums {
    /// For each combination by the entries, outputs × inputs by rows.
    pub(super) entries: Vec<Vec<f32>>,
    /// The same by the bias.
    pub(super) bias: Vec<StepSums>,
    /// Σ x xᵀ by rows, x being what the map takes.
    pub(super) second: Vec<f32>,
    /// Σ x.
    pub(super) sum: StepSums,
    pub(super) steps: usize,
}

impl MapSums {
    fn new(gradients: usize) -> Self {
        Self {
            entries: vec![Vec::new(); gradients],
            bias: std::iter::repeat_with(StepSums::default)
                .take(gradients)
                .collect(),
            ..Self::default()
        }
    }

    /// Counts what the map takes at some steps.
    fn count_input(&mut self, x: &[f32], inputs: usize) {
        self.second.resize(inputs * inputs, 0.0);
        let rows = RowMajor::new(x, x.len() / inputs, inputs);
        multiply_rows(&mut self.second, rows.transpose(), rows, true);
        self.sum.count(x, None, inputs);
        self.steps += x.len() / inputs;
    }

    /// Counts the gradient of combination k by what the map gives at the same steps.
    fn count(&mut self, k: usize, of_map: &[f32], x: &[f32], inputs: usize) {
        let steps = x.len() / inputs;
        let outputs = of_map.len() / steps.max(1);
        self.entries[k].resize(outputs * inputs, 0.0);
        let rows = RowMajor::new(of_map, steps, outputs).transpose();
        let x = RowMajor::new(x, steps, inputs);
        multiply_rows(&mut self.entries[k], rows, x, true);
        self.bias[k].count(of_map, None, outputs);
    }
}

/// Weight, outputs × inputs by rows, and bias.
fn linear_of(linear: &Linear) -> (Vec<f32>, Vec<f32>) {
    let bias = linear.bias.as_deref().map(narrow);
    let bias = bias.unwrap_or_else(|| vec![0.0; linear.weight.ncols()]);
    (narrow(linear.weight.as_slice()), bias)
}

impl SingleNorm {
    fn new(norm: &Norm) -> Self {
        let (weight, bias, epsilon) = norm.affine();
        let channels = match norm {
            Norm::Layer(_) => None,
            Norm::Batch(batch) => {
                let (mean, variance) = (narrow(&batch.mean), narrow(&batch.variance));
                Some(ChannelStatistics::new(mean, variance, epsilon))
            }
        };
        Self {
            weight: narrow(weight),
            bias: narrow(bias),
            epsilon,
            channels,
        }
    }

    fn affine(&self) -> Affine<'_, f32> {
        Affine {
            weight: &self.weight,
            bias: &self.bias,
            epsilon: self.epsilon,
        }
    }

    fn apply(&self, rows: &mut [f32]) {
        match &self.channels {
            None => layer_norm(rows, self.affine()),
            Some(channels) => channels.apply(rows, self.affine()),
        }
    }

    /// The rows with factors 1 and offsets 0.
    fn standard(&self, rows: &mut [f32]) {
        let (weight, bias) = (vec![1.0; self.weight.len()], vec![0.0; self.bias.len()]);
        let affine = Affine {
            weight: &weight,
            bias: &bias,
            epsilon: self.epsilon,
        };
        match &self.channels {
            None => layer_norm(rows, affine),
            Some(channels) => channels.apply(rows, affine),
        }
    }

    /// g ← the gradient of the rows x.
    fn pull(&self, x: &[f32], g: &mut [f32]) {
        match &self.channels {
            None => {
                let (mut weight, mut bias) = (self.weight.clone(), self.bias.clone());
                let gradient = AffineGradient {
                    weight: &mut weight,
                    bias: &mut bias,
                };
                layer_norm_backward(x, g, self.affine(), gradient);
            }
            Some(channels) => {
                for row in g.chunks_exact_mut(self.weight.len()) {
                    let factors = self.weight.iter().zip(&channels.scale);
                    for (g, (w, s)) in row.iter_mut().zip(factors) {
                        *g *= w * s;
                    }
                }
            }
        }
    }
}

impl SingleLayer {
    /// Its operator is not formed yet.
    fn new(block: &Block, lanes: Lanes) -> Option<Self> {
        let channels = lanes.channels;
        if block.channels() != channels || block.width() != channels {
            return None;
        }
        let (mixing, weight, bias) = match block.output() {
            None => (Mixing::None, Vec::new(), Vec::new()),
            Some(output) => {
                let mixing = match output.gate {
                    Gate::None => Mixing::Plain,
                    Gate::Halves => Mixing::Gated,
                    Gate::Activated => Mixing::Activated,
                    Gate::Response => Mixing::Response,
                };
                let (weight, bias) = linear_of(&output.linear);
                (mixing, weight, bias)
            }
        };
        let space = Space::of(block, lanes.length)?;
        let scan = match &space {
            Space::Formed(modes) => {
                let lanes = Lanes::unstacked(channels, lanes.length);
                Some(Scan::new(lanes, &modes.dynamics()))
            }
            _ => None,
        };
        Some(Self {
            channels,
            scan,
            space,
            gelu: match block.activation() {
                Nonlinearity::Gelu => GeluForm::Exact,
                Nonlinearity::GeluTanh => GeluForm::Tanh,
            },
            mixing,
            weight,
            bias,
            norm: block
                .norm()
                .map(|(norm, placement)| (SingleNorm::new(norm), *placement)),
        })
    }

    fn norm(&self, placement: Placement) -> Option<&SingleNorm> {
        let norm = self.norm.as_ref();
        norm.filter(|(_, own)| *own == placement)
            .map(|(norm, _)| norm)
    }

    fn mix(&self) -> Mix<'_, f32> {
        Mix {
            mixing: self.mixing,
            gelu: self.gelu,
            channels: self.channels,
            weight: &self.weight,
            bias: &self.bias,
            inner: None,
            outer: None,
        }
    }

    /// The stream behind the layer, from that before and from what its state spaces give, for the few
    /// steps of a tile.
    fn finish(&self, x: &mut [f32], y: &[f32], tile: &mut [f32], mix: &mut MixScratch<f32>) {
        let out = &mut tile[..x.len()];
        self.branch(x, y, out, mix);
        if let Some(norm) = self.norm(Placement::Post) {
            norm.apply(out);
        }
        x.copy_from_slice(out);
    }

    /// A tile of the block's output before a norm behind it.
    fn branch(&self, x: &[f32], y: &[f32], out: &mut [f32], buffer: &mut MixScratch<f32>) {
        self.mix().forward(y, out, buffer);
        if self.norm.is_some() {
            add(out, x);
        }
    }
}

impl Single {
    /// `None` for networks with parts that only the double precision path has.
    pub(super) fn new(model: &Model, length: usize, setup: &Setup) -> Option<Self> {
        let (encoder, channels) = match model.encoder()? {
            Encoder::Linear(linear) => {
                let (weight, bias) = linear_of(linear);
                let (inputs, channels) = linear.weight.shape();
                (
                    Encode::Linear {
                        inputs,
                        weight,
                        bias,
                    },
                    channels,
                )
            }
            Encoder::Embedding(table) => {
                (Encode::Embedding(narrow(table.as_slice())), table.nrows())
            }
        };
        if channels == 0 || length == 0 {
            return None;
        }
        let lanes = Lanes::new(channels, length);
        let workspace = Arc::clone(&setup.workspace);
        let layers = model.blocks().iter();
        let layers = layers.map(|block| SingleLayer::new(block, lanes));
        let mut layers = layers.collect::<Option<Vec<_>>>()?;
        let spectra: usize = layers.iter().map(|layer| layer.space.spectra(lanes)).sum();
        let fit = spectra <= setup.spectra_held;
        let stream = size_of::<f32>() * length * channels;
        let (held, traces) = (if fit { spectra } else { 0 }, stream * layers.len());
        for layer in &mut layers {
            if fit || layer.space.spectra(lanes) == 0 {
                layer.space.hold(lanes, &workspace);
            }
        }
        let states: usize = layers.iter().map(|layer| layer.space.states()).sum();
        let slopes = size_of::<f32>() * states + 3 * traces;
        let post = layers.iter().any(|l| l.norm(Placement::Post).is_some());
        Some(Self {
            keeps_slopes: !post && held + slopes <= TRACES_HELD,
            slopes: Arc::clone(&setup.slopes),
            layers,
            final_norm: model.final_norm().map(SingleNorm::new),
            gradients: GRADIENTS,
            streams_held: match stream < LONG_STREAM {
                true => STREAMS_HELD,
                false => LONG_STREAMS_HELD,
            },
            keeps_responses: held + traces <= TRACES_HELD,
            lanes,
            workspace,
            encoder,
        })
    }

    /// Whether operators are formed when a layer runs: sequences had better go through it together.
    pub(super) fn forms_operators(&self) -> bool {
        let mut layers = self.layers.iter();
        layers.any(|layer| matches!(layer.space, Space::Formed(_)))
    }

    /// The operator of a layer, formed on all cores where it is not held.
    pub(super) fn prepared(&self, layer: usize) -> Prepared<'_> {
        let space = &self.layers[layer].space;
        space.prepared(self.lanes, &self.workspace, true)
    }

    /// As [`Single::prepared`] on the caller's thread.
    fn operator<'a>(&'a self, layer: &'a SingleLayer) -> Prepared<'a> {
        layer.space.prepared(self.lanes, &self.workspace, false)
    }

    /// Sequences that run together.
    pub(super) fn together(&self) -> usize {
        2 * self.lanes.stacked
    }

    /// A buffer of so many numbers that hold anything.
    pub(super) fn numbers(&self, count: usize) -> Lease<f32> {
        self.workspace.numbers(count)
    }

    /// H.
    pub(super) fn channels(&self) -> usize {
        self.lanes.channels
    }

    /// What the state spaces of a layer give for one sequence, from the stream before it, in place.
    pub(super) fn respond_to(&self, layer: usize, x: &mut [f32]) {
        self.respond_with(layer, &self.operator(&self.layers[layer]), x);
    }

    /// As [`Single::respond_to`] by the layer's operator.
    pub(super) fn respond_with(&self, layer: usize, operator: &Prepared<'_>, x: &mut [f32]) {
        let mut buffers = self.buffers_of(0);
        self.normalise(layer, x);
        operator.apply(x, &mut buffers.space);
    }

    /// What the map between the channels takes, from what the state spaces give.
    pub(super) fn activated(&self, layer: usize, y: &[f32]) -> Vec<f32> {
        let mut active = vec![0.0; y.len()];
        gelu(y, &mut active, self.layers[layer].gelu);
        active
    }

    /// The stream behind a layer, from that before and from what its state spaces give.
    pub(super) fn finish_with(&self, layer: usize, x: &mut [f32], y: &[f32]) {
        let mut tile = self.workspace.numbers(self.tile());
        let mut scratch = MixScratch::default();
        let size = self.tile();
        for (x, y) in x.chunks_mut(size).zip(y.chunks(size)) {
            self.layers[layer].finish(x, y, &mut tile, &mut scratch);
        }
    }

    /// Numbers of one sequence.
    pub(super) fn row(&self) -> usize {
        self.lanes.length * self.lanes.channels
    }

    fn tile(&self) -> usize {
        (TILE / self.lanes.channels).max(8) * self.lanes.channels
    }

    /// For at most [`Single::together`] sequences at a time.
    pub(super) fn buffers(&self) -> Buffers {
        self.buffers_of(self.lanes.slab())
    }

    /// For so many numbers at a time.
    fn buffers_of(&self, count: usize) -> Buffers {
        let workspace = &self.workspace;
        let layers = self.layers.iter();
        let sizes = layers.map(|layer| layer.space.scratch(self.lanes, workspace));
        let sizes = sizes.fold(ScratchSizes::default(), ScratchSizes::largest);
        Buffers {
            y: workspace.numbers(count),
            tile: workspace.numbers(self.tile()),
            space: sizes.leased(workspace),
            mix: MixScratch::default(),
        }
    }

    /// What goes into the first layer. The sequences were checked.
    fn encode(&self, sequences: &[Sequence<'_>], x: &mut [f32]) {
        let channels = self.lanes.channels;
        for (sequence, x) in sequences.iter().zip(x.chunks_exact_mut(self.row())) {
            match (&self.encoder, sequence) {
                (
                    Encode::Linear {
                        inputs,
                        weight,
                        bias,
                    },
                    Sequence::Values(values),
                ) => {
                    x.chunks_exact_mut(channels)
                        .for_each(|row| row.copy_from_slice(bias));
                    let steps = values.len() / inputs;
                    let weight = RowMajor::new(weight, channels, *inputs).transpose();
                    let values = RowMajor::new(values, steps, *inputs);
                    multiply_rows(&mut x[..steps * channels], values, weight, true);
                }
                (Encode::Embedding(table), Sequence::Tokens(tokens)) => {
                    let padded = tokens.iter().chain(std::iter::repeat(&0));
                    for (row, &token) in x.chunks_exact_mut(channels).zip(padded) {
                        let start = token as usize * channels;
                        row.copy_from_slice(&table[start..start + channels]);
                    }
                }
                _ => unreachable!("the kind was checked"),
            }
        }
    }

    /// z ← what the state spaces of a layer take, from the stream.
    fn input(&self, layer: &SingleLayer, x: &[f32], z: &mut [f32]) {
        z.copy_from_slice(x);
        if let Some(norm) = layer.norm(Placement::Pre) {
            norm.apply(z);
        }
    }

    /// The stream behind a layer, from that before and from what its state spaces give.
    fn finish(&self, layer: &SingleLayer, x: &mut [f32], buffers: &mut Buffers) {
        let Buffers { y, tile, mix, .. } = buffers;
        let size = self.tile();
        let y = &y[..x.len()];
        for (x, y) in x.chunks_mut(size).zip(y.chunks(size)) {
            layer.finish(x, y, tile, mix);
        }
    }

    /// Runs at most [`Single::together`] sequences up to layer `last`; `show` gets what the state
    /// spaces of every layer take, sequence × L × H. The answer is the stream behind the last layer that
    /// ran.
    pub(super) fn run(
        &self,
        sequences: &[Sequence<'_>],
        buffers: &mut Buffers,
        last: usize,
        mut show: impl FnMut(usize, &[f32]),
    ) -> Lease<f32> {
        let count = sequences.len() * self.row();
        let mut x = self.workspace.numbers(count);
        self.encode(sequences, &mut x);
        for (index, layer) in self.layers.iter().enumerate() {
            let y = &mut buffers.y[..count];
            self.input(layer, &x, y);
            show(index, y);
            if index >= last {
                break;
            }
            self.operator(layer).apply(y, &mut buffers.space);
            self.finish(layer, &mut x, buffers);
        }
        x
    }

    /// The stream before the first layer, of a few sequences that were checked.
    pub(super) fn encoded(&self, sequences: &[Sequence<'_>]) -> Vec<f32> {
        let mut x = vec![0.0; sequences.len() * self.row()];
        self.encode(sequences, &mut x);
        x
    }

    /// The stream before a layer becomes what its state spaces take.
    pub(super) fn normalise(&self, layer: usize, x: &mut [f32]) {
        if let Some(norm) = self.layers[layer].norm(Placement::Pre) {
            norm.apply(x);
        }
    }

    /// The stream of at most [`Single::together`] sequences from before a layer to behind it, by its
    /// operator.
    pub(super) fn pass(&self, layer: usize, operator: &Prepared<'_>, x: &mut [f32]) {
        let mut buffers = self.buffers_of(x.len());
        buffers.y.copy_from_slice(x);
        self.respond(layer, operator, &mut buffers);
        self.finish(&self.layers[layer], x, &mut buffers);
    }

    /// As [`Single::pass`] for a stream that lies elsewhere: `read` gives a part of it from its place
    /// on, `write` takes what that becomes. Memory for the stream once, not twice.
    pub(super) fn pass_by_parts<E>(
        &self,
        layer: usize,
        operator: &Prepared<'_>,
        count: usize,
        parts: impl PartsOfStream<E>,
    ) -> Result<(), E> {
        let mut buffers = self.buffers_of(count);
        parts.read(0, &mut buffers.y)?;
        self.respond(layer, operator, &mut buffers);
        let size = self.tile();
        let mut x = self.workspace.numbers(size.min(count));
        for first in (0..count).step_by(size) {
            let own = first..count.min(first + size);
            let x = &mut x[..own.len()];
            parts.read(first, x)?;
            let Buffers { y, tile, mix, .. } = &mut buffers;
            self.layers[layer].finish(x, &y[own], tile, mix);
            parts.write(first, x)?;
        }
        Ok(())
    }

    /// y ← what the state spaces of a layer give, from the stream before it.
    fn respond(&self, layer: usize, operator: &Prepared<'_>, buffers: &mut Buffers) {
        self.normalise(layer, &mut buffers.y);
        operator.apply(&mut buffers.y, &mut buffers.space);
    }

    /// What the head takes: the stream behind the last layer, normalised, pooled over the sequence's
    /// own steps; without pooling every step.
    pub(super) fn pooled(&self, x: &mut [f32], steps: usize, pooling: Option<Pooling>) -> Vec<f64> {
        let channels = self.lanes.channels;
        if let Some(norm) = &self.final_norm {
            norm.apply(x);
        }
        let rows = x.chunks_exact(channels);
        match pooling {
            None => x.iter().map(|&value| f64::from(value)).collect(),
            Some(Pooling::Last) => {
                let row = &x[(steps - 1) * channels..steps * channels];
                row.iter().map(|&value| f64::from(value)).collect()
            }
            Some(Pooling::Mean) => {
                let mut sums = vec![0.0; channels];
                for row in rows.take(steps) {
                    for (sum, &value) in sums.iter_mut().zip(row) {
                        *sum += f64::from(value);
                    }
                }
                sums.iter().map(|sum| sum / steps as f64).collect()
            }
        }
    }

    /// What the head takes, for each sequence.
    pub(super) fn features(
        &self,
        sequences: &[Sequence<'_>],
        steps: &[usize],
        pooling: Option<Pooling>,
    ) -> Vec<Vec<f64>> {
        let mut buffers = self.buffers_of(sequences.len() * self.row());
        let mut x = self.run(sequences, &mut buffers, usize::MAX, |_, _| {});
        let rows = x.chunks_exact_mut(self.row()).zip(steps);
        rows.map(|(x, &steps)| self.pooled(x, steps, pooling))
            .collect()
    }

    /// One way forwards, which gives what the head takes, and one backwards for the combinations of
    /// `head`; `show` gets the layers from the last one down to the lowest that counts, for a few
    /// combinations at a time where sequences are long.
    pub(super) fn pull_back(
        &self,
        sequence: Sequence<'_>,
        head: HeadSlopes<'_>,
        wanted: Wanted,
        mut show: impl FnMut(Pulled<'_>),
    ) -> Vec<f64> {
        let row = self.row();
        let most = self.together().min(head.by_features.len()).max(1);
        let mut buffers = self.buffers_of(most * row);
        let forwards = self.forwards(sequence, &mut buffers, None);
        let features = self.features_of(&forwards, head.steps, head.pooling);
        let together = self.together();
        let few = (self.gradients / (2 * row) / together * together).max(together);
        for (index, by_features) in head.by_features.chunks(few).enumerate() {
            let slopes = self.spread(&head, by_features, forwards.last(row));
            let traces = Traces {
                forwards: &forwards,
                kept: None,
                by_streams: None,
                first: index * few,
                wanted,
            };
            self.descend(traces, slopes, &mut buffers, &mut show);
        }
        features
    }

    /// One way forwards and one backwards for a function of what the head takes and of the streams
    /// behind all layers, L × H each, whose derivatives by both `slopes` gives.
    pub(super) fn pull_back_with(
        &self,
        sequence: Sequence<'_>,
        (steps, pooling): (usize, Option<Pooling>),
        slopes: impl FnOnce(&[f64], &[f32]) -> (Vec<f64>, Vec<f32>),
        mut show: impl FnMut(Pulled<'_>),
    ) {
        let row = self.row();
        let mut buffers = self.buffers_of(row);
        let kept = self.keeps_slopes.then(|| Kept::new(self));
        let mut forwards = self.forwards(sequence, &mut buffers, kept);
        let features = self.features_of(&forwards, steps, pooling);
        let (by_features, by_streams) = slopes(&features, &forwards.streams[row..]);
        let by_features = [by_features];
        let head = HeadSlopes {
            by_features: &by_features,
            pooling,
            steps,
        };
        let g = self.spread(&head, &by_features, forwards.last(row));
        let mut kept = forwards.kept.take();
        let traces = Traces {
            forwards: &forwards,
            kept: kept.as_mut(),
            by_streams: Some(&by_streams),
            first: 0,
            wanted: Wanted {
                systems: true,
                ..Wanted::default()
            },
        };
        self.descend(traces, g, &mut buffers, &mut show);
    }

    /// One sequence through all layers, with what the way back needs.
    fn forwards(
        &self,
        sequence: Sequence<'_>,
        buffers: &mut Buffers,
        mut kept: Option<Kept>,
    ) -> Forwards {
        let row = self.row();
        let mut streams = self.workspace.numbers(row * (self.layers.len() + 1));
        let mut responses = match self.keeps_responses && kept.is_none() {
            true => Some(self.workspace.numbers(row * self.layers.len())),
            false => None,
        };
        let mut x = self.workspace.numbers(row);
        self.encode(&[sequence], &mut x);
        for (index, layer) in self.layers.iter().enumerate() {
            let own = index * row..(index + 1) * row;
            streams[own.clone()].copy_from_slice(&x);
            let y = &mut buffers.y[..row];
            self.input(layer, &x, y);
            let states = kept.as_mut().map(|kept| &mut kept.states[index][..]);
            let states = states.unwrap_or_default();
            let operator = self.operator(layer);
            operator.apply_with(y, &mut buffers.space, states);
            if let Some(responses) = &mut responses {
                responses[own].copy_from_slice(y);
            }
            match &mut kept {
                None => self.finish(layer, &mut x, buffers),
                Some(kept) => self.finish_kept(layer, &mut x, buffers, &mut kept.slopes[index]),
            }
        }
        let last = self.layers.len() * row;
        streams[last..].copy_from_slice(&x);
        Forwards {
            streams,
            responses,
            kept,
        }
    }

    /// As [`Single::finish`] without a norm behind, and the maps' slopes for the way back.
    fn finish_kept(
        &self,
        layer: &SingleLayer,
        x: &mut [f32],
        buffers: &mut Buffers,
        slopes: &mut [MixSlopes<f32>],
    ) {
        let Buffers { y, tile, mix, .. } = buffers;
        let size = self.tile();
        let tiles = x.chunks_mut(size).zip(y[..].chunks(size)).zip(slopes);
        for ((x, y), slopes) in tiles {
            let (y, out) = (&y[..x.len()], &mut tile[..x.len()]);
            mix.exchange(slopes);
            layer.mix().linearise(y, Some(out), mix);
            mix.exchange(slopes);
            match layer.norm.is_some() {
                true => add(x, out),
                false => x.copy_from_slice(out),
            }
        }
    }

    /// The streams behind all layers, L × H each.
    pub(super) fn streams(&self, sequence: Sequence<'_>) -> Vec<f32> {
        let mut buffers = self.buffers_of(self.row());
        let forwards = self.forwards(sequence, &mut buffers, None);
        forwards.streams[self.row()..].to_vec()
    }

    /// What the head takes, from the stream behind the last layer.
    fn features_of(&self, forwards: &Forwards, steps: usize, pooling: Option<Pooling>) -> Vec<f64> {
        let mut x = self.workspace.numbers(self.row());
        x.copy_from_slice(forwards.last(self.row()));
        self.pooled(&mut x, steps, pooling)
    }

    /// The way back for some gradients by the last layer's output.
    fn descend(
        &self,
        mut traces: Traces<'_>,
        mut g: Lease<f32>,
        buffers: &mut Buffers,
        show: &mut impl FnMut(Pulled<'_>),
    ) {
        let (row, wanted) = (self.row(), traces.wanted);
        let mut of_y = self.workspace.numbers(g.len());
        let mut input = self.workspace.numbers(row);
        let at_hand = traces.forwards.responses.is_some() || traces.kept.is_some();
        let mut again = (!at_hand).then(|| self.workspace.numbers(row));
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let own = index * row..(index + 1) * row;
            let x = &traces.forwards.streams[own.clone()];
            if let Some(by_streams) = traces.by_streams {
                add(&mut g, &by_streams[own.clone()]);
            }
            let further = index > wanted.lowest
                || (wanted.vectors && layer.norm(Placement::Pre).is_some())
                || (wanted.systems && layer.scan.is_none());
            let operator = (further || again.is_some()).then(|| self.operator(layer));
            self.input(layer, x, &mut input);
            if let (Some(again), Some(operator)) = (&mut again, &operator) {
                again.copy_from_slice(&input);
                operator.apply(again, &mut buffers.space);
            }
            let y = traces.forwards.responses.as_ref().map(|all| &all[own]);
            let y = y.or(again.as_deref()).unwrap_or_default();
            let (states, slopes) = Kept::of(&mut traces.kept, index);
            let mut back = LayerBack {
                single: self,
                layer,
                buffers,
                x,
                input: &input,
                states,
                slopes,
                sums: Vec::new(),
                systems: wanted.systems.then(Vec::new),
                map: (wanted.map && index == wanted.lowest).then(|| MapSums::new(g.len() / row)),
            };
            if wanted.vectors {
                back.sums.resize_with(g.len() / row, VectorSlopes::default);
            }
            back.mixing(y, &mut g, &mut of_y);
            if let Some(operator) = operator.filter(|_| further) {
                back.state_spaces(&operator, &of_y, &mut g);
            }
            let (vectors, systems) = (back.sums, back.systems.unwrap_or_default());
            let map = back.map;
            show(Pulled {
                layer: index,
                first: traces.first,
                input: &input,
                outputs: &of_y,
                vectors,
                systems,
                map,
            });
            if index <= wanted.lowest {
                break;
            }
        }
    }

    /// The derivatives of some combinations by the last layer's output x: as many × L × H.
    fn spread(&self, head: &HeadSlopes<'_>, by_features: &[Vec<f64>], x: &[f32]) -> Lease<f32> {
        let (channels, row) = (self.lanes.channels, self.row());
        let mut g = self.workspace.numbers(by_features.len() * row);
        for (by_features, g) in by_features.iter().zip(g.chunks_exact_mut(row)) {
            g.fill(0.0);
            let (first, share) = match head.pooling {
                Some(Pooling::Last) => (head.steps - 1, 1.0),
                Some(Pooling::Mean) => (0, head.steps as f64),
                // The combination is taken at every step, and the sum counts.
                None => (0, 1.0),
            };
            for row in g[first * channels..head.steps * channels].chunks_exact_mut(channels) {
                for (g, by) in row.iter_mut().zip(by_features) {
                    *g = (by / share) as f32;
                }
            }
            if let Some(norm) = &self.final_norm {
                norm.pull(x, g);
            }
        }
        g
    }

    /// Derivatives by the residues and feedthroughs of a layer, from what it shows.
    pub(super) fn residue_slopes(
        &self,
        pulled: &Pulled<'_>,
        orders: &[usize],
    ) -> Vec<Vec<Vec<f64>>> {
        let Some(scan) = &self.layers[pulled.layer].scan else {
            return vec![Vec::new(); pulled.outputs.len() / self.row()];
        };
        let workspace = &self.workspace;
        let length = self.lanes.length;
        let mut points = [workspace.points(length), workspace.points(length)];
        let mut sums = workspace.points(scan.residue_sums());
        let mut all = Vec::new();
        for g in pulled.outputs.chunks(2 * self.row()) {
            scan.residue_slopes(pulled.input, g, &mut sums, &mut points);
            for part in 0..g.len() / self.row() {
                let channels = orders.iter().enumerate().map(|(h, &order)| {
                    let mut own: Vec<f64> = scan.residue_slope(&sums, h, part).collect();
                    let last = own.pop().unwrap_or(0.0);
                    own.truncate(2 * order);
                    own.push(last);
                    own
                });
                all.push(channels.collect());
            }
        }
        all
    }
}

/// The derivatives of the combinations of the logits by what the head takes.
pub(super) struct HeadSlopes<'a> {
    pub(super) by_features: &'a [Vec<f64>],
    pub(super) pooling: Option<Pooling>,
    /// Steps that are no padding; all of them without pooling.
    pub(super) steps: usize,
}

/// A stream that lies elsewhere, e.g. in a file.
pub(super) trait PartsOfStream<E> {
    /// The numbers from a place on.
    fn read(&self, first: usize, numbers: &mut [f32]) -> Result<(), E>;
    /// Other numbers in their place.
    fn write(&self, first: usize, numbers: &[f32]) -> Result<(), E>;
}

/// What the way forwards left, and what is requested on the way back.
struct Traces<'a> {
    forwards: &'a Forwards,
    kept: Option<&'a mut Kept>,
    /// Derivatives by the streams behind all layers, besides.
    by_streams: Option<&'a [f32]>,
    /// The first of the combinations whose gradients go back.
    first: usize,
    wanted: Wanted,
}

/// What the way forwards of one sequence left.
struct Forwards {
    /// The stream before every layer and behind the last, L × H each.
    streams: Lease<f32>,
    /// What the state spaces of every layer gave, where it is at hand.
    responses: Option<Lease<f32>>,
    kept: Option<Kept>,
}

/// What spares the way back of one gradient the maps and recurrences of the way forwards.
struct Kept {
    pool: Arc<SlopesPool>,
    /// Of every layer; none where its channels share no modes.
    states: Vec<Lease<f32>>,
    slopes: LayerSlopes,
}

impl Kept {
    fn new(single: &Single) -> Self {
        let (layers, tiles) = (single.layers.len(), single.row().div_ceil(single.tile()));
        let pool = Arc::clone(&single.slopes);
        let free = pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut slopes = free.unwrap_or_default();
        slopes.resize_with(layers, Vec::new);
        slopes
            .iter_mut()
            .for_each(|own| own.resize_with(tiles, MixSlopes::default));
        let states = single.layers.iter().map(|layer| layer.space.states());
        Self {
            states: states.map(|count| single.numbers(count)).collect(),
            slopes,
            pool,
        }
    }

    /// States and slopes of a layer; empty where nothing was kept.
    fn of<'k>(
        kept: &'k mut Option<&mut Self>,
        layer: usize,
    ) -> (&'k [f32], &'k mut [MixSlopes<f32>]) {
        match kept {
            Some(kept) => (&kept.states[layer], &mut kept.slopes[layer]),
            None => (&[], &mut []),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let slopes = std::mem::take(&mut self.slopes);
        let mut free = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(slopes);
    }
}

impl Forwards {
    /// The stream behind the last layer, of so many numbers.
    fn last(&self, row: usize) -> &[f32] {
        &self.streams[self.streams.len() - row..]
    }
}

/// The way back through one layer, for K gradients at one sequence.
struct LayerBack<'a> {
    single: &'a Single,
    layer: &'a SingleLayer,
    buffers: &'a mut Buffers,
    /// The stream before the layer.
    x: &'a [f32],
    /// What its state spaces take.
    input: &'a [f32],
    /// What was kept of the way forwards; empty where it is formed again.
    states: &'a [f32],
    slopes: &'a mut [MixSlopes<f32>],
    /// One for each gradient; empty where not requested.
    sums: Vec<VectorSlopes>,
    /// The same by a system that the channels share.
    systems: Option<Vec<SharedGradient<f32>>>,
    map: Option<MapSums>,
}

impl LayerBack<'_> {
    /// of_y ← the gradients by what the state spaces give; g ← those by the block's output before a
    /// norm behind it.
    fn mixing(&mut self, y: &[f32], g: &mut [f32], of_y: &mut [f32]) {
        let (row, size) = (self.single.row(), self.single.tile());
        let channels = self.single.lanes.channels;
        let mix = self.layer.mix();
        let post = self.layer.norm(Placement::Post);
        let mut standard = Vec::new();
        for (index, x) in self.x.chunks(size).enumerate() {
            let own = index * size..index * size + x.len();
            let Buffers {
                tile, mix: scratch, ..
            } = &mut *self.buffers;
            let work = &mut tile[..x.len()];
            match self.slopes.get_mut(index) {
                Some(slopes) => scratch.exchange(slopes),
                None => {
                    let wanted = post.is_some().then_some(&mut *work);
                    mix.linearise(&y[own.clone()], wanted, scratch);
                }
            }
            if let Some(norm) = post {
                add(work, x);
                if !self.sums.is_empty() {
                    standard.clear();
                    standard.extend_from_slice(work);
                    norm.standard(&mut standard);
                }
            }
            if let Some(map) = &mut self.map {
                map.count_input(Mix::active(scratch, x.len()), channels);
            }
            let gradients = g.chunks_exact_mut(row).zip(of_y.chunks_exact_mut(row));
            for (k, (g, of_y)) in gradients.enumerate() {
                let (g, of_y) = (&mut g[own.clone()], &mut of_y[own.clone()]);
                if let Some(norm) = post {
                    if let Some(sums) = self.sums.get_mut(k) {
                        sums.count_norm(g, &standard, channels);
                    }
                    norm.pull(work, g);
                }
                mix.pull(g, of_y, scratch);
                if let Some(map) = &mut self.map {
                    let x = Mix::active(scratch, x.len());
                    map.count(k, mix.of_map(g, scratch), x, channels);
                }
                if let Some(sums) = self.sums.get_mut(k) {
                    let of_map = mix.of_map(g, scratch);
                    sums.bias.count(of_map, None, self.layer.bias.len());
                }
            }
            if let Some(slopes) = self.slopes.get_mut(index) {
                scratch.exchange(slopes);
            }
        }
    }

    /// g ← the gradients by the stream before the layer.
    fn state_spaces(&mut self, operator: &Prepared<'_>, of_y: &[f32], g: &mut [f32]) {
        let single = self.single;
        let (row, channels) = (single.row(), single.lanes.channels);
        let some = single.together() * row;
        let pre = self.layer.norm(Placement::Pre);
        let mut standard = Vec::new();
        if let (Some(norm), false) = (pre, self.sums.is_empty()) {
            standard.extend_from_slice(self.x);
            norm.standard(&mut standard);
        }
        for (first, (of_y, g)) in of_y.chunks(some).zip(g.chunks_mut(some)).enumerate() {
            let z = &mut self.buffers.y[..g.len()];
            z.copy_from_slice(of_y);
            let back = SpaceBack {
                channels,
                input: self.input,
                states: self.states,
                slopes: self.systems.as_mut(),
            };
            operator.pull(back, z, &mut self.buffers.space);
            let gradients = z.chunks_exact_mut(row).zip(g.chunks_exact_mut(row));
            for (k, (z, g)) in gradients.enumerate() {
                if let Some(norm) = pre {
                    if let Some(sums) = self.sums.get_mut(first * single.together() + k) {
                        sums.count_norm(z, &standard, channels);
                    }
                    norm.pull(self.x, z);
                }
                match self.layer.norm.is_some() {
                    true => add(g, z),
                    false => g.copy_from_slice(z),
                }
            }
        }
    }
}

impl VectorSlopes {
    /// Counts the gradient by what a norm gives, from the normalised rows.
    fn count_norm(&mut self, g: &[f32], standard: &[f32], channels: usize) {
        self.factors.count(g, Some(standard), channels);
        self.offsets.count(g, None, channels);
    }
}
