//! What is to be answered, and the best answer that does not look at the input.

/// What a model is to answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Nothing is known.
    None,
    /// One class for each sequence.
    Classes {
        /// count labels, each below `classes`.
        labels: Vec<usize>,
        /// The number of classes.
        classes: usize,
    },
    /// Numbers for each sequence.
    Values {
        /// count × width.
        values: Vec<f32>,
        /// Numbers for each sequence.
        width: usize,
    },
    /// One class for each step.
    StepClasses {
        /// count × length labels, each below `classes`.
        labels: Vec<u32>,
        /// The number of classes.
        classes: usize,
        /// count × length; only steps that are `true` count. `None`: all steps count.
        mask: Option<Vec<bool>>,
    },
    /// Numbers for each step.
    StepValues {
        /// count × length × width.
        values: Vec<f32>,
        /// Numbers for each step.
        width: usize,
        /// As for `StepClasses`.
        mask: Option<Vec<bool>>,
    },
}

/// The best constant answer to a data set, and its loss.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct ConstantAnswer {
    /// Mean cross-entropy in nats of always answering the class frequencies, or mean squared
    /// error of always answering the mean.
    pub loss: f64,
    /// The share of the most frequent class; `None` where the targets are numbers.
    pub accuracy: Option<f64>,
}

impl Targets {
    pub(crate) fn select(&self, indices: &[usize], length: usize) -> Self {
        let masked = |mask: &Option<Vec<bool>>| mask.as_ref().map(|m| rows(m, length, indices));
        match self {
            Self::None => Self::None,
            Self::Classes { labels, classes } => Self::Classes {
                labels: rows(labels, 1, indices),
                classes: *classes,
            },
            Self::Values { values, width } => Self::Values {
                values: rows(values, *width, indices),
                width: *width,
            },
            Self::StepClasses {
                labels,
                classes,
                mask,
            } => Self::StepClasses {
                labels: rows(labels, length, indices),
                classes: *classes,
                mask: masked(mask),
            },
            Self::StepValues {
                values,
                width,
                mask,
            } => Self::StepValues {
                values: rows(values, length * width, indices),
                width: *width,
                mask: masked(mask),
            },
        }
    }

    /// The loss of the best answer that does not look at the input. `None` without targets. Steps
    /// outside the mask do not count.
    pub fn constant_answer(&self) -> Option<ConstantAnswer> {
        match self {
            Self::None => None,
            Self::Classes { labels, classes } => Some(entropy(labels.iter().copied(), *classes)),
            Self::StepClasses {
                labels,
                classes,
                mask,
            } => {
                let counted = labels.iter().enumerate();
                let counted = counted.filter(|(step, _)| mask.as_ref().is_none_or(|m| m[*step]));
                Some(entropy(counted.map(|(_, label)| *label as usize), *classes))
            }
            Self::Values { values, width } => Some(variance(values, *width, None)),
            Self::StepValues {
                values,
                width,
                mask,
            } => Some(variance(values, *width, mask.as_deref())),
        }
    }
}

/// The rows at `indices` of an array whose rows hold `size` elements.
pub(crate) fn rows<T: Copy>(all: &[T], size: usize, indices: &[usize]) -> Vec<T> {
    let mut out = Vec::with_capacity(size * indices.len());
    for &index in indices {
        out.extend_from_slice(&all[index * size..(index + 1) * size]);
    }
    out
}

fn entropy(labels: impl Iterator<Item = usize>, classes: usize) -> ConstantAnswer {
    let mut counts = vec![0usize; classes];
    labels.for_each(|label| counts[label] += 1);
    let total: usize = counts.iter().sum();
    let shares = counts.iter().filter(|count| **count > 0);
    let shares = shares.map(|&count| count as f64 / total as f64);
    ConstantAnswer {
        loss: shares.clone().map(|p| -p * p.ln()).sum(),
        accuracy: Some(shares.fold(0.0, f64::max)),
    }
}

/// The mean of the variances of all columns, in two passes over the rows that count.
fn variance(values: &[f32], width: usize, mask: Option<&[bool]>) -> ConstantAnswer {
    let rows = || {
        let rows = values.chunks_exact(width).enumerate();
        let rows = rows.filter(|(row, _)| mask.is_none_or(|mask| mask[*row]));
        rows.map(|(_, row)| row)
    };
    let n = rows().count().max(1) as f64;
    let (mut mean, mut squares) = (vec![0.0; width], vec![0.0; width]);
    for row in rows() {
        let pairs = mean.iter_mut().zip(row);
        pairs.for_each(|(sum, &x)| *sum += f64::from(x));
    }
    mean.iter_mut().for_each(|sum| *sum /= n);
    for row in rows() {
        let pairs = squares.iter_mut().zip(&mean).zip(row);
        pairs.for_each(|((sum, mean), &x)| *sum += (f64::from(x) - mean).powi(2));
    }
    ConstantAnswer {
        loss: squares.iter().map(|sum| sum / n).sum::<f64>() / width as f64,
        accuracy: None,
    }
}
