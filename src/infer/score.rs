//! Accuracy and loss, gathered sequence by sequence.

/// Correct answers and loss of one model so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    examples: usize,
    correct: usize,
    loss: f64,
}

impl Score {
    /// Counts one sequence: its logits and the index of its class. One logit z alone stands for two
    /// classes, 0 and 1, whose probabilities are those of a sigmoid: class 1 where z is positive.
    pub fn add(&mut self, logits: &[f64], label: usize) {
        self.examples += 1;
        self.correct += usize::from(largest(logits) == label);
        self.loss += match logits {
            [one] => cross_entropy(&[0.0, *one], label),
            _ => cross_entropy(logits, label),
        };
    }

    /// The class that logits stand for: that of the largest, as [`Score::add`] takes it.
    pub fn class(logits: &[f64]) -> usize {
        largest(logits)
    }

    /// The classes of so many logits.
    pub fn classes(logits: usize) -> usize {
        match logits {
            1 => 2,
            more => more,
        }
    }

    /// Sequences counted.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// The share of sequences whose largest logit is the label's, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.examples as f64
    }

    /// The standard error of [`Score::accuracy`]: √(p (1 − p)/n).
    pub fn standard_error(&self) -> f64 {
        let p = self.accuracy();
        (p * (1.0 - p) / self.examples as f64).sqrt()
    }

    /// The mean cross-entropy in nats.
    pub fn loss(&self) -> f64 {
        self.loss / self.examples as f64
    }
}

/// How much less accurate a model is than another on the same sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccuracyLoss {
    /// The difference, as a share.
    pub loss: f64,
    /// Its standard error. One difference more than was seen is counted: none on few sequences proves
    /// little.
    pub standard_error: f64,
}

/// Which of some sequences a model gets right.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers(Vec<bool>);

impl Answers {
    /// The answers of logits, one row for each sequence, whose class is the label.
    pub fn of(logits: &[Vec<f64>], labels: &[usize]) -> Self {
        let rows = logits.iter().zip(labels);
        Self(rows.map(|(row, &label)| largest(row) == label).collect())
    }

    /// Sequences.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The share of right ones, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        let right = self.0.iter().filter(|right| **right).count();
        right as f64 / self.0.len() as f64
    }

    /// How much less accurate another model is on the same sequences.
    pub fn loss_of(&self, other: &Self) -> AccuracyLoss {
        let pairs = self.0.iter().zip(&other.0);
        let apart = pairs.map(|(own, other)| f64::from(*own) - f64::from(*other));
        let (count, mut sum, mut squares) = (self.0.len() as f64, 0.0, 0.0);
        for one in apart {
            sum += one;
            squares += one * one;
        }
        AccuracyLoss {
            loss: sum / count,
            standard_error: f64::sqrt(squares + 1.0) / count,
        }
    }
}

/// The index of the largest logit; of equal ones the first. Of one logit, its sign.
fn largest(logits: &[f64]) -> usize {
    if let [one] = logits {
        return usize::from(*one > 0.0);
    }
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best
}

fn cross_entropy(logits: &[f64], label: usize) -> f64 {
    let peak = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - peak).exp()).sum();
    sum.ln() + peak - logits[label]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_counts_and_averages() {
        let mut score = Score::default();
        score.add(&[0.0, 0.0], 0);
        score.add(&[0.0, 1000.0], 0);
        assert_eq!(score.examples(), 2);
        assert_eq!(score.accuracy(), 0.5);
        assert!((score.loss() - 0.5 * (2f64.ln() + 1000.0)).abs() < 1e-12);
        assert!((score.standard_error() - 0.125f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn answers_are_compared_sequence_by_sequence() {
        let logits = |classes: &[usize]| -> Vec<Vec<f64>> {
            let row = |&class: &usize| (0..3).map(|k| f64::from(u8::from(k == class))).collect();
            classes.iter().map(row).collect()
        };
        let labels = [0, 1, 2, 0];
        let full = Answers::of(&logits(&[0, 1, 2, 1]), &labels);
        let small = Answers::of(&logits(&[0, 2, 1, 0]), &labels);
        assert_eq!(
            (full.count(), full.accuracy(), small.accuracy()),
            (4, 0.75, 0.5)
        );
        // Two lost and one gained.
        let expected = |loss, standard_error| AccuracyLoss {
            loss,
            standard_error,
        };
        assert_eq!(full.loss_of(&small), expected(0.25, 2.0 / 4.0));
        assert_eq!(full.loss_of(&full), expected(0.0, 0.25));
    }

    #[test]
    fn one_logit_is_that_of_a_sigmoid() {
        let (mut one, mut two) = (Score::default(), Score::default());
        for (z, label) in [(1.5, 1), (1.5, 0), (-0.5, 0), (-700.0, 1), (0.0, 0)] {
            one.add(&[z], label);
            two.add(&[0.0, z], label);
        }
        assert_eq!(one, two);
        assert_eq!(one.accuracy(), 0.6);
    }
}
