//! What may stand beside a plain training: rescaling before it, terms of its objective, a teacher.

use anyhow::bail;
use hankelite::advanced::{RescaledModel, rescale};
use hankelite::model::{Model, Sequence};
use hankelite_data::Dataset;
use hankelite_train::nn::{SequenceModel, TrainableNetwork};
use hankelite_train::{Composed, Recipe, RecipeError, Terms};
use serde::{Deserialize, Serialize};

use crate::cli::common::short;
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;

/// How a training starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Rescale {
    /// As it is.
    #[default]
    None,
    /// τ = 1 in every layer: for networks from scratch. It changes what a pretrained network
    /// computes.
    Unit,
    /// τ as in the same layer of the network before its reduction; the identity where nothing was
    /// cut.
    Match,
}

/// What C and D are multiplied with before a training.
pub(super) struct Rescaling<'a> {
    pub(super) mode: Rescale,
    /// The network before its reduction, for [`Rescale::Match`].
    pub(super) like: Option<&'a Model>,
}

/// The model as a training starts with it: rescaled for one batch of the training data, drawn by
/// the seed.
pub(super) fn rescaled(
    model: &Model,
    &Rescaling { mode, like }: &Rescaling<'_>,
    data: &Dataset,
    recipe: &Recipe,
    printer: &Printer,
) -> anyhow::Result<RescaledModel> {
    if mode == Rescale::None {
        return Ok(RescaledModel {
            model: model.clone(),
            records: Vec::new(),
        });
    }
    if mode == Rescale::Match && like.is_none() {
        bail!("`rescale` is match, which needs the unreduced network: expected `teacher`");
    }
    let batch = data.sample(recipe.batch.min(data.len()), recipe.seed)?;
    let sequences: Vec<Sequence<'_>> = (0..batch.len()).map(|i| batch.sequence(i)).collect();
    let like = like.filter(|_| mode == Rescale::Match);
    let bars = Bars::new(printer);
    let rescaled = rescale(model, like, &sequences, data.length(), &bars)?;
    for record in &rescaled.records {
        printer.message(&format!(
            "{}: tau {} before, {} now",
            record.name,
            short(record.before),
            short(record.after)
        ));
    }
    Ok(rescaled)
}

/// The objective of a training that starts with the network as it stands.
pub(super) fn objective<'a>(
    network: &TrainableNetwork,
    terms: &Terms,
    teacher: Option<&'a TrainableNetwork>,
    recipe: &Recipe,
) -> anyhow::Result<Composed<'a>> {
    let teacher = teacher.map(|teacher| teacher as &dyn SequenceModel);
    let smoothing = recipe.label_smoothing;
    Ok(Composed::new(network, terms, teacher, smoothing)?)
}

/// Whether a teacher answers in the student's shapes.
pub(super) fn require_alike(student: &Model, teacher: &Model, terms: &Terms) -> anyhow::Result<()> {
    if terms.distil.is_none() {
        return Ok(());
    }
    if (student.inputs(), student.classes()) != (teacher.inputs(), teacher.classes()) {
        bail!(
            "the teacher has {:?} inputs and {:?} classes, the student {:?} and {:?}",
            teacher.inputs(),
            teacher.classes(),
            student.inputs(),
            student.classes()
        );
    }
    let shape = |model: &Model| -> Vec<usize> {
        let blocks = model.blocks().iter();
        blocks.map(|block| block.channels()).collect()
    };
    let layers = terms.distil.is_some_and(|distil| distil.layers > 0.0);
    if layers && shape(student) != shape(teacher) {
        bail!(
            "`layers` of [distil] needs layers of equal channels: the teacher has {:?}, the \
             student {:?}",
            shape(teacher),
            shape(student)
        );
    }
    Ok(())
}

/// Whether every layer has filters that a penalty can look at: one for each channel.
pub(super) fn require_filters(model: &Model, terms: &Terms) -> anyhow::Result<()> {
    let mut shared = model.blocks().iter().filter(|block| !block.is_siso());
    match (terms.regularise, shared.next()) {
        (Some(_), Some(block)) => bail!(
            "[regularise] is for layers with one system for each channel, and layer `{}` has several \
             inputs: expected no such table",
            block.name()
        ),
        _ => Ok(()),
    }
}

/// Checks terms before any data are read.
pub(super) fn check(terms: &Terms, teacher: bool) -> Result<(), RecipeError> {
    terms.check()?;
    match terms.distil.is_some() && !teacher {
        true => Err(RecipeError::NoTeacher),
        false => Ok(()),
    }
}
