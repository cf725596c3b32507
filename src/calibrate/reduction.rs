//! Channels balanced once for their inputs, and models of any size made from them.

mod search;

use std::sync::Arc;

use hankelite_control::{DiagonalSystem, InputWeight, Refinement, StatisticsError};
use nalgebra::DMatrix;
use serde::Serialize;

use crate::calibrate::calibration::Summary;
use crate::calibrate::captured::Captured;
use crate::calibrate::gradients::{GradientFit, fit_gradients};
use crate::calibrate::logits::{fit_logits, relative_change};
use crate::calibrate::mimo::{SharedReduction, SharedSettings, reduce_layer_jointly};
use crate::calibrate::parameters::{FittedNumbers, LogitData};
use crate::calibrate::reduction::search::{Search, Trial};
use crate::calibrate::statistics::{input_statistics, walk_to};
use crate::calibrate::{
    CalibrateError, Calibration, Importance, Known, LogitFit, Settings, TargetSize, WeightChoice,
};
use crate::compress::{
    Allocation, CalibratedLayer, CompressError, CutSystem, ErrorCurve, LayerRecord, NumberStore,
};
use crate::infer::{InferError, Network, Path as InferPath, Setup, Walk, importance_from};
use crate::model::{Block, InputSignal, Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

/// Bytes that the moments of all channels may take in memory.
const MOMENTS_HELD: usize = 1 << 26;

/// Bytes that they may take in a temporary file: by default, of so many vectors for each channel as
/// mostly stay of the ends of many sequences; and in any case, where moments are requested.
const MOMENTS_AUTO: usize = if usize::BITS > 32 {
    1 << (usize::BITS / 2)
} else {
    1 << 28
};
const ENDS_STAYING: usize = 32;
const MOMENTS_MAX: usize = if usize::BITS > 32 {
    2 << (usize::BITS / 2)
} else {
    1 << 29
};

/// Bytes that the long vectors behind the spectra of all channels may take in memory.
const SPECTRA_HELD: usize = 1 << 27;

/// Bytes that the inputs of some channels of a layer may take while these are prepared.
const INPUTS_HELD: usize = 1 << 25;

/// A model whose channels are balanced for their inputs, to be reduced to any size. Cuts are kept,
/// so that many sizes cost little more than one.
pub struct CalibratedReduction<'a> {
    model: &'a Model,
    summary: Summary,
    sequences: &'a [Sequence<'a>],
    captured: Option<&'a Captured>,
    layers: Vec<CalibratedLayer>,
    /// In the place of `layers`, where channels share modes or layers run in both directions.
    shared: Option<SharedReduction<'a>>,
    logits: Vec<Vec<f64>>,
    moments: bool,
    /// For the moments, where they are too large for memory.
    store: Option<Arc<NumberStore>>,
    observer: &'a dyn ProgressSink,
}

/// A model reduced for its input.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct Calibrated {
    /// The reduced model.
    pub model: Model,
    /// One record for each layer.
    pub records: Vec<LayerRecord>,
    /// What was chosen on the way.
    pub choice: Choice,
}

/// What was chosen, and its errors as far as they can be measured without labels.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// Where the sequences came from.
    pub origin: String,
    /// Sequences behind the statistics.
    pub(crate) sequences: usize,
    /// How many of them are different, and the root mean square of their numbers. Absent where only
    /// statistics are at hand.
    pub signal: Option<InputSignal>,
    /// Their steps.
    pub length: usize,
    /// The metric, `moments` or `spectrum`.
    pub weight: &'static str,
    /// How states were shared.
    pub(crate) allocation: Allocation,
    /// What counted: `equal`, `root` or `gradient`. Absent where nothing was shared.
    pub importance: Option<&'static str>,
    /// Factors on the importance of each layer, found by trying. Empty when none was tried.
    pub layer_factors: Vec<f64>,
    /// Stored states that are used, over all channels.
    pub states: usize,
    /// The same before.
    pub states_before: usize,
    /// (Σ E_h(error)/Σ E_h(output))^{1/2} over all channels.
    pub relative_error: f64,
    /// The root mean square change of the centred logits over the calibration sequences, relative
    /// to theirs. Absent without sequences.
    pub logit_change: Option<f64>,
    /// Whether layers were reduced again for their inputs in the reduced network. Absent when that
    /// was not requested.
    pub sequential: Option<bool>,
    /// How all channels together were fitted to the logits. Absent when they were not.
    pub fit: Option<LogitFit>,
    /// How all channels together were fitted by captured gradients. Absent when they were not.
    pub gradient_fit: Option<GradientFit>,
    /// Which parts of the method could run.
    pub known: Known,
}

/// Sequences to calibrate on.
#[derive(Clone, Copy)]
pub struct CalibrationRun<'a> {
    /// The sequences.
    pub sequences: &'a [Sequence<'a>],
    /// Steps that they are padded to.
    pub length: usize,
    /// Where they come from, for the record.
    pub origin: &'a str,
}

