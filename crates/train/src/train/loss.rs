//! Losses, from ops with gradients, and what is counted beside them.
//!
//! candle's `softmax_last_dim` has no backward pass, so nothing here is built on it.

use candle_core::{D, DType, Tensor};
use hankelite_data::Targets;

use crate::train::TrainError;

/// A named number that is reported as a mean over the epoch.
pub type Term = (&'static str, f64);

/// The loss of a batch, with what is reported of it.
#[derive(Debug)]
pub struct Loss {
    /// What is differentiated: a scalar.
    pub value: Tensor,
    /// Loss of the task and correct answers.
    pub tally: Tally,
    /// Further terms of `value`, by name, such as a regulariser.
    pub terms: Vec<Term>,
}

/// Losses and correct answers so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    loss: f64,
    correct: u64,
    /// Answers: sequences, or steps that count.
    answers: u64,
    /// Whether the answers are classes.
    classes: bool,
    /// Whether answers are right where they are the teacher's.
    #[serde(default)]
    of_teacher: bool,
}

impl Tally {
    /// Adds another tally of the same task.
    pub fn add(&mut self, other: &Tally) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.answers += other.answers;
        self.classes |= other.classes;
        self.of_teacher |= other.of_teacher;
    }

    /// The mean loss of an answer.
    pub fn loss(&self) -> f64 {
        self.loss / self.answers as f64
    }

    /// The same, of answers that were compared with the teacher's.
    pub(super) fn by_teacher(self) -> Self {
        Self {
            of_teacher: true,
            ..self
        }
    }

    /// Whether answers are right where they are the teacher's, because the data have no labels.
    pub fn is_by_teacher(&self) -> bool {
        self.of_teacher
    }

    /// The share of correct answers, where they are classes.
    pub fn accuracy(&self) -> Option<f64> {
        self.classes
            .then(|| self.correct as f64 / self.answers as f64)
    }

    /// Sequences, or steps that count.
    pub fn answers(&self) -> u64 {
        self.answers
    }
}

/// The loss of outputs against targets:
///
/// ```text
/// classes:   (1 − ε)(−log p_label) + ε mean over classes of (−log p),   p = softmax(output)
///            (one output z alone: that of 0 and z, two classes by a sigmoid)
/// numbers:   (output − target)², mean over width
/// ```
///
/// averaged over sequences, or over the steps that the mask lets count. ε is `smoothing`, as the
/// `label_smoothing` of PyTorch.
///
/// # Errors
/// [`TrainError::Outputs`] when the outputs do not suit the targets;
/// [`TrainError::NoTargets`]; [`TrainError::NothingCounts`] when the mask lets no step count.
pub fn task_loss(outputs: &Tensor, targets: &Targets, smoothing: f64) -> Result<Loss, TrainError> {
    let weights = weights(targets);
    let counted = weights.as_ref().map(|w| w.iter().sum::<f32>() as f64);
    if counted == Some(0.0) {
        return Err(TrainError::NothingCounts);
    }
    match targets {
        Targets::None => Err(TrainError::NoTargets),
        Targets::Classes { labels, classes } => {
            let labels: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
            let flat = flat(&logits(outputs)?, 2, labels.len(), *classes)?;
            Ok(of_classes(&flat, &labels, None, smoothing)?)
        }
        Targets::StepClasses {
            labels, classes, ..
        } => {
            let flat = flat(&logits(outputs)?, 3, labels.len(), *classes)?;
            Ok(of_classes(&flat, labels, weights, smoothing)?)
        }
        Targets::Values { values, width } => {
            let flat = flat(outputs, 2, values.len() / width, *width)?;
            Ok(of_values(&flat, values, None)?)
        }
        Targets::StepValues { values, width, .. } => {
            let flat = flat(outputs, 3, values.len() / width, *width)?;
            Ok(of_values(&flat, values, weights)?)
        }
    }
}

