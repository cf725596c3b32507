//! Further terms of an objective: a penalty on the filters, a trust region, a teacher.

use candle_core::{D, Tensor};
use hankelite_data::Targets;
use serde::{Deserialize, Serialize};

use crate::nn::{Mode, Parameter, Penalty, SequenceModel, Wanted};
use crate::train::loss::{Loss, Term, scalar, task_loss};
use crate::train::objective::{Examples, Objective};
use crate::train::recipe::within;
use crate::train::trust::{Trust, TrustRegion};
use crate::train::{RecipeError, TrainError};

/// A penalty on the filters of all layers: the table `[regularise]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regularise {
    /// `measure` (the generalisation measure τ) or `filter-norm`. Default `measure`.
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
}

/// A teacher's answers: the table `[distil]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Distil {
    /// What the distance of the outputs is multiplied with: 0 to 10⁶. Default 1.
    pub logits: f64,
    /// T, by which the logits of classes are divided first, above 0, to 1000. Default 2.
    pub temperature: f64,
    /// What the distance of every layer's outputs is multiplied with: 0 to 10⁶. Default 0.
    pub layers: f64,
}

impl Default for Distil {
    fn default() -> Self {
        Self {
            logits: 1.0,
            temperature: 2.0,
            layers: 0.0,
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
            within("logits", distil.logits, 0.0..=1e6)?;
            within("layers", distil.layers, 0.0..=1e6)?;
            within("temperature", distil.temperature, f64::MIN_POSITIVE..=1e3)?;
        }
        Ok(())
    }
}

/// The loss of the task with further terms:
///
/// ```text
/// L + λ Σ_layers τ + w D(outputs) + v Σ_layers D(layer)
/// D(logits) = T² mean of KL(softmax(teacher/T) ‖ softmax(student/T)) for classes
/// D(x) = mean (x − teacher)² for numbers, and divided by mean teacher² for layers
/// ```
///
/// The steps of a mask do not enter the last two: all steps count, padding too. After each step
/// the parameters are projected onto the trust region.
///
/// # References
/// Liu and Li, Algorithm 2 (λ Σ τ); Hinton, Vinyals and Dean 2015 (T²).
pub struct Composed<'a> {
    label_smoothing: f64,
    terms: Terms,
    region: Option<TrustRegion>,
    teacher: Option<&'a dyn SequenceModel>,
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
        if terms.distil.is_some() && teacher.is_none() {
            return Err(RecipeError::NoTeacher.into());
        }
        let region = terms.trust.as_ref();
        let region = region.map(|trust| TrustRegion::new(network, trust));
        Ok(Self {
            label_smoothing,
            terms: *terms,
            region: region.transpose()?,
            teacher,
        })
    }

    fn wanted(&self) -> Wanted {
        let regularise = self.terms.regularise.filter(|r| r.weight > 0.0);
        Wanted {
            layers: self.terms.distil.is_some_and(|distil| distil.layers > 0.0),
            penalty: regularise.map(|regularise| match regularise.penalty {
                FilterPenalty::Measure => Penalty::Measure,
                FilterPenalty::FilterNorm => Penalty::FilterNorm,
            }),
        }
    }
}

impl Objective for Composed<'_> {
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError> {
        let wanted = self.wanted();
        let traced = network.traced(&examples.input, mode, wanted)?;
        let mut loss = task_loss(&traced.outputs, &examples.targets, self.label_smoothing)?;
        let mut add = |name: &'static str, term: Tensor, weight: f64| {
            loss.terms.push((name, scalar(&term)?));
            let term = (term * weight)?.to_dtype(loss.value.dtype())?;
            loss.value = (&loss.value + term)?;
            Ok::<_, TrainError>(())
        };
        if let (Some(penalties), Some(regularise)) = (&traced.penalties, self.terms.regularise) {
            add("penalty", penalties.sum_all()?, regularise.weight)?;
        }
        let (Some(distil), Some(teacher)) = (self.terms.distil, self.teacher) else {
            return Ok(loss);
        };
        let requested = Wanted {
            layers: wanted.layers,
            penalty: None,
        };
        let taught = teacher.traced(&examples.input, Mode::Evaluate, requested)?;
        if distil.logits > 0.0 {
            let (own, target) = (&traced.outputs, &taught.outputs.detach());
            let distance = match examples.targets {
                Targets::Classes { .. } | Targets::StepClasses { .. } => {
                    divergence(own, target, distil.temperature)?
                }
                _ => (own - target)?.sqr()?.mean_all()?,
            };
            add("logits", distance, distil.logits)?;
        }
        for (own, taught) in traced.layers.iter().zip(&taught.layers) {
            let taught = taught.detach();
            let size = taught.sqr()?.mean_all()?;
            let apart = (own - taught)?.sqr()?.mean_all()?;
            // A layer whose outputs are all 0 has no size to measure the distance by.
            let size = size.maximum(f64::MIN_POSITIVE.max(1e-30))?;
            add("layers", (apart / size)?, distil.layers)?;
        }
        Ok(loss)
    }

    fn after_step(&mut self, parameters: &[Parameter]) -> Result<Vec<Term>, TrainError> {
        match &self.region {
            None => Ok(Vec::new()),
            Some(region) => Ok(vec![("trust_active", region.project(parameters)?)]),
        }
    }
}

/// T² mean over the rows of KL(softmax(teacher/T) ‖ softmax(student/T)).
fn divergence(student: &Tensor, teacher: &Tensor, temperature: f64) -> candle_core::Result<Tensor> {
    let of = |logits: &Tensor| log_softmax(&(logits / temperature)?);
    let (student, teacher) = (of(student)?, of(teacher)?);
    let each = (teacher.exp()? * (&teacher - student)?)?;
    let each = each.sum(D::Minus1)?;
    each.mean_all()? * (temperature * temperature)
}

/// log softmax over the last dimension, from ops with gradients.
fn log_softmax(logits: &Tensor) -> candle_core::Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log_sum)
}
