//! The shallow transformer, the IndRNN of the same paper and their theory: closed forms against
//! finite differences, what holds for every draw, and how the errors scale.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite_data::{Dataset, Source, Split};
use hankelite_research::bounds::{FiniteTime, Radii};
use hankelite_research::shallow::{
    Activation, Boundary, Descent, IndRnn, Kernel, Linearised, Parameters, Query, Samples,
    Sampling, ShallowError, Transformer, TransformerSize, Transport, TransportTeacher,
    UnitTrustRegion, Units, boundary_point, descend, empirical_kernel, kernel_blocks,
    largest_difference, loss, loss_gradient, mean_gradient, outputs,
};
use nalgebra::DMatrix;

const ACTIVATIONS: [Activation; 2] = [Activation::Tanh, Activation::Logistic];

fn size(units: usize, width: usize) -> TransformerSize {
    TransformerSize { units, width }
}

fn transformer(units: usize, width: usize, seed: u64) -> Transformer {
    Transformer::symmetric(size(units, width), Query::Last, Activation::Tanh, seed).unwrap()
}

fn indrnn(units: usize, width: usize, gamma: f64, seed: u64) -> IndRnn {
    IndRnn::symmetric(size(units, width), gamma, Activation::Tanh, seed).unwrap()
}

fn gaussian(count: usize, length: usize, width: usize, seed: u64) -> Samples {
    Samples::gaussian(count, length, width, seed).unwrap()
}

/// Smooth numbers of order `scale`, in the shape of the parameters.
fn wave(like: &Parameters, scale: f64, phase: f64) -> Parameters {
    let mut result = like.zeros_like();
    let values = result.values_mut().iter_mut().enumerate();
    values.for_each(|(i, value)| *value = scale * (12.9898 * i as f64 + phase).sin());
    result
}

/// A model that is not at its start.
fn moved<M: Units>(mut model: M) -> M {
    let step = wave(model.parameters(), 0.3, 1.0);
    model.parameters_mut().add_scaled(1.0, &step);
    model
}

/// The slope of log y over log x by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let mean_x = logs.iter().map(|p| p.0).sum::<f64>() / n;
    let mean_y = logs.iter().map(|p| p.1).sum::<f64>() / n;
    let both: f64 = logs.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    both / logs.iter().map(|p| (p.0 - mean_x).powi(2)).sum::<f64>()
}

/// The largest difference of the gradient to central differences, over all parameters.
fn worst_difference<M: Units>(model: &M, tokens: &[f64]) -> f64 {
    let gradient = model.gradient(tokens);
    let step = 1e-5;
    let quotient = |index: usize| {
        let at = |by: f64| {
            let mut near = model.clone();
            near.parameters_mut().values_mut()[index] += by;
            near.output(tokens)
        };
        // Of fourth order: the error is h⁴ f⁽⁵⁾/30 beside the rounding error 10⁻¹⁶/h.
        (8.0 * (at(step) - at(-step)) - (at(2.0 * step) - at(-2.0 * step))) / (12.0 * step)
    };
    let found = gradient.values().iter().enumerate();
    found
        .map(|(index, value)| (value - quotient(index)).abs())
        .fold(0.0, f64::max)
}

// D1

#[test]
fn a_symmetric_start_answers_zero_to_the_last_bit() {
    for activation in ACTIVATIONS {
        for (units, width, length) in [(2, 1, 1), (8, 4, 6), (10, 3, 33), (256, 8, 16)] {
            let samples = gaussian(20, length, width, 3);
            for query in [Query::Last, Query::seeded(width, 4)] {
                let model = Transformer::symmetric(size(units, width), query, activation, 5);
                assert_eq!(outputs(&model.unwrap(), &samples), vec![0.0; 20]);
            }
            let model = IndRnn::symmetric(size(units, width), 1.0, activation, 5).unwrap();
            assert_eq!(outputs(&model, &samples), vec![0.0; 20]);
        }
    }
}

// D2

