//! Sequences of numbers with one number to answer.

use hankelite::model::Sequence;
use hankelite_data::{Dataset, Draw, Targets};

use crate::shallow::ShallowError;

/// n_s sequences of L tokens of d numbers, each with one label.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    tokens: Vec<f64>,
    labels: Vec<f64>,
    width: usize,
    length: usize,
}

impl Samples {
    /// From tokens, count × length × width, and count labels.
    ///
    /// # Errors
    /// [`ShallowError::Empty`]; [`ShallowError::Shape`]; [`ShallowError::Range`] for numbers that
    /// are not finite.
    pub fn new(
        tokens: Vec<f64>,
        labels: Vec<f64>,
        length: usize,
        width: usize,
    ) -> Result<Self, ShallowError> {
        let sizes = [
            ("the number of samples", labels.len()),
            ("the number of tokens", length),
            ("the width of a token", width),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ShallowError::Empty { what });
        }
        let expected = labels.len().saturating_mul(length).saturating_mul(width);
        if tokens.len() != expected {
            return Err(ShallowError::Shape {
                what: "numbers in the tokens",
                found: tokens.len(),
                expected,
            });
        }
        check_finite("a number of a token", &tokens)?;
        check_finite("a label", &labels)?;
        Ok(Self {
            tokens,
            labels,
            width,
            length,
        })
    }

    /// The sequences and targets of a data set of numbers.
    ///
    /// # Errors
    /// [`ShallowError::Data`] for tokens, for padded sequences, and where a sequence has not one
    /// number as target; otherwise as [`Samples::new`].
    pub fn of(data: &Dataset) -> Result<Self, ShallowError> {
        let fault = |found| ShallowError::Data { found };
        let Some(width) = data.width() else {
            return Err(fault("indices of an embedding"));
        };
        if data.lengths().is_some() {
            return Err(fault("sequences of different lengths"));
        }
        let Targets::Values { values, width: 1 } = data.targets() else {
            return Err(fault("other targets"));
        };
        let labels: Vec<f64> = values.iter().copied().map(f64::from).collect();
        let mut tokens = Vec::with_capacity(labels.len() * data.length() * width);
        for index in 0..data.len() {
            if let Sequence::Values(sequence) = data.sequence(index) {
                tokens.extend(sequence.iter().copied().map(f64::from));
            }
        }
        Self::new(tokens, labels, data.length(), width)
    }

    /// Tokens N(0, I), shortened to norm 1 where they are longer, with labels 0.
    ///
    /// # Errors
    /// [`ShallowError::Empty`].
    pub fn gaussian(
        count: usize,
        length: usize,
        width: usize,
        seed: u64,
    ) -> Result<Self, ShallowError> {
        let mut draw = Draw::new(seed, TOKENS);
        let mut tokens: Vec<f64> = (0..count * length * width).map(|_| draw.normal()).collect();
        for token in tokens.chunks_exact_mut(width.max(1)) {
            let norm = token.iter().map(|x| x * x).sum::<f64>().sqrt();
            token.iter_mut().for_each(|x| *x /= norm.max(1.0));
        }
        Self::new(tokens, vec![0.0; count], length, width)
    }

    /// The same sequences with other labels.
    ///
    /// # Errors
    /// As [`Samples::new`].
    pub fn with_labels(self, labels: Vec<f64>) -> Result<Self, ShallowError> {
        let expected = self.labels.len();
        if labels.len() != expected {
            return Err(ShallowError::Shape {
                what: "labels",
                found: labels.len(),
                expected,
            });
        }
        Self::new(self.tokens, labels, self.length, self.width)
    }

    /// n_s.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Never true: there is at least one sample.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// L, tokens of a sequence.
    pub fn length(&self) -> usize {
        self.length
    }

    /// d, numbers of a token.
    pub fn width(&self) -> usize {
        self.width
    }

    /// L × d numbers of sequence `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Samples::len`].
    pub fn sequence(&self, index: usize) -> &[f64] {
        let size = self.length * self.width;
        &self.tokens[index * size..(index + 1) * size]
    }

    /// All sequences, in order.
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.tokens.chunks_exact(self.length * self.width)
    }

    /// One for each sequence.
    pub fn labels(&self) -> &[f64] {
        &self.labels
    }
}

/// Streams of the random numbers of one seed.
pub(super) const TOKENS: u64 = 0;
pub(super) const START: u64 = 1;
pub(super) const SIGNS: u64 = 2;
pub(super) const DIRECTION: u64 = 3;
pub(super) const QUERY: u64 = 4;
pub(super) const STEPS: u64 = 5;

fn check_finite(what: &'static str, values: &[f64]) -> Result<(), ShallowError> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(&found) => Err(ShallowError::Range {
            what,
            found,
            expected: "a finite number",
        }),
        None => Ok(()),
    }
}
