//! Options and steps that several commands share.

use std::path::Path;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use clap::ValueEnum;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::Declared;
use crate::checkpoint::DssVersion;
use crate::checkpoint::Layerwise;
use crate::checkpoint::read;
use crate::checkpoint::read_dynamics;
use crate::checkpoint::read_layerwise;
use crate::cli::printer::Printer;
use crate::model::Placement;
use crate::model::Pooling;

/// What a checkpoint does not say. Also read from the file's own metadata and from a sidecar
/// NAME.hankelite.toml (keys norm, pooling, dss_version, length).
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "What the file cannot tell")]
pub(super) struct Declarations {
    /// Where the normalisation stands [default: post, as example.py of state-spaces/s4].
    #[arg(long, value_enum)]
    norm: Option<Norm>,
    /// How the steps are pooled [default: mean, as example.py].
    #[arg(long, value_enum)]
    pooling: Option<Pool>,
    /// The kernel formula of a DSS layer [default: softmax or exp, by the tensor names].
    #[arg(long, value_enum)]
    dss_version: Option<Version>,
    /// The sequence length L: needed by the softmax kernel of DSS; kernel errors are measured
    /// over L steps [default: 1024].
    #[arg(long, value_name = "L", value_parser = positive)]
    length: Option<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Norm {
    Pre,
    Post,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Pool {
    Mean,
    Last,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Version {
    Softmax,
    Exp,
    ExpReIm,
    ExpNoScale,
    Clip,
    ClipNoScale,
}

pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a whole number of at least 1".to_string()),
    }
}

impl Declarations {
    pub(super) fn declared(&self) -> Declared {
        Declared {
            norm: self.norm.map(|norm| match norm {
                Norm::Pre => Placement::Pre,
                Norm::Post => Placement::Post,
            }),
            pooling: self.pooling.map(|pooling| match pooling {
                Pool::Mean => Pooling::Mean,
                Pool::Last => Pooling::Last,
            }),
            dss_version: self.dss_version.map(|version| match version {
                Version::Softmax => DssVersion::Softmax,
                Version::Exp => DssVersion::Exp,
                Version::ExpReIm => DssVersion::ExpReIm,
                Version::ExpNoScale => DssVersion::ExpNoScale,
                Version::Clip => DssVersion::Clip,
                Version::ClipNoScale => DssVersion::ClipNoScale,
            }),
            length: self.length,
            ..Declared::default()
        }
    }
}

/// Reads a checkpoint that is to be run, and says what was assumed and what was set aside.
pub(super) fn open(
    path: &Path,
    declared: &Declared,
    printer: &Printer,
) -> anyhow::Result<Checkpoint> {
    Ok(announced(read(path, declared)?, printer))
}

/// As [`open`], for a checkpoint whose layers are only looked at or reduced.
pub(super) fn open_dynamics(
    path: &Path,
    declared: &Declared,
    printer: &Printer,
) -> anyhow::Result<Checkpoint> {
    Ok(announced(read_dynamics(path, declared)?, printer))
}

/// As [`open`], for a checkpoint whose layers are looked at one by one.
pub(super) fn open_layerwise(
    path: &Path,
    declared: &Declared,
    printer: &Printer,
) -> anyhow::Result<Layerwise> {
    let layerwise = read_layerwise(path, declared)?;
    announce(layerwise.assumptions(), layerwise.notes(), printer);
    Ok(layerwise)
}

fn announced(checkpoint: Checkpoint, printer: &Printer) -> Checkpoint {
    announce(checkpoint.assumptions(), checkpoint.notes(), printer);
    checkpoint
}

fn announce(assumptions: &[String], notes: &[String], printer: &Printer) {
    for assumption in assumptions {
        printer.note("assumed", assumption);
    }
    for note in notes {
        printer.note("note", note);
    }
}

/// The softmax kernel of DSS holds for one length only.
pub(super) fn require_length(checkpoint: &Checkpoint, length: usize) -> anyhow::Result<()> {
    let declared = checkpoint.declared();
    match (declared.dss_version, declared.length) {
        (Some(DssVersion::Softmax), Some(declared)) if declared != length => bail!(
            "the softmax kernel was declared for L = {declared}, but the sequences have {length} \
             steps"
        ),
        _ => Ok(()),
    }
}

/// A checkpoint argument.
#[derive(Debug, Clone, Args)]
pub(super) struct Input {
    /// The checkpoint: .safetensors, or a .pt, .pth or .ckpt file of torch.save.
    #[arg(value_name = "CKPT")]
    pub(super) checkpoint: PathBuf,
}

/// A number in four digits, plain where that is short.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_string();
    }
    if (1e-3..1e4).contains(&value.abs()) {
        return format!(
            "{:.*}",
            (3 - value.abs().log10().floor() as i32).max(0) as usize,
            value
        );
    }
    format!("{value:.3e}")
}

/// 1234567 as 1,234,567.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(0.0), "0");
        assert_eq!(short(12.3456), "12.35");
        assert_eq!(short(0.00123456), "0.001235");
        assert_eq!(short(1.5e-9), "1.500e-9");
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