#[test]
fn gradients_are_those_of_finite_differences() {
    let samples = gaussian(3, 6, 4, 1);
    for activation in ACTIVATIONS {
        for query in [Query::Last, Query::seeded(4, 9)] {
            let model = Transformer::symmetric(size(8, 4), query, activation, 2).unwrap();
            for tokens in samples.sequences() {
                assert!(worst_difference(&model, tokens) < 1e-9);
                assert!(worst_difference(&moved(model.clone()), tokens) < 1e-9);
            }
        }
        // Twelve units: the last four stand in a vector that is not full.
        let model = IndRnn::symmetric(size(12, 4), 0.9, activation, 2).unwrap();
        for tokens in samples.sequences() {
            assert!(worst_difference(&model, tokens) < 1e-9);
            assert!(worst_difference(&moved(model.clone()), tokens) < 1e-9);
        }
    }
}

#[test]
fn the_gradient_of_the_loss_is_that_of_finite_differences() {
    let samples = gaussian(37, 5, 3, 1);
    let labels = (0..37).map(|i| f64::from(i).sin()).collect();
    let samples = samples.with_labels(labels).unwrap();
    let model = moved(transformer(6, 3, 1));
    let (value, gradient) = loss_gradient(&model, &samples);
    assert!((value - loss(&model, &samples)).abs() < 1e-15);
    let step = 1e-5;
    for index in 0..gradient.values().len() {
        let at = |by: f64| {
            let mut near = model.clone();
            near.parameters_mut().values_mut()[index] += by;
            loss(&near, &samples)
        };
        let quotient = (at(step) - at(-step)) / (2.0 * step);
        assert!((gradient.values()[index] - quotient).abs() < 1e-8);
    }
}

#[test]
fn a_written_out_head_gives_the_same_answer() {
    // One pair of heads, token by token, with the softmax's Jacobian formed in full.
    let (d, length) = (3, 5);
    let samples = gaussian(1, length, d, 8);
    let x = DMatrix::from_column_slice(d, length, samples.sequence(0));
    let model = moved(transformer(2, d, 3));
    let (mut f, gradient) = (0.0, model.gradient(samples.sequence(0)));
    for head in 0..2 {
        let take = |group: usize, rows: usize, columns: usize| {
            let values = model.parameters().group(group);
            DMatrix::from_fn(rows, columns, |j, k| values[(j * columns + k) * 2 + head])
        };
        let (c, u, w) = (take(0, 1, 1)[0], take(1, d, 1), take(2, d, d));
        let q = x.column(length - 1).into_owned();
        let scores = x.transpose() * &w * &q;
        let total: f64 = scores.iter().map(|s| s.exp()).sum();
        let alpha = scores.map(|s| s.exp() / total);
        let a = &x * &alpha;
        let z = u.dot(&a);
        f += c * z.tanh() / 2f64.sqrt();
        let jacobian = DMatrix::from_diagonal(&alpha.column(0)) - &alpha * alpha.transpose();
        let m = &x * jacobian * x.transpose();
        let scale = c * (1.0 - z.tanh().powi(2)) / 2f64.sqrt();
        let by_w = (&m * &u) * q.transpose() * scale;
        for j in 0..d {
            let found = gradient.group(1)[j * 2 + head];
            assert!((found - scale * a[j]).abs() < 1e-15);
            for k in 0..d {
                let found = gradient.group(2)[(j * d + k) * 2 + head];
                assert!((found - by_w[(j, k)]).abs() < 1e-15);
            }
        }
    }
    assert!((model.output(samples.sequence(0)) - f).abs() < 1e-15);
}

// D3

