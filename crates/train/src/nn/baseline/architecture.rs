//! What a baseline looks like.

use crate::nn::{ArchitectureError, PoolingKind};

/// The layers of a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BaselineKind {
    /// h = tanh(W x + b + W' h⁻ + b').
    Rnn,
    /// Long short-term memory, as `torch.nn.LSTM`.
    Lstm,
    /// Gated recurrent units, as `torch.nn.GRU`.
    Gru,
    /// h = max(0, W x + w h⁻ + b), with one recurrent weight for each unit.
    #[serde(rename = "indrnn")]
    IndRnn,
    /// h = α tanh(W x + U h⁻) + β h⁻ with α and β between 0 and 1.
    #[serde(rename = "fastrnn")]
    FastRnn,
    /// h = tanh(W x + U h⁻) with all singular values of U near 1.
    #[serde(rename = "spectralrnn")]
    SpectralRnn,
    /// One layer of causal attention, one neuron for each head.
    Transformer,
    /// Unfolded sequential ISTA.
    Sista,
    /// Unfolded ℓ1-ℓ1 minimisation.
    L1L1,
    /// Unfolded reweighted ℓ1-ℓ1 minimisation.
    Reweighted,
}

impl BaselineKind {
    /// All of them.
    pub const ALL: [BaselineKind; 10] = [
        BaselineKind::Rnn,
        BaselineKind::Lstm,
        BaselineKind::Gru,
        BaselineKind::IndRnn,
        BaselineKind::FastRnn,
        BaselineKind::SpectralRnn,
        BaselineKind::Transformer,
        BaselineKind::Sista,
        BaselineKind::L1L1,
        BaselineKind::Reweighted,
    ];

    /// As a configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            BaselineKind::Rnn => "rnn",
            BaselineKind::Lstm => "lstm",
            BaselineKind::Gru => "gru",
            BaselineKind::IndRnn => "indrnn",
            BaselineKind::FastRnn => "fastrnn",
            BaselineKind::SpectralRnn => "spectralrnn",
            BaselineKind::Transformer => "transformer",
            BaselineKind::Sista => "sista",
            BaselineKind::L1L1 => "l1-l1",
            BaselineKind::Reweighted => "reweighted",
        }
    }

    /// Whether its weights are built from a dictionary.
    pub fn is_unfolded(self) -> bool {
        matches!(
            self,
            BaselineKind::Sista | BaselineKind::L1L1 | BaselineKind::Reweighted
        )
    }
}

/// The map from codes to outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BaselineOutput {
    /// A matrix and a bias.
    #[default]
    Linear,
    /// The dictionary Q_D at every step, without a bias: the outputs are the signal again.
    Dictionary,
}

/// A baseline from scratch.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineArchitecture {
    /// The layers.
    pub layer: BaselineKind,
    /// Units of each layer, at least 1; heads of a transformer, an even number.
    pub hidden: usize,
    /// Number of layers, at least 1; 1 for a transformer.
    pub layers: usize,
    /// Numbers of each step of the data. Either this or `vocabulary`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<usize>,
    /// Tokens of the data; each enters as a unit vector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// Classes, or outputs of each step; at least 1.
    pub outputs: usize,
    /// How the steps become one vector; `mean` by default.
    #[serde(default)]
    pub pooling: PoolingKind,
    /// Rows of a trainable measurement S in front of the layers; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurements: Option<usize>,
    /// The map from codes to outputs; `linear` by default.
    #[serde(default)]
    pub output: BaselineOutput,
    /// Where the weight ω1 of sparsity starts, above 0; 0.1 by default. Unfolded networks only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omega1: Option<f64>,
    /// Where the weight ω2 of what the code before foretells starts, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omega2: Option<f64>,
}

/// The most numbers that the recurrent matrices may have together.
const MOST: u128 = 1 << 31;

impl BaselineArchitecture {
    /// Numbers of each step as they come: inputs, or the size of the vocabulary.
    pub fn signal(&self) -> usize {
        self.inputs.or(self.vocabulary).unwrap_or(0)
    }

    /// Numbers of each step in the input of the first layer.
    pub fn body_inputs(&self) -> usize {
        self.measurements.unwrap_or(self.signal())
    }

    /// A lower bound of the trainable numbers.
    pub(super) fn least_numbers(&self) -> usize {
        let each = match self.layer {
            BaselineKind::Transformer => self.body_inputs().saturating_mul(self.body_inputs()),
            _ => self.layers,
        };
        self.hidden.saturating_mul(each)
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ArchitectureError`] with the key, its value and its range.
    pub fn check(&self) -> Result<(), ArchitectureError> {
        let counts = [
            ("hidden", Some(self.hidden)),
            ("layers", Some(self.layers)),
            ("outputs", Some(self.outputs)),
            ("inputs", self.inputs),
            ("vocabulary", self.vocabulary),
            ("measurements", self.measurements),
        ];
        for (key, count) in counts {
            if count == Some(0) {
                let (found, expected) = (0.0, "at least 1");
                return Err(ArchitectureError::Range {
                    key,
                    found,
                    expected,
                });
            }
        }
        for (key, omega) in [("omega1", self.omega1), ("omega2", self.omega2)] {
            let fits = |omega: f64| self.layer.is_unfolded() && omega > 0.0 && omega.is_finite();
            if let Some(found) = omega.filter(|&omega| !fits(omega)) {
                let expected = "above 0, for an unfolded network only";
                return Err(ArchitectureError::Range {
                    key,
                    found,
                    expected,
                });
            }
        }
        if self.inputs.is_some() == self.vocabulary.is_some() {
            return Err(ArchitectureError::Encoder);
        }
        if self.layer == BaselineKind::Transformer {
            self.check_attention()?;
        }
        let widest = self.hidden.max(self.signal()).max(self.body_inputs());
        let square = (widest.max(self.outputs) as u128).saturating_pow(2);
        if square.saturating_mul(4 * self.layers as u128) > MOST {
            return Err(ArchitectureError::Range {
                key: "hidden",
                found: self.hidden as f64,
                expected: "at most 2^31 numbers in 4 x layers matrices of the widest size",
            });
        }
        let dictionary = self.output == BaselineOutput::Dictionary;
        if dictionary && (self.pooling != PoolingKind::None || self.outputs != self.signal()) {
            return Err(ArchitectureError::Dictionary {
                outputs: self.outputs,
                signal: self.signal(),
            });
        }
        Ok(())
    }
}

impl BaselineArchitecture {
    /// The start of a transformer needs pairs of heads, and there is only one layer of them.
    fn check_attention(&self) -> Result<(), ArchitectureError> {
        let keys = (self.body_inputs() as u128).saturating_pow(2);
        let faults = [
            (
                "layers",
                self.layers,
                self.layers != 1,
                "1 for a transformer",
            ),
            (
                "hidden",
                self.hidden,
                !self.hidden.is_multiple_of(2),
                "an even number of heads for a transformer",
            ),
            (
                "hidden",
                self.hidden,
                keys.saturating_mul(self.hidden as u128) > MOST,
                "at most 2^31 numbers in hidden x inputs x inputs",
            ),
        ];
        match faults.into_iter().find(|(_, _, wrong, _)| *wrong) {
            None => Ok(()),
            Some((key, found, _, expected)) => Err(ArchitectureError::Range {
                key,
                found: found as f64,
                expected,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_configuration() {
        for kind in BaselineKind::ALL {
            let name = serde_json::to_value(kind).unwrap();
            assert_eq!(name, kind.name());
        }
    }
}
