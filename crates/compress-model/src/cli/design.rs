//! The table `[model]`: state space layers, or those of another sequence model.

use hankelite::model::InputKind;
use hankelite_train::nn::baseline::{BaselineArchitecture, BaselineKind};
use hankelite_train::nn::{Architecture, ArchitectureError, LayerKind};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A network from scratch; the key `layer` decides which keys go with it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Design {
    StateSpace(Architecture),
    Baseline(BaselineArchitecture),
}

impl Design {
    pub(super) fn check(&self) -> Result<(), ArchitectureError> {
        match self {
            Design::StateSpace(architecture) => architecture.check(),
            Design::Baseline(architecture) => architecture.check(),
        }
    }
}

impl<'de> Deserialize<'de> for Design {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = toml::Table::deserialize(deserializer)?;
        let Some(layer) = table.get("layer") else {
            return Err(D::Error::custom(format!(
                "missing field `layer`, expected one of {}",
                kinds()
            )));
        };
        let told = |error: toml::de::Error| D::Error::custom(error.message());
        if layer.clone().try_into::<LayerKind>().is_ok() {
            return table.try_into().map(Design::StateSpace).map_err(told);
        }
        if layer.clone().try_into::<BaselineKind>().is_ok() {
            return table.try_into().map(Design::Baseline).map_err(told);
        }
        Err(D::Error::custom(format!(
            "`layer` is {layer}, expected one of {}",
            kinds()
        )))
    }
}

/// All kinds of layers.
fn kinds() -> String {
    let state_space = ["s4d", "dss-exp", "dss-softmax"].into_iter();
    let others = BaselineKind::ALL.into_iter().map(BaselineKind::name);
    let names: Vec<String> = state_space
        .chain(others)
        .map(|name| format!("`{name}`"))
        .collect();
    names.join(", ")
}

/// What a baseline takes at each step.
pub(super) fn takes(architecture: &BaselineArchitecture) -> InputKind {
    match architecture.vocabulary {
        Some(vocabulary) => InputKind::Tokens { vocabulary },
        None => InputKind::Numbers {
            width: architecture.signal(),
        },
    }
}
