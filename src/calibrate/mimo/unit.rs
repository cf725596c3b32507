//! One system of a layer: what it gets, and a smaller one in its place.

use std::borrow::Cow;

use hankelite_control::{DiagonalSystem, Refinement};
use nalgebra::DMatrix;

use crate::calibrate::mimo::fit::{Fitted, Problem};
use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::moments::Moments;
use crate::calibrate::mimo::sample::Sample;
use crate::calibrate::mimo::starts;
use crate::compress::WeightedRecord;
use crate::model::Block;

/// Rounds of alternating fits at most.
const ROUNDS: usize = 4;

/// The rounds after which the best of the starts is chosen.
const FIRST_ROUNDS: usize = 1;

/// One system of a layer, both directions together, with its moments.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) modes: Modes,
    pub(super) moments: Moments,
    place: Place,
}

/// Which inputs and outputs of a layer belong to a system: inputs h m to (h + 1) m, outputs c H + h.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: usize,
    count: usize,
    inputs: usize,
    outputs: usize,
}

/// A smaller system, with what is recorded of it.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    pub(super) modes: Modes,
    pub(super) record: WeightedRecord,
    pub(super) notes: Vec<String>,
}

impl Unit {
    /// The systems of a layer; `None` where the directions of one have other modes or input
    /// weights.
    pub(super) fn of(block: &Block, length: usize) -> Option<Vec<Self>> {
        let count = block.systems().len();
        let units = block.systems().iter().enumerate().map(|(index, forward)| {
            let backward = block.backward().get(index);
            let alike = |b: &DiagonalSystem| {
                b.exponents() == forward.exponents() && b.input() == forward.input()
            };
            if backward.is_some_and(|b| !alike(b)) {
                return None;
            }
            let modes = Modes::of(block, index);
            Some(Self {
                moments: Moments::new(&modes, length),
                place: Place {
                    index,
                    count,
                    inputs: forward.input().ncols(),
                    outputs: forward.output().nrows(),
                },
                modes,
            })
        });
        units.collect()
    }

    /// Its inputs of those of the layer, up to a step.
    pub(super) fn inputs<'m>(&self, u: &'m DMatrix<f64>, kept: usize) -> Cow<'m, DMatrix<f64>> {
        let Place { index, inputs, .. } = self.place;
        match u.shape() == (kept, inputs) {
            true => Cow::Borrowed(u),
            false => Cow::Owned(u.view((0, index * inputs), (kept, inputs)).into_owned()),
        }
    }

    /// Its outputs of those of the layer, up to a step.
    pub(super) fn outputs<'m>(&self, y: &'m DMatrix<f64>, kept: usize) -> Cow<'m, DMatrix<f64>> {
        let Place {
            index,
            count,
            outputs,
            ..
        } = self.place;
        if y.shape() == (kept, outputs) {
            return Cow::Borrowed(y);
        }
        let mut own = DMatrix::zeros(kept, outputs);
        for (c, mut column) in own.column_iter_mut().enumerate() {
            column.copy_from(&y.column(c * count + index).rows_range(0..kept));
        }
        Cow::Owned(own)
    }

    /// Adds a sequence to the moments, by the layer's input up to a step.
    pub(super) fn add_input(&mut self, input: &DMatrix<f64>, kept: usize) {
        self.moments
            .add_input(&self.modes, &self.inputs(input, kept));
    }

    /// Adds gradients by the layer's output up to a step.
    pub(super) fn add_gradients(&mut self, gradients: &[DMatrix<f64>], kept: usize) {
        for g in gradients {
            self.moments
                .add_gradient(&self.modes, &self.outputs(g, kept));
        }
    }

    /// The squared output and the squared error of another system in this one's place, in the
    /// metric of the outputs.
    pub(super) fn errors_of(&self, modes: Modes, samples: &[Sample]) -> (f64, f64) {
        let metric = self.moments.metric();
        let problem = Problem::new(samples, &metric);
        (problem.measured(modes).error, problem.size())
    }

    /// A system of at most `order` modes that gives the targets of the samples as well as may be.
    pub(super) fn cut(&self, samples: &[Sample], order: usize, refinement: Refinement) -> Cut {
        let metric = self.moments.metric();
        let problem = Problem::new(samples, &metric);
        let steps: usize = samples.iter().map(|sample| sample.input.nrows()).sum();
        let rms = |squares: f64| (squares / steps.max(1) as f64).sqrt();
        let norm = rms(problem.size());
        if order >= self.modes.order() {
            return Cut {
                modes: self.modes.clone(),
                record: WeightedRecord::identity(norm),
                notes: Vec::new(),
            };
        }
        let (starts, mut notes) = self.starts(order);
        let tried = starts
            .into_iter()
            .map(|(name, modes)| (name, tried(&problem, modes, refinement)));
        let best = tried.min_by(|(_, a), (_, b)| a[2].check.total_cmp(&b[2].check));
        let (name, [start, refitted, last]) = best.expect("the modes themselves are one start");
        let last = match refinement {
            Refinement::Full => problem.alternated(last, ROUNDS - FIRST_ROUNDS),
            _ => last,
        };
        notes.push(format!("started from {name}"));
        Cut {
            record: WeightedRecord {
                norm,
                unweighted: self.unweighted(&problem, order).map_or(f64::NAN, rms),
                truncated: rms(start.error),
                refitted: rms(refitted.error),
                error: rms(last.error),
                free: None,
                fitted: None,
                steps: 0,
                white_noise: false,
            },
            modes: last.modes,
            notes,
        }
    }

    /// Squared error of the truncation balanced for white noise.
    fn unweighted(&self, problem: &Problem<'_>, order: usize) -> Option<f64> {
        let white = Moments::white(&self.modes, self.moments.length);
        let made = starts::balanced(&self.modes, &white, order, &[]).ok()??;
        Some(problem.measured(made).error)
    }

    fn starts(&self, order: usize) -> (Vec<(&'static str, Modes)>, Vec<String>) {
        let chosen = starts::selected(&self.modes, &self.moments, order);
        let mut starts = vec![("the best of the modes", self.modes.chosen(&chosen))];
        let mut notes = Vec::new();
        match starts::balanced(&self.modes, &self.moments, order, &chosen) {
            Ok(Some(modes)) => starts.push(("balanced truncation by moments", modes)),
            Ok(None) => notes.push("balanced truncation by moments has no modes".to_string()),
            Err(error) => notes.push(format!("no balanced truncation by moments: {error}")),
        }
        (starts, notes)
    }
}

/// A start as it is, with C and D fitted, and after the first of the alternating fits.
fn tried(problem: &Problem<'_>, start: Modes, refinement: Refinement) -> [Fitted; 3] {
    let refitted = match refinement {
        Refinement::None => problem.measured(start.clone()),
        _ => problem.outputs_fitted(start.clone()),
    };
    let last = match refinement {
        Refinement::Full => problem.alternated(refitted.clone(), FIRST_ROUNDS),
        _ => refitted.clone(),
    };
    [problem.measured(start), refitted, last]
}