/// The squared error of each of `count` sequences, summed over its answers: for numbers the loss,
/// for classes Brier's score
///
/// ```text
/// Σ over classes of (p_k − [k is the label])²,   p = softmax(output)
/// ```
///
/// which is smallest for the true probabilities, as −log p_label is, but at most 2: a comparison of
/// two networks is not drowned in a few answers that both have wrong.
///
/// # Errors
/// As [`task_loss`].
///
/// # References
/// Brier, *Verification of forecasts expressed in terms of probability*, Monthly Weather Review 78
/// (1950).
pub(super) fn squared_errors(
    outputs: &Tensor,
    targets: &Targets,
    count: usize,
) -> Result<Vec<f64>, TrainError> {
    let each = match targets {
        Targets::None => return Err(TrainError::NoTargets),
        Targets::Classes { labels, classes } => {
            let labels: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
            brier(
                &flat(&logits(outputs)?, 2, labels.len(), *classes)?,
                &labels,
            )?
        }
        Targets::StepClasses {
            labels, classes, ..
        } => brier(&flat(&logits(outputs)?, 3, labels.len(), *classes)?, labels)?,
        Targets::Values { values, width } | Targets::StepValues { values, width, .. } => {
            let rows = values.len() / width;
            squares(&flat(outputs, outputs.rank(), rows, *width)?, values)?
        }
    };
    let each: Vec<f64> = each.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let weights = weights(targets).unwrap_or_else(|| vec![1.0; each.len()]);
    let rows = (each.len() / count.max(1)).max(1);
    let sequences = each.chunks(rows).zip(weights.chunks(rows));
    let sum = |(each, weights): (&[f64], &[f32])| {
        let terms = each.iter().zip(weights);
        terms.map(|(each, &weight)| each * f64::from(weight)).sum()
    };
    Ok(sequences.map(sum).collect())
}

/// Σ p_k² − 2 p_label + 1 of every row, (rows, 1).
fn brier(logits: &Tensor, labels: &[u32]) -> candle_core::Result<Tensor> {
    let labels = Tensor::from_slice(labels, (labels.len(), 1), logits.device())?;
    let shares = log_softmax(&logits.detach())?.exp()?;
    let own = shares.gather(&labels, D::Minus1)?;
    shares.sqr()?.sum_keepdim(D::Minus1)? - ((own * 2.0)? - 1.0)?
}

/// log softmax over the last dimension, from ops with gradients.
pub(super) fn log_softmax(logits: &Tensor) -> candle_core::Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log_sum)
}

/// The logits of classes: the outputs; one alone stands beside a zero, as a sigmoid has it.
pub(super) fn logits(outputs: &Tensor) -> candle_core::Result<Tensor> {
    match outputs.dims().last() {
        Some(1) => Tensor::cat(&[&outputs.zeros_like()?, outputs], D::Minus1),
        _ => Ok(outputs.clone()),
    }
}

/// One for each step that counts, zero for the others; `None` where all count.
fn weights(targets: &Targets) -> Option<Vec<f32>> {
    let (Targets::StepClasses { mask, .. } | Targets::StepValues { mask, .. }) = targets else {
        return None;
    };
    let one = |&counts: &bool| f32::from(u8::from(counts));
    mask.as_ref().map(|mask| mask.iter().map(one).collect())
}

/// The outputs as a matrix of one row for each answer. More classes than there are labels for do
/// no harm; fewer do.
fn flat(outputs: &Tensor, rank: usize, rows: usize, columns: usize) -> Result<Tensor, TrainError> {
    let shape = outputs.dims();
    let width = shape.last().copied().unwrap_or(0);
    let found = shape.iter().product::<usize>();
    if shape.len() != rank || found != rows * width || width < columns {
        return Err(TrainError::Outputs {
            found: shape.to_vec(),
            answers: rows,
            width: columns,
            per_step: rank == 3,
        });
    }
    Ok(outputs.reshape((rows, width))?)
}

fn of_classes(
    logits: &Tensor,
    labels: &[u32],
    weights: Option<Vec<f32>>,
    smoothing: f64,
) -> candle_core::Result<Loss> {
    let (correct, answers) = correct(logits, labels, weights.as_deref())?;
    let each = cross_entropies(logits, labels, smoothing)?;
    let value = mean(&each, weights)?;
    let loss = scalar(&value)? * answers as f64;
    let tally = Tally {
        loss,
        correct,
        answers,
        classes: true,
        of_teacher: false,
    };
    Ok(Loss {
        value,
        tally,
        terms: Vec::new(),
    })
}

