//! What a checkpoint would score had other things been declared.

use std::path::Path;

use serde::Serialize;

use crate::checkpoint::Declared;
use crate::checkpoint::Discretisation;
use crate::checkpoint::DssVersion;
use crate::checkpoint::Transform;
use crate::checkpoint::read;
use crate::cli::evaluate::Report;
use crate::cli::evaluate::score_first;
use crate::cli::printer::Printer;
use crate::data::Dataset;
use crate::model::Placement;
use crate::model::Pooling;

/// Standard errors by which an alternative must be better to be called probable.
const CLEAR: f64 = 3.0;

/// One thing declared otherwise.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Alternative {
    setting: String,
    #[serde(flatten)]
    report: Report,
    /// Whether it is clearly better than what was declared.
    better: bool,
}

/// Every single setting of the file declared otherwise, where the tensors allow that, and what the
/// model scores on the first `count` sequences then.
pub(super) fn alternatives(
    path: &Path,
    settled: Declared,
    (data, count): (&Dataset, usize),
    printer: &Printer,
) -> anyhow::Result<(Report, Vec<Alternative>)> {
    let checkpoint = read(path, &settled)?;
    let own = score_first(&checkpoint, data, count, printer)?;
    let mut tried = Vec::new();
    for (setting, declared) in others(settled) {
        let Ok(checkpoint) = read(path, &declared) else {
            continue;
        };
        let report = score_first(&checkpoint, data, count, printer)?;
        tried.push(Alternative {
            better: clearly_better(&report, &own),
            setting,
            report,
        });
    }
    Ok((own, tried))
}

fn clearly_better(other: &Report, own: &Report) -> bool {
    let spread = |report: &Report| report.standard_error.unwrap_or(0.0).powi(2);
    let gain = other.accuracy.unwrap_or(0.0) - own.accuracy.unwrap_or(0.0);
    gain > CLEAR * (spread(other) + spread(own)).sqrt()
}

fn others(settled: Declared) -> Vec<(String, Declared)> {
    let mut others = Vec::new();
    let mut add = |name: String, declared: Declared| others.push((name, declared));
    if let Some(norm) = settled.norm {
        let (name, norm) = match norm {
            Placement::Pre => ("norm post", Placement::Post),
            Placement::Post => ("norm pre", Placement::Pre),
        };
        let norm = Some(norm);
        add(name.to_string(), Declared { norm, ..settled });
    }
    if let Some(pooling) = settled.pooling {
        let (name, pooling) = match pooling {
            Pooling::Mean => ("pooling last", Pooling::Last),
            Pooling::Last => ("pooling mean", Pooling::Mean),
        };
        let pooling = Some(pooling);
        add(name.to_string(), Declared { pooling, ..settled });
    }
    for version in DSS_VERSIONS {
        if settled.dss_version.is_some_and(|own| own != version) {
            let name = format!("dss-version {}", version.name());
            let dss_version = Some(version);
            add(
                name,
                Declared {
                    dss_version,
                    ..settled
                },
            );
        }
    }
    for kind in [
        Discretisation::Zoh,
        Discretisation::Bilinear,
        Discretisation::Dss,
    ] {
        if settled.discretisation.is_some_and(|own| own != kind) {
            let name = format!("discretisation {}", kind.name());
            let discretisation = Some(kind);
            add(
                name,
                Declared {
                    discretisation,
                    ..settled
                },
            );
        }
    }
    for transform in TRANSFORMS {
        if settled.dt_transform.is_some_and(|own| own != transform) {
            let name = format!("dt-transform {}", transform.name());
            let dt_transform = Some(transform);
            add(
                name,
                Declared {
                    dt_transform,
                    ..settled
                },
            );
        }
        if settled.real_transform.is_some_and(|own| own != transform) {
            let name = format!("real-transform {}", transform.name());
            let real_transform = Some(transform);
            add(
                name,
                Declared {
                    real_transform,
                    ..settled
                },
            );
        }
    }
    others
}

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

/// The table of what was tried, and a word where something else is probable.
pub(super) fn show(own: &Report, tried: &[Alternative], printer: &Printer) -> anyhow::Result<()> {
    let mut rows = vec![vec!["as declared".to_string(), own.to_string()]];
    rows.extend(
        tried
            .iter()
            .map(|one| vec![one.setting.clone(), one.report.to_string()]),
    );
    printer.heading(&format!("on the first {} sequences:", own.examples()))?;
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
