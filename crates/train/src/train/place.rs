//! Where a network is trained.

use std::str::FromStr;

use candle_core::Device;

use crate::train::TrainError;

/// Where a network is trained, written `cpu`, `cuda` or `cuda:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Place {
    /// The processor.
    #[default]
    Cpu,
    /// A graphics card, by its number.
    Cuda(usize),
}

impl Place {
    /// The device, if this machine and this build have it.
    ///
    /// # Errors
    /// [`TrainError::NoDevice`].
    pub fn open(self) -> Result<Device, TrainError> {
        let Place::Cuda(index) = self else {
            return Ok(Device::Cpu);
        };
        if !cfg!(feature = "cuda") {
            let reason = "this program was built without the feature `cuda`".to_string();
            return Err(TrainError::NoDevice { index, reason });
        }
        Device::new_cuda(index).map_err(|error| TrainError::NoDevice {
            index,
            reason: error.to_string(),
        })
    }
}

impl FromStr for Place {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |rest: &str| rest.strip_prefix(':')?.parse().ok();
        match text.strip_prefix("cuda") {
            None if text == "cpu" => Ok(Place::Cpu),
            Some("") => Ok(Place::Cuda(0)),
            Some(rest) if number(rest).is_some() => Ok(Place::Cuda(number(rest).unwrap_or(0))),
            _ => Err(TrainError::NoSuchPlace {
                found: text.to_string(),
            }),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_shown() {
        for (text, place) in [
            ("cpu", Place::Cpu),
            ("cuda", Place::Cuda(0)),
            ("cuda:3", Place::Cuda(3)),
        ] {
            assert_eq!(text.parse::<Place>().unwrap(), place);
        }
        assert_eq!(Place::Cuda(1).to_string(), "cuda:1");
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda3", "cpu:0"] {
            let error = text.parse::<Place>().unwrap_err();
            assert!(matches!(error, TrainError::NoSuchPlace { .. }), "{text}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_reports_it() {
        let error = Place::Cuda(0).open().unwrap_err().to_string();
        assert!(
            error.contains("built without the feature `cuda`"),
            "{error}"
        );
    }
}
