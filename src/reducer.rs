//! The main job in one line: a smaller model from a model.

use hankelite_control::SystemClass;

use crate::calibrate::{
    CalibrateError, CalibratedReduction, Calibration, CalibrationRun, Choice, Settings, TargetSize,
    WeightChoice,
};
use crate::checkpoint::{AnyStep, Checkpoint};
use crate::compress::{CompressError, LayerRecord, Method, Plan, Rule, TimeBase, reduce_observed};
use crate::infer::{Answers, Network, Path};
use crate::model::{Model, Sequence};
use crate::progress::ProgressSink;
use crate::rounding::Storage;
use crate::target::{
    HeldApart, Parts, Size, SizePlan, Sizes, TargetError, Targeted, WholeSize, held_apart,
};

/// Settings of a reduction without calibration that suit what a file holds, where you give none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suited {
    /// What the file can hold where it cannot hold all systems, else balanced truncation.
    pub method: Method,
    /// Continuous where the network runs its layers at any step, with impulses where its samples are
    /// such, else discrete.
    pub time: TimeBase,
}

impl Suited {
    /// To a checkpoint ([`Checkpoint::system_class`]).
    pub fn to(checkpoint: &Checkpoint) -> Self {
        Self {
            method: match checkpoint.system_class() {
                Some(SystemClass::RealPoles) => Method::RealPoles,
                Some(_) => Method::InLayout,
                None => Method::Balanced,
            },
            time: match checkpoint.at_any_step() {
                Some(AnyStep::Held) => TimeBase::Continuous,
                Some(AnyStep::Impulses) => TimeBase::Impulses,
                None => TimeBase::Discrete,
            },
        }
    }
}

/// Sequences, and the class of each.
type Labelled<'a> = (&'a [Sequence<'a>], &'a [usize]);

/// How small the model becomes.
#[derive(Debug, Clone, Copy)]
enum Requested<'a> {
    Rule(Rule),
    Target(TargetSize),
    /// States and maps together.
    Whole(WholeSize),
    /// The same, as small as it goes.
    Within(f64, Labelled<'a>),
}

/// A reduction, setting by setting.
///
/// One size is needed, and the last one given counts. Without calibration that is [`Reducer::order`] or
/// [`Reducer::rule`], with calibration [`Reducer::order`] or [`Reducer::target`]. With sequences the whole
/// model, states and maps together, is brought to [`Reducer::times`] fewer bytes or within
/// [`Reducer::whole`], or, by [`Reducer::within`], made as small as its accuracy
/// allows. All other settings of both ways have their defaults: [`Plan`] with [`crate::reduce`], or
/// [`Settings`] with [`CalibratedReduction`], set them.
///
/// ```
/// # use hankelite::model::Sequence;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/waves/model.safetensors");
/// # let full = hankelite::read(path, &hankelite::Declared::default())?;
/// # let waves: Vec<Vec<f32>> = (0..10).map(|n| (0..64).map(|l| (l as f32 / (n + 3) as f32).sin()).collect()).collect();
/// # let sequences: Vec<_> = waves.iter().map(|wave| Sequence::Values(wave)).collect();
/// let small = hankelite::Reducer::new(&full.model).calibrated(&sequences).times(4.0).run()?;
/// let whole = small.whole.expect("a size of the whole model");
/// assert!(whole.size.total() <= whole.full.total() / 4);
/// let image = hankelite::stream::Image::packed(&small.model, &whole.storage)?;
/// # let _ = image.as_bytes();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
#[derive(Clone)]
pub struct Reducer<'a> {
    model: &'a Model,
    sequences: Option<&'a [Sequence<'a>]>,
    statistics: Option<&'a Calibration>,
    size: Option<Requested<'a>>,
    method: Option<Method>,
    length: Option<usize>,
    parts: Parts,
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
    /// What calibration chose. `None` without calibration, and for a size of the whole model.
    pub choice: Option<Choice>,
    /// For a size of the whole model.
    pub whole: Option<WholeReduction>,
}

