//! Sequences of one stored length, with their true lengths and targets.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use hankelite::model::{InputKind, Sequence};

use crate::batch::{Batch, Steps};
use crate::draw::Draw;
use crate::error::DataError;
use crate::targets::{ConstantAnswer, Targets, rows};

/// Sequences of one stored length. Shorter ones are padded on the right, with zeros or token 0.
#[derive(Debug, Clone)]
pub struct Dataset {
    inputs: Inputs,
    targets: Targets,
    lengths: Option<Vec<usize>>,
    count: usize,
    length: usize,
    notes: Vec<String>,
}

#[derive(Debug, Clone)]
enum Inputs {
    /// count × length × width.
    Values { values: Vec<f32>, width: usize },
    /// count × length.
    Tokens { tokens: Vec<u32>, vocabulary: usize },
    /// The true steps of all sequences, one after the other; sequence i starts at `starts[i]`.
    Packed(Packed),
}

/// Token sequences without their padding.
#[derive(Debug, Clone, Default)]
struct Packed {
    tokens: Vec<u16>,
    starts: Vec<usize>,
    vocabulary: usize,
    /// count × length, filled when [`Dataset::sequence`] first needs it.
    dense: OnceLock<Vec<u32>>,
}

impl Dataset {
    /// Numbers, count × length × width.
    pub(super) fn from_values(values: Vec<f32>, width: usize, length: usize) -> Self {
        let count = values.len() / (length * width);
        debug_assert_eq!(values.len(), count * length * width);
        Self::new(Inputs::Values { values, width }, count, length)
    }

    /// Tokens, count × length, each below `vocabulary`.
    pub(super) fn from_tokens(tokens: Vec<u32>, vocabulary: usize, length: usize) -> Self {
        let count = tokens.len() / length;
        Self::new(Inputs::Tokens { tokens, vocabulary }, count, length)
    }

    /// Sequences of at most `length` tokens, each below `vocabulary`, padded with token 0 on the
    /// right when they are read. Kept without the padding.
    pub(super) fn from_rows(rows: &[Vec<u16>], vocabulary: usize, length: usize) -> Self {
        debug_assert!(rows.iter().all(|row| row.len() <= length));
        let mut packed = Packed {
            vocabulary,
            ..Packed::default()
        };
        rows.iter().for_each(|row| packed.push(row));
        let mut data = Self::new(Inputs::Packed(packed), rows.len(), length);
        data.lengths = Some(rows.iter().map(Vec::len).collect());
        data
    }

    fn new(inputs: Inputs, count: usize, length: usize) -> Self {
        Self {
            inputs,
            targets: Targets::None,
            lengths: None,
            count,
            length,
            notes: Vec::new(),
        }
    }

    pub(super) fn with_targets(mut self, targets: Targets) -> Self {
        self.targets = targets;
        self
    }

    /// count × length × width numbers that are to be given back at every step.
    pub(super) fn of_own_values(values: Vec<f32>, width: usize, length: usize) -> Self {
        let targets = Targets::StepValues {
            values: values.clone(),
            width,
            mask: None,
        };
        Self::from_values(values, width, length).with_targets(targets)
    }

    pub(super) fn with_lengths(mut self, lengths: Vec<usize>) -> Self {
        self.lengths = Some(lengths);
        self
    }

