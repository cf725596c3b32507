//! The proximal operator, Algorithm 1, the dictionary, and the unfolded networks from outside.

use candle_core::{DType, Device, Tensor};
use hankelite_train::nn::baseline::{
    BaselineArchitecture, BaselineKind, BaselineNetwork, BaselineOutput, Iterations, Reweighting,
    SparseError, SparseProblem, SparseSolver, dct_dictionary, prox2, prox2_median, prox2_slopes,
    prox2_table, squared_norm,
};
use hankelite_train::nn::{Mode, NetworkInput, PoolingKind, SequenceModel};
use nalgebra::{DMatrix, DVector};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const POINTS: usize = 100_000;

/// u, a, b, ħ; every seventh point has ħ = 0, every eleventh a = b = 0, every thirteenth b = 0.
fn points(seed: u64) -> impl Iterator<Item = [f64; 4]> {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    (0..POINTS).map(move |index| {
        let mut between = |low: f64, high: f64| low + (high - low) * draw.random::<f64>();
        let mut point = [
            between(-4.0, 4.0),
            between(0.0, 1.5),
            between(0.0, 1.5),
            between(-3.0, 3.0),
        ];
        if index % 7 == 0 {
            point[3] = 0.0;
        }
        if index % 11 == 0 {
            point[1] = 0.0;
            point[2] = 0.0;
        }
        if index % 13 == 0 {
            point[2] = 0.0;
        }
        point
    })
}

fn soft(u: f64, threshold: f64) -> f64 {
    u.signum() * (u.abs() - threshold).max(0.0)
}

/// The ends of ω ∂|v|.
fn subgradients(v: f64, omega: f64) -> (f64, f64) {
    match v {
        v if v > 0.0 => (omega, omega),
        v if v < 0.0 => (-omega, -omega),
        _ => (-omega, omega),
    }
}

/// C1.
#[test]
fn the_three_forms_of_the_proximal_operator_are_one() {
    let mut smaller = 0;
    for [u, a, b, side] in points(1) {
        let table = prox2_table(u, a, b, side);
        let (median, free) = (prox2_median(u, a, b, side), prox2(u, a, b, side));
        assert!((table - median).abs() < 1e-12, "{u} {a} {b} {side}");
        assert!((table - free).abs() < 1e-12, "{u} {a} {b} {side}");
        smaller += usize::from(a < b);
    }
    assert!(smaller > POINTS / 4);
}

/// C2. The line that (8) prints last fails this.
#[test]
fn zero_is_a_subgradient_at_the_proximal_point() {
    let violation = |[u, a, b, side]: [f64; 4], v: f64| {
        let (low, high) = subgradients(v, a);
        // Values that should be ħ differ from it by rounding in no form used here.
        let (near_low, near_high) = subgradients(v - side, b);
        (low + near_low + v - u)
            .max(u - v - high - near_high)
            .max(0.0)
    };
    for point in points(2) {
        let [u, a, b, side] = point;
        assert!(violation(point, prox2(u, a, b, side)) < 1e-12, "{point:?}");
    }
    let printed = [-2.5, 0.7, 0.3, -1.0];
    assert!(violation(printed, printed[0] - printed[1] + printed[2]) > 1.0);
}

/// C3.
#[test]
fn the_proximal_operator_is_monotone_continuous_and_contracts_jointly() {
    let pairs = points(3).zip(points(4));
    for ([u, a, b, side], [other, _, _, other_side]) in pairs {
        let here = prox2(u, a, b, side);
        let there = prox2(other, a, b, other_side);
        let most = (u - other).abs().max((side - other_side).abs());
        assert!((here - there).abs() <= most + 1e-12);
        let along = prox2(other, a, b, side);
        assert!((along - here) * (other - u) >= -1e-12);
        let knots = match side >= 0.0 {
            true => [side + a + b, side + a - b, a - b, -a - b],
            false => [a + b, b - a, side - a + b, side - a - b],
        };
        for knot in knots {
            let jump = prox2(knot + 1e-13, a, b, side) - prox2(knot - 1e-13, a, b, side);
            assert!(jump.abs() < 1e-12);
        }
    }
}

/// C4.
#[test]
fn the_limits_of_the_proximal_operator_are_soft_thresholds() {
    for [u, a, b, side] in points(5) {
        assert!((prox2(u, a, 0.0, side) - soft(u, a)).abs() < 1e-15);
        assert!((prox2(u, 0.0, b, side) - (side + soft(u - side, b))).abs() < 4e-15);
        assert!((prox2(u, a, b, 0.0) - soft(u, a + b)).abs() < 1e-15);
        assert_eq!(prox2(-u, a, b, -side), -prox2(u, a, b, side));
    }
}

