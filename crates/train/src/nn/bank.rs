//! The state spaces of a layer with one system for each channel, in one or both directions of time.

use candle_core::Var;
use hankelite::model::Block;
use hankelite_control::DiagonalSystem;

use crate::nn::dynamics::TrainableDynamics;
use crate::nn::parameterisation::ModeForm;
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Group, NetworkError, Parameter};

/// One system for each channel.
pub(super) struct TrainableBank {
    pub(super) forward: TrainableDynamics,
    pub(super) backward: Option<TrainableDynamics>,
    pub(super) feedthrough: Var,
    /// Whether D is trained: where the file has a place for it.
    holds_feedthrough: bool,
    /// D of the model, and as rounded to the network's type.
    source_feedthrough: (Vec<f64>, Vec<f64>),
}

impl TrainableBank {
    pub(super) fn new(
        block: &Block,
        form: ModeForm,
        to: TensorType<'_>,
    ) -> Result<Self, NetworkError> {
        // Both directions are stored with the same number of modes.
        let order = block.order();
        let made = |systems| TrainableDynamics::new(block.name(), systems, order, form, to);
        let forward = made(block.systems())?;
        let backward = match block.backward() {
            [] => None,
            systems if have_same_poles(block.systems(), systems) => {
                Some(made(systems)?.with_poles_of(&forward))
            }
            systems => Some(made(systems)?),
        };
        let systems = block.systems().iter();
        let source: Vec<f64> = systems.map(|system| system.feedthrough()[(0, 0)]).collect();
        let feedthrough = var(&source, &[source.len()], to)?;
        let rounded = host(&feedthrough)?;
        Ok(Self {
            forward,
            backward,
            feedthrough,
            holds_feedthrough: block.holds_feedthrough(),
            source_feedthrough: (source, rounded),
        })
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let mut all = self.forward.parameters(prefix);
        if let Some(backward) = &self.backward {
            all.extend(backward.parameters(&format!("{prefix}backward.")));
        }
        if self.holds_feedthrough {
            let feedthrough = parameter(prefix, "feedthrough", &self.feedthrough, Group::NoDecay);
            all.push(feedthrough);
        }
        all
    }

    /// The systems of both directions.
    pub(super) fn systems(&self, layer: &str) -> Result<[Vec<DiagonalSystem>; 2], NetworkError> {
        let now = host(&self.feedthrough)?;
        let (source, rounded) = &self.source_feedthrough;
        let unchanged = now == *rounded;
        let feedthrough = if unchanged { source } else { &now };
        let zero = vec![0.0; now.len()];
        let backward = self.backward.as_ref();
        let backward = backward.map(|dynamics| dynamics.systems(layer, &zero));
        Ok([
            self.forward.systems(layer, feedthrough)?,
            backward.transpose()?.unwrap_or_default(),
        ])
    }
}

/// Whether both directions of every channel have the same step and poles, as layouts with one set of
/// poles for several kernels store them.
fn have_same_poles(forward: &[DiagonalSystem], backward: &[DiagonalSystem]) -> bool {
    let mut pairs = forward.iter().zip(backward);
    pairs.all(|(a, b)| (a.time(), a.exponents()) == (b.time(), b.exponents()))
}
