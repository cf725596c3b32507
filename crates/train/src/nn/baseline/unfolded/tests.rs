use nalgebra::DVector;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::nn::baseline::{
    Iterations, Reweighting, SparseProblem, SparseSolver, dct_dictionary, prox2, unroll_plain,
};

const SOLVERS: [Solver; 3] = [Solver::Reweighted, Solver::L1L1, Solver::Sista];
const DEVICE: Device = Device::Cpu;

/// A whole net with random parameters: S, body, Q_D, and a batch.
struct Case {
    sensing: Var,
    dictionary: Var,
    body: Unfolded,
    signals: Tensor,
}

fn random(shape: &[usize], scale: f64, draw: &mut ChaCha8Rng) -> Tensor {
    let count = shape.iter().product();
    let numbers = (0..count).map(|_| scale * (draw.random::<f64>() - 0.5));
    Tensor::from_vec(numbers.collect::<Vec<_>>(), shape, &DEVICE).unwrap()
}

/// [signal, inputs, codes, layers], [batch, length].
fn case(solver: Solver, sizes: [usize; 4], [batch, length]: [usize; 2], seed: u64) -> Case {
    let [signal, inputs, codes, layers] = sizes;
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    let sensing = Var::from_tensor(&random(&[inputs, signal], 2.0, &mut draw)).unwrap();
    let dictionary = Var::from_tensor(&random(&[signal, codes], 2.0, &mut draw)).unwrap();
    let start = Start {
        layers,
        omega1: 0.2,
        omega2: 0.3,
    };
    let body = {
        let frame = Frame {
            sensing: Some(&sensing),
            dictionary: Some(&dictionary),
        };
        Unfolded::new(solver, start, &frame).unwrap()
    };
    for parameter in body.parameters() {
        let noise = random(parameter.var.dims(), 0.4, &mut draw);
        let moved = (parameter.var.as_tensor() + noise).unwrap();
        parameter.var.set(&moved).unwrap();
    }
    let signals = random(&[batch, length, signal], 4.0, &mut draw);
    Case {
        sensing,
        dictionary,
        body,
        signals,
    }
}

impl Case {
    fn frame(&self) -> Frame<'_> {
        Frame {
            sensing: Some(&self.sensing),
            dictionary: Some(&self.dictionary),
        }
    }

    fn measured(&self) -> Tensor {
        let (batch, length, signal) = self.signals.dims3().unwrap();
        let rows = self.signals.reshape((batch * length, signal)).unwrap();
        let rows = rows.matmul(&self.sensing.t().unwrap()).unwrap();
        rows.reshape((batch, length, ())).unwrap()
    }

    fn codes(&self) -> Tensor {
        let measured = self.measured();
        self.body
            .codes(&measured, &self.frame(), Mode::Evaluate)
            .unwrap()
    }

    /// All forms that the solver may take.
    fn forms(&self) -> Vec<Form> {
        let signal = self.dictionary.dim(0).unwrap();
        match self.body.solver {
            Solver::Reweighted => vec![Form::Reweighted],
            Solver::L1L1 => vec![Form::Plain],
            Solver::Sista => vec![Form::Factored { signal }, Form::Formed],
        }
    }

    fn codes_by(&self, form: Form) -> Tensor {
        self.body
            .run(&self.measured(), &self.frame(), form)
            .unwrap()
    }

    fn plain_codes(&self) -> Tensor {
        let (measured, form) = (self.measured(), self.forms()[0]);
        let tensors = self.body.tensors(&measured, &self.frame(), form).unwrap();
        unroll_plain::codes(&tensors, self.body.sizes(&tensors, form).unwrap()).unwrap()
    }

    /// The squared error of the reconstruction.
    fn loss(&self, codes: &Tensor) -> Tensor {
        let (batch, length, signal) = self.signals.dims3().unwrap();
        let rows = codes.reshape((batch * length, ())).unwrap();
        let rows = rows.matmul(&self.dictionary.t().unwrap()).unwrap();
        let found = rows.reshape((batch, length, signal)).unwrap();
        let error = (found - &self.signals).unwrap();
        error.sqr().unwrap().sum_all().unwrap()
    }

    fn parameters(&self) -> Vec<(String, Var)> {
        let own = self.body.parameters().iter();
        let mut all: Vec<_> = own.map(|p| (p.name.clone(), p.var.clone())).collect();
        all.push(("sensing".into(), self.sensing.clone()));
        all.push(("dictionary".into(), self.dictionary.clone()));
        all
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.fold(0.0, |most, (a, b)| f64::max(most, (a - b).abs()))
}

