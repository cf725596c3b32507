//! Limited-memory BFGS.

use std::collections::VecDeque;

use crate::control::in_class::classes::Numbers;
use crate::control::in_class::signals::{Fit, Target};

/// Earlier steps that are remembered.
const MEMORY: usize = 16;

/// So many steps that together lower the error by a smaller share than [`PROGRESS`] are the last.
const WINDOW: usize = 10;

/// See [`WINDOW`].
const PROGRESS: f64 = 1e-3;

/// The share of the foretold gain that a step has to bring.
const SUFFICIENT: f64 = 1e-4;

/// Where a descent has come to.
pub(super) struct Reached {
    pub(super) numbers: Numbers,
    pub(super) fit: Fit,
    pub(super) steps: usize,
}

/// A step and the change of slopes that it brought.
struct Move {
    step: Vec<f64>,
    change: Vec<f64>,
    /// 1/(step · change).
    rate: f64,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Reached {
    pub(super) fn new(target: &Target, numbers: Numbers) -> Self {
        let fit = target.fit(&numbers.signals());
        let steps = 0;
        Self {
            numbers,
            fit,
            steps,
        }
    }
}

/// Towards a minimum of the error, to so many steps from the start.
pub(super) fn descend(target: &Target, mut at: Reached, steps: usize) -> Reached {
    let (mut memory, mut before) = (VecDeque::new(), VecDeque::from([at.fit.square]));
    while at.steps < steps && !target.is_rounding(at.fit.error) {
        let slopes = at.numbers.slopes(&at.fit);
        let direction = direction(&at, &slopes, &memory);
        let Some((numbers, fit)) = search(target, &at, &slopes, &direction) else {
            // What is remembered may mislead: once more along the slopes alone.
            if memory.is_empty() {
                break;
            }
            memory.clear();
            continue;
        };
        remember(&mut memory, &at, &slopes, (&numbers, &fit));
        at = Reached {
            numbers,
            fit,
            steps: at.steps + 1,
        };
        before.push_back(at.fit.square);
        if before.len() > WINDOW {
            let earlier = before.pop_front().unwrap_or(f64::INFINITY);
            if earlier - at.fit.square <= PROGRESS * at.fit.square {
                break;
            }
        }
    }
    at
}

/// −H times the slopes, H from what is remembered and the curvature of each number alone.
fn direction(at: &Reached, slopes: &[f64], memory: &VecDeque<Move>) -> Vec<f64> {
    let mut direction: Vec<f64> = slopes.iter().map(|s| -s).collect();
    let mut shares = Vec::with_capacity(memory.len());
    for kept in memory.iter().rev() {
        let share = kept.rate * dot(&kept.step, &direction);
        shares.push(share);
        let change = direction.iter_mut().zip(&kept.change);
        change.for_each(|(d, y)| *d -= share * y);
    }
    let curvatures = at.numbers.curvatures(&at.fit);
    let scale = memory.back().map_or(1.0, |last| {
        let weighed = last.change.iter().zip(&curvatures);
        let weighed: f64 = weighed.map(|(y, c)| y * y / c).sum();
        (last.rate * weighed).recip()
    });
    let both = direction.iter_mut().zip(&curvatures);
    both.for_each(|(d, c)| *d *= scale / c);
    for (kept, share) in memory.iter().zip(shares.into_iter().rev()) {
        let back = share - kept.rate * dot(&kept.change, &direction);
        let step = direction.iter_mut().zip(&kept.step);
        step.for_each(|(d, s)| *d += back * s);
    }
    direction
}

/// The first of ever shorter steps that lowers the error enough.
fn search(
    target: &Target,
    at: &Reached,
    slopes: &[f64],
    direction: &[f64],
) -> Option<(Numbers, Fit)> {
    let slope = dot(slopes, direction);
    if slope.is_nan() || slope >= 0.0 {
        return None;
    }
    let mut length = 1.0;
    for _ in 0..30 {
        let mut numbers = at.numbers.clone();
        let moved = numbers.values.iter_mut().zip(direction);
        moved.for_each(|(x, d)| *x += length * d);
        let fit = target.fit(&numbers.signals());
        if fit.square <= at.fit.square + SUFFICIENT * length * slope {
            return Some((numbers, fit));
        }
        length *= 0.5;
    }
    None
}

fn remember(memory: &mut VecDeque<Move>, at: &Reached, slopes: &[f64], next: (&Numbers, &Fit)) {
    let (numbers, fit) = next;
    let pairs = numbers.values.iter().zip(&at.numbers.values);
    let step: Vec<f64> = pairs.map(|(new, old)| new - old).collect();
    let pairs = numbers.slopes(fit).into_iter().zip(slopes);
    let change: Vec<f64> = pairs.map(|(new, old)| new - old).collect();
    let product = dot(&step, &change);
    // Only where the error curves upwards along the step.
    if product > 1e-12 * dot(&step, &step).sqrt() * dot(&change, &change).sqrt() {
        let rate = product.recip();
        memory.push_back(Move { step, change, rate });
        if memory.len() > MEMORY {
            memory.pop_front();
        }
    }
}