/// What the layers get, beyond statistics.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    sequences: &'a [Sequence<'a>],
    captured: Option<&'a Captured>,
}

impl<'a> CalibratedReduction<'a> {
    /// Balances every channel of a model for its input. Without `sequences` (none at hand,
    /// only their statistics) the weight is the spectrum and no logits are compared. The observer
    /// follows this and all later work.
    ///
    /// Channels run in parallel. Cost 5 to 20 ms for each channel of 32 modes. With the moments of n
    /// sequences a channel has up to 8 L (n + 2) bytes, of many sequences 16 L (N + 1); those of all channels
    /// are in memory up to 64 MiB, beyond that in a temporary file (up to 4 GiB, 8 if requested) without a
    /// name, in the folder that `TMPDIR` gives.
    ///
    /// # Errors
    /// [`CalibrateError::OtherModel`]; [`CalibrateError::Other`] for moments without sequences
    /// or too large, also for the temporary file; [`CalibrateError::Compress`] with layer, channel and poles
    /// when a mode does not decay; [`CalibrateError::Cancelled`].
    pub fn new(
        model: &'a Model,
        calibration: &Calibration,
        sequences: &'a [Sequence<'a>],
        choice: WeightChoice,
        observer: &'a dyn ProgressSink,
    ) -> Result<Self, CalibrateError> {
        let inputs = Inputs {
            sequences,
            captured: None,
        };
        Self::by_statistics(model, calibration, inputs, choice, observer)
    }

    /// As [`CalibratedReduction::new`], for layer inputs that another program captured, from
    /// which the statistics come: moments can be exact, and channels be fitted together to first
    /// order where there are gradients.
    ///
    /// # Errors
    /// As [`CalibratedReduction::new`]; [`CalibrateError::Other`].
    pub fn of_captured(
        model: &'a Model,
        calibration: &Calibration,
        captured: &'a Captured,
        choice: WeightChoice,
        observer: &'a dyn ProgressSink,
    ) -> Result<Self, CalibrateError> {
        let inputs = Inputs {
            sequences: &[],
            captured: Some(captured),
        };
        Self::by_statistics(model, calibration, inputs, choice, observer)
    }

    /// As [`CalibratedReduction::new`], by the sequences alone. Statistics of the inputs are
    /// gathered only where exact moments are not taken: without them a transform for each channel and
    /// sequence, and L numbers for each channel, are saved.
    ///
    /// # Errors
    /// As [`CalibratedReduction::new`], and those of [`Calibration::gather`].
    pub fn of_sequences(
        model: &'a Model,
        run: CalibrationRun<'a>,
        choice: WeightChoice,
        observer: &'a dyn ProgressSink,
    ) -> Result<Self, CalibrateError> {
        let CalibrationRun {
            sequences,
            length,
            origin,
        } = run;
        let mut summary = Summary {
            origin: origin.to_string(),
            sequences: sequences.len(),
            length,
            known: Known::Network,
            importance: Vec::new(),
        };
        if sequences.is_empty() {
            return Err(InferError::no_sequences().into());
        }
        let network = || {
            Ok::<_, InferError>(Network::new(model, length, InferPath::Auto)?.observed(observer))
        };
        let bank = model.is_bank();
        if length == 0 || (bank && !by_moments(model, &summary, true, choice)?) {
            let calibration = Calibration::gather(&network()?, sequences, origin)?;
            return Self::new(model, &calibration, sequences, choice, observer);
        }
        if bank {
            let network = network()?;
            let importance = importance_from(&network, sequences, 0);
            if let Err(InferError::Statistics(_)) = importance {
                // Gradients overflow everywhere; statistics name the first layer whose input does.
                input_statistics(&network, sequences)?;
            }
            summary.importance = importance?;
        }
        let inputs = Inputs {
            sequences,
            captured: None,
        };
        let mut made = Self::empty(model, summary, inputs, observer);
        made.moments = true;
        made.balance(None)?;
        Ok(made)
    }

    fn by_statistics(
        model: &'a Model,
        calibration: &Calibration,
        inputs: Inputs<'a>,
        choice: WeightChoice,
        observer: &'a dyn ProgressSink,
    ) -> Result<Self, CalibrateError> {
        calibration.check(model)?;
        let at_hand = !inputs.sequences.is_empty() || inputs.captured.is_some();
        let mut made = Self::empty(model, calibration.summary(), inputs, observer);
        made.moments = by_moments(model, &made.summary, at_hand, choice)?;
        made.balance(Some(calibration))?;
        Ok(made)
    }

    /// Without its layers.
    fn empty(
        model: &'a Model,
        summary: Summary,
        inputs: Inputs<'a>,
        observer: &'a dyn ProgressSink,
    ) -> Self {
        Self {
            model,
            summary,
            sequences: inputs.sequences,
            captured: inputs.captured,
            layers: Vec::with_capacity(model.blocks().len()),
            shared: None,
            logits: Vec::new(),
            moments: false,
            store: None,
            observer,
        }
    }

    fn balance(&mut self, statistics: Option<&Calibration>) -> Result<(), CalibrateError> {
        if self.model.is_bank() {
            let held = match self.moments {
                true => moment_bytes(self.model, &self.summary, usize::MAX) <= MOMENTS_HELD,
                false => spectrum_bytes(self.model, &self.summary) <= SPECTRA_HELD,
            };
            if !held {
                let store = NumberStore::new().map_err(CompressError::Store)?;
                self.store = Some(Arc::new(store));
            }
            return self.balance_channels(statistics);
        }
        self.moments = true;
        if self.captured.is_none() {
            let length = self.length();
            let shared = SharedReduction::new(self.model, self.sequences, length, self.observer)?;
            self.logits = shared.logits().to_vec();
            self.shared = Some(shared);
        }
        Ok(())
    }

    /// Balances all channels, layer by layer, and takes the logits that come out behind the last.
    /// Where there are no exact moments the spectrum of `statistics` stands for the input.
    fn balance_channels(&mut self, statistics: Option<&Calibration>) -> Result<(), CalibrateError> {
        let within = Within(self.observer);
        let network = match self.sequences {
            [] => None,
            _ => {
                let (length, setup) = (self.length(), Setup::of_a_walk());
                let network = Network::with_setup(self.model, length, InferPath::Auto, &setup)?;
                Some(network.observed(&within))
            }
        };
        let mut walk = match &network {
            Some(network) if self.moments => Some(network.walk(self.sequences)?),
            _ => None,
        };
        let blocks = self.model.blocks();
        self.observer.begin(stage::BALANCING, blocks.len());
        let layers = statistics.map_or(&[][..], Calibration::layers);
        for (index, block) in blocks.iter().enumerate() {
            self.observer.check()?;
            let layer = match (&mut walk, self.captured) {
                (Some(walk), _) => {
                    let layer = self.balanced(walk, index)?;
                    walk.advance()?;
                    layer
                }
                (None, Some(captured)) if self.moments => {
                    let inputs = captured.by_channel(index)?;
                    let moments = |h: usize| InputWeight::moments(&inputs[h]);
                    let mut layer = CalibratedLayer::empty();
                    layer.add(block, 0..inputs.len(), moments, self.store.as_ref())?;
                    layer
                }
                _ => {
                    let weight = |h: usize| layers.get(index)?.statistics.weight(h);
                    let mut layer = CalibratedLayer::empty();
                    layer.add(block, 0..block.channels(), weight, self.store.as_ref())?;
                    layer
                }
            };
            self.layers.push(layer);
            self.observer.advance(1);
        }
        self.logits = match (walk, &network) {
            (Some(walk), _) => walk.logits()?,
            (None, Some(network)) => network.logits_of_all(self.sequences)?,
            (None, None) => Vec::new(),
        };
        Ok(())
    }

    /// As [`CalibratedReduction::new`], for a network that this crate need not be able to
    /// run: without sequences, so that no logits are compared. `weight` gives the metric of the
    /// input of a channel (layer, channel), e.g. from moments gathered by other means; `None` where
    /// that input is zero.
    ///
    /// # Errors
    /// As [`CalibratedReduction::new`].
    pub fn by_weights(
        model: &'a Model,
        calibration: &Calibration,
        weight: impl Fn(usize, usize) -> Option<InputWeight> + Sync,
        observer: &'a dyn ProgressSink,
    ) -> Result<Self, CalibrateError> {
        calibration.check(model)?;
        if !model.is_bank() {
            let what = "moments of single channels are for causal layers with one system per channel; \
                        others take the inputs themselves";
            return Err(CalibrateError::Other(what.to_string()));
        }
        observer.begin(stage::BALANCING, model.blocks().len());
        let blocks = model.blocks().iter().enumerate();
        let layers = blocks.map(|(index, block)| {
            observer.check()?;
            let layer = CalibratedLayer::new(block, |h| weight(index, h))?;
            observer.advance(1);
            Ok(layer)
        });
        let layers = layers.collect::<Result<_, CalibrateError>>()?;
        let inputs = Inputs {
            sequences: &[],
            captured: None,
        };
        let mut made = Self::empty(model, calibration.summary(), inputs, observer);
        made.layers = layers;
        made.moments = true;
        Ok(made)
    }

    /// A layer of the full model, balanced for the inputs of its channels in a network of the full
    /// model or of one that is reduced already before that layer, at which the walk stands.
    fn balanced(
        &self,
        walk: &Walk<'_, '_>,
        index: usize,
    ) -> Result<CalibratedLayer, CalibrateError> {
        let block = &self.model.blocks()[index];
        let each = 8 * self.length() * self.sequences.len();
        let fewest = walk.channels_together();
        let together = (INPUTS_HELD / each.max(1)).max(1);
        let together = together.next_multiple_of(fewest);
        let mut layer = CalibratedLayer::empty();
        for first in (0..block.channels()).step_by(together) {
            self.observer.check()?;
            let channels = first..block.channels().min(first + together);
            let inputs = walk.inputs_of(channels.clone())?;
            let finite = |input: &DMatrix<f64>| input.norm_squared().is_finite();
            if let Some(at) = inputs.iter().position(|input| !finite(input)) {
                let (channel, what) = (first + at, "the power");
                let source = StatisticsError::NotFinite { channel, what };
                return Err(InferError::of_input(index, source).into());
            }
            let weight = |h: usize| match self.moments {
                true => InputWeight::moments(&inputs[h - first]),
                false => InputWeight::of_sequences(&inputs[h - first]),
            };
            layer.add(block, channels, weight, self.store.as_ref())?;
        }
        Ok(layer)
    }

    /// A smaller model.
    ///
    /// # Errors
    /// [`CalibrateError::Setting`] for a size out of range; [`CalibrateError::Compress`].
    pub fn reduce(&self, settings: &Settings) -> Result<Calibrated, CalibrateError> {
        let budget = settings.budget(self.model)?;
        if !self.model.is_bank() {
            settings.require_for_shared()?;
        }
        if let Some(shared) = &self.shared {
            return self.reduce_shared(shared, settings);
        }
        if let Some(captured) = self.captured.filter(|_| !self.model.is_bank()) {
            return self.reduce_captured(captured, settings);
        }
        let mut trial = Search::new(self, settings, budget)?.best()?;
        let followed = match settings.sequential {
            true => self.follow(settings, &mut trial)?,
            false => None,
        };
        let sequential = settings.sequential.then_some(followed.is_some());
        let layers = followed.as_ref().unwrap_or(&self.layers);
        let free = self
            .model
            .blocks()
            .iter()
            .all(|block| block.class().is_none());
        let sized = !matches!(settings.size, TargetSize::Error(_));
        // Fits of all channels together give systems that a restricted layout cannot hold.
        let together = settings.fit_logits && sized && free;
        let fit = match together {
            true => self.fit(layers, &mut trial)?,
            false => None,
        };
        let gradient_fit = match (together, self.captured) {
            (true, Some(captured)) => {
                let data = self.logit_data(layers, FittedNumbers::Residues);
                let fitted = fit_gradients(&data, captured, self.model, &trial.model)?;
                fitted.map(|(model, fit)| {
                    trial.model = model;
                    fit
                })
            }
            _ => None,
        };
        if trial.change.is_none() {
            trial.change = self.logit_change(&trial.model)?;
        }
        let records = self.records(settings, layers, &trial)?;
        Ok(Calibrated {
            choice: Choice {
                sequential,
                fit,
                gradient_fit,
                ..self.choice(settings, &trial, &records)
            },
            model: trial.model,
            records,
        })
    }

    /// A smaller model whose channels share modes.
    fn reduce_shared(
        &self,
        shared: &SharedReduction<'_>,
        settings: &Settings,
    ) -> Result<Calibrated, CalibrateError> {
        let unfitted = SharedSettings {
            refinement: settings.refinement,
            fit_logits: false,
            kernel_length: settings.kernel_length.unwrap_or(self.length()),
        };
        let error_of = |orders: &[usize]| {
            let tried = shared.reduce(orders, unfitted)?;
            shared.relative_error(&tried.model)
        };
        let orders = layer_orders(&shared.full_orders(), settings, error_of)?;
        let fit_logits = settings.fit_logits && !matches!(settings.size, TargetSize::Error(_));
        let settings = SharedSettings {
            fit_logits,
            ..unfitted
        };
        self.shared_made(shared, &orders, settings)
    }

    /// A smaller model whose channels share modes, with so many in each layer.
    ///
    /// # Errors
    /// [`CalibrateError::Setting`] where every channel has modes of its own.
    pub(crate) fn shared_at(
        &self,
        orders: &[usize],
        refinement: Refinement,
        fit_logits: bool,
    ) -> Result<Calibrated, CalibrateError> {
        let Some(shared) = &self.shared else {
            let what = "the number of layers whose channels share modes";
            return Err(CalibrateError::setting(what, 0.0, "one at least"));
        };
        let settings = SharedSettings {
            refinement,
            fit_logits,
            kernel_length: self.length(),
        };
        self.shared_made(shared, orders, settings)
    }

    fn shared_made(
        &self,
        shared: &SharedReduction<'_>,
        orders: &[usize],
        settings: SharedSettings,
    ) -> Result<Calibrated, CalibrateError> {
        let made = shared.reduce(orders, settings)?;
        let choice = Choice {
            relative_error: shared.relative_error(&made.model)?,
            logit_change: Some(shared.logit_change(&made.model)?),
            sequential: Some(true),
            fit: made.fit,
            ..self.joint_choice(&made.model, Known::Network)
        };
        Ok(Calibrated {
            model: made.model,
            records: made.records,
            choice,
        })
    }

    /// A smaller model whose channels share modes, each layer alone for its captured inputs.
    fn reduce_captured(
        &self,
        captured: &Captured,
        settings: &Settings,
    ) -> Result<Calibrated, CalibrateError> {
        let blocks = self.model.blocks();
        let reduced = |orders: &[usize]| {
            self.observer.begin(stage::SEQUENTIAL, orders.len());
            let layers = blocks.iter().zip(orders).enumerate();
            let layers = layers.map(|(layer, (block, &order))| {
                let sequences = captured.layer(layer)?;
                let made = reduce_layer_jointly(block, &sequences, order, settings.refinement)?;
                self.observer.step()?;
                Ok(made)
            });
            layers.collect::<Result<Vec<_>, CalibrateError>>()
        };
        let error_of =
            |orders: &[usize]| Ok(weighted_error(reduced(orders)?.iter().map(|l| &l.record)));
        let full: Vec<usize> = blocks.iter().map(|block| block.order()).collect();
        let made = reduced(&layer_orders(&full, settings, error_of)?)?;
        let model = self
            .model
            .with_blocks(made.iter().map(|layer| layer.block.clone()).collect())?;
        Ok(Calibrated {
            choice: Choice {
                relative_error: weighted_error(made.iter().map(|layer| &layer.record)),
                ..self.joint_choice(&model, self.summary.known)
            },
            records: made.into_iter().map(|layer| layer.record).collect(),
            model,
        })
    }

    /// What every record of a model whose channels share modes holds.
    fn joint_choice(&self, model: &Model, known: Known) -> Choice {
        Choice {
            known,
            origin: self.summary.origin.clone(),
            sequences: self.summary.sequences,
            signal: InputSignal::of(self.sequences),
            length: self.length(),
            weight: "moments",
            allocation: Allocation::Model,
            importance: None,
            layer_factors: Vec::new(),
            states: states_of(model),
            states_before: states_of(self.model),
            relative_error: 0.0,
            logit_change: None,
            sequential: None,
            fit: None,
            gradient_fit: None,
        }
    }

    /// Fits all channels together to the logits, where there are sequences and pooled logits.
    fn fit(
        &self,
        layers: &[CalibratedLayer],
        trial: &mut Trial,
    ) -> Result<Option<LogitFit>, CalibrateError> {
        let data = self.logit_data(layers, FittedNumbers::Residues);
        let Some(fitted) = fit_logits(&data, &trial.model)? else {
            return Ok(None);
        };
        if fitted.fit.steps > 0 {
            trial.change = fitted.change;
            trial.model = fitted.model;
        }
        Ok(Some(fitted.fit))
    }

    fn logit_data<'d>(
        &'d self,
        layers: &'d [CalibratedLayer],
        fitted: FittedNumbers,
    ) -> LogitData<'d> {
        LogitData {
            summary: &self.summary,
            sequences: self.sequences,
            logits: &self.logits,
            layers,
            fitted,
            observer: self.observer,
        }
    }

    /// The records of the model of a trial, whose systems come from the cuts of `layers`.
    fn records(
        &self,
        settings: &Settings,
        layers: &[CalibratedLayer],
        trial: &Trial,
    ) -> Result<Vec<LayerRecord>, CalibrateError> {
        let kernel_length = settings.kernel_length.unwrap_or(self.length());
        let blocks = self.model.blocks().iter().zip(trial.model.blocks());
        let parts = blocks.zip(layers).zip(&trial.allotted.orders);
        let records = parts.map(|(((full, reduced), layer), orders)| {
            let made = orders.iter().zip(reduced.systems());
            let made = made.map(|(&order, system)| CutSystem { order, system });
            let made: Vec<_> = made.collect();
            layer.record_of(full, &made, settings.refinement, kernel_length)
        });
        Ok(records.collect::<Result<_, _>>()?)
    }

    fn choice(&self, settings: &Settings, trial: &Trial, records: &[LayerRecord]) -> Choice {
        let states = records.iter().flat_map(|layer| &layer.channels);
        let states = states.map(|channel| channel.order);
        let systems = self.model.blocks().iter().flat_map(|block| block.systems());
        let shared = settings.allocation != Allocation::Model;
        Choice {
            origin: self.summary.origin.clone(),
            sequences: self.summary.sequences,
            signal: InputSignal::of(self.sequences),
            length: self.length(),
            weight: if self.moments { "moments" } else { "spectrum" },
            allocation: settings.allocation,
            importance: shared.then_some(trial.allotted.importance),
            layer_factors: trial.allotted.factors.clone(),
            states: states.sum(),
            states_before: systems.map(|system| system.order()).sum(),
            relative_error: weighted_error(records.iter()),
            logit_change: trial.change,
            sequential: None,
            fit: None,
            gradient_fit: None,
            known: match self.sequences {
                // No logits can be compared by the statistics of a network alone.
                [] if self.summary.known == Known::Network => Known::InputsAndGradients,
                _ => self.summary.known,
            },
        }
    }

    /// The relative change of the logits of a smaller model over other sequences than those of the
    /// reduction: (Σ ‖z − z_r‖²/Σ ‖z‖²)^{1/2}, centred over the classes. Cost two forward passes
    /// for each.
    ///
    /// # Errors
    /// [`CalibrateError::Infer`].
    pub fn change_on(
        &self,
        model: &Model,
        sequences: &[Sequence<'_>],
    ) -> Result<f64, CalibrateError> {
        let logits = |model| {
            let network = Network::new(model, self.length(), InferPath::Auto)?;
            network.logits_of_all(sequences)
        };
        Ok(relative_change(&logits(self.model)?, &logits(model)?))
    }

    /// Whether channels share modes, and layers are reduced as systems of all channels.
    pub(crate) fn shares_modes(&self) -> bool {
        self.shared.is_some()
    }

    /// The full model.
    pub(crate) fn model(&self) -> &'a Model {
        self.model
    }

    /// The calibration sequences; none where only their statistics are at hand.
    pub(crate) fn sequences(&self) -> &'a [Sequence<'a>] {
        self.sequences
    }

    /// Steps of the sequences.
    pub(crate) fn length(&self) -> usize {
        self.summary.length
    }

    /// What follows the work.
    pub(crate) fn observer(&self) -> &'a dyn ProgressSink {
        self.observer
    }

    /// The channels of a layer, cut to these orders.
    pub(crate) fn cut(
        &self,
        layer: usize,
        orders: &[usize],
        refinement: Refinement,
    ) -> Result<Vec<DiagonalSystem>, CalibrateError> {
        let block = &self.model.blocks()[layer];
        Ok(self.layers[layer].systems(block, orders, refinement)?)
    }

    /// The best residues and feedthroughs for the poles of a layer's systems, each channel alone.
    pub(crate) fn refitted(
        &self,
        layer: usize,
        systems: &[DiagonalSystem],
        ridge: f64,
    ) -> Result<Vec<DiagonalSystem>, CalibrateError> {
        Ok(self.layers[layer].refitted(&self.model.blocks()[layer], systems, ridge)?)
    }

    /// The relative change of the logits of the first so many sequences.
    pub(crate) fn change_over(&self, model: &Model, count: usize) -> Result<f64, CalibrateError> {
        let count = count.min(self.sequences.len());
        let within = Within(self.observer);
        let network = Network::new(model, self.length(), InferPath::Auto)?;
        let reduced = network
            .observed(&within)
            .logits_of_all(&self.sequences[..count])?;
        Ok(relative_change(&self.logits[..count], &reduced))
    }

    /// The logits of the full model.
    pub(crate) fn logits(&self) -> &[Vec<f64>] {
        &self.logits
    }

    /// The relative change of the logits of all sequences.
    pub(crate) fn change(&self, model: &Model) -> Result<f64, CalibrateError> {
        self.change_over(model, self.sequences.len())
    }

    /// Channels, biases and norms fitted together to the logits of the full model, where these are
    /// pooled.
    pub(crate) fn fit_numbers(
        &self,
        model: &Model,
        fitted: FittedNumbers,
    ) -> Result<Option<(Model, LogitFit)>, CalibrateError> {
        let fitted = fit_logits(&self.logit_data(&self.layers, fitted), model)?;
        Ok(fitted.map(|fitted| (fitted.model, fitted.fit)))
    }

    /// The records of a model whose channels come from cuts to these orders.
    pub(crate) fn records_of(
        &self,
        model: &Model,
        orders: &[Vec<usize>],
        refinement: Refinement,
    ) -> Result<Vec<LayerRecord>, CalibrateError> {
        let blocks = self.model.blocks().iter().zip(model.blocks());
        let parts = blocks.zip(&self.layers).zip(orders);
        let records = parts.map(|(((full, reduced), layer), orders)| {
            let made = orders.iter().zip(reduced.systems());
            let made = made.map(|(&order, system)| CutSystem { order, system });
            let made: Vec<_> = made.collect();
            layer.record_of(full, &made, refinement, self.length())
        });
        Ok(records.collect::<Result<_, _>>()?)
    }

    /// The same order everywhere, as far as channels have it.
    fn uniform(&self, order: usize) -> Vec<Vec<usize>> {
        let blocks = self.model.blocks().iter();
        let orders = blocks.map(|block| {
            let systems = block.systems().iter();
            systems.map(|system| order.min(system.order())).collect()
        });
        orders.collect()
    }

    /// The error curves of all channels, with the errors up to an order at least.
    pub(crate) fn curves(
        &self,
        refinement: Refinement,
        most: usize,
    ) -> Result<Vec<Vec<ErrorCurve>>, CalibrateError> {
        if !self.model.is_bank() {
            let what = "channels that share modes, or layers in both directions, have no error \
                        curves of their own: reduce them by --order or --budget";
            return Err(CalibrateError::Other(what.to_string()));
        }
        self.observer.begin(stage::ERROR_CURVES, self.layers.len());
        let layers = self.layers.iter().zip(self.model.blocks());
        let curves = layers.map(|(layer, block)| {
            self.observer.step()?;
            let all: Vec<usize> = (0..layer.channels().len()).collect();
            Ok(layer.curves_to(block, &all, refinement, most)?)
        });
        curves.collect()
    }

    /// Finds more errors of channels, given by layer and channel: in each layer up to twice the first
    /// unknown order.
    pub(crate) fn lengthen(
        &self,
        curves: &mut [Vec<ErrorCurve>],
        channels: &[(usize, usize)],
        refinement: Refinement,
    ) -> Result<(), CalibrateError> {
        let parts = self.layers.iter().zip(self.model.blocks());
        for (index, (curves, (layer, block))) in curves.iter_mut().zip(parts).enumerate() {
            self.observer.check()?;
            let own = channels.iter().filter(|&&(layer, _)| layer == index);
            let own: Vec<usize> = own.map(|&(_, h)| h).collect();
            let unknown = own.iter().filter_map(|&h| curves[h].unknown()).max();
            let most = unknown.map_or(0, |first| 2 * first);
            let longer = layer.curves_to(block, &own, refinement, most)?;
            for (h, longer) in own.into_iter().zip(longer) {
                curves[h] = longer;
            }
        }
        Ok(())
    }

    /// Weights of the channels' errors, with mean 1 before the factors of the layers.
    pub(crate) fn importance(
        &self,
        kind: Importance,
        factors: &[f64],
    ) -> (Vec<Vec<f64>>, &'static str) {
        let (power, name) = match kind {
            Importance::Auto | Importance::Equal => (0.0, "equal"),
            Importance::Root => (0.5, "root"),
            Importance::Gradient => (1.0, "gradient"),
        };
        let layers = self.summary.importance.iter().zip(factors);
        let weighted = layers.map(|(layer, factor)| {
            let weights = layer.iter().map(|i| factor * i.powf(power));
            weights.collect::<Vec<f64>>()
        });
        (weighted.collect(), name)
    }

    /// (Σ E_h(error)/Σ E_h(output))^{1/2} over all channels of any model in the place of this one.
    ///
    /// # Errors
    /// [`CalibrateError::Compress`] when a kernel cannot be formed.
    pub fn relative_error(&self, model: &Model) -> Result<f64, CalibrateError> {
        if let Some(shared) = &self.shared {
            return shared.relative_error(model);
        }
        let (mut error, mut norm) = (0.0, 0.0);
        for (layer, block) in self.layers.iter().zip(model.blocks()) {
            let errors = layer.errors_of(block)?;
            error += errors.error;
            norm += errors.output;
        }
        Ok(if error > 0.0 {
            f64::sqrt(error / norm)
        } else {
            0.0
        })
    }

    /// √(Σ ‖z − z_r‖²/Σ ‖z‖²) of the logits z, centred where there are several, of any model in
    /// the place of this one over the calibration sequences. `None` without sequences.
    ///
    /// # Errors
    /// [`CalibrateError::Infer`].
    pub fn logit_change(&self, model: &Model) -> Result<Option<f64>, CalibrateError> {
        if self.logits.is_empty() {
            return Ok(None);
        }
        let within = Within(self.observer);
        let network = Network::new(model, self.length(), InferPath::Auto)?;
        let reduced = network.observed(&within).logits_of_all(self.sequences)?;
        Ok(Some(relative_change(&self.logits, &reduced)))
    }

    /// Reduces each layer again, with the orders found, for its input in the network reduced so far;
    /// the layers balanced so, if that brings the logits nearer.
    fn follow(
        &self,
        settings: &Settings,
        trial: &mut Trial,
    ) -> Result<Option<Vec<CalibratedLayer>>, CalibrateError> {
        if self.sequences.is_empty() {
            let what = "--sequential needs the calibration sequences, not only their statistics";
            return Err(CalibrateError::Other(what.to_string()));
        }
        self.observer.begin(stage::SEQUENTIAL, self.layers.len());
        let mut model = trial.model.clone();
        let mut layers = Vec::with_capacity(self.layers.len());
        let within = Within(self.observer);
        for (index, orders) in trial.allotted.orders.iter().enumerate() {
            self.observer.step()?;
            let full = &self.model.blocks()[index];
            let network = Network::new(&model, self.length(), InferPath::Auto)?;
            let network = network.observed(&within);
            let layer = self.balanced(&walk_to(&network, self.sequences, index)?, index)?;
            let systems = layer.systems(full, orders, settings.refinement)?;
            model = model.with_block(index, full.with_systems(systems, Vec::new())?)?;
            layers.push(layer);
        }
        let change = self.logit_change(&model)?;
        if trial.change.is_none() {
            trial.change = self.logit_change(&trial.model)?;
        }
        if change >= trial.change {
            return Ok(None);
        }
        trial.change = change;
        trial.model = model;
        Ok(Some(layers))
    }
}