#[test]
fn one_operation_is_the_composition_of_candles() {
    for solver in SOLVERS {
        for (sizes, shape) in [([9, 4, 12, 3], [5, 6]), ([4, 4, 3, 1], [1, 1])] {
            let case = case(solver, sizes, shape, 1);
            let plain = case.plain_codes();
            let expected = numbers(&plain);
            let zeros = expected.iter().filter(|x| **x == 0.0).count();
            assert!(zeros > 0 || sizes[2] == 3, "no code is zero, {solver:?}");
            let plain = case.loss(&plain).backward().unwrap();
            for form in case.forms() {
                let fast = case.codes_by(form);
                let scale = expected.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
                let off = largest_difference(&numbers(&fast), &expected);
                assert!(off < 1e-12 * scale, "{form:?} {off}");
                let fast = case.loss(&fast).backward().unwrap();
                for (name, var) in case.parameters() {
                    let fast = numbers(fast.get(&var).expect("a gradient"));
                    let plain = numbers(plain.get(&var).expect("a gradient"));
                    let scale = plain.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
                    let off = largest_difference(&fast, &plain);
                    assert!(off < 1e-11 * scale, "{form:?} {name} {off}");
                }
            }
        }
    }
}

/// Sista forms its matrices where that takes fewer multiplications.
#[test]
fn matrices_are_formed_for_few_codes_and_many_steps() {
    let form = |codes: usize, batch: usize| {
        let case = case(Solver::Sista, [16, 4, codes, 3], [batch, 20], 2);
        case.body.form(&case.frame(), &case.measured()).unwrap()
    };
    assert_eq!(form(16, 8), Form::Formed);
    assert_eq!(form(64, 8), Form::Factored { signal: 16 });
    assert_eq!(form(32, 8), Form::Formed);
    assert_eq!(form(32, 1), Form::Factored { signal: 16 });
}

/// C10: central differences along every entry of every parameter, S and Q_D among them. An entry
/// whose two one-sided slopes differ is at a knot; there may be only a few.
#[test]
fn every_gradient_of_the_whole_net_is_that_of_differences() {
    const STEP: f64 = 1e-6;
    let cases = SOLVERS.map(|solver| case(solver, [6, 4, 8, 3], [2, 4], 3));
    let forms = cases.iter();
    for (case, form) in
        forms.flat_map(|case| case.forms().into_iter().map(move |form| (case, form)))
    {
        let loss = || case.loss(&case.codes_by(form));
        let at = || loss().to_scalar::<f64>().unwrap();
        let here = at();
        let gradients = loss().backward().unwrap();
        let (mut knots, mut all) = (0, 0);
        for (name, var) in case.parameters() {
            let found = numbers(gradients.get(&var).expect("a gradient"));
            let start = var.as_tensor().copy().unwrap();
            let size = found.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            assert!(size > 0.0, "{form:?} {name} has no gradient");
            for (index, &slope) in found.iter().enumerate() {
                let moved = |step: f64| {
                    let mut entries = numbers(&start);
                    entries[index] += step;
                    let moved = Tensor::from_vec(entries, start.shape(), &DEVICE).unwrap();
                    var.set(&moved).unwrap();
                    at()
                };
                let (up, down) = (moved(STEP), moved(-STEP));
                let difference = (up - down) / (2.0 * STEP);
                let bend = (up + down - 2.0 * here).abs() / STEP;
                all += 1;
                if bend > 1e-3 * size.max(1.0) {
                    knots += 1;
                    continue;
                }
                let off = (difference - slope).abs();
                let scale = slope.abs().max(1e-2 * size);
                assert!(
                    off < 1e-5 * scale,
                    "{form:?} {name}[{index}] {difference} {slope}"
                );
            }
            var.set(&start).unwrap();
        }
        assert!(knots * 50 < all, "{form:?}: {knots} knots of {all}");
    }
}

/// C6: what the network gives, Algorithm 1 gives with the same parameters, and so do the formed
/// matrices of equations (9) to (12).
#[test]
fn network_algorithm_and_formed_matrices_agree() {
    for solver in [Solver::Reweighted, Solver::L1L1] {
        let case = case(solver, [10, 5, 16, 3], [3, 5], 7);
        let codes = case.codes();
        let value = |index: usize| case.body.constants[index].to_vec1::<f64>().unwrap()[0].exp();
        let problem = SparseProblem {
            sensing: matrix(&case.sensing).unwrap(),
            dictionary: matrix(&case.dictionary).unwrap(),
            correlation: matrix(&case.body.correlation).unwrap(),
            omega1: value(1),
            omega2: value(2),
        };
        let iterations = match &case.body.reweighting {
            None => Iterations::Plain(3),
            Some((matrices, logs)) => {
                let one = |layer: usize| Reweighting {
                    matrix: matrix(&matrices.get(layer).unwrap()).unwrap(),
                    weights: DVector::from_vec(numbers(&logs.get(layer).unwrap())).map(f64::exp),
                };
                Iterations::Reweighted((0..3).map(one).collect())
            }
        };
        let algorithm = SparseSolver::new(problem, value(0), iterations).unwrap();
        let initial = DVector::from_vec(numbers(&case.body.initial));
        for item in 0..3 {
            let measured = matrix(&case.measured().get(item).unwrap())
                .unwrap()
                .transpose();
            let expected = algorithm.reconstruct(&measured, &initial).unwrap().codes;
            let found = matrix(&codes.get(item).unwrap()).unwrap().transpose();
            assert!((found - expected).amax() < 1e-10, "{solver:?}");
        }
    }
    for solver in SOLVERS {
        let case = case(solver, [10, 5, 16, 3], [2, 5], 8);
        let formed = case.body.formed(&case.frame()).unwrap().expect("a solver");
        for form in case.forms() {
            let codes = case.codes_by(form);
            for item in 0..2 {
                let measured = matrix(&case.measured().get(item).unwrap())
                    .unwrap()
                    .transpose();
                let found = matrix(&codes.get(item).unwrap()).unwrap().transpose();
                let expected = run(&formed, &measured);
                assert!((found - expected).amax() < 1e-10, "{form:?}");
            }
        }
    }
}