#[test]
fn attention_stays_within_its_bounds_whatever_the_length() {
    let (units, d) = (32, 8);
    for (length, count) in [(1, 40), (4, 40), (64, 20), (1024, 6), (4096, 3)] {
        let samples = gaussian(count, length, d, length as u64);
        for seed in 0..3 {
            let model = transformer(units, d, seed);
            let lengths = model.parameters().group_norms(1);
            for tokens in samples.sequences() {
                let traces = model.attention_traces(tokens);
                assert!(traces.iter().all(|t| (-1e-12..=1.0 + 1e-12).contains(t)));
                let mut features = model.features();
                model.look(tokens, &mut features);
                let norms = |rows: &[f64]| -> Vec<f64> {
                    let head = |i| {
                        rows.iter()
                            .skip(i)
                            .step_by(units)
                            .map(|x| x * x)
                            .sum::<f64>()
                    };
                    (0..units).map(|i| head(i).sqrt()).collect()
                };
                let attended = norms(model.attended(&features));
                assert!(attended.iter().all(|norm| *norm <= 1.0 + 1e-12));
                // M ⪰ 0, so UᵀMU ≥ 0 and ‖MU‖ ≤ tr M ‖U‖.
                let u = model.parameters().group(1);
                let moved = model.covariance_times_neuron(&features);
                let by_head = |i: usize| -> f64 {
                    let pairs = u.iter().zip(moved).skip(i).step_by(units);
                    pairs.map(|(u, mu)| u * mu).sum()
                };
                assert!((0..units).all(|i| by_head(i) >= -1e-12));
                let pushed = norms(moved);
                assert!((0..units).all(|i| pushed[i] <= traces[i] * lengths[i] + 1e-12));
                // |c| = a1 = 1.
                let gradients = model.gradient(tokens).group_norms(2);
                let root = (units as f64).sqrt();
                assert!((0..units).all(|i| gradients[i] <= lengths[i] / root + 1e-12));
            }
        }
    }
}

// D4

#[test]
fn gradients_do_not_grow_with_the_length() {
    let largest = |length: usize| {
        let samples = gaussian(30, length, 8, 1);
        let draws = (0..5).flat_map(|seed| {
            let model = transformer(32, 8, seed);
            let norms: Vec<f64> = samples
                .sequences()
                .map(|x| model.gradient(x).norm())
                .collect();
            norms
        });
        draws.fold(0.0, f64::max)
    };
    let short = largest(4);
    for length in [64, 1024] {
        let ratio = largest(length) / short;
        assert!(ratio <= 1.2, "L = {length}: {ratio}");
    }
}

// D5

#[test]
fn the_projection_is_that_of_a_convex_set() {
    let radii = Radii {
        c: 0.5,
        u: 2.0,
        w: 1.0,
    };
    let models = [
        transformer(12, 3, 1).parameters().clone(),
        indrnn(12, 3, 0.9, 1).parameters().clone(),
    ];
    for start in &models {
        let region = UnitTrustRegion::new(start, radii);
        let mut last: Option<(Parameters, Parameters)> = None;
        for draw in 0..60 {
            // From far inside to far outside.
            let scale = 0.003 * 1.25f64.powi(draw);
            let mut point = start.clone();
            point.add_scaled(1.0, &wave(start, scale, f64::from(draw)));
            let mut projected = point.clone();
            let count = region.project(&mut projected);
            assert!(region.excess(&projected) <= 1e-12);
            if region.excess(&point) == 0.0 {
                assert_eq!((count, &projected), (0, &point));
            }
            let mut again = projected.clone();
            region.project(&mut again);
            assert!(largest_difference(again.values(), projected.values()) <= 1e-12);
            // Obtuse angle: ⟨x − Πx, z − Πx⟩ ≤ 0 for every z of the set, as the start.
            let back = point.minus(&projected).dot(&start.minus(&projected));
            assert!(back <= 1e-12, "{back}");
            if let Some((x, image)) = &last {
                let (before, after) = (x.minus(&point).norm(), image.minus(&projected).norm());
                assert!(after <= before + 1e-12);
            }
            last = Some((point, projected));
        }
        let mut far = start.clone();
        far.add_scaled(1.0, &wave(start, 100.0, 0.5));
        assert_eq!(region.project(&mut far), 3 * 12);
        let norms = far.minus(start).group_norms(1);
        let radius = region.unit_radii()[1];
        assert!(norms.iter().all(|norm| (norm - radius).abs() < 1e-12));
    }
}