    pub(super) fn with_note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// Numbers of width 1 with their steps in another order, the same for every sequence.
    pub(super) fn reordered(mut self, order: &[usize]) -> Self {
        if let Inputs::Values { values, .. } = &mut self.inputs {
            for row in values.chunks_exact_mut(self.length) {
                let old = row.to_vec();
                row.iter_mut()
                    .zip(order)
                    .for_each(|(to, &from)| *to = old[from]);
            }
        }
        self
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The stored number of steps of each sequence, padding included.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The true number of steps of each sequence, where some are padded.
    pub fn lengths(&self) -> Option<&[usize]> {
        self.lengths.as_deref()
    }

    /// What each step holds.
    pub fn kind(&self) -> InputKind {
        match &self.inputs {
            Inputs::Values { width, .. } => InputKind::Numbers { width: *width },
            Inputs::Tokens { vocabulary, .. } | Inputs::Packed(Packed { vocabulary, .. }) => {
                InputKind::Tokens {
                    vocabulary: *vocabulary,
                }
            }
        }
    }

    /// Numbers at each step; `None` for tokens.
    pub fn width(&self) -> Option<usize> {
        match self.kind() {
            InputKind::Numbers { width } => Some(width),
            InputKind::Tokens { .. } => None,
        }
    }

    /// The number of different tokens, padding included; `None` for numbers.
    pub fn vocabulary(&self) -> Option<usize> {
        match self.kind() {
            InputKind::Numbers { .. } => None,
            InputKind::Tokens { vocabulary } => Some(vocabulary),
        }
    }

    /// The number of classes, of a sequence or of a step; `None` where the targets are numbers.
    pub fn classes(&self) -> Option<usize> {
        match self.targets {
            Targets::Classes { classes, .. } | Targets::StepClasses { classes, .. } => {
                Some(classes)
            }
            _ => None,
        }
    }

    /// What is to be answered.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// The class labels, one for each sequence, if there are any.
    pub fn labels(&self) -> Option<&[usize]> {
        match &self.targets {
            Targets::Classes { labels, .. } => Some(labels),
            _ => None,
        }
    }

    /// What was changed on the way from the source, such as texts that were cut.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Sequence `index` with its padding.
    ///
    /// Texts are kept packed; the first call unpacks all of them, at 4 bytes a step.
    /// [`Dataset::batch`] unpacks only the sequences requested.
    ///
    /// # Panics
    /// If `index` is not below [`Dataset::len`].
    pub fn sequence(&self, index: usize) -> Sequence<'_> {
        let row = index * self.length..(index + 1) * self.length;
        match &self.inputs {
            Inputs::Values { values, width } => {
                Sequence::Values(&values[row.start * width..row.end * width])
            }
            Inputs::Tokens { tokens, .. } => Sequence::Tokens(&tokens[row]),
            Inputs::Packed(packed) => Sequence::Tokens(&packed.dense(self.length)[row]),
        }
    }

