#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite_control::{DiagonalSystem, Realisation, Refinement, Time, balance};
use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::calibrate::mimo::fit::Problem;
use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::moments::Moments;
use crate::calibrate::mimo::sample::Sample;
use crate::calibrate::mimo::{LayerSequences, reduce_layer_jointly, starts};
use crate::compress::distance::kernel_distance;
use crate::model::{Block, BlockParts, Nonlinearity};

pub(super) struct Draw(ChaCha8Rng);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn number(&mut self) -> f64 {
        self.0.random_range(-1.0..1.0)
    }

    fn complex(&mut self) -> Complex64 {
        Complex64::new(self.number(), self.number())
    }

    pub(super) fn matrix(&mut self, rows: usize, columns: usize) -> DMatrix<f64> {
        DMatrix::from_fn(rows, columns, |_, _| self.number())
    }

    /// Random modes; the angles of the poles rise.
    pub(super) fn modes(
        &mut self,
        order: usize,
        inputs: usize,
        outputs: usize,
        directions: usize,
    ) -> Modes {
        let exponents = (0..order).map(|n| {
            let decay = 0.08 + 0.1 * (1.0 + self.number());
            Complex64::new(-decay, 0.2 + 2.5 * n as f64 / order as f64)
        });
        let exponents = exponents.collect();
        Modes {
            exponents,
            input: DMatrix::from_fn(order, inputs, |_, _| self.complex()),
            outputs: (0..directions)
                .map(|_| DMatrix::from_fn(outputs, order, |_, _| self.complex()))
                .collect(),
            feedthrough: match inputs == outputs {
                true => DMatrix::from_diagonal(&DVector::from_fn(inputs, |_, _| self.number())),
                false => self.matrix(outputs, inputs),
            },
            lag: directions - 1,
            feedthrough_stays: false,
        }
    }

    /// An input in which neighbours are alike.
    fn smooth(&mut self, length: usize, inputs: usize) -> DMatrix<f64> {
        let mut u = self.matrix(length, inputs);
        for t in 1..length {
            for j in 0..inputs {
                u[(t, j)] = 0.9 * u[(t - 1, j)] + 0.3 * u[(t, j)];
            }
        }
        u
    }
}

const STEP: Time = Time::Discrete { step: 1.0 };

/// y by the kernels, sample by sample.
fn convolved(modes: &Modes, u: &DMatrix<f64>) -> DMatrix<f64> {
    let kernel = |direction: usize, lag: usize| {
        let mut powers = modes.input.clone();
        for (mut row, z) in powers.row_iter_mut().zip(&modes.exponents) {
            row *= (z * lag as f64).exp();
        }
        (&modes.outputs[direction] * powers).map(|z| z.re)
    };
    let mut y = u * modes.feedthrough.transpose();
    for t in 0..u.nrows() {
        for s in 0..u.nrows() {
            let mut add = |k: DMatrix<f64>| {
                let own = k * u.row(s).transpose();
                let mut row = y.row_mut(t);
                row += own.transpose();
            };
            if s <= t {
                add(kernel(0, t - s));
            }
            if modes.directions() == 2 && s >= t + modes.lag {
                add(kernel(1, s - t - modes.lag));
            }
        }
    }
    y
}

fn both() -> [Modes; 2] {
    [1, 2].map(|directions| Draw::new(3).modes(3, 2, 2, directions))
}

#[test]
fn responses_are_convolutions_in_both_directions() {
    let u = Draw::new(1).matrix(9, 2);
    for modes in both() {
        let apart = modes.response(&u) - convolved(&modes, &u);
        assert!(apart.amax() < 1e-12, "{apart}");
    }
    let mut other = both()[1].clone();
    other.lag = 0;
    assert!((other.response(&u) - convolved(&other, &u)).amax() < 1e-12);
}

#[test]
fn filtered_inputs_weighted_by_b_are_the_states() {
    let u = Draw::new(1).matrix(9, 2);
    for modes in both() {
        let (z, f) = (modes.states(&u), modes.filtered(&u, 0, 3));
        for direction in 0..modes.directions() {
            for i in 0..3 {
                for t in 0..9 {
                    let part =
                        |part: usize, j: usize| f[(t, ((direction * 2 + part) * 3 + i) * 2 + j)];
                    let of =
                        |j: usize| Complex64::new(part(0, j), part(1, j)) * modes.input[(i, j)];
                    let x: Complex64 = of(0) + of(1);
                    let first = 6 * direction + i;
                    assert!((x.re - z[(t, first)]).abs() < 1e-12);
                    assert!((x.im - z[(t, first + 3)]).abs() < 1e-12);
                }
            }
        }
    }
}

#[test]
fn sensitivities_to_poles_are_those_of_differences() {
    let u = Draw::new(1).matrix(9, 2);
    for modes in both() {
        let slopes = modes.pole_slopes(&u);
        let moved = |by: f64| {
            let mut moved = modes.clone();
            moved.exponents[1] += (by / modes.poles()[1] + 1.0).ln();
            moved.states(&u)
        };
        let differences = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        for k in (0..modes.states_count()).filter(|k| k % 3 == 1) {
            let apart = differences.column(k) - slopes.column(k);
            assert!(apart.amax() < 1e-7, "{k}: {apart}");
        }
    }
}