/// What was done to a whole model, states and maps together.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WholeReduction {
    /// How every tensor is stored: for [`crate::stream::Image::packed`].
    pub storage: Storage,
    /// What was chosen.
    pub plan: SizePlan,
    /// Bytes of the image and of the state of one stream.
    pub size: Size,
    /// The same of the full model in single precision.
    pub full: Size,
    /// The same of every fifth sequence, which was held out. `None` with fewer than five.
    pub held_out_change: Option<f64>,
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
            parts: Parts::All,
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

    /// The order of each channel by a rule, without calibration.
    pub fn rule(self, rule: Rule) -> Self {
        self.sized(Requested::Rule(rule))
    }

    /// The states of all channels together, with calibration: a share of them, or the fewest for an error.
    pub fn target(self, size: TargetSize) -> Self {
        self.sized(Requested::Target(size))
    }

    /// The whole model in this many times fewer bytes than in single precision, above 1: image and state
    /// of one stream together.
    pub fn times(self, times: f64) -> Self {
        self.whole(WholeSize::times(times))
    }

    /// The whole model within a size: bytes, the time of a step, the change of the logits.
    pub fn whole(self, size: WholeSize) -> Self {
        self.sized(Requested::Whole(size))
    }

    /// What a size of the whole model makes smaller. Default: all.
    pub fn only(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// The smallest whole model whose accuracy is at most so many points below that of the full one,
    /// of sizes from a half of the bytes down ([`Sizes::smallest`]). The labelled sequences are none that
    /// the calibration uses: about 2,000 tell half a point apart.
    pub fn within(self, points: f64, labelled: &'a [Sequence<'a>], labels: &'a [usize]) -> Self {
        self.sized(Requested::Within(points, (labelled, labels)))
    }

    fn sized(self, size: Requested<'a>) -> Self {
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
    /// [`CalibrateError::Setting`] for settings that do not go together; else those of
    /// [`reduce_observed`], of [`Calibration::gather`] and [`CalibratedReduction`], or of [`Sizes`].
    pub fn run(&self) -> Result<Reduction, TargetError> {
        let calibrated = self.sequences.is_some() || self.statistics.is_some();
        let wrong = |found, expected| Err(mismatch(found, expected));
        match (self.size, calibrated) {
            (Some(Requested::Whole(_) | Requested::Within(..)), _) if self.statistics.is_some() => {
                wrong(
                    "statistics with a size of the whole model",
                    "the sequences alone, of which some are held out",
                )
            }
            (Some(Requested::Whole(_) | Requested::Within(..)), false) => wrong(
                "a size of the whole model without calibration",
                "calibration sequences, by whose logits choices are compared",
            ),
            (None, _) => wrong("no size", "an order, a budget or another size"),
            (Some(Requested::Target(_)), false) => wrong(
                "a budget or a largest error without calibration",
                "calibration sequences or statistics, or an order",
            ),
            (Some(Requested::Rule(rule)), false) => {
                Ok(self.white(rule).map_err(CalibrateError::from)?)
            }
            (Some(_), true) if self.method.is_some() => wrong(
                "a method with calibration",
                "one of them: calibration balances, truncates and refines",
            ),
            (Some(Requested::Rule(Rule::Order(order))), true) => {
                Ok(self.calibrated_to(TargetSize::Order(order))?)
            }
            (Some(Requested::Rule(_)), true) => wrong(
                "an energy or a tolerance with calibration",
                "an order, a budget or a largest error",
            ),
            (Some(Requested::Target(size)), true) => Ok(self.calibrated_to(size)?),
            (Some(Requested::Whole(size)), true) => self.sized_whole(|sizes| sizes.meet(&size)),
            (Some(Requested::Within(points, labelled)), true) => {
                self.sized_whole(|sizes| self.smallest(sizes, points, labelled))
            }
        }
    }

    /// A model of one of the sizes that the calibration sequences, but those held out, make.
    fn sized_whole(
        &self,
        choose: impl FnOnce(&Sizes<'_>) -> Result<Targeted, TargetError>,
    ) -> Result<Reduction, TargetError> {
        let HeldApart { used, held_out } = held_apart(self.sequences.unwrap_or_default());
        let origin = origin(&used);
        let balanced = self.balanced(&used, &origin)?;
        let sizes = Sizes::new(&balanced, &held_out, self.parts)?;
        let met = choose(&sizes)?;
        Ok(Reduction {
            model: met.model,
            records: met.records,
            choice: None,
            whole: Some(WholeReduction {
                storage: met.storage,
                plan: met.plan,
                size: met.size,
                full: sizes.full(),
                held_out_change: met.held_out_change,
            }),
        })
    }

    fn smallest(
        &self,
        sizes: &Sizes<'_>,
        points: f64,
        (sequences, labels): Labelled<'_>,
    ) -> Result<Targeted, TargetError> {
        if sequences.is_empty() || sequences.len() != labels.len() {
            let found = "labelled sequences without a label for each, or none";
            return Err(mismatch(found, "one label for each sequence"));
        }
        let steps = self.steps(sequences);
        let answers = |model: &Model| {
            let network = Network::new(model, steps, Path::Auto)?;
            let logits = network.logits_of_all(sequences)?;
            Ok::<_, TargetError>(Answers::of(&logits, labels))
        };
        let full = answers(self.model)?;
        let mut least = f64::INFINITY;
        let found = sizes.smallest(|_, met| {
            let loss = 100.0 * full.loss_of(&answers(&met.model)?).loss;
            least = least.min(loss);
            Ok::<_, TargetError>(loss <= points)
        })?;
        let none = || {
            TargetError::Other(format!(
                "every size loses {least:.2} points of accuracy or more, expected at most {points}"
            ))
        };
        found.map(|found| found.made).ok_or_else(none)
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
            whole: None,
        })
    }

    fn calibrated_to(&self, size: TargetSize) -> Result<Reduction, CalibrateError> {
        let sequences = self.sequences.unwrap_or_default();
        let origin = origin(sequences);
        let balanced = self.balanced(sequences, &origin)?;
        let mut settings = Settings::new(size);
        settings.kernel_length = self.length;
        let reduced = balanced.reduce(&settings)?;
        Ok(Reduction {
            model: reduced.model,
            records: reduced.records,
            choice: Some(reduced.choice),
            whole: None,
        })
    }

    /// The channels, balanced for their inputs.
    fn balanced<'b>(
        &'b self,
        sequences: &'b [Sequence<'b>],
        origin: &'b str,
    ) -> Result<CalibratedReduction<'b>, CalibrateError> {
        match self.statistics {
            Some(known) => CalibratedReduction::new(
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
                    origin,
                },
                WeightChoice::Auto,
                self.observer,
            ),
        }
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

/// Where sequences came from, for records.
fn origin(sequences: &[Sequence<'_>]) -> String {
    format!("{} sequences of the caller", sequences.len())
}

/// The error of settings that do not go together.
fn mismatch(found: &str, expected: &str) -> TargetError {
    CalibrateError::Setting(format!("the reducer has {found}, expected {expected}")).into()
}
