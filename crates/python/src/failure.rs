//! Errors of the library as exceptions of `hankelite.errors`.

use hankelite::archive::ArchiveError;
use hankelite::calibrate::CalibrateError;
use hankelite::checkpoint::CheckpointError;
use hankelite::compress::{CompressError, PlanError};
use hankelite::control::num_complex::Complex64;
use hankelite::control::{ControlError, SystemError};
use hankelite::infer::InferError;
use hankelite::stream::StreamError;
use hankelite::target::TargetError;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// What goes wrong, on its way to Python.
pub(crate) struct Failure {
    /// A class of `hankelite.errors`.
    class: &'static str,
    message: String,
    unstable: Option<Unstable>,
}

/// Modes that do not decay, and where.
struct Unstable {
    layer: Option<String>,
    channel: usize,
    modes: Vec<(usize, Complex64)>,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(class: &'static str, message: impl ToString) -> Self {
        Self {
            class,
            message: in_python(&message.to_string()),
            unstable: None,
        }
    }

    /// A setting that makes no sense.
    pub(crate) fn setting(message: impl ToString) -> Self {
        Self::new("InvalidSetting", message)
    }

    /// A fault of one system: of a channel of a layer, or of a bare array.
    pub(crate) fn of_system(
        layer: Option<&str>,
        channel: usize,
        source: &ControlError,
        message: String,
    ) -> Self {
        let ControlError::System(SystemError::Unstable { modes, .. }) = source else {
            let class = match layer {
                Some(_) => "ReductionError",
                None => "ControlError",
            };
            return Self::new(class, message);
        };
        let unstable = Some(Unstable {
            layer: layer.map(str::to_string),
            channel,
            modes: modes.clone(),
        });
        Self {
            unstable,
            ..Self::new("UnstableModes", message)
        }
    }

    fn raised(&self, py: Python<'_>) -> PyResult<PyErr> {
        if self.class == "KeyboardInterrupt" {
            return Ok(PyKeyboardInterrupt::new_err(()));
        }
        let class = py.import("hankelite.errors")?.getattr(self.class)?;
        let error = class.call1((&self.message,))?;
        if let Some(unstable) = &self.unstable {
            error.setattr("layer", unstable.layer.as_deref())?;
            error.setattr("channel", unstable.channel)?;
            let modes: Vec<usize> = unstable.modes.iter().map(|mode| mode.0).collect();
            error.setattr("modes", modes)?;
            let poles: Vec<Complex64> = unstable.modes.iter().map(|mode| mode.1).collect();
            error.setattr("poles", numpy::PyArray1::from_vec(py, poles))?;
        }
        Ok(PyErr::from_value(error))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| failure.raised(py).unwrap_or_else(|error| error))
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        let reasons = with_reasons(&error);
        let message = match error.hint() {
            Some(hint) => format!("{reasons}\nhint: {hint}"),
            None => reasons,
        };
        Self::new("CheckpointError", message)
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        Self::new("CheckpointError", with_reasons(&error))
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Self::setting(error)
    }
}

impl From<CompressError> for Failure {
    fn from(error: CompressError) -> Self {
        match &error {
            CompressError::Plan(plan) => Self::setting(plan),
            CompressError::Cancelled(_) => Self::new("KeyboardInterrupt", ""),
            CompressError::Channel {
                layer,
                channel,
                source,
            } => Self::of_system(Some(layer), *channel, source, error.to_string()),
            _ => Self::new("ReductionError", error),
        }
    }
}

impl From<CalibrateError> for Failure {
    fn from(error: CalibrateError) -> Self {
        match error {
            CalibrateError::Compress(error) => error.into(),
            CalibrateError::Cancelled(_) => Self::new("KeyboardInterrupt", ""),
            CalibrateError::Setting(_) => Self::setting(error),
            error => Self::new("CalibrationError", error),
        }
    }
}

impl From<InferError> for Failure {
    fn from(error: InferError) -> Self {
        Self::from(CalibrateError::from(error))
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Calibrate(error) => error.into(),
            TargetError::Stream(error) => error.into(),
            TargetError::Cancelled(_) => Self::new("KeyboardInterrupt", ""),
            TargetError::Rounding(_) => Self::new("CalibrationError", error),
            error => Self::setting(error),
        }
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Self::new("StreamError", error)
    }
}

/// An error with what caused it, as far as it does not say so itself.
pub(crate) fn with_reasons(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(reason) = cause {
        let own = reason.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = reason.source();
    }
    text
}

/// A text of the library with its flags as keyword arguments: `--norm pre` becomes `norm="pre"`.
pub(crate) fn in_python(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("--") {
        let (before, flag) = (&rest[..at], &rest[at + 2..]);
        let end = flag.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        let (name, behind) = flag.split_at(end.unwrap_or(flag.len()));
        out.push_str(before);
        if name.is_empty() || name.starts_with('-') {
            out.push_str("--");
            rest = flag;
            continue;
        }
        out.push_str(&name.replace('-', "_"));
        rest = match value_of(behind) {
            Some((value, behind)) => {
                out.push('=');
                out.push_str(&value);
                behind
            }
            None => behind,
        };
    }
    out + rest
}

/// The value behind a flag, as Python has it, and what follows; none where a sentence goes on.
fn value_of(behind: &str) -> Option<(String, &str)> {
    let behind = behind.strip_prefix(' ')?;
    let end = behind.find(|c: char| !(c.is_alphanumeric() || c == '-' || c == '.'));
    let (word, rest) = behind.split_at(end.unwrap_or(behind.len()));
    let value = match word {
        "" | "overrides" | "needs" | "is" | "or" | "and" => return None,
        "true" => "True".to_string(),
        "false" => "False".to_string(),
        _ if word.parse::<f64>().is_ok() || word.chars().all(|c| c.is_ascii_uppercase()) => {
            word.to_string()
        }
        _ => format!("\"{word}\""),
    };
    Some((value, rest))
}