// D6, a small version; examples/finite_time.rs runs it in full.

#[test]
fn the_error_of_the_kernel_falls_with_the_root_of_the_width() {
    let inputs = gaussian(6, 16, 8, 1);
    let exact = kernel_blocks(&inputs, 1 << 16, &Query::Last, Activation::Tanh, 99).unwrap();
    let exact = exact.total();
    let points = [64usize, 256, 1024].map(|units| {
        let seeds = 20;
        let square = |seed| {
            let kernel = Kernel::over_heads(&transformer(units, 8, seed), &inputs).total();
            (kernel - &exact).norm_squared() / exact.norm_squared()
        };
        let mean = (0..seeds).map(square).sum::<f64>() / seeds as f64;
        (units as f64, mean.sqrt())
    });
    let slope = slope(&points);
    assert!((slope + 0.5).abs() <= 0.1, "{slope}: {points:?}");
}

// D7

#[test]
fn the_kernel_is_the_sum_of_its_parts_and_positive() {
    let inputs = gaussian(6, 16, 8, 1);
    for query in [Query::Last, Query::seeded(8, 1)] {
        let model = Transformer::symmetric(size(256, 8), query, Activation::Tanh, 2).unwrap();
        let kernel = Kernel::over_heads(&model, &inputs);
        let gradients = empirical_kernel(&model, &inputs);
        assert!((kernel.total() - &gradients).amax() < 1e-12);
        for part in [&kernel.c, &kernel.u, &kernel.w, &gradients] {
            assert_eq!(part, &part.transpose());
            let least = part.symmetric_eigenvalues().min();
            assert!(least >= -1e-12, "{least}");
        }
        assert!(kernel.total().symmetric_eigenvalues().min() > 0.01);
    }
}

#[test]
fn the_parts_of_the_kernel_are_those_of_an_independent_program() {
    let inputs = gaussian(200, 16, 8, 5);
    let kernel = kernel_blocks(&inputs, 4096, &Query::Last, Activation::Tanh, 1).unwrap();
    let parts = [(&kernel.c, 0.138), (&kernel.u, 0.142), (&kernel.w, 0.107)];
    for (part, expected) in parts {
        let mean = part.diagonal().mean();
        // The reference is of other draws, with three digits.
        assert!((mean - expected).abs() < 0.012, "{mean} beside {expected}");
    }
}

// D8 stands beside the formulas.

// D9, and D10 and D11 in small; examples/finite_time.rs runs them in full.

fn bounds(heads: usize, samples: usize) -> FiniteTime {
    FiniteTime {
        heads,
        width: 8,
        samples,
        trust: Radii::all(3.0),
        transport: Radii::all(3.0),
        activation: Activation::Tanh.smoothness(),
        failure: 0.05,
        failure_start: 0.05,
    }
}

fn linearisation_error(units: usize, boundary: Boundary, seed: u64) -> f64 {
    let samples = gaussian(100, 16, 8, 100 + seed);
    let model = transformer(units, 8, seed);
    let point = boundary_point(&model, Radii::all(3.0), boundary, &samples, seed);
    let region = UnitTrustRegion::new(model.parameters(), Radii::all(3.0));
    assert!(region.excess(&point) < 1e-12);
    let linear = Linearised::at(&model).outputs(&point, &samples);
    let full = outputs(&model.with_parameters(point), &samples);
    largest_difference(&full, &linear)
}

#[test]
fn the_boundary_point_decides_how_the_linearisation_error_scales() {
    let expected = [
        (Boundary::Independent, -1.0),
        (Boundary::Shared, -0.5),
        (Boundary::Adversarial, -0.5),
    ];
    for (boundary, expected) in expected {
        let points = [64, 128, 256].map(|units| {
            let errors: Vec<f64> = (0..5)
                .map(|seed| linearisation_error(units, boundary, seed))
                .collect();
            let bound = bounds(units, 100).linearisation_tight();
            assert!(errors.iter().all(|error| *error <= bound));
            (units as f64, errors.iter().sum::<f64>() / 5.0)
        });
        let slope = slope(&points);
        assert!((slope - expected).abs() <= 0.15, "{boundary:?}: {slope}");
    }
}