/// −log p of every row, (rows, 1).
fn cross_entropies(logits: &Tensor, labels: &[u32], smoothing: f64) -> candle_core::Result<Tensor> {
    let labels = Tensor::from_slice(labels, (labels.len(), 1), logits.device())?;
    // The peak cancels in the result, and so does its gradient.
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let each = (&log_sum - shifted.gather(&labels, D::Minus1)?)?;
    if smoothing == 0.0 {
        return Ok(each);
    }
    let spread = (log_sum - shifted.mean_keepdim(D::Minus1)?)?;
    (each * (1.0 - smoothing))? + (spread * smoothing)?
}

fn of_values(
    outputs: &Tensor,
    values: &[f32],
    weights: Option<Vec<f32>>,
) -> candle_core::Result<Loss> {
    let each = squares(outputs, values)?;
    let answers = match &weights {
        None => outputs.dim(0)? as u64,
        Some(weights) => weights.iter().filter(|&&weight| weight > 0.0).count() as u64,
    };
    let value = mean(&each, weights)?;
    let tally = Tally {
        loss: scalar(&value)? * answers as f64,
        correct: 0,
        answers,
        classes: false,
        of_teacher: false,
    };
    Ok(Loss {
        value,
        tally,
        terms: Vec::new(),
    })
}

/// The mean square of every row's errors, (rows, 1).
fn squares(outputs: &Tensor, values: &[f32]) -> candle_core::Result<Tensor> {
    let targets = Tensor::from_slice(values, outputs.shape(), outputs.device())?;
    let difference = (outputs - targets.to_dtype(outputs.dtype())?)?;
    difference.sqr()?.mean_keepdim(D::Minus1)
}

/// The mean of (rows, 1), weighted where there are weights.
fn mean(each: &Tensor, weights: Option<Vec<f32>>) -> candle_core::Result<Tensor> {
    let Some(weights) = weights else {
        return each.mean_all();
    };
    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let weights = Tensor::from_vec(weights, each.shape(), each.device())?;
    (each * weights.to_dtype(each.dtype())?)?.sum_all()? / sum
}

/// Correct answers, and answers that count.
fn correct(
    logits: &Tensor,
    labels: &[u32],
    weights: Option<&[f32]>,
) -> candle_core::Result<(u64, u64)> {
    let right = right(logits, labels)?;
    let counts = |&row: &usize| weights.is_none_or(|weights| weights[row] != 0.0);
    let counted: Vec<usize> = (0..right.len()).filter(counts).collect();
    let correct = counted.iter().filter(|&&row| right[row]).count();
    Ok((correct as u64, counted.len() as u64))
}

/// Whether each row's largest logit is that of its label. Of equal ones the first is taken.
fn right(logits: &Tensor, labels: &[u32]) -> candle_core::Result<Vec<bool>> {
    let classes = logits.dim(D::Minus1)?;
    let host = logits.detach().flatten_all()?.to_dtype(DType::F32)?;
    let host = host.to_vec1::<f32>()?;
    let is_right = |(row, &label): (&[f32], &u32)| {
        let first_largest = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
        (0..classes).fold(0, first_largest) == label as usize
    };
    let rows = host.chunks_exact(classes).zip(labels);
    Ok(rows.map(is_right).collect())
}

