//! Further terms of an objective: a penalty on the filters, a trust region, a teacher.

use candle_core::{D, DType, Tensor};
use hankelite_data::Targets;
use serde::{Deserialize, Serialize};

use crate::nn::{Mode, Parameter, Penalty, SequenceModel, Traced, Wanted};
use crate::train::loss::{
    Loss, Tally, Term, log_softmax, logits, scalar, squared_errors, task_loss,
};
use crate::train::objective::{Evaluation, Examples, Objective, Task};
use crate::train::recipe::within;
use crate::train::trust::{Trust, TrustRegion};
use crate::train::{RecipeError, TrainError};

/// A penalty on the filters of all layers: the table `[regularise]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regularise {
    /// `measure` (the generalisation measure τ), `filter-norm` or `hankel`. Default `measure`.
    #[serde(default = "measure")]
    pub penalty: FilterPenalty,
    /// λ, what the sum over the layers is multiplied with: 0 to 10⁶.
    pub weight: f64,
}

fn measure() -> FilterPenalty {
    FilterPenalty::Measure
}

/// Which number of a layer's filters is kept small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FilterPenalty {
    /// The generalisation measure τ for the batch at hand; its mean and deviation are constants.
    Measure,
    /// The mean over the channels of ‖k‖₁².
    FilterNorm,
    /// The mean over the channels of Σ σ, the Hankel singular values of the real discrete system:
    /// small where few states carry a channel, so that it can be cut.
    Hankel,
}

/// A teacher's answers: the table `[distil]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Distil {
    /// What the loss of the task is multiplied with, where there are labels: 0 to 10⁶. Default 1.
    pub labels: f64,
    /// What the distance of the outputs is multiplied with: 0 to 10⁶. Default 1.
    pub logits: f64,
    /// T, by which the logits of classes are divided first, above 0, to 1000. Default 2.
    pub temperature: f64,
    /// What the distance of every layer's outputs is multiplied with: 0 to 10⁶. Default 0.3.
    pub layers: f64,
    /// The share of the training over which `logits` and `layers` fall to 0, where there are labels
    /// that count, 0 to 1: a network may become better than its teacher. 0 keeps them. Default 1.
    pub fade: f64,
}

impl Default for Distil {
    fn default() -> Self {
        Self {
            labels: 1.0,
            logits: 1.0,
            temperature: 2.0,
            layers: 0.3,
            fade: 1.0,
        }
    }
}

impl Distil {
    /// Whether the teacher's weights fall: not without labels that count.
    pub fn fades(&self, targets: &Targets) -> bool {
        self.fade > 0.0 && self.labels > 0.0 && !matches!(targets, Targets::None)
    }

    /// What is left of the teacher's weights.
    fn rest(&self, targets: &Targets, done: f64) -> f64 {
        match self.fades(targets) {
            true => (1.0 - done / self.fade).max(0.0),
            false => 1.0,
        }
    }
}

/// The further terms of an objective; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Terms {
    /// λ Σ τ over the layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regularise: Option<Regularise>,
    /// Balls round the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// The answers of a teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distil: Option<Distil>,
}

impl Terms {
    /// Checks every range.
    ///
    /// # Errors
    /// A [`RecipeError`] with the key and what may stand there.
    pub fn check(&self) -> Result<(), RecipeError> {
        if let Some(regularise) = self.regularise {
            within("weight", regularise.weight, 0.0..=1e6)?;
        }
        if let Some(trust) = &self.trust {
            trust.check()?;
        }
        if let Some(distil) = &self.distil {
            within("labels", distil.labels, 0.0..=1e6)?;
            within("logits", distil.logits, 0.0..=1e6)?;
            within("layers", distil.layers, 0.0..=1e6)?;
            within("fade", distil.fade, 0.0..=1.0)?;
            within("temperature", distil.temperature, f64::MIN_POSITIVE..=1e3)?;
        }
        Ok(())
    }
}

/// The loss of the task with further terms:
///
/// ```text
/// u L + λ Σ_layers τ + r (w D(outputs) + v Σ_layers D(layer))
/// D(logits) = T² mean of KL(softmax(teacher/T) ‖ softmax(student/T)) for classes
/// D(x) = mean (x − teacher)² for numbers, and divided by mean teacher² for layers
/// ```
///
/// u is 1 without a teacher; r is 1, or falls from 1 to 0 over the first share `fade` of the training.
/// The steps of a mask do not enter the last two: all steps count, padding
/// too. Data without targets have no L, and then several outputs count as the logits of classes.
/// After each step the parameters are projected onto the trust region.
///
/// # References
/// Liu and Li, Algorithm 2 (λ Σ τ); Hinton, Vinyals and Dean 2015 (T²); Clark, Luong, Khandelwal,
/// Manning and Le 2019 (r, teacher annealing).
pub struct Composed<'a> {
    label_smoothing: f64,
    terms: Terms,
    region: Option<TrustRegion>,
    teaching: Option<Teaching<'a>>,
    /// The share of the training that is done.
    done: f64,
}

