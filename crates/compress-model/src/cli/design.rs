//! The table `[model]`: state space layers, or those of another sequence model.

#[cfg(feature = "research")]
use hankelite::model::InputKind;
#[cfg(feature = "research")]
use hankelite_train::nn::baseline::{BaselineArchitecture, BaselineKind};
use hankelite_train::nn::{Architecture, ArchitectureError, LayerKind};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A network from scratch; the key `layer` decides which keys go with it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Design {
    StateSpace(Architecture),
    #[cfg(feature = "research")]
    BaselineNetwork(BaselineArchitecture),
}

impl Design {
    pub(super) fn check(&self) -> Result<(), ArchitectureError> {
        match self {
            Design::StateSpace(architecture) => architecture.check(),
            #[cfg(feature = "research")]
            Design::BaselineNetwork(architecture) => architecture.check(),
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
        let shown = |error: toml::de::Error| D::Error::custom(error.message());
        if layer.clone().try_into::<LayerKind>().is_ok() {
            return table.try_into().map(Design::StateSpace).map_err(shown);
        }
        #[cfg(feature = "research")]
        if layer.clone().try_into::<BaselineKind>().is_ok() {
            return table.try_into().map(Design::BaselineNetwork).map_err(shown);
        }
        Err(D::Error::custom(format!(
            "`layer` is {layer}, expected one of {}",
            kinds()
        )))
    }
}

/// All kinds of layers.
fn kinds() -> String {
    let kinds = ["s4d", "dss-exp", "dss-softmax"].into_iter();
    #[cfg(feature = "research")]
    let kinds = kinds.chain(BaselineKind::ALL.map(BaselineKind::name));
    let kinds: Vec<&str> = kinds.collect();
    format!("`{}`", kinds.join("`, `"))
}

/// What a baseline takes at each step.
#[cfg(feature = "research")]
pub(super) fn takes(architecture: &BaselineArchitecture) -> InputKind {
    match architecture.vocabulary {
        Some(vocabulary) => InputKind::Tokens { vocabulary },
        None => InputKind::Numbers {
            width: architecture.signal(),
        },
    }
}
