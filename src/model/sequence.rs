//! What a network takes: numbers or tokens.

/// One input sequence, of at most the L steps that the network was prepared for. A shorter one is
/// padded with zeros or token 0, which only layers that run backwards in time take in; its own
/// steps alone are pooled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sequence<'a> {
    /// Steps × inputs numbers, step by step.
    Values(&'a [f32]),
    /// Indices into an embedding, one for each step.
    Tokens(&'a [u32]),
}

/// How many of some sequences differ from all before them.
fn count_different(sequences: &[Sequence<'_>]) -> usize {
    let all = sequences.iter().enumerate();
    all.filter(|(index, sequence)| !sequences[..*index].contains(sequence))
        .count()
}

/// How much sequences say, as a check before something is measured on them.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct InputSignal {
    /// Sequences, each of those that are equal once.
    pub different: usize,
    /// Root mean square of all numbers. Absent for tokens.
    pub root_mean_square: Option<f64>,
}

impl InputSignal {
    /// Of some sequences; `None` of none.
    pub fn of(sequences: &[Sequence<'_>]) -> Option<Self> {
        let (mut sum, mut count) = (0.0, 0);
        for sequence in sequences {
            if let Sequence::Values(values) = sequence {
                sum += values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                count += values.len();
            }
        }
        (!sequences.is_empty()).then(|| Self {
            different: count_different(sequences),
            root_mean_square: (count > 0).then(|| (sum / count as f64).sqrt()),
        })
    }
}

/// What a network takes at each step, or what data hold there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// So many numbers.
    Numbers {
        /// How many.
        width: usize,
    },
    /// One of so many tokens.
    Tokens {
        /// How many there are, padding included.
        vocabulary: usize,
    },
}

/// Why data cannot go into a network: what was found, what was expected, where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InputError(String);

impl InputKind {
    /// Whether a network that takes this kind takes all of the data: numbers of the same width, or
    /// tokens of a vocabulary that is not larger.
    ///
    /// # Errors
    /// [`InputError`] for the other kind, another width and a larger vocabulary.
    pub fn require(self, data: InputKind) -> Result<(), InputError> {
        match (self, data) {
            (InputKind::Numbers { width: expected }, InputKind::Numbers { width: found }) => {
                match found == expected {
                    true => Ok(()),
                    false => Err(InputError(format!(
                        "the data have {found} numbers at each step, the model takes {expected}"
                    ))),
                }
            }
            (
                InputKind::Tokens {
                    vocabulary: expected,
                },
                InputKind::Tokens { vocabulary: found },
            ) => match found <= expected {
                true => Ok(()),
                false => Err(InputError(format!(
                    "the data have {found} different tokens, the model's embedding has {expected}"
                ))),
            },
            _ => Err(self.takes_no(data.name())),
        }
    }

    /// The steps of one sequence, 1 to `most`, for a network that takes this kind. Looks at every
    /// number or token once.
    ///
    /// # Errors
    /// [`InputError`] for the other kind, another length, and values that no model takes.
    pub(crate) fn steps_of(self, sequence: Sequence<'_>, most: usize) -> Result<usize, InputError> {
        match (self, sequence) {
            (InputKind::Numbers { width }, Sequence::Values(values)) => {
                let steps = whole_steps(values.len(), width, most)?;
                match values.iter().position(|value| !value.is_finite()) {
                    None => Ok(steps),
                    Some(index) => {
                        let text = format!("value {index} of a sequence is not finite");
                        Err(InputError(text))
                    }
                }
            }
            (InputKind::Tokens { vocabulary }, Sequence::Tokens(tokens)) => {
                let steps = whole_steps(tokens.len(), 1, most)?;
                let outside = |token: &u32| *token as usize >= vocabulary;
                match tokens.iter().position(outside) {
                    None => Ok(steps),
                    Some(step) => Err(InputError(format!(
                        "token {} at step {step} is outside the vocabulary of {vocabulary}",
                        tokens[step]
                    ))),
                }
            }
            (_, Sequence::Values(_)) => Err(self.takes_no("numbers")),
            (_, Sequence::Tokens(_)) => Err(self.takes_no("tokens")),
        }
    }

    fn takes_no(self, found: &'static str) -> InputError {
        let expected = self.name();
        InputError(format!(
            "the data are {found}, but the model takes {expected}"
        ))
    }

    fn name(self) -> &'static str {
        match self {
            InputKind::Numbers { .. } => "numbers",
            InputKind::Tokens { .. } => "tokens",
        }
    }
}

fn whole_steps(found: usize, inputs: usize, most: usize) -> Result<usize, InputError> {
    let steps = found / inputs.max(1);
    if steps * inputs != found || steps == 0 || steps > most {
        return Err(InputError(format!(
            "a sequence holds {found} values, expected {most} steps of {inputs}, or fewer"
        )));
    }
    Ok(steps)
}
