//! What a checkpoint would score had other things been declared.

use std::path::Path;

use hankelite::checkpoint::{Discretisation, DssVersion, Transform};
use hankelite::model::{Placement, Pooling};
use hankelite::{Declared, read};
use serde::Serialize;

use crate::cli::printer::Printer;
use crate::cli::score::{First, Scores, score};

/// Standard errors by which an alternative must be better to be called probable.
const CLEAR: f64 = 3.0;

/// One thing declared otherwise.
#[derive(Debug, Clone, Serialize)]
pub(in crate::cli) struct Alternative {
    setting: String,
    #[serde(skip)]
    declared: Declared,
    #[serde(flatten)]
    scores: Scores,
    /// Whether it is clearly better than what was declared.
    better: bool,
}

impl Alternative {
    /// The flag without its dashes, and its value.
    pub(in crate::cli) fn setting(&self) -> &str {
        &self.setting
    }

    /// Everything that is declared then.
    pub(in crate::cli) fn declared(&self) -> Declared {
        self.declared
    }

    pub(in crate::cli) fn scores(&self) -> &Scores {
        &self.scores
    }

    /// 0 to 1.
    pub(in crate::cli) fn accuracy(&self) -> f64 {
        self.scores.accuracy.unwrap_or(0.0)
    }

    /// Whether it is clearly better than what was declared.
    pub(in crate::cli) fn is_better(&self) -> bool {
        self.better
    }
}

/// Every single setting of the file declared otherwise, where the tensors allow that, and what the
/// model scores on the first sequences then.
pub(in crate::cli) fn tried(
    path: &Path,
    settled: Declared,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<(Scores, Vec<Alternative>)> {
    let checkpoint = read(path, &settled)?;
    let own = score(&checkpoint, sequences, printer)?;
    let mut tried = Vec::new();
    for (setting, declared) in others(settled) {
        let Ok(checkpoint) = read(path, &declared) else {
            continue;
        };
        let scores = score(&checkpoint, sequences, printer)?;
        tried.push(Alternative {
            better: clearly_better(&scores, &own),
            setting,
            declared,
            scores,
        });
    }
    Ok((own, tried))
}

fn clearly_better(other: &Scores, own: &Scores) -> bool {
    let spread = |scores: &Scores| scores.standard_error.unwrap_or(0.0).powi(2);
    let gain = other.accuracy.unwrap_or(0.0) - own.accuracy.unwrap_or(0.0);
    gain > CLEAR * (spread(other) + spread(own)).sqrt()
}

/// What was settled with one thing changed, and that thing's flag and value.
type Changed = (String, Declared);

fn others(settled: Declared) -> Vec<Changed> {
    let mut others = network(settled);
    others.extend(dynamics(settled));
    others.extend(transforms(settled));
    others
}

fn network(settled: Declared) -> Vec<Changed> {
    let norm = settled.norm.map(|norm| match norm {
        Placement::Pre => ("norm post", Placement::Post),
        Placement::Post => ("norm pre", Placement::Pre),
    });
    let norm = norm.map(|(name, norm)| {
        let mut declared = settled;
        declared.norm = Some(norm);
        (name.to_string(), declared)
    });
    let pooling = settled.pooling.map(|pooling| match pooling {
        Pooling::Mean => ("pooling last", Pooling::Last),
        Pooling::Last => ("pooling mean", Pooling::Mean),
    });
    let pooling = pooling.map(|(name, pooling)| {
        let mut declared = settled;
        declared.pooling = Some(pooling);
        (name.to_string(), declared)
    });
    norm.into_iter().chain(pooling).collect()
}

fn dynamics(settled: Declared) -> Vec<Changed> {
    let versions = other_than(settled.dss_version, &DSS_VERSIONS).map(|version| {
        let mut declared = settled;
        declared.dss_version = Some(version);
        (format!("dss-version {}", version.name()), declared)
    });
    let kinds = other_than(settled.discretisation, &DISCRETISATIONS).map(|kind| {
        let mut declared = settled;
        declared.discretisation = Some(kind);
        (format!("discretisation {}", kind.name()), declared)
    });
    versions.chain(kinds).collect()
}

fn transforms(settled: Declared) -> Vec<Changed> {
    let steps = other_than(settled.dt_transform, &TRANSFORMS).map(|transform| {
        let mut declared = settled;
        declared.dt_transform = Some(transform);
        (format!("dt-transform {}", transform.name()), declared)
    });
    let reals = other_than(settled.real_transform, &TRANSFORMS).map(|transform| {
        let mut declared = settled;
        declared.real_transform = Some(transform);
        (format!("real-transform {}", transform.name()), declared)
    });
    steps.chain(reals).collect()
}

/// The values that a setting could have instead; none where the file has no such setting.
fn other_than<T: Copy + PartialEq>(own: Option<T>, all: &[T]) -> impl Iterator<Item = T> {
    let others = all.iter().copied().filter(move |value| Some(*value) != own);
    others.take(if own.is_some() { all.len() } else { 0 })
}

const DISCRETISATIONS: [Discretisation; 3] = [
    Discretisation::Zoh,
    Discretisation::Bilinear,
    Discretisation::Dss,
];

const DSS_VERSIONS: [DssVersion; 6] = [
    DssVersion::Softmax,
    DssVersion::Exp,
    DssVersion::ExpReIm,
    DssVersion::ExpNoScale,
    DssVersion::Clip,
    DssVersion::ClipNoScale,
];

const TRANSFORMS: [Transform; 5] = [
    Transform::Exp,
    Transform::Softplus,
    Transform::None,
    Transform::Relu,
    Transform::Sigmoid,
];

/// The table of what was tried, and a warning where something else is probable.
pub(super) fn show(own: &Scores, tried: &[Alternative], printer: &Printer) -> anyhow::Result<()> {
    let mut rows = vec![vec!["as declared".to_string(), own.to_string()]];
    rows.extend(
        tried
            .iter()
            .map(|one| vec![one.setting.clone(), one.scores.to_string()]),
    );
    printer.heading(&format!("on the first {} sequences:", own.examples))?;
    printer.table(&["declared", "accuracy"], rows)?;
    for one in tried.iter().filter(|one| one.better) {
        let text = format!(
            "`--{}` fits the labels clearly better: what was declared or assumed is probably wrong",
            one.setting
        );
        printer.note("warning", &text);
    }
    Ok(())
}