fn transport(seed: u64) -> Transport {
    Transport::new(gaussian(8, 16, 8, 1000 + seed), Radii::all(3.0))
}

#[test]
fn transported_students_come_near_the_teacher() {
    let samples = gaussian(100, 16, 8, 1);
    let points = [16, 64, 256].map(|units| {
        let errors = (0..5).map(|seed| {
            let transport = transport(seed);
            let teacher =
                TransportTeacher::new(&transport, 4096, &Query::Last, Activation::Tanh, 50 + seed);
            let labels = teacher.unwrap().labels(&samples);
            let start = transformer(units, 8, seed);
            let student = transport.student(&start);
            let linear = Linearised::at(&start).outputs(&student, &samples);
            let error = largest_difference(&linear, &labels);
            assert!(error <= bounds(units, 100).approximation());
            error
        });
        (units as f64, errors.sum::<f64>() / 5.0)
    });
    let slope = slope(&points);
    assert!((slope + 0.5).abs() <= 0.15, "{slope}: {points:?}");
}

// D12

#[test]
fn descent_stays_in_its_region_and_gains_with_the_width() {
    let radii = Radii::all(3.0);
    let means = [8, 32, 128].map(|units| {
        let least = (0..3).map(|seed| {
            let transport = transport(seed);
            let teacher =
                TransportTeacher::new(&transport, 2048, &Query::Last, Activation::Tanh, 50 + seed);
            let samples = gaussian(60, 16, 8, 500 + seed);
            let labels = teacher.unwrap().labels(&samples);
            let samples = samples.with_labels(labels).unwrap();
            let mut model = transformer(units, 8, seed);
            let region = UnitTrustRegion::new(model.parameters(), radii);
            let mut worst = 0.0f64;
            let mut watch = |_, model: &Transformer| {
                worst = worst.max(region.excess(model.parameters()));
            };
            let descent = Descent::theory(150, Some(radii));
            let course = descend(&mut model, &samples, &descent, &mut watch).unwrap();
            assert!(worst <= 1e-12 && region.excess(model.parameters()) <= 1e-12);
            assert!(course.least <= course.losses[0]);
            assert!(course.average_iterate < course.losses[0]);
            course.least
        });
        least.sum::<f64>() / 3.0
    });
    assert!(means[0] > means[1] && means[1] > means[2], "{means:?}");
}

#[test]
fn small_regions_hold_the_descent_and_one_sample_at_a_time_also_learns() {
    let samples = gaussian(50, 8, 4, 1);
    let labels = samples.sequences().map(|x| x[0] - x[5]).collect();
    let samples = samples.with_labels(labels).unwrap();
    let run = |radii: Option<Radii>, sampling: Sampling| {
        let mut model = transformer(64, 4, 1);
        let mut descent = Descent::theory(400, radii);
        descent.sampling = sampling;
        descend(&mut model, &samples, &descent, &mut |_, _| ()).unwrap()
    };
    let free = run(None, Sampling::All);
    assert_eq!((free.projected, free.losses.len()), (0, 400));
    let held = run(Some(Radii::all(0.1)), Sampling::All);
    assert!(held.projected > 1000 && held.least > free.least);
    let still = run(Some(Radii::all(0.0)), Sampling::All);
    assert!(still.losses.iter().all(|loss| *loss == still.losses[0]));
    let wide = run(Some(Radii::all(1e6)), Sampling::All);
    assert_eq!((wide.projected, &wide.losses), (0, &free.losses));
    let one = |seed| run(Some(Radii::all(3.0)), Sampling::One { seed, every: 20 });
    let course = one(7);
    assert_eq!(course.losses.len(), 20);
    assert!(course.least < 0.8 * course.losses[0]);
    assert_eq!(course, one(7));
    assert_ne!(course, one(8));
}

