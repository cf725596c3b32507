//! The layers of a whole network, one after the other in the network reduced so far.

use hankelite_control::Refinement;
use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::calibrate::logits::{Combinations, relative_change};
use crate::calibrate::mimo::fit::CHECK_EVERY;
use crate::calibrate::mimo::logits::{LogitProblem, fit_outputs};
use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::sample::Sample;
use crate::calibrate::mimo::unit::Unit;
use crate::calibrate::mimo::{cut_layer, units};
use crate::calibrate::{CalibrateError, LogitFit};
use crate::compress::{LayerRecord, record_of_joint};
use crate::infer::{InferError, Network, Path as InferPath, Signal};
use crate::model::{Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

/// Random combinations of the logits whose gradients are taken for each sequence.
const COMBINATIONS: usize = 2;

/// Steps that layers are fitted on, about.
const STEPS_MAX: usize = 20_000;

/// Sequences whose moments are summed on one thread, in order.
const GROUP: usize = 8;

/// The layers of a network with their moments, to be reduced to any orders.
pub(crate) struct SharedReduction<'a> {
    model: &'a Model,
    sequences: &'a [Sequence<'a>],
    length: usize,
    layers: Vec<Vec<Unit>>,
    logits: Vec<Vec<f64>>,
    observer: &'a dyn ProgressSink,
}

/// What a reduction does beside bringing each layer to its order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedSettings {
    pub(crate) refinement: Refinement,
    /// Whether all layers are fitted together to the logits.
    pub(crate) fit_logits: bool,
    /// Steps over which kernel errors are measured.
    pub(crate) kernel_length: usize,
}

/// A network reduced to some orders.
pub(crate) struct SharedResult {
    pub(crate) model: Model,
    pub(crate) records: Vec<LayerRecord>,
    pub(crate) fit: Option<LogitFit>,
}

