//! Systems with printed values: SLICOT, python-control, ControlSystems.jl, ROC, MATLAB and Altair
//! documentation. Each goes through the dense path and, diagonalised, through the diagonal one.
//!
//! The 12-digit values were computed with 60 digits; where a source prints fewer, those are
//! compared to one unit of their last digit. Truncations are compared by Markov parameters and
//! transfer functions, which do not depend on the state basis.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops where it is wrong"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;

use common::{here, json, reals};
use hankelite_control::{
    ControlError, DenseBalanced, DenseSystem, DiagonalSystem, Realisation, SystemError, Time,
    balance, balance_for_dc, dense_balance, dense_gramians, dense_h2_norm, dense_hankel_values,
    dense_stochastic_balance, dense_weighted_balance, diagonalise, h2_norm, hankel_values,
};
use nalgebra::DMatrix;
use num_complex::Complex64;
use serde_json::Value;

/// Rows of a matrix, as a source prints them: numbers with spaces, rows with semicolons.
fn matrix(text: &str) -> DMatrix<f64> {
    let rows: Vec<Vec<f64>> = text
        .split(';')
        .map(|row| row.split_whitespace().map(|x| x.parse().unwrap()).collect())
        .collect();
    DMatrix::from_fn(rows.len(), rows[0].len(), |i, j| rows[i][j])
}

fn continuous(a: DMatrix<f64>, b: DMatrix<f64>, c: DMatrix<f64>) -> DenseSystem {
    let feedthrough = DMatrix::zeros(c.nrows(), b.ncols());
    DenseSystem::new(Time::Continuous, a, b, c, feedthrough).unwrap()
}

/// The controller form of num(s)/den(s), den monic; coefficients from the highest power.
fn transfer(num: &[f64], den: &[f64]) -> DenseSystem {
    let n = den.len() - 1;
    let mut a = DMatrix::zeros(n, n);
    for j in 0..n {
        a[(0, j)] = -den[j + 1];
        if j > 0 {
            a[(j, j - 1)] = 1.0;
        }
    }
    let mut b = DMatrix::zeros(n, 1);
    b[0] = 1.0;
    let mut c = DMatrix::zeros(1, n);
    for (k, &x) in num.iter().rev().enumerate() {
        c[n - 1 - k] = x;
    }
    continuous(a, b, c)
}

fn product(factors: &[&[f64]]) -> Vec<f64> {
    factors.iter().fold(vec![1.0], |product, factor| {
        let mut out = vec![0.0; product.len() + factor.len() - 1];
        for (i, x) in product.iter().enumerate() {
            for (j, y) in factor.iter().enumerate() {
                out[i + j] += x * y;
            }
        }
        out
    })
}