/// ⟨g, W z(u)⟩ = ⟨B-weighted adjoint states, u⟩: the adjoint in the plain sense.
#[test]
fn adjoint_states_carry_gradients_back_to_the_input() {
    let mut draw = Draw::new(5);
    let (u, g) = (draw.matrix(11, 2), draw.matrix(11, 2));
    for modes in both() {
        let forward = (modes.states(&u) * modes.output_matrix().transpose()).dot(&g);
        let backward: f64 = modes
            .adjoints(&g)
            .iter()
            .map(|p| {
                let parts = [modes.input.map(|b| b.re), modes.input.map(|b| b.im)];
                let (re, im) = (p.columns(0, 3), p.columns(3, 3));
                (re * &parts[0] + im * &parts[1]).dot(&u)
            })
            .sum();
        assert!((forward - backward).abs() < 1e-12 * forward.abs().max(1.0));
    }
}

#[test]
fn moments_are_sums_of_products() {
    let mut draw = Draw::new(6);
    for modes in both() {
        let (u, g) = (draw.matrix(7, 2), draw.matrix(7, 2));
        let mut moments = Moments::new(&modes, 7);
        moments.add_input(&modes, &u);
        (0..2).for_each(|_| moments.add_gradient(&modes, &g));
        let (z, p) = (modes.states(&u), modes.adjoints(&g));
        let product = |m: &DMatrix<f64>, a: usize, b: usize| -> f64 {
            (0..7).map(|t| m[(t, a)] * m[(t, b)]).sum()
        };
        assert!((moments.states[(1, 4)] - product(&z, 1, 4)).abs() < 1e-12);
        let q: f64 = p.iter().map(|p| 2.0 * product(p, 0, 5)).sum();
        assert!((moments.adjoints[(0, 5)] - q).abs() < 1e-12);
        assert!((moments.gradients[(0, 1)] - 2.0 * product(&g, 0, 1)).abs() < 1e-12);
    }
}

#[test]
fn white_moments_are_those_of_impulses() {
    let modes = Draw::new(7).modes(3, 2, 2, 1);
    let white = Moments::white(&modes, 30);
    let mut impulses = Moments::new(&modes, 30);
    for j in 0..2 {
        let mut first = DMatrix::zeros(30, 2);
        first[(0, j)] = 1.0;
        let mut last = DMatrix::zeros(30, 2);
        last[(29, j)] = 1.0;
        impulses.add_input(&modes, &first);
        impulses.add_gradient(&modes, &last);
    }
    assert!((&white.states - &impulses.states).norm() < 1e-12 * white.states.norm());
    assert!((&white.adjoints - &impulses.adjoints).norm() < 1e-12 * white.adjoints.norm());
}

/// An independent path: the Gramians of `balance` come from generators, not from sums.
#[test]
fn balancing_by_white_moments_is_balanced_truncation() {
    let modes = Draw::new(8).modes(6, 3, 2, 1);
    let full: DiagonalSystem = modes.systems(STEP).unwrap().remove(0);
    let reference = balance(full.stable().unwrap(), Realisation::Real).unwrap();
    for order in [2, 4] {
        let white = Moments::white(&modes, 4000);
        let made = starts::balanced(&modes, &white, order, &[])
            .unwrap()
            .unwrap();
        let made = made.systems(STEP).unwrap().remove(0);
        let states = (order..=2 * order).rev();
        let mut cuts = states.map(|states| reference.truncate(states).unwrap().system);
        let expected = cuts.find(|system| system.order() <= order).unwrap();
        let apart = kernel_distance(&expected, &made, 400).unwrap();
        assert!(apart.error < 1e-6 * apart.norm, "order {order}: {apart:?}");
    }
}

#[test]
fn selected_modes_explain_as_much_as_the_best_of_all_choices() {
    let mut draw = Draw::new(9);
    let modes = draw.modes(5, 2, 2, 2);
    let u = draw.smooth(60, 2);
    let mut moments = Moments::new(&modes, 60);
    moments.add_input(&modes, &u);
    let y = modes.states(&u) * modes.output_matrix().transpose();
    let left = |chosen: &[usize]| {
        let z = modes.chosen(chosen).states(&u);
        let svd = z.clone().svd(true, true);
        (&y - z * svd.solve(&y, 1e-12).unwrap()).norm_squared()
    };
    let found = left(&starts::selected(&modes, &moments, 2));
    let all = (0..5).flat_map(|i| (0..i).map(move |j| [i, j]));
    let best = all.map(|pair| left(&pair)).fold(f64::INFINITY, f64::min);
    assert!(found <= best * (1.0 + 1e-6), "{found} {best}");
}

fn samples(modes: &Modes, count: usize, length: usize) -> Vec<Sample> {
    let mut draw = Draw::new(12);
    let samples = (0..count).map(|_| {
        let input = draw.smooth(length, modes.input.ncols());
        Sample {
            target: modes.response(&input),
            input,
        }
    });
    samples.collect()
}