/// A teacher, and how it is followed.
#[derive(Clone, Copy)]
struct Teaching<'a> {
    distil: Distil,
    teacher: &'a dyn SequenceModel,
}

impl<'a> Composed<'a> {
    /// The objective of a training that starts with the network as it stands now: balls of a trust
    /// region lie round it. The teacher is for [`Terms::distil`].
    ///
    /// # Errors
    /// [`RecipeError::NoTeacher`]; ranges; candle's.
    pub fn new(
        network: &dyn SequenceModel,
        terms: &Terms,
        teacher: Option<&'a dyn SequenceModel>,
        label_smoothing: f64,
    ) -> Result<Self, TrainError> {
        terms.check()?;
        let teaching = match (terms.distil, teacher) {
            (Some(_), None) => return Err(RecipeError::NoTeacher.into()),
            (Some(distil), Some(teacher)) => Some(Teaching { distil, teacher }),
            (None, _) => None,
        };
        let region = terms.trust.as_ref();
        let region = region.map(|trust| TrustRegion::new(network, trust));
        Ok(Self {
            label_smoothing,
            terms: *terms,
            region: region.transpose()?,
            teaching,
            done: 0.0,
        })
    }

    fn wanted(&self) -> Wanted {
        let regularise = self.terms.regularise.filter(|r| r.weight > 0.0);
        Wanted {
            layers: self.terms.distil.is_some_and(|distil| distil.layers > 0.0),
            penalty: regularise.map(|regularise| match regularise.penalty {
                FilterPenalty::Measure => Penalty::Measure,
                FilterPenalty::FilterNorm => Penalty::FilterNorm,
                FilterPenalty::Hankel => Penalty::Hankel,
            }),
        }
    }
}

impl Objective for Composed<'_> {
    fn before_step(&mut self, done: f64) {
        self.done = done;
    }

    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError> {
        let rest = self.teaching.map_or(0.0, |teaching| {
            teaching.distil.rest(&examples.targets, self.done)
        });
        let mut wanted = self.wanted();
        wanted.layers &= rest > 0.0;
        let traced = network.traced(&examples.input, mode, wanted)?;
        let followed = self.teaching.filter(|_| rest > 0.0);
        let taught = followed.map(|teaching| {
            let layers = wanted.layers;
            teaching.answers(examples, layers)
        });
        let taught = taught.transpose()?;
        let (targets, smoothing) = (&examples.targets, self.label_smoothing);
        let mut loss = match (targets, &taught) {
            (Targets::None, Some(taught)) => Loss {
                value: traced.outputs.sum_all()?.zeros_like()?,
                tally: agreement(&traced.outputs, &taught.outputs)?,
                terms: Vec::new(),
            },
            _ => task_loss(&traced.outputs, targets, smoothing)?,
        };
        if let Some(teaching) = self.teaching {
            loss.value = (loss.value * teaching.distil.labels)?;
        }
        let mut add = |name: &'static str, term: Tensor, weight: f64| {
            loss.terms.push((name, scalar(&term)?));
            let term = (term * weight)?.to_dtype(loss.value.dtype())?;
            loss.value = (&loss.value + term)?;
            Ok::<_, TrainError>(())
        };
        if let (Some(penalties), Some(regularise)) = (&traced.penalties, self.terms.regularise) {
            add("penalty", penalties.sum_all()?, regularise.weight)?;
        }
        let (Some(Teaching { distil, .. }), Some(taught)) = (followed, taught) else {
            return Ok(loss);
        };
        if distil.logits > 0.0 {
            let distance = distance(
                &traced.outputs,
                &taught.outputs,
                targets,
                distil.temperature,
            );
            add("logits", distance?, rest * distil.logits)?;
        }
        for (own, taught) in traced.layers.iter().zip(&taught.layers) {
            add("layers", apart(own, taught)?, rest * distil.layers)?;
        }
        Ok(loss)
    }

    fn measure(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
    ) -> Result<Evaluation, TrainError> {
        let Some(teaching) = self.teaching else {
            return Task::default().measure(network, examples);
        };
        let Examples { targets, count, .. } = examples;
        let distil = teaching.distil;
        // The outputs decide, where they are taught at all.
        let layers = distil.logits == 0.0 && distil.layers > 0.0;
        let wanted = Wanted {
            layers,
            penalty: None,
        };
        let own = network.traced(&examples.input, Mode::Evaluate, wanted)?;
        let taught = teaching.answers(examples, layers)?;
        let tally = match targets {
            Targets::None => agreement(&own.outputs, &taught.outputs)?,
            _ => task_loss(&own.outputs, targets, 0.0)?.tally,
        };
        let mut far = 0.0;
        if !layers {
            far = scalar(&distance(
                &own.outputs,
                &taught.outputs,
                targets,
                distil.temperature,
            )?)?;
        }
        for (own, taught) in own.layers.iter().zip(&taught.layers) {
            far += scalar(&apart(own, taught)?)?;
        }
        let found = Evaluation::new(tally, Some(far), *count);
        match targets {
            Targets::None => Ok(found),
            _ => Ok(found.with_squared_errors(squared_errors(&own.outputs, targets, *count)?)),
        }
    }

    fn after_step(&mut self, parameters: &[Parameter]) -> Result<Vec<Term>, TrainError> {
        match &self.region {
            None => Ok(Vec::new()),
            Some(region) => Ok(vec![("trust_active", region.project(parameters)?)]),
        }
    }
}