/// The modes of all systems that run forwards in time.
fn states_of(model: &Model) -> usize {
    let systems = model.blocks().iter().flat_map(|block| block.systems());
    systems.map(|system| system.order()).sum()
}

/// (Σ E(error)/Σ E(output))^{1/2} over the channels of all layers.
fn weighted_error<'r>(records: impl Iterator<Item = &'r LayerRecord>) -> f64 {
    let weighted = records.flat_map(|layer| &layer.channels);
    let weighted = weighted.filter_map(|channel| channel.weighted.as_ref());
    let sums = weighted.fold((0.0, 0.0), |(error, norm), w| {
        (error + w.last().powi(2), norm + w.norm.powi(2))
    });
    match sums.0 > 0.0 {
        true => f64::sqrt(sums.0 / sums.1),
        false => 0.0,
    }
}

/// How many modes each layer keeps of those it has: the same share everywhere. For a largest error,
/// the smallest number that meets it, found by halving.
fn layer_orders(
    full: &[usize],
    settings: &Settings,
    error_of: impl Fn(&[usize]) -> Result<f64, CalibrateError>,
) -> Result<Vec<usize>, CalibrateError> {
    let by_share = |share: f64| -> Vec<usize> {
        let kept = |order: &usize| ((share * *order as f64 + 1e-9) as usize).max(1);
        full.iter().map(kept).collect()
    };
    match settings.size {
        TargetSize::Order(order) => Ok(full.iter().map(|most| order.min(*most)).collect()),
        TargetSize::Budget(share) => Ok(by_share(share)),
        TargetSize::Error(error) => {
            let most = full.iter().copied().max().unwrap_or(1);
            let share = |order: usize| order as f64 / most as f64;
            let (mut least, mut enough) = (1, most);
            while least < enough {
                let order = least.midpoint(enough);
                match error_of(&by_share(share(order)))? <= error {
                    true => enough = order,
                    false => least = order + 1,
                }
            }
            Ok(by_share(share(enough)))
        }
    }
}