#[test]
fn outputs_are_recovered_from_the_states_that_made_them() {
    for modes in both() {
        let samples = samples(&modes, 10, 50);
        let metric = DMatrix::identity(2, 2);
        let problem = Problem::new(&samples, &metric);
        let mut spoilt = modes.clone();
        spoilt
            .outputs
            .iter_mut()
            .for_each(|c| c.fill(Complex64::ZERO));
        spoilt.feedthrough.fill(0.0);
        let fitted = problem.outputs_fitted(spoilt);
        assert!(fitted.error < 1e-9 * problem.size(), "{}", fitted.error);
        let apart = (&fitted.modes.feedthrough - &modes.feedthrough).norm();
        assert!(apart < 1e-3, "{apart}");
    }
}

#[test]
fn alternating_fits_find_input_weights_and_poles_near_by() {
    for modes in both() {
        let samples = samples(&modes, 20, 60);
        let metric = DMatrix::identity(2, 2) + DMatrix::from_element(2, 2, 0.3);
        let problem = Problem::new(&samples, &metric);
        let mut spoilt = modes.clone();
        let mut draw = Draw::new(13);
        spoilt
            .input
            .iter_mut()
            .for_each(|b| *b += 0.1 * draw.complex());
        for z in &mut spoilt.exponents {
            *z += 0.01 * draw.complex();
        }
        let start = problem.outputs_fitted(spoilt);
        let (before, check) = (start.error, start.check);
        let fitted = problem.alternated(start, 6);
        assert!(fitted.check <= check);
        assert!(fitted.error < 0.1 * before, "{before} -> {}", fitted.error);
        assert!(fitted.modes.exponents.iter().all(|z| z.re < 0.0));
    }
}

pub(super) fn block(modes: &Modes) -> Block {
    let mut systems = modes.systems(STEP).unwrap();
    let backward = systems.split_off(1);
    Block::new(BlockParts {
        name: "layer".to_string(),
        systems,
        backward,
        backward_from: modes.lag.min(1),
        holds_feedthrough: true,
        class: None,
        activation: Nonlinearity::Gelu,
        output: None,
        norm: None,
    })
    .unwrap()
}

#[test]
fn a_layer_is_reduced_from_captured_inputs_alone() {
    for directions in [1, 2] {
        let mut draw = Draw::new(20);
        let modes = draw.modes(8, 3, 3, directions);
        let block = block(&modes);
        let inputs: Vec<_> = (0..12).map(|_| draw.smooth(80, 3)).collect();
        let sequences = LayerSequences::new(inputs.clone(), Vec::new()).unwrap();
        let whole = reduce_layer_jointly(&block, &sequences, 8, Refinement::Full).unwrap();
        assert_eq!(whole.block, block, "the full order changes nothing");
        let errors = [Refinement::None, Refinement::Residues, Refinement::Full].map(|refinement| {
            let made = reduce_layer_jointly(&block, &sequences, 4, refinement).unwrap();
            assert_eq!(made.block.order(), 4);
            made.record.relative_weighted_error.unwrap()
        });
        assert!(
            errors[1] <= errors[0] && errors[2] < errors[1],
            "{errors:?}"
        );
        let white = {
            let made = reduce_layer_jointly(&block, &sequences, 4, Refinement::Full).unwrap();
            let weighted = made.record.channels[0].weighted.clone().unwrap();
            weighted.unweighted / weighted.norm
        };
        assert!(errors[2] < white, "{errors:?} {white}");
        let gradients = vec![vec![draw.matrix(80, 3)]; 12];
        let sequences = LayerSequences::new(inputs, gradients).unwrap();
        let made = reduce_layer_jointly(&block, &sequences, 4, Refinement::Full).unwrap();
        assert_eq!(made.block.order(), 4);
    }
}

#[test]
fn captures_that_do_not_fit_are_refused() {
    let text = |made: Result<LayerSequences, _>| -> String {
        let error: crate::calibrate::CalibrateError = made.unwrap_err();
        error.to_string()
    };
    let u = |rows, columns| DMatrix::<f64>::zeros(rows, columns);
    assert!(text(LayerSequences::new(Vec::new(), Vec::new())).contains("no sequences"));
    let uneven = LayerSequences::new(vec![u(4, 2), u(4, 3)], Vec::new());
    assert!(text(uneven).contains("found 3 channels, expected 2"));
    let short = LayerSequences::new(vec![u(4, 2)], vec![vec![u(3, 2)]]);
    assert!(text(short).contains("gradients of 3 steps, expected 4"));
    let mut nan = u(4, 2);
    nan[(1, 1)] = f64::NAN;
    assert!(text(LayerSequences::new(vec![nan], Vec::new())).contains("not finite"));
    let fine = LayerSequences::new(vec![u(4, 2)], Vec::new()).unwrap();
    let layer = block(&Draw::new(1).modes(3, 3, 3, 1));
    let refused = reduce_layer_jointly(&layer, &fine, 2, Refinement::Full).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("inputs of 2 channels, expected 3")
    );
}