#[test]
fn slopes_of_the_proximal_operator_are_those_of_differences() {
    const STEP: f64 = 1e-6;
    let (mut flats, mut checked) = ([0, 0], 0);
    for point in points(6) {
        let [u, a, b, side] = point;
        let at = |index: usize, step: f64| {
            let mut moved = point;
            moved[index] += step;
            prox2(moved[0], moved[1], moved[2], moved[3])
        };
        let here = prox2(u, a, b, side);
        let bend = |index| (at(index, STEP) + at(index, -STEP) - 2.0 * here).abs();
        if a < STEP || b < STEP || side == 0.0 || (0..4).any(|index| bend(index) > 1e-9) {
            continue;
        }
        let slopes = prox2_slopes(u, a, b, side);
        for (index, slope) in [slopes.u, slopes.a, slopes.b, slopes.side]
            .into_iter()
            .enumerate()
        {
            let difference = (at(index, STEP) - at(index, -STEP)) / (2.0 * STEP);
            assert!((difference - slope).abs() < 1e-8, "{point:?} {index}");
        }
        flats[0] += usize::from(here == 0.0);
        flats[1] += usize::from(here == side);
        checked += 1;
    }
    assert!(checked > POINTS / 2 && flats[0] > 1000 && flats[1] > 1000);
}

fn random(rows: usize, columns: usize, draw: &mut ChaCha8Rng) -> DMatrix<f64> {
    DMatrix::from_fn(rows, columns, |_, _| 2.0 * draw.random::<f64>() - 1.0)
}

/// 20 measurements of 60 codes.
fn problem(draw: &mut ChaCha8Rng) -> SparseProblem {
    SparseProblem {
        sensing: random(20, 40, draw),
        dictionary: random(40, 60, draw),
        correlation: random(60, 60, draw) * 0.1,
        omega1: 2.0,
        omega2: 1.0,
    }
}

/// Measurements of a sparse code, 20 of 60, and the code before.
fn sparse_truth(seed: u64) -> (SparseProblem, DMatrix<f64>, DVector<f64>) {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    let problem = SparseProblem {
        sensing: random(20, 60, &mut draw),
        dictionary: DMatrix::identity(60, 60),
        correlation: random(60, 60, &mut draw) * 0.1,
        omega1: 1.0,
        omega2: 0.5,
    };
    let mut sparse = |size: f64, share: f64| {
        let entry = |_, _| match draw.random::<f64>() < share {
            true => size * (2.0 * draw.random::<f64>() - 1.0),
            false => 0.0,
        };
        DVector::from_fn(60, entry)
    };
    let (last, truth) = (sparse(1.0, 0.15), sparse(3.0, 0.1));
    let measured = &problem.sensing * truth;
    let measured = DMatrix::from_column_slice(20, 1, measured.as_slice());
    (problem, measured, last)
}

/// C5. How many iterations the last digits take hangs on the columns of J that the minimum uses:
/// 2,000 for most of these problems, 20,000 for all.
#[test]
fn the_plain_algorithm_descends_to_a_minimum() {
    let (mut quick, mut zeros, mut held) = (0, 0, 0);
    for seed in 0..8 {
        let (problem, measured, last) = sparse_truth(seed);
        let x = measured.column(0).into_owned();
        let step = squared_norm(&problem.sensing);
        let mut before = f64::INFINITY;
        for iterations in [1, 2, 3, 10, 100, 101, 102, 2_000, 20_000] {
            let plain = Iterations::Plain(iterations);
            let solver = SparseSolver::new(problem.clone(), step, plain).unwrap();
            let found = solver.reconstruct(&measured, &last).unwrap();
            let code = found.codes.column(0).into_owned();
            let value = solver.objective(&x, &code, &last).unwrap();
            assert!(
                value <= before * (1.0 + 1e-14),
                "{iterations}: {value} {before}"
            );
            before = value;
            let residual = solver.optimality_residual(&x, &code, &last).unwrap();
            if iterations == 1 {
                assert!(residual > 0.1, "no problem at all: {residual}");
            }
            if iterations == 2_000 {
                quick += usize::from(residual <= 1e-8);
            }
            if iterations == 20_000 {
                assert!(residual <= 1e-8, "problem {seed}: {residual}");
                let side = &problem.correlation * &last;
                zeros += code.iter().filter(|&&entry| entry == 0.0).count();
                let pairs = code.iter().zip(&side);
                held += pairs.filter(|(v, side)| **v != 0.0 && v == side).count();
            }
        }
    }
    assert!(quick >= 4, "{quick} of 8 in 2,000 iterations");
    // Every piece of the proximal operator is in use.
    assert!(
        zeros > 160 && held > 16 && zeros + held < 440,
        "{zeros} {held}"
    );
}