// D13

#[test]
fn transported_students_lie_in_the_region_of_their_bounds() {
    let nu = Radii {
        c: 3.0,
        u: 2.0,
        w: 0.1,
    };
    for activation in ACTIVATIONS {
        for seed in 0..5 {
            let transport = Transport::new(gaussian(3, 16, 8, seed), nu);
            let start = Transformer::symmetric(size(64, 8), Query::Last, activation, seed).unwrap();
            let student = transport.student(&start);
            let region = UnitTrustRegion::new(start.parameters(), nu);
            assert!(region.excess(&student) <= 1e-12);
            let way = student.minus(start.parameters()).norm();
            assert!(way > 0.0 && way <= nu.norm());
        }
    }
}

#[test]
fn a_student_of_the_teachers_heads_is_the_teacher() {
    // With the same independent heads, f* is the linearised student to rounding.
    let samples = gaussian(20, 16, 8, 3);
    let transport = transport(1);
    let teacher = TransportTeacher::new(&transport, 64, &Query::Last, Activation::Tanh, 5).unwrap();
    let heads = Transformer::independent(size(64, 8), Query::Last, Activation::Tanh, 5).unwrap();
    let v = transport.of(&heads);
    let labels = teacher.labels(&samples);
    for (tokens, label) in samples.sequences().zip(labels) {
        // Σ ⟨features, v⟩/m from the gradient of f, which is the features over √m.
        let expected = heads.gradient(tokens).dot(&v) / 64f64.sqrt();
        assert!((label - expected).abs() < 1e-13);
    }
}

// D14 and D15, small versions; examples/autoregression.rs runs more lags.

/// Windows of AR(lag), for training and held out.
fn windows(lag: usize, scale: f64, seed: u64) -> [Samples; 2] {
    let source = format!("ar:lag={lag},scale={scale},count=200,held_out=200,seed={seed}");
    let source: Source = source.parse().unwrap();
    let read = |split| Samples::of(&Dataset::read(&source, Some(split)).unwrap()).unwrap();
    [read(Split::Train), read(Split::Test)]
}

/// The held-out loss after 200 steps, and the largest norm of the mean Jacobian by W or w.
fn learn<M: Units>(mut model: M, [train, held_out]: &[Samples; 2]) -> (f64, f64) {
    let mut largest = 0.0f64;
    let mut watch = |step: usize, model: &M| {
        if step.is_multiple_of(20) {
            let jacobian = mean_gradient(model, train);
            let square: f64 = jacobian.group(2).iter().map(|value| value * value).sum();
            largest = largest.max(square.sqrt());
        }
    };
    let descent = Descent::theory(200, None);
    descend(&mut model, train, &descent, &mut watch).unwrap();
    (loss(&model, held_out), largest)
}

#[test]
fn the_scale_of_the_tokens_decides_which_model_learns_a_lag() {
    for (lag, scale) in [(8, 1.0), (8, 0.28)] {
        let (mut losses, mut jacobians) = ([0.0; 2], [0.0f64; 2]);
        for seed in 0..2 {
            let windows = windows(lag, scale, seed);
            let attention = learn(transformer(64, 17, seed), &windows);
            let recurrent = learn(indrnn(64, 17, 1.0, seed), &windows);
            for (model, (loss, jacobian)) in [attention, recurrent].into_iter().enumerate() {
                // No answer is better than 0.1; the error of a mean of 200 squares.
                assert!(loss >= 0.1 - 3.0 * 0.1 * (2.0f64 / 200.0).sqrt());
                losses[model] += loss / 2.0;
                jacobians[model] += jacobian / 2.0;
            }
        }
        if scale == 1.0 {
            assert!(losses[0] < losses[1], "{losses:?}");
        } else {
            assert!(jacobians[0] < 0.2 * jacobians[1], "{jacobians:?}");
        }
    }
}

// D16