impl Teaching<'_> {
    /// What the teacher gives; no gradient flows into it.
    fn answers(&self, examples: &Examples, layers: bool) -> candle_core::Result<Traced> {
        let wanted = Wanted {
            layers,
            penalty: None,
        };
        let traced = self
            .teacher
            .traced(&examples.input, Mode::Evaluate, wanted)?;
        Ok(Traced {
            outputs: traced.outputs.detach(),
            layers: traced.layers.iter().map(Tensor::detach).collect(),
            penalties: None,
        })
    }
}

/// Whether outputs are the logits of classes: as the targets have it, and without any where there
/// are several.
fn are_logits(outputs: &Tensor, targets: &Targets) -> candle_core::Result<bool> {
    Ok(match targets {
        Targets::Classes { .. } | Targets::StepClasses { .. } => true,
        Targets::Values { .. } | Targets::StepValues { .. } => false,
        Targets::None => outputs.dim(D::Minus1)? > 1,
    })
}

/// D of the outputs.
fn distance(
    own: &Tensor,
    taught: &Tensor,
    targets: &Targets,
    temperature: f64,
) -> candle_core::Result<Tensor> {
    match are_logits(own, targets)? {
        true => divergence(own, taught, temperature),
        false => (own - taught)?.sqr()?.mean_all(),
    }
}

/// D of a layer's outputs.
fn apart(own: &Tensor, taught: &Tensor) -> candle_core::Result<Tensor> {
    let size = taught.sqr()?.mean_all()?;
    // A layer whose outputs are all 0 has no size to measure the distance by.
    let size = size.maximum(f64::MIN_POSITIVE.max(1e-30))?;
    (own - taught)?.sqr()?.mean_all()? / size
}

/// The task where there are no labels: to answer as the teacher.
fn agreement(own: &Tensor, taught: &Tensor) -> Result<Tally, TrainError> {
    let width = taught.dim(D::Minus1)?;
    let rows = |outputs: &Tensor| outputs.reshape(((), width));
    let (own, taught) = (rows(own)?, rows(taught)?);
    let targets = match are_logits(&own, &Targets::None)? {
        true => Targets::Classes {
            labels: (taught.argmax(D::Minus1)?.to_vec1::<u32>()?.into_iter())
                .map(|label| label as usize)
                .collect(),
            classes: width,
        },
        false => Targets::Values {
            values: taught.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?,
            width,
        },
    };
    Ok(task_loss(&own, &targets, 0.0)?.tally.by_teacher())
}

/// T² mean over the rows of KL(softmax(teacher/T) ‖ softmax(student/T)).
fn divergence(student: &Tensor, teacher: &Tensor, temperature: f64) -> candle_core::Result<Tensor> {
    let of = |outputs: &Tensor| log_softmax(&(logits(outputs)? / temperature)?);
    let (student, teacher) = (of(student)?, of(teacher)?);
    let each = (teacher.exp()? * (&teacher - student)?)?;
    let each = each.sum(D::Minus1)?;
    each.mean_all()? * (temperature * temperature)
}