/// Each step starts from the code of the step before, and Z = I, g = 1 change nothing.
#[test]
fn a_sequence_is_its_steps_one_after_another() {
    let mut draw = ChaCha8Rng::seed_from_u64(12);
    let problem = problem(&mut draw);
    let layer = Reweighting {
        matrix: DMatrix::identity(60, 60),
        weights: DVector::from_element(60, 1.0),
    };
    let plain = SparseSolver::new(problem.clone(), 900.0, Iterations::Plain(4)).unwrap();
    let neutral = Iterations::Reweighted(vec![layer; 4]);
    let neutral = SparseSolver::new(problem, 900.0, neutral).unwrap();
    let measured = random(20, 3, &mut draw) * 20.0;
    let mut last = random(60, 1, &mut draw).column(0).into_owned();
    let whole = plain.reconstruct(&measured, &last).unwrap();
    assert_eq!(neutral.reconstruct(&measured, &last).unwrap(), whole);
    for step in 0..3 {
        let own = measured.columns(step, 1).into_owned();
        let found = plain.reconstruct(&own, &last).unwrap();
        assert_eq!(found.codes.column(0), whole.codes.column(step));
        last = found.codes.column(0).into_owned();
    }
}

/// What a changed problem is refused with.
fn refused(change: &dyn Fn(&mut SparseProblem), step: f64, iterations: Iterations) -> SparseError {
    let mut problem = problem(&mut ChaCha8Rng::seed_from_u64(13));
    change(&mut problem);
    SparseSolver::new(problem, step, iterations).unwrap_err()
}

fn is_shape_of(error: &SparseError, part: &str) -> bool {
    matches!(error, SparseError::Shape { what, .. } if *what == part)
}

#[test]
fn what_does_not_fit_the_algorithm_is_named() {
    let plain = || Iterations::Plain(1);
    let wide = refused(&|p| p.sensing = DMatrix::zeros(20, 39), 1.0, plain());
    let message = "the sensing matrix is 20 x 39, expected 20 x 40 (a column for each row of the \
                   dictionary)";
    assert_eq!(wide.to_string(), message);
    let square = refused(&|p| p.correlation = DMatrix::zeros(60, 59), 1.0, plain());
    assert!(is_shape_of(&square, "the correlation"));
    let infinite = refused(&|p| p.dictionary[(3, 4)] = f64::INFINITY, 1.0, plain());
    let dictionary = "the dictionary";
    assert!(matches!(infinite, SparseError::NotFinite { what, .. } if what == dictionary));
    let negative = refused(&|p| p.omega2 = -0.5, 1.0, plain());
    let message = "omega2 is -0.5, expected a finite number of 0 or more";
    assert_eq!(negative.to_string(), message);
    let constant = refused(&|_| (), 0.0, plain());
    let message = "the step constant is 0, expected a finite number above 0";
    assert_eq!(constant.to_string(), message);
    let none = refused(&|_| (), 1.0, Iterations::Plain(0));
    assert_eq!(none, SparseError::NoLayers);
}

#[test]
fn reweightings_and_inputs_that_do_not_fit_are_named() {
    let weights = |matrix: DMatrix<f64>, weight: f64| {
        let weights = DVector::from_element(60, weight);
        let layer = Reweighting { matrix, weights };
        refused(&|_| (), 1.0, Iterations::Reweighted(vec![layer]))
    };
    let weight = weights(DMatrix::identity(60, 60), 0.0);
    assert!(matches!(weight, SparseError::Constant { what, .. } if what == "a weight"));
    let matrix = weights(DMatrix::identity(60, 61), 1.0);
    assert!(is_shape_of(&matrix, "a reweighting matrix"));
    let good = problem(&mut ChaCha8Rng::seed_from_u64(13));
    let solver = SparseSolver::new(good, 1.0, Iterations::Plain(1)).unwrap();
    let refused = |rows: usize, codes: usize| {
        let measurements = DMatrix::zeros(rows, 2);
        let found = solver.reconstruct(&measurements, &DVector::zeros(codes));
        found.unwrap_err()
    };
    assert!(is_shape_of(&refused(20, 59), "the initial code"));
    assert!(is_shape_of(&refused(19, 60), "the measurements"));
}

