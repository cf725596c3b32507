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

/// Why data cannot go into a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Tokens for a linear encoder, or numbers for an embedding.
    #[error("the data are {found}, but the model takes {expected}")]
    Kind {
        /// `numbers` or `tokens`.
        found: &'static str,
        /// The other one.
        expected: &'static str,
    },
    /// Data of another width than the encoder takes.
    #[error("the data have {found} numbers at each step, the model takes {expected}")]
    Width {
        /// Of the data.
        found: usize,
        /// Of the model.
        expected: usize,
    },
    /// Tokens that the embedding does not have.
    #[error("the data have {found} different tokens, the model's embedding has {expected}")]
    Vocabulary {
        /// Of the data.
        found: usize,
        /// Of the model.
        expected: usize,
    },
    /// A sequence without steps, with a part of a step or with too many.
    #[error("a sequence holds {found} values, expected {steps} steps of {inputs}, or fewer")]
    Length {
        /// Numbers or tokens found.
        found: usize,
        /// Steps at most.
        steps: usize,
        /// Numbers of a step; 1 for tokens.
        inputs: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} at step {step} is outside the vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Where it stands.
        step: usize,
        /// Rows of the embedding.
        vocabulary: usize,
    },
    /// A number that is not finite.
    #[error("value {index} of a sequence is not finite")]
    NotFinite {
        /// Its place in the sequence.
        index: usize,
    },
}

impl InputKind {
    /// Whether a network that takes this kind takes all of the data: numbers of the same width, or
    /// tokens of a vocabulary that is not larger.
    ///
    /// # Errors
    /// [`InputError::Kind`], [`InputError::Width`], [`InputError::Vocabulary`].
    pub fn require(self, data: InputKind) -> Result<(), InputError> {
        match (self, data) {
            (InputKind::Numbers { width: expected }, InputKind::Numbers { width: found }) => {
                match found == expected {
                    true => Ok(()),
                    false => Err(InputError::Width { found, expected }),
                }
            }
            (
                InputKind::Tokens {
                    vocabulary: expected,
                },
                InputKind::Tokens { vocabulary: found },
            ) => match found <= expected {
                true => Ok(()),
                false => Err(InputError::Vocabulary { found, expected }),
            },
            _ => Err(self.takes_no(data.name())),
        }
    }

    /// The steps of one sequence, 1 to `most`, for a network that takes this kind. Looks at every
    /// number or token once.
    ///
    /// # Errors
    /// [`InputError::Kind`], [`InputError::Length`], [`InputError::NotFinite`],
    /// [`InputError::Token`].
    pub(crate) fn steps_of(self, sequence: Sequence<'_>, most: usize) -> Result<usize, InputError> {
        match (self, sequence) {
            (InputKind::Numbers { width }, Sequence::Values(values)) => {
                let steps = whole_steps(values.len(), width, most)?;
                match values.iter().position(|value| !value.is_finite()) {
                    None => Ok(steps),
                    Some(index) => Err(InputError::NotFinite { index }),
                }
            }
            (InputKind::Tokens { vocabulary }, Sequence::Tokens(tokens)) => {
                let steps = whole_steps(tokens.len(), 1, most)?;
                let outside = |token: &u32| *token as usize >= vocabulary;
                match tokens.iter().position(outside) {
                    None => Ok(steps),
                    Some(step) => Err(InputError::Token {
                        token: tokens[step],
                        step,
                        vocabulary,
                    }),
                }
            }
            (_, Sequence::Values(_)) => Err(self.takes_no("numbers")),
            (_, Sequence::Tokens(_)) => Err(self.takes_no("tokens")),
        }
    }

    fn takes_no(self, found: &'static str) -> InputError {
        let expected = self.name();
        InputError::Kind { found, expected }
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
        return Err(InputError::Length {
            found,
            steps: most,
            inputs,
        });
    }
    Ok(steps)
}