/// A tensor of one number on the host.
pub fn scalar(tensor: &Tensor) -> candle_core::Result<f64> {
    tensor.to_dtype(DType::F64)?.to_scalar()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn one_logit_is_that_of_a_sigmoid() {
        let z = [1.5, -0.25, 0.75];
        let targets = Targets::Classes {
            labels: vec![1, 1, 0],
            classes: 2,
        };
        let one = rows(&z, 1);
        let two = rows(&[0.0, z[0], 0.0, z[1], 0.0, z[2]], 2);
        for smoothing in [0.0, 0.1] {
            let found = task_loss(one.as_tensor(), &targets, smoothing).unwrap();
            let expected = task_loss(two.as_tensor(), &targets, smoothing).unwrap();
            assert_eq!(found.tally, expected.tally);
            let slope = found.value.backward().unwrap();
            let slope = slope.get(one.as_tensor()).unwrap().flatten_all().unwrap();
            for ((slope, z), label) in slope.to_vec1::<f64>().unwrap().iter().zip(z).zip([1, 1, 0])
            {
                let wanted = (1.0 - smoothing) * f64::from(label) + 0.5 * smoothing;
                let sigmoid = 1.0 / (1.0 + (-z).exp());
                assert!((3.0 * slope - (sigmoid - wanted)).abs() < 1e-12);
            }
        }
        let three = Targets::Classes {
            labels: vec![2, 1, 0],
            classes: 3,
        };
        let error = task_loss(one.as_tensor(), &three, 0.0).unwrap_err();
        assert!(matches!(error, TrainError::Outputs { .. }), "{error}");
    }

    fn rows(rows: &[f64], classes: usize) -> Var {
        let tensor = Tensor::from_slice(rows, (rows.len() / classes, classes), &Device::Cpu);
        Var::from_tensor(&tensor.unwrap()).unwrap()
    }

    /// Central differences of the loss, element by element.
    fn differences(at: &Var, loss: impl Fn(&Tensor) -> Loss) -> Vec<f64> {
        let step = 1e-5;
        let values = at.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let moved = |index: usize, by: f64| {
            let mut values = values.clone();
            values[index] += by;
            let tensor = Tensor::from_vec(values, at.shape(), &Device::Cpu).unwrap();
            scalar(&loss(&tensor).value).unwrap()
        };
        (0..values.len())
            .map(|i| (moved(i, step) - moved(i, -step)) / (2.0 * step))
            .collect()
    }

    fn check_gradient(at: &Var, loss: impl Fn(&Tensor) -> Loss) {
        let gradients = loss(at.as_tensor()).value.backward().unwrap();
        let found = gradients.get(at.as_tensor()).unwrap();
        let found = found.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        for (found, expected) in found.iter().zip(differences(at, loss)) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }

    fn classes(labels: &[usize]) -> Targets {
        Targets::Classes {
            labels: labels.to_vec(),
            classes: 3,
        }
    }

    #[test]
    fn the_cross_entropy_of_equal_logits_is_the_log_of_their_number() {
        let at = rows(&[0.7; 6], 3);
        let loss = task_loss(at.as_tensor(), &classes(&[0, 2]), 0.0).unwrap();
        assert!((scalar(&loss.value).unwrap() - 3f64.ln()).abs() < 1e-15);
        assert_eq!(loss.tally.accuracy(), Some(0.5));
        assert_eq!(loss.tally.answers(), 2);
    }

    /// For numbers they are the loss; for classes squared distances to unit vectors, written out.
    #[test]
    fn squared_errors_of_sequences_are_sums_over_their_answers() {
        let mask = Some(vec![true, false, true, true, true, false]);
        let all = [
            (vec![2, 3], classes(&[0, 2])),
            (
                vec![2, 3, 3],
                Targets::StepClasses {
                    labels: vec![0, 1, 2, 2, 1, 0],
                    classes: 3,
                    mask: mask.clone(),
                },
            ),
            (
                vec![2, 3],
                Targets::Values {
                    values: vec![0.5; 6],
                    width: 3,
                },
            ),
            (
                vec![2, 3, 3],
                Targets::StepValues {
                    values: vec![0.5; 18],
                    width: 3,
                    mask,
                },
            ),
        ];
        for (shape, targets) in all {
            let size = shape.iter().product::<usize>();
            let numbers: Vec<f64> = (0..size).map(|i| (1.7 * i as f64).sin()).collect();
            let outputs = Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap();
            let found = squared_errors(&outputs, &targets, 2).unwrap();
            assert_eq!(found.len(), 2);
            let expected = match &targets {
                Targets::Classes { labels, .. } => written_out(&outputs, labels, &[true; 2]),
                Targets::StepClasses { labels, mask, .. } => {
                    let labels: Vec<usize> = labels.iter().map(|&label| label as usize).collect();
                    written_out(&outputs, &labels, mask.as_ref().unwrap())
                }
                _ => {
                    let tally = task_loss(&outputs, &targets, 0.0).unwrap().tally;
                    tally.loss() * tally.answers() as f64
                }
            };
            let sum = found.iter().sum::<f64>();
            assert!((sum - expected).abs() < 1e-12, "{sum} {expected}");
        }
    }

    /// Σ over rows that count and classes of (p − [is the label])², three classes.
    fn written_out(logits: &Tensor, labels: &[usize], counts: &[bool]) -> f64 {
        let logits: Vec<f64> = logits.flatten_all().unwrap().to_vec1().unwrap();
        let rows = logits.chunks(3).zip(labels).zip(counts);
        let of = |((row, &label), &counts): ((&[f64], &usize), &bool)| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            let each = row.iter().enumerate();
            let squares =
                each.map(|(k, x)| (x.exp() / sum - f64::from(u8::from(k == label))).powi(2));
            f64::from(u8::from(counts)) * squares.sum::<f64>()
        };
        rows.map(of).sum()
    }

    #[test]
    fn huge_logits_neither_overflow_nor_lose_the_gradient() {
        let at = rows(&[1e4, 0.0, -1e4], 3);
        let loss = task_loss(at.as_tensor(), &classes(&[1]), 0.0).unwrap();
        assert_eq!(scalar(&loss.value).unwrap(), 1e4);
        let gradients = loss.value.backward().unwrap();
        let found = gradients.get(at.as_tensor()).unwrap().to_vec2::<f64>();
        assert_eq!(found.unwrap(), [[1.0, -1.0, 0.0]]);
    }

    #[test]
    fn gradients_agree_with_differences() {
        let at = rows(&[0.3, -1.2, 2.0, 0.1, 0.0, -0.4], 3);
        for smoothing in [0.0, 0.2] {
            check_gradient(&at, |x| task_loss(x, &classes(&[2, 1]), smoothing).unwrap());
        }
        let steps = Targets::StepClasses {
            labels: vec![0, 2],
            classes: 3,
            mask: Some(vec![false, true]),
        };
        check_gradient(&at, |x| {
            task_loss(&x.reshape((1, 2, 3)).unwrap(), &steps, 0.1).unwrap()
        });
        let numbers = Targets::StepValues {
            values: vec![0.5, 0.25, -1.0, 2.0, 0.0, 1.0],
            width: 3,
            mask: Some(vec![true, false]),
        };
        check_gradient(&at, |x| {
            task_loss(&x.reshape((2, 1, 3)).unwrap(), &numbers, 0.0).unwrap()
        });
    }

    #[test]
    fn only_steps_of_the_mask_count() {
        let at = rows(&[5.0, 0.0, 0.0, 0.0, 5.0, 0.0], 3);
        let steps = |mask| Targets::StepClasses {
            labels: vec![0, 0],
            classes: 3,
            mask,
        };
        let x = at.reshape((1, 2, 3)).unwrap();
        let all = task_loss(&x, &steps(None), 0.0).unwrap().tally;
        assert_eq!((all.accuracy(), all.answers()), (Some(0.5), 2));
        let first = task_loss(&x, &steps(Some(vec![true, false])), 0.0);
        let first = first.unwrap().tally;
        assert_eq!((first.accuracy(), first.answers()), (Some(1.0), 1));
        assert!((first.loss() - (1.0 + 2.0 * (-5f64).exp()).ln()).abs() < 1e-14);
        let none = task_loss(&x, &steps(Some(vec![false; 2])), 0.0);
        assert!(matches!(none, Err(TrainError::NothingCounts)));
    }

    #[test]
    fn smoothing_is_that_of_pytorch() {
        // torch.nn.functional.cross_entropy(torch.tensor([[0.3,-1.2,2.0]], dtype=torch.float64),
        // torch.tensor([1]), label_smoothing=0.1)
        let at = rows(&[0.3, -1.2, 2.0], 3);
        let loss = task_loss(at.as_tensor(), &classes(&[1]), 0.1).unwrap();
        assert!((scalar(&loss.value).unwrap() - SMOOTHED).abs() < 1e-14);
    }

    /// See `smoothing_is_that_of_pytorch`.
    const SMOOTHED: f64 = 3.245004578286124;

    #[test]
    fn outputs_that_do_not_suit_are_reported() {
        let at = rows(&[0.0; 4], 2);
        let error = task_loss(at.as_tensor(), &classes(&[0, 1]), 0.0).unwrap_err();
        assert!(matches!(error, TrainError::Outputs { .. }), "{error}");
        let error = task_loss(at.as_tensor(), &Targets::None, 0.0).unwrap_err();
        assert!(matches!(error, TrainError::NoTargets), "{error}");
    }
}