impl<'a> SharedReduction<'a> {
    /// Gathers the moments of all layers: about five forward passes for each sequence, and memory
    /// for a few matrices of 2P × 2P for each layer.
    pub(crate) fn new(
        model: &'a Model,
        sequences: &'a [Sequence<'a>],
        length: usize,
        observer: &'a dyn ProgressSink,
    ) -> Result<Self, CalibrateError> {
        let layers = model.blocks().iter().map(|block| units(block, length));
        let mut made = Self {
            layers: layers.collect::<Result<_, _>>()?,
            model,
            sequences,
            length,
            logits: Vec::new(),
            observer,
        };
        if sequences.is_empty() {
            return Err(CalibrateError::Other(
                "layers whose channels share modes, or that run in both directions, need the \
                 calibration sequences, not only their statistics"
                    .to_string(),
            ));
        }
        made.gather()?;
        let network = Network::new(model, length, InferPath::Auto)?.observed(observer);
        made.logits = network.logits_of_all(sequences)?;
        Ok(made)
    }

    fn gather(&mut self) -> Result<(), CalibrateError> {
        let network = Network::new(self.model, self.length, InferPath::Auto)?;
        let classes = self.model.classes().unwrap_or(0);
        let combinations = Combinations {
            classes,
            most: COMBINATIONS,
        };
        self.observer.begin(stage::MOMENTS, self.sequences.len());
        let empty = self.layers.clone();
        for held in self.sequences.chunks(GROUP * rayon::current_num_threads()) {
            let before = held.as_ptr() as usize - self.sequences.as_ptr() as usize;
            let first = before / std::mem::size_of::<Sequence<'_>>();
            let groups = held.par_chunks(GROUP).enumerate().map(|(group, members)| {
                let mut sums = empty.clone();
                for (i, &sequence) in members.iter().enumerate() {
                    self.observer.step()?;
                    let index = first + group * GROUP + i;
                    let steps = self.steps(sequence)?;
                    network
                        .output_slopes(sequence, &combinations.of(index), |layer| {
                            let kept = self.kept(layer.layer, steps);
                            for unit in &mut sums[layer.layer] {
                                if !layer.continued {
                                    unit.add_input(&layer.input, kept);
                                }
                                unit.add_gradients(&layer.combinations, kept);
                            }
                        })
                        .map_err(|fault| InferError::of_sequence(index, fault))?;
                }
                Ok(sums)
            });
            let groups = groups.collect::<Result<Vec<_>, CalibrateError>>()?;
            for sums in groups {
                let pairs = self.layers.iter_mut().flatten().zip(sums.iter().flatten());
                pairs.for_each(|(total, own)| total.moments.merge(&own.moments));
            }
        }
        Ok(())
    }

    fn steps(&self, sequence: Sequence<'_>) -> Result<usize, InferError> {
        let encoder = self
            .model
            .encoder()
            .ok_or_else(|| InferError::no_classifier("encoder"))?;
        Ok(encoder.takes().steps_of(sequence, self.length)?)
    }

    /// Sequences for work layer by layer: all, or of long lists every so many groups, in each of which
    /// one is held out.
    fn few(&self) -> Result<Vec<Sequence<'a>>, InferError> {
        let steps = self.sequences.iter().map(|&sequence| self.steps(sequence));
        let steps: usize = steps.sum::<Result<usize, InferError>>()?;
        let groups = self.sequences.chunks(CHECK_EVERY);
        let few = groups.step_by((steps / STEPS_MAX).max(1));
        Ok(few.flatten().copied().collect())
    }

    /// Steps of a layer that count: all of them where it runs backwards in time, as padding then
    /// reaches into what comes before.
    fn kept(&self, layer: usize, steps: usize) -> usize {
        match self.model.blocks()[layer].backward().is_empty() {
            true => steps,
            false => self.length,
        }
    }

    /// The orders that layers have.
    pub(crate) fn full_orders(&self) -> Vec<usize> {
        let layers = self.layers.iter();
        let orders = layers.map(|units| units.iter().map(|unit| unit.modes.order()));
        orders.map(|orders| orders.max().unwrap_or(0)).collect()
    }

    /// The full model.
    pub(crate) fn logits(&self) -> &[Vec<f64>] {
        &self.logits
    }

    /// The network with so many modes in the systems of each layer.
    pub(crate) fn reduce(
        &self,
        orders: &[usize],
        settings: SharedSettings,
    ) -> Result<SharedResult, CalibrateError> {
        let few = self.few()?;
        let mut flow = Flow::new(self, &few)?;
        let mut joints = Vec::new();
        self.observer.begin(stage::SEQUENTIAL, orders.len());
        for (layer, &order) in orders.iter().enumerate() {
            let pairs = flow.pairs(layer)?;
            let samples = |unit: &Unit| flow.samples(layer, unit, &pairs);
            let block = &self.model.blocks()[layer];
            let ([_, reduced], joint) = cut_layer(
                block,
                &self.layers[layer],
                order,
                settings.refinement,
                samples,
            )?;
            joints.push(joint);
            flow.model = flow.model.with_block(layer, reduced)?;
            flow.advance(layer, pairs)?;
            self.observer.step()?;
        }
        let mut model = flow.model;
        let fit = match settings.fit_logits {
            true => self.fitted(&mut model)?,
            false => None,
        };
        let blocks = self.model.blocks().iter().zip(model.blocks()).zip(joints);
        let records = blocks.map(|((full, reduced), joint)| {
            Ok(record_of_joint(
                full,
                reduced,
                joint,
                settings.kernel_length,
            )?)
        });
        let records = records.collect::<Result<_, CalibrateError>>()?;
        Ok(SharedResult {
            model,
            records,
            fit,
        })
    }

    fn fitted(&self, model: &mut Model) -> Result<Option<LogitFit>, CalibrateError> {
        let pooled = self.model.head().and_then(|head| head.pooling).is_some();
        if !pooled || *model == *self.model {
            return Ok(None);
        }
        let problem = LogitProblem {
            full: self.model,
            sequences: self.sequences,
            logits: &self.logits,
            length: self.length,
            layers: &self.layers,
            observer: self.observer,
        };
        let Some((fitted, fit)) = fit_outputs(&problem, model)? else {
            return Ok(None);
        };
        *model = fitted;
        Ok(Some(fit))
    }

    /// (Σ E(error)/Σ E(output))^{1/2} of the layers of any model in the place of this one, each for
    /// its input in the full network.
    pub(crate) fn relative_error(&self, model: &Model) -> Result<f64, CalibrateError> {
        let few = self.few()?;
        let mut flow = Flow::new(self, &few)?;
        let (mut error, mut size) = (0.0, 0.0);
        for (layer, units) in self.layers.iter().enumerate() {
            let pairs = flow.pairs(layer)?;
            let block = &model.blocks()[layer];
            for (index, unit) in units.iter().enumerate() {
                let modes = Modes::of(block, index);
                let (e, n) = unit.errors_of(modes, &flow.samples(layer, unit, &pairs));
                error += e;
                size += n;
            }
            flow.advance(layer, pairs)?;
        }
        Ok(if size > 0.0 {
            f64::sqrt(error / size)
        } else {
            0.0
        })
    }

    /// The relative change of the logits.
    pub(crate) fn logit_change(&self, model: &Model) -> Result<f64, CalibrateError> {
        let within = Within(self.observer);
        let network = Network::new(model, self.length, InferPath::Auto)?;
        let reduced = network.observed(&within).logits_of_all(self.sequences)?;
        Ok(relative_change(&self.logits, &reduced))
    }
}