#[test]
fn recurrent_slopes_are_bounded_below_gain_one_and_grow_above() {
    let mean_slope = |gamma: f64, length: usize| {
        // Small inputs: the states stay where tanh is steep.
        let samples = gaussian(20, length, 4, 1);
        let tokens: Vec<f64> = samples.sequences().flatten().map(|x| 1e-3 * x).collect();
        let samples = Samples::new(tokens, vec![0.0; 20], length, 4).unwrap();
        let model = indrnn(64, 4, gamma, 1);
        let sum: f64 = samples
            .sequences()
            .map(|tokens| {
                let mut features = model.features();
                model.look(tokens, &mut features);
                let squares = model.recurrent_slopes(&features).iter().map(|s| s * s);
                squares.sum::<f64>().sqrt()
            })
            .sum();
        sum / 20.0
    };
    let short = mean_slope(0.5, 4);
    for length in [16, 64, 256] {
        assert!(mean_slope(0.5, length) < 2.0 * short);
    }
    let lengths = [2, 4, 8, 16];
    let grown = lengths.map(|length| mean_slope(1.5, length));
    assert!(
        grown.windows(2).all(|pair| pair[1] > 2.0 * pair[0]),
        "{grown:?}"
    );
    assert!(grown[3] > 100.0 * mean_slope(0.5, 16));
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let samples = gaussian(101, 9, 5, 1);
    let labels = (0..101).map(|i| f64::from(i).cos()).collect();
    let samples = samples.with_labels(labels).unwrap();
    let model = moved(transformer(20, 5, 1));
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap().install(|| {
            (
                loss_gradient(&model, &samples),
                mean_gradient(&model, &samples),
            )
        })
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn what_does_not_fit_is_refused() {
    let tanh = Activation::Tanh;
    let odd = Transformer::symmetric(size(7, 3), Query::Last, tanh, 0).unwrap_err();
    assert_eq!(odd, ShallowError::Units { found: 7 });
    let none = IndRnn::symmetric(size(0, 3), 1.0, tanh, 0).unwrap_err();
    assert_eq!(none, ShallowError::Units { found: 0 });
    let flat = Transformer::independent(size(3, 0), Query::Last, tanh, 0);
    assert!(matches!(flat, Err(ShallowError::Empty { .. })));
    let query = Transformer::symmetric(size(4, 3), Query::Fixed(vec![1.0]), tanh, 0);
    assert!(matches!(
        query,
        Err(ShallowError::Shape {
            found: 1,
            expected: 3,
            ..
        })
    ));
    let gamma = IndRnn::symmetric(size(4, 3), f64::NAN, tanh, 0);
    assert!(matches!(gamma, Err(ShallowError::Range { .. })));
    let short = Samples::new(vec![0.0; 5], vec![0.0], 2, 3);
    assert!(matches!(
        short,
        Err(ShallowError::Shape {
            found: 5,
            expected: 6,
            ..
        })
    ));
    let infinite = Samples::new(vec![f64::INFINITY], vec![0.0], 1, 1);
    assert!(matches!(infinite, Err(ShallowError::Range { .. })));
    assert!(matches!(
        Samples::gaussian(0, 1, 1, 0),
        Err(ShallowError::Empty { .. })
    ));
    let mut model = transformer(4, 3, 0);
    let mut run = |samples: &Samples, descent: Descent| {
        descend(&mut model, samples, &descent, &mut |_, _| ()).unwrap_err()
    };
    let wide = run(&gaussian(2, 2, 5, 0), Descent::theory(1, None));
    assert!(matches!(
        wide,
        ShallowError::Shape {
            found: 5,
            expected: 3,
            ..
        }
    ));
    let samples = gaussian(2, 2, 3, 0);
    let none = run(&samples, Descent::theory(0, None));
    assert!(matches!(none, ShallowError::Empty { .. }));
    let inward = run(&samples, Descent::theory(1, Some(Radii::all(-1.0))));
    assert!(matches!(inward, ShallowError::Range { .. }));
}