#[test]
fn the_dictionary_is_an_orthonormal_dct_at_its_square_size() {
    let square = dct_dictionary(256, 256);
    let gram = square.tr_mul(&square);
    assert!((gram - DMatrix::identity(256, 256)).amax() < 1e-13);
    for codes in [128, 512, 1024, 2048, 4096] {
        let dictionary = dct_dictionary(256, codes);
        assert_eq!(dictionary.shape(), (256, codes));
        let norms = dictionary.column_iter().map(|column| column.norm());
        assert!(norms.into_iter().all(|norm| (norm - 1.0).abs() < 1e-13));
        // All but the products with a constant column have no mean.
        let free = dictionary
            .column_iter()
            .filter(|column| column.sum().abs() < 1e-12);
        assert_eq!(free.count(), codes - 1);
    }
    let one = dct_dictionary(7, 12);
    let (mean, expected) = {
        let column = |i: f64| (std::f64::consts::PI * (i + 0.5) * 5.0 / 12.0).cos();
        let all: Vec<f64> = (0..7).map(|i| column(f64::from(i))).collect();
        (all.iter().sum::<f64>() / 7.0, all)
    };
    let expected = DVector::from_vec(expected).add_scalar(-mean).normalize();
    assert!((one.column(5) - expected).amax() < 1e-14);
}

#[test]
fn power_iteration_finds_the_squared_norm() {
    let mut draw = ChaCha8Rng::seed_from_u64(14);
    for (rows, columns) in [(20, 60), (60, 20), (1, 5)] {
        let matrix = random(rows, columns, &mut draw);
        let exact = matrix.singular_values()[0].powi(2);
        assert!((squared_norm(&matrix) / exact - 1.0).abs() < 1e-9);
    }
    assert_eq!(squared_norm(&DMatrix::zeros(3, 4)), 0.0);
}

fn architecture(layer: BaselineKind) -> BaselineArchitecture {
    BaselineArchitecture {
        layer,
        hidden: 32,
        layers: 3,
        inputs: Some(16),
        vocabulary: None,
        outputs: 16,
        pooling: PoolingKind::None,
        measurements: Some(6),
        output: BaselineOutput::Dictionary,
        omega1: Some(0.05),
        omega2: Some(0.02),
    }
}

/// At the start every net is its solver with the iterations of its layers.
#[test]
fn an_untrained_network_is_algorithm_1() {
    for layer in [BaselineKind::Reweighted, BaselineKind::L1L1] {
        let architecture = architecture(layer);
        let network = BaselineNetwork::random(&architecture, 4, DType::F64, &Device::Cpu).unwrap();
        let mut draw = ChaCha8Rng::seed_from_u64(15);
        let signals = random(16, 5, &mut draw);
        let steps = Tensor::from_slice(signals.as_slice(), (1, 5, 16), &Device::Cpu).unwrap();
        let input = NetworkInput {
            steps,
            lengths: None,
        };
        let out = network.forward(&input, Mode::Evaluate).unwrap();
        let out: Vec<f64> = out.flatten_all().unwrap().to_vec1().unwrap();
        let parameters = network.parameters().iter();
        let sensing = parameters
            .into_iter()
            .find(|one| one.name == "sensing")
            .unwrap();
        let sensing: Vec<f64> = sensing.var.flatten_all().unwrap().to_vec1().unwrap();
        let problem = SparseProblem {
            sensing: DMatrix::from_row_slice(6, 16, &sensing),
            dictionary: dct_dictionary(16, 32),
            correlation: DMatrix::identity(32, 32),
            omega1: 0.05,
            omega2: 0.02,
        };
        let measured = &problem.sensing * &signals;
        let step = squared_norm(&(&problem.sensing * &problem.dictionary));
        let solver = SparseSolver::new(problem, step, Iterations::Plain(3)).unwrap();
        let expected = solver
            .reconstruct(&measured, &DVector::zeros(32))
            .unwrap()
            .signals;
        let found = DMatrix::from_column_slice(16, 5, &out);
        assert!((found - &expected).amax() < 1e-10, "{layer:?}");
        assert!(expected.amax() > 1e-3);
    }
}

#[test]
fn unfolded_networks_count_write_and_form() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = [
        BaselineKind::Reweighted,
        BaselineKind::L1L1,
        BaselineKind::Sista,
    ];
    for (layer, expected) in kinds.into_iter().zip([4_835, 1_667, 899]) {
        let network =
            BaselineNetwork::random(&architecture(layer), 4, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(network.numbers(), expected, "{layer:?}");
        let path = folder.path().join(layer.name());
        network.write(&path).unwrap();
        let again = BaselineNetwork::read(&path, DType::F32, &Device::Cpu).unwrap();
        let formed = network.formed().unwrap().unwrap();
        assert_eq!(again.formed().unwrap().unwrap(), formed);
        assert_eq!(formed.layers.len(), 3);
        assert_eq!(formed.layers[0].input.shape(), (32, 6));
        assert_eq!(formed.from_last.is_some(), layer == BaselineKind::Sista);
    }
}