/// What the moments of all channels take: of the ends of the sequences a channel keeps what its modes
/// see, here at most so many vectors; besides, R and M k.
fn moment_bytes(model: &Model, summary: &Summary, most: usize) -> usize {
    let (length, sequences) = (summary.length, summary.sequences.min(most));
    let terms = |block: &Block| 2 + sequences.min((2 * block.order()).max(ENDS_STAYING));
    let blocks = model.blocks().iter();
    let numbers = blocks.map(|block| block.channels() * terms(block));
    numbers.sum::<usize>().saturating_mul(8 * length)
}

/// What the spectra of all channels take: R and M k.
fn spectrum_bytes(model: &Model, summary: &Summary) -> usize {
    let channels = model.blocks().iter().map(Block::channels);
    channels.sum::<usize>().saturating_mul(16 * summary.length)
}

/// Whether exact moments stand for the input.
fn by_moments(
    model: &Model,
    summary: &Summary,
    at_hand: bool,
    choice: WeightChoice,
) -> Result<bool, CalibrateError> {
    let bytes = moment_bytes(model, summary, usize::MAX);
    match choice {
        WeightChoice::Spectrum => Ok(false),
        WeightChoice::Auto => {
            let expected = moment_bytes(model, summary, ENDS_STAYING);
            Ok(expected <= MOMENTS_AUTO && at_hand)
        }
        WeightChoice::Moments if !at_hand => Err(CalibrateError::Other(
            "moments need the calibration sequences; statistics hold the spectrum only".into(),
        )),
        WeightChoice::Moments if bytes > MOMENTS_MAX => Err(CalibrateError::Other(format!(
            "moments over {} steps take a temporary file of {:.1} GiB, at most {} are allowed: \
             take the spectrum (--weight spectrum), or fewer sequences (--sequences)",
            summary.length,
            bytes as f64 / (1u64 << 30) as f64,
            MOMENTS_MAX >> 30,
        ))),
        WeightChoice::Moments => Ok(true),
    }
}