/// Equations (9) to (12), and (36) for Sista, with the formed matrices.
fn run(formed: &Formed, measured: &DMatrix<f64>) -> DMatrix<f64> {
    let mut last = DVector::from_vec(formed.initial.clone());
    let mut all = DMatrix::zeros(last.len(), measured.ncols());
    for (step, x) in measured.column_iter().enumerate() {
        let mut h = last.clone();
        let side = match &formed.from_last {
            None => &formed.transition * &last,
            Some(_) => DVector::zeros(last.len()),
        };
        for (index, layer) in formed.layers.iter().enumerate() {
            let mut u = &layer.recurrent * &h + &layer.input * x;
            if let (Some(matrix), true) = (&formed.from_last, index > 0) {
                u += matrix * &last;
            }
            h = DVector::from_fn(h.len(), |i, _| {
                let (a, b) = (formed.thresholds1[index][i], formed.thresholds2[index][i]);
                prox2(u[i], a, b, side[i])
            });
        }
        all.set_column(step, &h);
        last = h;
    }
    all
}

/// C7: with S and Q_D, the counts of the specification at the default sizes.
#[test]
fn the_default_nets_have_the_published_numbers_of_parameters() {
    let sensing = Tensor::ones((51, 256), DType::F32, &DEVICE).unwrap();
    let dictionary = dct_dictionary(256, 1024);
    let dictionary = Tensor::from_slice(dictionary.transpose().as_slice(), (256, 1024), &DEVICE);
    let dictionary = dictionary.unwrap().to_dtype(DType::F32).unwrap();
    let frame = Frame {
        sensing: Some(&sensing),
        dictionary: Some(&dictionary),
    };
    let start = Start {
        layers: 3,
        omega1: 0.1,
        omega2: 0.1,
    };
    for (solver, expected) in SOLVERS.into_iter().zip([4_473_603, 1_324_803, 341_763]) {
        let body = Unfolded::new(solver, start, &frame).unwrap();
        let own = body.parameters().iter();
        let own: usize = own.map(|parameter| parameter.var.elem_count()).sum();
        let around = sensing.elem_count() + dictionary.elem_count();
        assert_eq!(own + around, expected, "{solver:?}");
    }
}

#[test]
fn unsuitable_starts_and_inputs_are_named() {
    let case = case(Solver::L1L1, [6, 4, 8, 2], [1, 2], 5);
    let start = |omega1, layers| Start {
        layers,
        omega1,
        omega2: 0.1,
    };
    let message = |start: Start| {
        let made = Unfolded::new(Solver::L1L1, start, &case.frame());
        made.err().expect("a fault").to_string()
    };
    assert!(message(start(0.0, 1)).contains("omega1 is 0, expected a finite number above 0"));
    assert!(message(start(0.1, 0)).contains("0 layers, expected at least 1"));
    let bare = Frame {
        sensing: None,
        dictionary: None,
    };
    let wide = Tensor::zeros((1, 2, 5), DType::F64, &DEVICE).unwrap();
    let fault = |frame: &Frame<'_>| {
        let found = case.body.codes(&wide, frame, Mode::Evaluate);
        found.expect_err("a fault").to_string()
    };
    assert!(fault(&bare).contains("needs a dictionary"));
    assert!(fault(&case.frame()).contains("steps of 5 numbers, expected 4"));
}

/// Sizes at which products are cut into pieces.
#[test]
fn the_bits_are_those_of_one_thread_for_any_number() {
    let case = case(Solver::Reweighted, [32, 24, 512, 2], [40, 2], 6);
    let all = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.build().unwrap();
        pool.install(|| {
            let codes = case.codes();
            let gradients = case.loss(&codes).backward().unwrap();
            let each = case.parameters().into_iter();
            let mut all: Vec<Vec<f64>> = each
                .map(|(_, var)| numbers(gradients.get(&var).unwrap()))
                .collect();
            all.push(numbers(&codes));
            all
        })
    };
    assert!(all(1) == all(3));
}