/// All sequences on their way through two networks, the reduced one and the full one.
struct Flow<'a> {
    reduction: &'a SharedReduction<'a>,
    full: Network<'a>,
    /// The network reduced so far.
    model: Model,
    signals: Vec<[Signal; 2]>,
}

/// What the systems of a layer get in the reduced network, and what they give in the full one.
type Pair = (DMatrix<f64>, DMatrix<f64>);

impl<'a> Flow<'a> {
    fn new(
        reduction: &'a SharedReduction<'a>,
        sequences: &[Sequence<'_>],
    ) -> Result<Self, CalibrateError> {
        let full = Network::new(reduction.model, reduction.length, InferPath::Auto)?;
        let signals = sequences.iter().map(|&sequence| {
            let signal = full.encode(sequence)?;
            Ok([signal.clone(), signal])
        });
        Ok(Self {
            signals: signals.collect::<Result<_, CalibrateError>>()?,
            model: reduction.model.clone(),
            reduction,
            full,
        })
    }

    fn pairs(&self, layer: usize) -> Result<Vec<Pair>, CalibrateError> {
        let network = Network::new(&self.model, self.reduction.length, InferPath::Auto)?;
        let pairs = self.signals.par_iter().map(|[own, of_full]| {
            let input = network.system_input(layer, &own.x)?;
            Ok((input, self.full.response(layer, &of_full.x)?))
        });
        pairs.collect()
    }

    /// The same of one system of a layer, without padding.
    fn samples(&self, layer: usize, unit: &Unit, pairs: &[Pair]) -> Vec<Sample> {
        let both = pairs.par_iter().zip(&self.signals);
        let samples = both.map(|((u, y), [own, _])| {
            let kept = self.reduction.kept(layer, own.steps);
            Sample {
                input: unit.inputs(u, kept).into_owned(),
                target: unit.outputs(y, kept).into_owned(),
            }
        });
        samples.collect()
    }

    /// Lets all sequences pass a layer.
    fn advance(&mut self, layer: usize, pairs: Vec<Pair>) -> Result<(), CalibrateError> {
        let network = Network::new(&self.model, self.reduction.length, InferPath::Auto)?;
        let each = self.signals.par_iter_mut().zip(pairs);
        each.try_for_each(|([own, of_full], (_, y))| {
            own.x = network.finished(layer, &own.x, &network.response(layer, &own.x)?)?;
            of_full.x = self.full.finished(layer, &of_full.x, &y)?;
            Ok(())
        })
    }
}