    /// One sequence without its padding; of an empty one the first step stays.
    ///
    /// # Panics
    /// If the index is not below [`Dataset::len`].
    pub fn unpadded(&self, index: usize) -> Sequence<'_> {
        let steps = self.lengths.as_ref().map_or(self.length, |all| all[index]);
        let steps = steps.max(1);
        match (self.sequence(index), self.width()) {
            (Sequence::Values(values), width) => {
                Sequence::Values(&values[..steps * width.unwrap_or(1)])
            }
            (Sequence::Tokens(tokens), _) => Sequence::Tokens(&tokens[..steps]),
        }
    }

    /// The sequences at `indices` as host arrays, in that order.
    ///
    /// # Panics
    /// If an index is not below [`Dataset::len`].
    pub fn batch(&self, indices: &[usize]) -> Batch {
        let steps = match &self.inputs {
            Inputs::Values { values, width } => {
                Steps::Values(rows(values, self.length * width, indices))
            }
            Inputs::Tokens { tokens, .. } => Steps::Tokens(rows(tokens, self.length, indices)),
            Inputs::Packed(packed) => Steps::Tokens(packed.padded(self.length, indices)),
        };
        Batch {
            steps,
            count: indices.len(),
            length: self.length,
            lengths: self.lengths.as_ref().map(|all| rows(all, 1, indices)),
            targets: self.targets.select(indices, self.length),
        }
    }

    /// The sequences at `indices`, in that order.
    ///
    /// # Panics
    /// If an index is not below [`Dataset::len`].
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        let inputs = match &self.inputs {
            Inputs::Values { values, width } => Inputs::Values {
                values: rows(values, self.length * width, indices),
                width: *width,
            },
            Inputs::Tokens { tokens, vocabulary } => Inputs::Tokens {
                tokens: rows(tokens, self.length, indices),
                vocabulary: *vocabulary,
            },
            Inputs::Packed(packed) => Inputs::Packed(packed.select(indices)),
        };
        Self {
            inputs,
            targets: self.targets.select(indices, self.length),
            lengths: self.lengths.as_ref().map(|all| rows(all, 1, indices)),
            count: indices.len(),
            length: self.length,
            notes: self.notes.clone(),
        }
    }

    /// The first `count` sequences.
    ///
    /// # Errors
    /// [`DataError::Subset`] when there are fewer, or for none.
    pub fn take(&self, count: usize) -> Result<Self, DataError> {
        self.check(count, self.count)?;
        Ok(self.select(&(0..count).collect::<Vec<_>>()))
    }

    /// `count` different sequences chosen by `seed`, in their stored order.
    ///
    /// # Errors
    /// As [`Dataset::take`].
    pub fn sample(&self, count: usize, seed: u64) -> Result<Self, DataError> {
        self.check(count, self.count)?;
        Ok(self.select(
            &chosen(self.count, count, seed)
                .into_iter()
                .collect::<Vec<_>>(),
        ))
    }

    /// Holds `count` sequences out: those that stay for training, and those held out, both in
    /// their stored order. The choice depends on `seed` alone.
    ///
    /// # Errors
    /// [`DataError::Subset`] when none would be held out or none would stay.
    pub fn hold_out(&self, count: usize, seed: u64) -> Result<(Self, Self), DataError> {
        self.check(count, self.count.saturating_sub(1))?;
        let held = chosen(self.count, count, seed);
        let stay: Vec<usize> = (0..self.count).filter(|i| !held.contains(i)).collect();
        let held: Vec<usize> = held.into_iter().collect();
        Ok((self.select(&stay), self.select(&held)))
    }

    fn check(&self, requested: usize, most: usize) -> Result<(), DataError> {
        if requested == 0 || requested > most {
            return Err(DataError::Subset { requested, most });
        }
        Ok(())
    }

    /// [`Targets::constant_answer`] of the targets: what a model must beat.
    pub fn constant_answer(&self) -> Option<ConstantAnswer> {
        self.targets.constant_answer()
    }
}

impl Packed {
    fn push(&mut self, row: &[u16]) {
        self.starts.push(self.tokens.len());
        self.tokens.extend(row);
    }

    fn row(&self, index: usize) -> &[u16] {
        let end = self.starts.get(index + 1).copied();
        &self.tokens[self.starts[index]..end.unwrap_or(self.tokens.len())]
    }

    fn select(&self, indices: &[usize]) -> Self {
        let mut chosen = Self {
            vocabulary: self.vocabulary,
            ..Self::default()
        };
        indices
            .iter()
            .for_each(|&index| chosen.push(self.row(index)));
        chosen
    }

    fn padded(&self, length: usize, indices: &[usize]) -> Vec<u32> {
        let mut out = vec![0; length * indices.len()];
        for (to, &index) in out.chunks_exact_mut(length).zip(indices) {
            for (to, &token) in to.iter_mut().zip(self.row(index)) {
                *to = token.into();
            }
        }
        out
    }

    fn dense(&self, length: usize) -> &[u32] {
        let all = || (0..self.starts.len()).collect::<Vec<_>>();
        self.dense.get_or_init(|| self.padded(length, &all()))
    }
}

/// `count` of the numbers 0..of. Stream 2⁶⁴ − 1 is used for nothing else.
fn chosen(of: usize, count: usize, seed: u64) -> BTreeSet<usize> {
    let order = Draw::new(seed, u64::MAX).order(of);
    order.into_iter().take(count).collect()
}