struct Published {
    name: &'static str,
    system: DenseSystem,
    /// Hankel singular values and H2 norm; the norm is zero where none is given.
    sigma: &'static [f64],
    h2: f64,
    /// What the source itself prints, and one unit of its last digit.
    printed: (&'static [f64], f64),
}

fn slicot_7() -> DenseSystem {
    let a = matrix(
        "-.04165 0 4.92 -4.92 0 0 0; -5.21 -12.5 0 0 0 0 0; 0 3.33 -3.33 0 0 0 0; \
         .545 0 0 0 -.545 0 0; 0 0 0 4.92 -.04165 0 4.92; 0 0 0 0 -5.21 -12.5 0; \
         0 0 0 0 0 3.33 -3.33",
    );
    let mut b = DMatrix::zeros(7, 2);
    (b[(1, 0)], b[(5, 1)]) = (12.5, 12.5);
    let mut c = DMatrix::zeros(3, 7);
    (c[(0, 0)], c[(1, 3)], c[(2, 4)]) = (1.0, 1.0, 1.0);
    continuous(a, b, c)
}

fn balred_4() -> DenseSystem {
    continuous(
        matrix("-15 -7.5 -6.25 -1.875; 8 0 0 0; 0 4 0 0; 0 0 1 0"),
        matrix("2; 0; 0; 0"),
        matrix(".5 .6875 .703125 .5"),
    )
}

fn roc_3() -> DenseSystem {
    let sixth = 1.0 / 6.0;
    continuous(
        matrix("-1 0 0 0; 0 -2 0 0; 0 0 -3 0; 0 0 0 -4"),
        DMatrix::from_row_slice(4, 2, &[0.0, 5.0, 0.5, -1.5, 1.0, -5.0, -0.5, sixth]),
        DMatrix::from_row_slice(2, 4, &[1.0, 0.0, 1.0, 0.0, 4.0 / 15.0, 1.0, 0.0, 1.0]),
    )
}

/// AB09JD: the companion form of the sixth-order Butterworth filter.
fn butterworth_6() -> DenseSystem {
    let den = [1.0, 3.8637, 7.4641, 9.1416, 7.4641, 3.8637, 1.0];
    transfer(&[1.0], &den)
}

/// A = −diag(1..6), b = c = 1.
fn real_poles_6() -> DenseSystem {
    let a = DMatrix::from_fn(6, 6, |i, j| if i == j { -(i as f64 + 1.0) } else { 0.0 });
    continuous(
        a,
        DMatrix::from_element(6, 1, 1.0),
        DMatrix::from_element(1, 6, 1.0),
    )
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn published() -> Vec<Published> {
    let entry = |name, system, sigma, h2, printed| Published {
        name,
        system,
        sigma,
        h2,
        printed,
    };
    vec![
        entry(
            "SLICOT AB09AD, AB13AD",
            slicot_7(),
            &[
                2.51387936743,
                2.08456252385,
                1.91779534835,
                0.766641498068,
                0.547285422371,
                0.0252661410376,
                0.0245823947983,
            ],
            3.84735452744,
            (
                &[
                    2.51388, 2.08456, 1.91780, 0.76664, 0.54729, 0.02527, 0.02458,
                ],
                1e-5,
            ),
        ),
        entry(
            "python-control testHSVD",
            continuous(matrix("1 -2; 3 -4"), matrix("5; 7"), matrix("6 8")),
            &[24.4268604419, 0.573139558123],
            45.4532727095,
            (&[24.42686, 0.5731395], 1e-5),
        ),
        entry(
            "python-control balred",
            balred_4(),
            &[
                0.209439406585,
                0.0991480218175,
                0.0473650873828,
                0.00544432564654,
            ],
            0.440363067359,
            (&[], 0.0),
        ),
        entry(
            "ControlSystems.jl",
            continuous(
                matrix("-.21 .2; .2 -.21"),
                matrix(".01 0; 0 .01"),
                matrix("1 0; 0 1"),
            ),
            &[0.5, 0.5 / 41.0],
            0.0715678085421,
            (&[], 0.0),
        ),
        entry(
            "MATLAB modred",
            transfer(&[1.0, 11.0, 36.0, 26.0], &[1.0, 14.6, 74.96, 153.7, 99.65]),
            &[
                0.139384966568,
                0.00954816571394,
                6.2712170924e-4,
                7.32446959771e-6,
            ],
            0.374234387008,
            (&[0.1394, 0.0095, 0.0006, 0.0], 1e-4),
        ),
        entry(
            "MATLAB balreal",
            transfer(
                &product(&[&[1.0, 10.0], &[1.0, 20.01]]),
                &product(&[&[1.0, 5.0], &[1.0, 9.9], &[1.0, 20.1]]),
            ),
            &[0.100615801292, 6.80393924891e-5, 1.00550766455e-5],
            0.317210140804,
            (&[0.1006, 0.0001, 0.0], 1e-4),
        ),
        entry(
            "Varga CDC 2001, example 1",
            transfer(&[8.0, 6.0, 2.0], &[1.0, 4.0, 5.0, 2.0]),
            &[1.1441186876, 0.725878969018, 0.0817602814194],
            3.03681119305,
            (&[], 0.0),
        ),
        entry(
            "ROC.jl example 3",
            roc_3(),
            &[1.9762701847, 0.29981559189, 0.04459505359, 0.0170455017354],
            2.11443451857,
            (&[], 0.0),
        ),
        entry(
            "SLICOT AB09JD",
            butterworth_6(),
            &[
                0.947067989715,
                0.700130756167,
                0.325438395923,
                0.0827776689993,
                0.0110327607964,
                6.30721267826e-4,
            ],
            0.567429404539,
            (&[], 0.0),
        ),
        entry(
            "python-control docstring",
            transfer(&[1.0], &[1.0, 2.0]),
            &[0.25],
            0.5,
            (&[0.25], 1e-12),
        ),
        entry(
            "real poles -1 to -6",
            real_poles_6(),
            &[
                1.11885868789,
                0.100846719381,
                0.00513095448635,
                1.60766091419e-4,
                2.85025889742e-6,
                2.18962604964e-8,
            ],
            0.0,
            (&[], 0.0),
        ),
    ]
}

/// Relative agreement with a value of 12 printed digits, or with a part of the largest value.
fn agrees(found: &[f64], expected: &[f64], relative: f64, of_largest: f64) -> bool {
    let largest = expected.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    let close = |(x, y): (&f64, &f64)| (x - y).abs() <= relative * y.abs() + of_largest * largest;
    found.len() == expected.len() && found.iter().zip(expected).all(close)
}

#[test]
fn dense_values_and_norms_are_the_published_ones() {
    for Published {
        name,
        system,
        sigma,
        h2,
        printed,
    } in published()
    {
        let found = dense_hankel_values(&system).unwrap();
        // 12 printed digits, and what a Schur form leaves: 1e-14 of the largest.
        assert!(
            agrees(found.values(), sigma, 6e-12, 1e-13),
            "{name}: {found:?}"
        );
        if !printed.0.is_empty() {
            assert!(
                agrees(found.values(), printed.0, 0.0, printed.1 / sigma[0]),
                "{name}"
            );
        }
        if h2 > 0.0 {
            assert!(
                agrees(&[dense_h2_norm(&system).unwrap()], &[h2], 6e-12, 0.0),
                "{name}"
            );
        }
    }
}

#[test]
fn diagonalised_values_and_norms_are_the_published_ones() {
    for Published {
        name,
        system,
        sigma,
        h2,
        ..
    } in published()
    {
        let (diagonal, condition) = diagonalise(&system).unwrap();
        // Varga's example has a double pole at -1: the eigenvectors show it.
        let defective = name.starts_with("Varga");
        assert_eq!(condition > 1e7, defective, "{name}: {condition:e}");
        let allowed = if defective { 1e-7 } else { 6e-12 };
        let stable = diagonal.stable().unwrap();
        let found = hankel_values(stable, Realisation::Real).unwrap();
        assert!(
            agrees(found.values(), sigma, allowed, 0.0),
            "{name}: {found:?}"
        );
        if h2 > 0.0 {
            assert!(
                agrees(&[h2_norm(stable).unwrap()], &[h2], allowed, 0.0),
                "{name}"
            );
        }
        let back = DenseSystem::from_diagonal(&diagonal).unwrap();
        assert_eq!(back.order(), system.order(), "{name}");
        for (x, y) in back
            .markov_parameters(4)
            .iter()
            .zip(system.markov_parameters(4))
        {
            let allowed = 1e-13 * condition * system.state().norm().powi(3);
            assert!((x - &y).norm() <= allowed * (1.0 + y.norm()), "{name}");
        }
    }
}

#[test]
fn the_shared_textbook_systems_have_their_values_and_gramians() {
    let names = [
        "control_hsvd2",
        "control_balred4",
        "slicot_ab09ad7",
        "diag_mimo3",
    ];
    for name in names {
        let value = json(&here(&format!("reference/systems/textbook_{name}.json")));
        let read = |key: &str| {
            let rows: Vec<Vec<f64>> = value[key].as_array().unwrap().iter().map(reals).collect();
            DMatrix::from_fn(rows.len(), rows[0].len(), |i, j| rows[i][j])
        };
        let system = continuous(read("A"), read("B"), read("C"));
        let sigma = reals(&value["hsv"]["f64"]);
        let found = dense_hankel_values(&system).unwrap();
        assert!(agrees(found.values(), &sigma, 1e-12, 1e-13), "{name}");
        let (diagonal, _) = diagonalise(&system).unwrap();
        let found = hankel_values(diagonal.stable().unwrap(), Realisation::Real).unwrap();
        assert!(agrees(found.values(), &sigma, 1e-12, 0.0), "{name}");
        if let Some(printed) = value["published_hsv"].as_array() {
            let printed = reals(&Value::from(printed.clone()));
            assert!(agrees(found.values(), &printed, 0.0, 5e-5), "{name}");
        }
        let gramians = dense_gramians(&system).unwrap();
        for (key, gramian) in [
            ("P_diag", &gramians.controllability),
            ("Q_diag", &gramians.observability),
        ] {
            let expected = reals(&value[key]["f64"]);
            let diagonal: Vec<f64> = gramian.diagonal().iter().copied().collect();
            assert!(agrees(&diagonal, &expected, 1e-12, 1e-13), "{name} {key}");
        }
    }
}

/// A truncation of both paths against printed matrices, by Markov parameters.
fn assert_truncation(system: &DenseSystem, expected: &DenseSystem, accuracy: f64) {
    let order = expected.order();
    let count = 4;
    let dense = dense_balance(system).unwrap().truncate(order).unwrap();
    let (diagonal, _) = diagonalise(system).unwrap();
    let balanced = balance(diagonal.stable().unwrap(), Realisation::Real).unwrap();
    let reduced = balanced.truncate(order).unwrap();
    assert_eq!((dense.order, reduced.order), (order, order));
    assert!((dense.error_bound - reduced.error_bound).abs() < 1e-12 * system.state().norm());
    let diagonal = DenseSystem::from_diagonal(&reduced.system).unwrap();
    let expected = expected.markov_parameters(count);
    for found in [&dense.system, &diagonal] {
        for (l, (x, y)) in found
            .markov_parameters(count)
            .iter()
            .zip(&expected)
            .enumerate()
        {
            let error = (x - y).amax() / y.amax();
            assert!(error < accuracy, "parameter {l}: {error:e}");
        }
    }
    for (x, y) in dense
        .system
        .markov_parameters(12)
        .iter()
        .zip(diagonal.markov_parameters(12))
    {
        assert!((x - &y).norm() < 1e-10 * y.norm());
    }
}

#[test]
fn the_slicot_example_truncated_to_five_states_is_the_printed_model() {
    // examples/results/AB09AD.res, four decimals.
    let reduced = continuous(
        matrix(
            "1.3451 5.0399 0 0 4.5315; -4.0214 -3.6604 0 0 -0.9056; 0 0 0.5124 1.7910 0; \
             0 0 -4.2167 -2.9900 0; 1.2402 1.6416 0 0 -0.0586",
        ),
        matrix("-0.3857 0.3857; -3.1753 3.1753; -0.7447 -0.7447; -3.6872 -3.6872; 1.8197 -1.8197"),
        matrix(
            "-0.6704 0.1828 -0.6582 0.2222 -0.0104; 0.1089 0.4867 0 0 0.8651; \
             0.6704 -0.1828 -0.6582 0.2222 0.0104",
        ),
    );
    assert_truncation(&slicot_7(), &reduced, 2e-3);
}

#[test]
fn balred_to_two_states_is_the_model_of_python_control() {
    let reduced = continuous(
        matrix("-1.958 -1.194; -1.194 -.8344"),
        matrix(".9057; .4068"),
        matrix(".9057 .4068"),
    );
    assert_truncation(&balred_4(), &reduced, 1e-3);
}

/// The modes whose exponent passes.
fn select(system: &DiagonalSystem, pass: impl Fn(Complex64) -> bool) -> DiagonalSystem {
    let kept: Vec<usize> = (0..system.order())
        .filter(|&i| pass(system.exponents()[i]))
        .collect();
    DiagonalSystem::new(
        system.time(),
        kept.iter().map(|&i| system.exponents()[i]).collect(),
        system.input().select_rows(&kept),
        system.output().select_columns(&kept),
        system.feedthrough().clone(),
    )
    .unwrap()
}

#[test]
fn values_of_the_fast_part_are_those_of_altair_and_slicot() {
    // Altair hsvd with offset .001: the pole at -1e-6 is set aside.
    let system = transfer(&[1.0, 0.5], &[1.0, 2.0, 2e-6]);
    let (diagonal, _) = diagonalise(&system).unwrap();
    let fast = select(&diagonal, |lambda| lambda.re < -1e-3);
    let sigma = hankel_values(fast.stable().unwrap(), Realisation::Real).unwrap();
    assert!((sigma.values()[0] - 0.187500156).abs() < 5e-10, "{sigma:?}");
    // AB09MD with alpha = -0.6 sets a pair aside.
    let (diagonal, _) = diagonalise(&slicot_7()).unwrap();
    let fast = select(&diagonal, |lambda| lambda.re < -0.6);
    let sigma = hankel_values(fast.stable().unwrap(), Realisation::Real).unwrap();
    println!("{sigma:?}");
    assert!(agrees(
        sigma.values(),
        &[1.9178, 0.8621, 0.7666, 0.0336, 0.0246],
        0.0,
        3e-5
    ));
}

#[test]
#[expect(clippy::approx_constant, reason = "a printed zero that is not π/6")]
fn the_matlab_balred_model_with_an_offset_is_found() {
    // (s+.5)(s+1.1)(s+2.9)/((s+1e-6)(s+1)(s+2)(s+3)) → .99113 (s+.5235)/((s+1e-6)(s+1.952)).
    let system = transfer(
        &product(&[&[1.0, 0.5], &[1.0, 1.1], &[1.0, 2.9]]),
        &product(&[&[1.0, 1e-6], &[1.0, 1.0], &[1.0, 2.0], &[1.0, 3.0]]),
    );
    let (diagonal, _) = diagonalise(&system).unwrap();
    let slow = select(&diagonal, |lambda| lambda.re >= -1e-3);
    let fast = select(&diagonal, |lambda| lambda.re < -1e-3);
    let balanced = balance(fast.stable().unwrap(), Realisation::Real).unwrap();
    let fast = balanced.truncate(1).unwrap().system;
    // r₁/(s − p₁) + r₂/(s − p₂) = ((r₁ + r₂) s − (r₁ p₂ + r₂ p₁))/((s − p₁)(s − p₂)).
    let (p1, p2) = (slow.exponents()[0].re, fast.exponents()[0].re);
    let (r1, r2) = (
        slow.residues().unwrap()[0].re,
        fast.residues().unwrap()[0].re,
    );
    let gain = r1 + r2;
    let zero = (r1 * p2 + r2 * p1) / gain;
    println!("{gain} {zero} {p2}");
    assert!((gain - 0.99113).abs() < 1e-5 && (zero + 0.5235).abs() < 1e-4);
    assert!((p1 + 1e-6).abs() < 1e-12 && (p2 + 1.952).abs() < 1e-3);
}

#[test]
fn the_zero_system_of_slycot_gh_242_keeps_its_feedthrough() {
    let n = 67;
    let system = DenseSystem::new(
        Time::Continuous,
        -DMatrix::identity(n, n),
        DMatrix::zeros(n, 1),
        DMatrix::zeros(1, n),
        DMatrix::from_element(1, 1, 42.24),
    )
    .unwrap();
    let balanced = dense_balance(&system).unwrap();
    assert_eq!(balanced.hankel().values(), [0.0; 67]);
    let reduced = balanced.truncate(5).unwrap();
    assert_eq!(reduced.order, 0);
    assert_eq!(reduced.system.feedthrough()[0], 42.24);
    let (diagonal, _) = diagonalise(&system).unwrap();
    let balanced = balance(diagonal.stable().unwrap(), Realisation::Real).unwrap();
    let reduced = balanced.truncate(5).unwrap();
    assert_eq!((reduced.order, reduced.system.feedthrough()[0]), (0, 42.24));
}

#[test]
fn the_unstable_system_of_ab09id_is_refused() {
    let system = continuous(
        matrix("-26.4 6.4023 4.3868; 32 0 0; 0 8 0"),
        matrix("16; 0; 0"),
        matrix("9.2994 1.1624 .1090"),
    );
    match dense_hankel_values(&system) {
        Err(ControlError::System(SystemError::Unstable { modes, order: 3 })) => {
            assert_eq!(modes.len(), 1);
            assert!((modes[0].1.re - 9.19).abs() < 1e-3);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn gramians_of_the_julia_example_are_its_hankel_values() {
    // ControlSystems.jl: A symmetric and B, C multiples of one: balanced but for the scale.
    let entry = published().remove(3);
    let gramians = dense_gramians(&entry.system).unwrap();
    let product = gramians.controllability * gramians.observability;
    let mut values: Vec<f64> = product
        .complex_eigenvalues()
        .iter()
        .map(|x| x.re.sqrt())
        .collect();
    values.sort_by(|x, y| y.total_cmp(x));
    assert!(agrees(&values, entry.sigma, 1e-11, 0.0));
}

#[test]
fn single_poles_and_a_discrete_pair_have_their_exact_values() {
    // Continuous |b c|/(2 |Re λ|), discrete |b c|/(1 − |a|²).
    let one = DMatrix::from_element(1, 1, 1.0);
    let zero = DMatrix::zeros(1, 1);
    for pole in [0.9, -0.9, 0.0, 0.999] {
        let time = Time::Discrete { step: 1.0 };
        let (a, b, c, d) = (
            one.clone() * pole,
            one.clone() * 2.0,
            one.clone(),
            zero.clone(),
        );
        let system = DenseSystem::new(time, a, b, c, d).unwrap();
        let expected = 2.0 / (1.0 - pole * pole);
        let sigma = dense_hankel_values(&system).unwrap();
        assert!((sigma.values()[0] / expected - 1.0).abs() < 1e-12);
        let (diagonal, _) = diagonalise(&system).unwrap();
        let sigma = hankel_values(diagonal.stable().unwrap(), Realisation::Complex).unwrap();
        assert!((sigma.values()[0] / expected - 1.0).abs() < 1e-12, "{pole}");
    }
    let system = DenseSystem::new(
        Time::Discrete { step: 1.0 },
        matrix(".9 0; 0 .5"),
        matrix("1; 1"),
        matrix("1 1"),
        zero,
    )
    .unwrap();
    let sigma = [5.97530844386, 0.621182784212];
    assert!(agrees(
        dense_hankel_values(&system).unwrap().values(),
        &sigma,
        6e-12,
        0.0
    ));
    let (diagonal, _) = diagonalise(&system).unwrap();
    let found = hankel_values(diagonal.stable().unwrap(), Realisation::Real).unwrap();
    assert!(agrees(found.values(), &sigma, 6e-12, 0.0));
}

/// Feedthrough and Markov parameters against a printed model.
fn assert_model(found: &DenseSystem, expected: &DenseSystem, accuracy: f64) {
    assert_eq!(found.order(), expected.order());
    let direct = (found.feedthrough() - expected.feedthrough()).amax();
    assert!(direct < 6e-5, "D: {direct:e}");
    let pairs = found.markov_parameters(4).into_iter();
    for (l, (x, y)) in pairs.zip(expected.markov_parameters(4)).enumerate() {
        let error = (x - &y).amax() / y.amax();
        assert!(error < accuracy, "parameter {l}: {error:e}");
    }
}

fn with_feedthrough(a: &str, b: &str, c: &str, d: &str) -> DenseSystem {
    let parts = [a, b, c, d].map(matrix);
    let [a, b, c, d] = parts;
    DenseSystem::new(Time::Continuous, a, b, c, d).unwrap()
}

#[test]
fn the_slicot_example_residualised_to_five_states_is_the_printed_model() {
    // examples/results/AB09BD.res, four decimals.
    let expected = with_feedthrough(
        "1.3960 5.1248 0 0 4.4331; -4.1411 -3.8605 0 0 -0.6738; 0 0 0.5847 1.9230 0; \
         0 0 -4.3823 -3.2922 0; 1.3261 1.7851 0 0 -0.2249",
        "-0.2901 0.2901; -3.4004 3.4004; -0.6379 -0.6379; -3.9315 -3.9315; 1.9813 -1.9813",
        "-0.6570 0.2053 -0.6416 0.2526 -0.0364; 0.1094 0.4875 0 0 0.8641; \
         0.6570 -0.2053 -0.6416 0.2526 0.0364",
        "0.0498 -0.0007; 0.0010 -0.0010; -0.0007 0.0498",
    );
    let dense = dense_balance(&slicot_7()).unwrap().residualise(5).unwrap();
    assert_model(&dense.system, &expected, 2e-3);
    let (diagonal, _) = diagonalise(&slicot_7()).unwrap();
    let balanced = balance_for_dc(diagonal.stable().unwrap(), Realisation::Real).unwrap();
    let reduced = balanced.residualise(5).unwrap();
    let found = DenseSystem::from_diagonal(&reduced.system).unwrap();
    assert_model(&found, &expected, 2e-3);
    for (x, y) in found
        .markov_parameters(12)
        .iter()
        .zip(dense.system.markov_parameters(12))
    {
        assert!((x - &y).norm() < 1e-10 * y.norm());
    }
    assert!((found.feedthrough() - dense.system.feedthrough()).norm() < 1e-12);
}

#[test]
fn the_slicot_example_in_hankel_norm_is_the_printed_model() {
    // examples/results/AB09CD.res, four decimals.
    let expected = with_feedthrough(
        "-0.5038 -5.3070 -3.2250 0 0; 1.8355 -0.5038 -2.6289 0 0; 0 0 -1.5171 0 0; \
         0 0 0 -1.2925 -9.0718; 0 0 0 0.5047 -1.2925",
        "-1.5343 1.5343; -0.3614 0.3614; -1.1096 1.1096; -4.5325 -4.5325; -0.7396 -0.7396",
        "1.8971 -0.3055 -2.1124 0.4421 -2.1023; -0.0394 1.1112 -0.3119 0 0; \
         -1.8971 0.3055 2.1124 0.4421 -2.1023",
        "0.0126 -0.0126; 0.0005 -0.0005; -0.0126 0.0126",
    );
    let full = dense_balance(&slicot_7()).unwrap();
    let dense = full.hankel_norm(5).unwrap();
    assert_model(&dense.system, &expected, 2e-3);
    assert_eq!((dense.order, dense.tie), (5, false));
    // 2 (σ₆ + σ₇).
    let discarded: f64 = full.hankel().values()[5..].iter().sum();
    assert!((dense.error_bound / (2.0 * discarded) - 1.0).abs() < 1e-12);
    let error = slicot_7().minus(&dense.system).unwrap();
    let norm = dense_hankel_values(&error).unwrap().values()[0];
    assert!((norm / 0.0252661410376 - 1.0).abs() < 1e-9, "{norm}");
    let (diagonal, _) = diagonalise(&slicot_7()).unwrap();
    let full = diagonal.stable().unwrap();
    let balanced = balance(full, Realisation::Real).unwrap();
    let reduced = balanced.hankel_norm(full, 5).unwrap();
    assert_model(
        &DenseSystem::from_diagonal(&reduced.system).unwrap(),
        &expected,
        2e-3,
    );
}

#[test]
fn the_slicot_example_by_stochastic_balancing_is_the_printed_model() {
    // examples/results/AB09HD.res, beta = 1, four decimals.
    let expected = with_feedthrough(
        "1.2729 0 6.5947 0 -3.4229; 0 0.8169 0 2.4821 0; -2.9889 0 -2.9028 0 -0.3692; \
         0 -3.3921 0 -3.1126 0; -1.4767 0 -2.0339 0 -0.6107",
        "0.1331 -0.1331; -0.0862 -0.0862; -2.6777 2.6777; -3.5767 -3.5767; -2.3033 2.3033",
        "-0.6907 -0.6882 0.0779 0.0958 -0.0038; 0.0676 0 0.6532 0 -0.7522; \
         0.6907 -0.6882 -0.0779 0.0958 0.0038",
        "0 0; 0 0; 0 0",
    );
    let balanced = dense_stochastic_balance(&slicot_7(), 1.0).unwrap();
    let printed = [0.8803, 0.8506, 0.8038, 0.4494, 0.3973, 0.0214, 0.0209];
    let found = balanced.hankel().values();
    assert!(agrees(found, &printed, 0.0, 5.1e-5 / 0.8803), "{found:?}");
    let reduced = balanced.truncate(5).unwrap();
    assert_eq!(reduced.error_bound, f64::INFINITY);
    assert_model(&reduced.system, &expected, 2e-3);
    // Without beta the feedthrough would have to be of full row rank.
    assert!(matches!(
        dense_stochastic_balance(&slicot_7(), 0.0),
        Err(ControlError::Linalg(_))
    ));
}

/// The largest gain of W_o (G − G_r) W_i on a fine sweep.
fn weighted_error(
    system: &DenseSystem,
    reduced: &DenseSystem,
    (input, output): (&DenseSystem, &DenseSystem),
) -> f64 {
    let error = system.minus(reduced).unwrap();
    let gain = |k: i32| {
        let s = Complex64::new(0.0, if k == 0 { 0.0 } else { 1e-3 * 1.01_f64.powi(k) });
        let product =
            output.transfer(s).unwrap() * error.transfer(s).unwrap() * input.transfer(s).unwrap();
        product.singular_values()[0]
    };
    (0..1400).map(gain).fold(0.0, f64::max)
}

#[test]
fn vargas_weighted_example_has_the_printed_model_and_error() {
    let system = transfer(&[8.0, 6.0, 2.0], &[1.0, 4.0, 5.0, 2.0]);
    let (input, output) = (transfer(&[1.0], &[1.0, 3.0]), transfer(&[1.0], &[1.0, 4.0]));
    let balanced = dense_weighted_balance(&system, Some(&input), Some(&output)).unwrap();
    let reduced = balanced.residualise(1).unwrap().system;
    // (2.398 s + 1.739)/(s + 1.739): D, then c b and the pole.
    let (pole, gain) = (reduced.state()[0], reduced.feedthrough()[0]);
    let residue = reduced.output()[0] * reduced.input()[0];
    println!("{gain} {pole} {residue}");
    assert!((pole + 1.739).abs() < 5e-4 && (gain - 2.398).abs() < 5e-4);
    assert!((residue - (1.739 - 2.398 * 1.739)).abs() < 2e-3);
    let error = weighted_error(&system, &reduced, (&input, &output));
    assert!((error - 0.0855).abs() < 5e-5, "{error}");
}

#[test]
fn the_weighted_errors_of_roc_are_found() {
    // The weight of the paper; the Julia test builds it with B = I, and two of its six errors are
    // marked broken there.
    let eye = DMatrix::<f64>::identity(2, 2);
    let weight = DenseSystem::new(
        Time::Continuous,
        &eye * -4.5,
        &eye * 3.0,
        &eye * 1.5,
        eye.clone(),
    )
    .unwrap();
    let system = roc_3();
    let balanced: DenseBalanced =
        dense_weighted_balance(&system, Some(&weight), Some(&weight)).unwrap();
    let printed = [(1, 2.12, 1.405), (2, 0.265, 0.25), (3, 0.112, 0.065)];
    for (order, cut, rest) in printed {
        let truncated = balanced.truncate(order).unwrap().system;
        let residualised = balanced.residualise(order).unwrap().system;
        for (found, expected) in [(truncated, cut), (residualised, rest)] {
            let error = weighted_error(&system, &found, (&weight, &weight));
            println!("{order}: {error} {expected}");
            assert!(
                (error / expected - 1.0).abs() < 0.01,
                "{order}: {error} {expected}"
            );
        }
    }
}

#[test]
fn without_weights_weighted_balancing_is_balancing() {
    let unit = DenseSystem::new(
        Time::Continuous,
        DMatrix::zeros(0, 0),
        DMatrix::zeros(0, 2),
        DMatrix::zeros(2, 0),
        DMatrix::identity(2, 2),
    )
    .unwrap();
    let plain = dense_hankel_values(&slicot_7()).unwrap();
    for weight in [None, Some(&unit)] {
        let found = dense_weighted_balance(&slicot_7(), weight, None).unwrap();
        assert!(agrees(found.hankel().values(), plain.values(), 1e-12, 0.0));
    }
    let wrong = dense_weighted_balance(&slicot_7(), None, Some(&unit));
    assert!(matches!(
        wrong,
        Err(ControlError::System(SystemError::Size { .. }))
    ));
}

#[test]
fn the_weighted_example_of_slicot_ab09id_is_reduced_to_its_printed_model() {
    // doc/AB09ID: the unstable mode stays, the other two are reduced to one with the weight V.
    let system = continuous(
        matrix("-26.4 6.4023 4.3868; 32 0 0; 0 8 0"),
        matrix("16; 0; 0"),
        matrix("9.2994 1.1624 .1090"),
    );
    let weight = continuous(
        matrix(
            "-1 0 4 -9.2994 -1.1624 -.1090; 0 2 0 -9.2994 -1.1624 -.1090; \
             0 0 -3 -9.2994 -1.1624 -.1090; 16 16 16 -26.4 6.4023 4.3868; \
             0 0 0 32 0 0; 0 0 0 0 8 0",
        ),
        matrix("1; 1; 1; 0; 0; 0"),
        matrix("1 1 1 0 0 0"),
    );
    let (diagonal, _) = diagonalise(&system).unwrap();
    let growing = select(&diagonal, |lambda| lambda.re >= 0.0);
    let stable = DenseSystem::from_diagonal(&select(&diagonal, |lambda| lambda.re < 0.0)).unwrap();
    let balanced = dense_weighted_balance(&stable, None, Some(&weight)).unwrap();
    let found = balanced.hankel().values();
    assert!(
        agrees(found, &[3.8253, 0.2005], 0.0, 5.1e-5 / 3.8),
        "{found:?}"
    );
    let reduced = balanced.truncate(1).unwrap().system;
    assert!((reduced.state()[0] + 34.5297).abs() < 5.1e-5);
    let residue = reduced.output()[0] * reduced.input()[0];
    assert!((residue - 16.9329 * 6.9152).abs() < 1.5e-3, "{residue}");
    assert!((growing.exponents()[0].re - 9.19).abs() < 5.1e-5);
    let residue = growing.residues().unwrap()[0].re;
    assert!((residue - 11.9593 * 2.8955).abs() < 1e-3, "{residue}");
}

#[test]
fn the_weighted_hankel_norm_example_of_slicot_ab09kd_has_its_printed_model() {
    // doc/AB09KD: V = 1 - 1.8 s/(s^2 - 0.2 s + 1) grows, and so do its zeros: the stable part of
    // V G has the residues V(pole) times those of G.
    let weight = |s: Complex64| 1.0 - 1.8 * s / (s * s - 0.2 * s + 1.0);
    let scaled = |system: &DiagonalSystem, gain: &dyn Fn(Complex64) -> Complex64| {
        let residues = system.residues().unwrap();
        let pairs = residues.iter().zip(system.exponents());
        let residues: Vec<Complex64> = pairs.map(|(r, &pole)| r * gain(pole)).collect();
        let direct = system.feedthrough()[0];
        DiagonalSystem::siso(
            Time::Continuous,
            system.exponents().to_vec(),
            &residues,
            direct,
        )
        .unwrap()
    };
    let (diagonal, _) = diagonalise(&butterworth_6()).unwrap();
    let weighted = scaled(&diagonal, &weight);
    let full = weighted.stable().unwrap();
    let balanced = balance(full, Realisation::Real).unwrap();
    let found = balanced.hankel().values();
    let printed = [2.6790, 2.1589, 0.8424, 0.1929, 0.0219, 0.0011];
    assert!(agrees(found, &printed, 0.0, 5.1e-5 / 2.679), "{found:?}");
    let reduced = balanced.hankel_norm(full, 4).unwrap().system;
    let reduced = scaled(&reduced, &|s| weight(s).inv());
    let expected = with_feedthrough(
        "-0.2391 0.3072 1.1630 1.1967; -2.9709 -0.2391 2.6270 3.1027; 0 0 -0.5137 -1.2842; \
         0 0 0.1519 -0.5137",
        "-1.0497; -3.7052; 0.8223; 0.7435",
        "-0.4466 0.0143 -0.4780 -0.2013",
        "0.0219",
    );
    assert_model(
        &DenseSystem::from_diagonal(&reduced).unwrap(),
        &expected,
        2e-2,
    );
}
