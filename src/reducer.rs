//! The main job in one line: a smaller model from a model.

use crate::calibrate::{
    CalibrateError, CalibratedReduction, Calibration, CalibrationRun, Choice, Settings, TargetSize,
    WeightChoice,
};
use crate::compress::{CompressError, LayerRecord, Method, Plan, Rule, reduce_observed};
use crate::model::{Model, Sequence};
use crate::progress::ProgressSink;

/// How small the model becomes.
#[derive(Debug, Clone, Copy)]
enum Requested {
    Rule(Rule),
    Target(TargetSize),
}

/// A reduction, setting by setting.
///
/// One size is needed. Without calibration that is [`Reducer::order`], [`Reducer::energy`] or
/// [`Reducer::tolerance`], with calibration [`Reducer::order`], [`Reducer::budget`] or
/// [`Reducer::max_error`]; the last one given counts. All other settings of both ways have their
/// defaults: [`Plan`] with [`crate::reduce`], or [`Settings`] with [`CalibratedReduction`], set
/// them.
#[must_use]
#[derive(Clone)]
pub struct Reducer<'a> {
    model: &'a Model,
    sequences: Option<&'a [Sequence<'a>]>,
    statistics: Option<&'a Calibration>,
    size: Option<Requested>,
    method: Option<Method>,
    length: Option<usize>,
    observer: &'a dyn ProgressSink,
}

/// A reduced model, with what was done and chosen.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct Reduction {
    /// The reduced model, of the same type as the full one.
    pub model: Model,
    /// One record for each layer.
    pub records: Vec<LayerRecord>,
    /// What calibration chose. `None` without calibration.
    pub choice: Option<Choice>,
}

impl<'a> Reducer<'a> {
    /// A reduction of a model, for white noise as the input of every channel.
    pub fn new(model: &'a Model) -> Self {
        Self {
            model,
            sequences: None,
            statistics: None,
            size: None,
            method: None,
            length: None,
            observer: &(),
        }
    }

    /// For the inputs that the layers get from these unlabelled sequences; 10 or more do well.
    pub fn calibrated(self, sequences: &'a [Sequence<'a>]) -> Self {
        Self {
            sequences: Some(sequences),
            ..self
        }
    }

    /// For layer inputs that were gathered before. With the sequences behind them, given by
    /// [`Reducer::calibrated`], the result is a little better.
    pub fn statistics(self, calibration: &'a Calibration) -> Self {
        Self {
            statistics: Some(calibration),
            ..self
        }
    }

    /// This many stored states in every channel, 1 to N.
    pub fn order(self, order: usize) -> Self {
        self.sized(Requested::Rule(Rule::Order(order)))
    }

    /// The smallest order of each channel that keeps this share of Σ σ_j², above 0 and at most 1.
    pub fn energy(self, share: f64) -> Self {
        self.sized(Requested::Rule(Rule::Energy(share)))
    }

    /// The smallest order of each channel whose error bound 2 Σ_{j>q} σ_j is at most this times σ₁.
    pub fn tolerance(self, tolerance: f64) -> Self {
        self.sized(Requested::Rule(Rule::Tolerance(tolerance)))
    }

    /// This share of all states, above 0 and at most 1, shared among the channels.
    pub fn budget(self, share: f64) -> Self {
        self.sized(Requested::Target(TargetSize::Budget(share)))
    }

    /// The fewest states with which the output error of all channels together, relative to their
    /// output, is at most this.
    pub fn max_error(self, error: f64) -> Self {
        self.sized(Requested::Target(TargetSize::Error(error)))
    }

    fn sized(self, size: Requested) -> Self {
        Self {
            size: Some(size),
            ..self
        }
    }

    /// How a channel is reduced, without calibration. Default: balanced truncation.
    pub fn method(self, method: Method) -> Self {
        Self {
            method: Some(method),
            ..self
        }
    }

    /// Steps that sequences are padded to and over which kernel errors are measured. Default: those
    /// of the longest calibration sequence; without calibration those of [`Plan`].
    pub fn length(self, length: usize) -> Self {
        Self {
            length: Some(length),
            ..self
        }
    }

    /// Follows the work, and can cancel it.
    pub fn observer(self, observer: &'a dyn ProgressSink) -> Self {
        Self { observer, ..self }
    }

    /// Reduces the model.
    ///
    /// # Errors
    /// [`CalibrateError::Reducer`] for settings that do not go together; else those of
    /// [`reduce_observed`], or of [`Calibration::gather`] and [`CalibratedReduction`].
    pub fn run(&self) -> Result<Reduction, CalibrateError> {
        let calibrated = self.sequences.is_some() || self.statistics.is_some();
        let wrong = |found, expected| Err(CalibrateError::Reducer { found, expected });
        match (self.size, calibrated) {
            (None, _) => wrong("no size", "an order, a budget or another size"),
            (Some(Requested::Target(_)), false) => wrong(
                "a budget or a largest error without calibration",
                "calibration sequences or statistics, or an order",
            ),
            (Some(Requested::Rule(rule)), false) => Ok(self.white(rule)?),
            (Some(_), true) if self.method.is_some() => wrong(
                "a method with calibration",
                "one of them: calibration balances, truncates and refines",
            ),
            (Some(Requested::Rule(Rule::Order(order))), true) => {
                self.weighted(TargetSize::Order(order))
            }
            (Some(Requested::Rule(_)), true) => wrong(
                "an energy or a tolerance with calibration",
                "an order, a budget or a largest error",
            ),
            (Some(Requested::Target(size)), true) => self.weighted(size),
        }
    }

    fn white(&self, rule: Rule) -> Result<Reduction, CompressError> {
        let mut plan = Plan::new(rule)?;
        if let Some(method) = self.method {
            plan = plan.with_method(method)?;
        }
        if let Some(length) = self.length {
            plan = plan.with_kernel_length(length);
        }
        let reduced = reduce_observed(self.model, &plan, self.observer)?;
        Ok(Reduction {
            model: reduced.model,
            records: reduced.records,
            choice: None,
        })
    }

    fn weighted(&self, size: TargetSize) -> Result<Reduction, CalibrateError> {
        let sequences = self.sequences.unwrap_or_default();
        let origin = format!("{} sequences of the caller", sequences.len());
        let balanced = match self.statistics {
            Some(known) => CalibratedReduction::new_observed(
                self.model,
                known,
                sequences,
                WeightChoice::Auto,
                self.observer,
            ),
            None => CalibratedReduction::of_sequences(
                self.model,
                CalibrationRun {
                    sequences,
                    length: self.steps(sequences),
                    origin: &origin,
                },
                WeightChoice::Auto,
                self.observer,
            ),
        }?;
        let mut settings = Settings::new(size);
        settings.kernel_length = self.length;
        let reduced = balanced.reduce(&settings)?;
        Ok(Reduction {
            model: reduced.model,
            records: reduced.records,
            choice: Some(reduced.choice),
        })
    }

    /// Steps that sequences are padded to.
    fn steps(&self, sequences: &[Sequence<'_>]) -> usize {
        let inputs = self.model.inputs().unwrap_or(1).max(1);
        let steps = sequences.iter().map(|sequence| match sequence {
            Sequence::Values(values) => values.len() / inputs,
            Sequence::Tokens(tokens) => tokens.len(),
        });
        self.length.or(steps.max()).unwrap_or(0)
    }
}
