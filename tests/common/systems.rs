//! The reference systems as `DiagonalSystem`s.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(
    clippy::unwrap_used,
    reason = "a broken reference file must stop the test"
)]

use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;
use serde_json::Value;

use crate::common::{here, json, reals};

/// One reference entry: its name, its block of the file, the continuous system and the step.
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) value: Value,
    pub(crate) system: DiagonalSystem,
    pub(crate) step: f64,
}

impl Reference {
    /// The two time bases, with the names of their blocks in the shared files.
    pub(crate) fn both_times(&self) -> [(&'static str, DiagonalSystem); 2] {
        let discrete = self.system.zoh(self.step).unwrap();
        [
            ("continuous", self.system.clone()),
            ("discrete_zoh", discrete),
        ]
    }
}

pub(crate) fn siso(
    time: Time,
    lambda: Vec<Complex64>,
    b: &[Complex64],
    c: &[Complex64],
) -> DiagonalSystem {
    DiagonalSystem::new(
        time,
        lambda,
        DMatrix::from_column_slice(b.len(), 1, b),
        DMatrix::from_row_slice(1, c.len(), c),
        DMatrix::zeros(1, 1),
    )
    .unwrap()
}

/// The diagonal systems of `tests/reference/systems`.
pub(crate) fn shared_systems() -> Vec<Reference> {
    let files = std::fs::read_dir(here("reference/systems")).unwrap();
    let mut systems: Vec<Reference> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, json(&path))
        })
        .filter(|(_, value)| value.get("kind").is_none())
        .map(|(name, value)| {
            let [lambda, b, c] = ["lambda", "b", "c"].map(|key| complexes(&value[key]));
            Reference {
                name,
                system: siso(Time::Continuous, lambda, &b, &c),
                step: value["Delta"].as_f64().unwrap(),
                value,
            }
        })
        .collect();
    systems.sort_by(|a, b| a.name.cmp(&b.name));
    systems
}

/// The systems of `tests/reference/real_hankel.json`.
pub(crate) fn own_systems() -> Vec<Reference> {
    let file = json(&here("reference/real_hankel.json"));
    let systems = file["systems"].as_array().unwrap().iter();
    let read = |value: &Value| {
        let [lambda, b, c] = ["lambda", "b", "c"].map(|key| pairs(&value[key]));
        Reference {
            name: value["name"].as_str().unwrap().to_string(),
            system: siso(Time::Continuous, lambda, &b, &c),
            step: value["step"].as_f64().unwrap(),
            value: value.clone(),
        }
    };
    systems.map(read).collect()
}

/// `{re_f64: [..], im_f64: [..]}`.
pub(crate) fn complexes(value: &Value) -> Vec<Complex64> {
    let (re, im) = (reals(&value["re_f64"]), reals(&value["im_f64"]));
    re.into_iter()
        .zip(im)
        .map(|(re, im)| Complex64::new(re, im))
        .collect()
}

/// `[[re, im], ..]`.
pub(crate) fn pairs(value: &Value) -> Vec<Complex64> {
    let entries = value.as_array().expect("an array");
    let one = |pair: &Value| {
        let parts = reals(pair);
        Complex64::new(parts[0], parts[1])
    };
    entries.iter().map(one).collect()
}
