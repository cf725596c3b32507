//! S5 layers of every class, with kernels by the formulas of the classes written out here.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use hankelite::checkpoint::{Checkpoint, from_tensors};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Dtype, RawTensor};
use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CHANNELS: usize = 3;

/// The numbers of one layer, as a file holds them.
struct Layer {
    lambdas: Vec<Complex64>,
    steps: Vec<f64>,
    /// Modes × channels.
    input: DMatrix<Complex64>,
    /// Channels × modes.
    output: DMatrix<Complex64>,
}

impl Layer {
    fn random(modes: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(modes as u64);
        let mut number = || f64::from(rng.random_range(-1.0_f32..1.0));
        let mut complex = || Complex64::new(number(), number());
        let lambdas = (0..modes).map(|n| {
            let z = complex();
            let (re, im) = (-0.5 + 0.3 * z.re, PI * n as f64 + 0.1 * z.im);
            Complex64::new(f64::from(re as f32), f64::from(im as f32))
        });
        let lambdas = lambdas.collect();
        let (input, output) = (
            DMatrix::from_fn(modes, CHANNELS, |_, _| complex()),
            DMatrix::from_fn(CHANNELS, modes, |_, _| complex()),
        );
        let logs = (0..modes).map(|_| f64::from((-3.0 + 0.5 * complex().re) as f32));
        Self {
            lambdas,
            steps: logs.map(f64::exp).collect(),
            input,
            output,
        }
    }

    fn modes(&self) -> usize {
        self.lambdas.len()
    }

    /// Tensors of one kernel, in the names of the class in torch.
    fn tensors(&self, place: &str, complex: bool) -> BTreeMap<String, RawTensor> {
        let modes = self.modes();
        let rows = |matrix: &DMatrix<Complex64>| matrix.transpose().as_slice().to_vec();
        let made = |shape: Vec<usize>, values: &[Complex64], complex: bool| match complex {
            true => RawTensor::from_c64(shape, values).unwrap(),
            false => pairs(shape, values),
        };
        let logs: Vec<f64> = self.steps.iter().map(|step| step.ln()).collect();
        let parts = [
            ("Lambda", made(vec![modes], &self.lambdas, complex)),
            ("B", pairs(vec![modes, CHANNELS], &rows(&self.input))),
            (
                "C",
                made(vec![CHANNELS, modes], &rows(&self.output), complex),
            ),
            ("D", real(vec![CHANNELS], &[0.25; CHANNELS])),
            ("log_step", real(vec![modes], &logs)),
        ];
        let parts = parts.map(|(name, tensor)| (format!("{place}{name}"), tensor));
        parts.into_iter().collect()
    }

    /// The same in the names of flax.
    fn flax(&self, place: &str) -> BTreeMap<String, RawTensor> {
        let mut tensors = self.tensors(place, false);
        let part = |of: fn(&Complex64) -> f64| {
            let values: Vec<f64> = self.lambdas.iter().map(of).collect();
            real(vec![self.modes()], &values)
        };
        tensors.remove(&format!("{place}Lambda"));
        tensors.insert(format!("{place}Lambda_re"), part(|z| z.re));
        tensors.insert(format!("{place}Lambda_im"), part(|z| z.im));
        tensors
    }

    /// The first samples of the kernel, factor · Re(C aˡ B̄), from each mode's pole and the factor of
    /// its row of B.
    fn kernel(
        &self,
        factor: f64,
        discretised: impl Fn(Complex64, f64) -> (Complex64, Complex64),
    ) -> Vec<DMatrix<f64>> {
        let both = self.lambdas.iter().zip(&self.steps);
        let both: Vec<_> = both.map(|(&z, &step)| discretised(z, step)).collect();
        (0..40)
            .map(|l| {
                let mut input = self.input.clone();
                for (mut row, (pole, gain)) in input.row_iter_mut().zip(&both) {
                    row *= pole.powi(l) * gain;
                }
                (&self.output * input).map(|z| factor * z.re)
            })
            .collect()
    }
}

fn real(shape: Vec<usize>, values: &[f64]) -> RawTensor {
    RawTensor::from_f64(Dtype::F32, shape, values).unwrap()
}

fn pairs(mut shape: Vec<usize>, values: &[Complex64]) -> RawTensor {
    shape.push(2);
    let values: Vec<f64> = values.iter().flat_map(|z| [z.re, z.im]).collect();
    real(shape, &values)
}

fn bilinear(lambda: Complex64, step: f64) -> (Complex64, Complex64) {
    let below = 1.0 - 0.5 * step * lambda;
    ((1.0 + 0.5 * step * lambda) / below, step / below)
}

fn zoh(lambda: Complex64, step: f64) -> (Complex64, Complex64) {
    let pole = (lambda * step).exp();
    (pole, (pole - 1.0) / lambda)
}

fn samples(system: &DiagonalSystem) -> Vec<DMatrix<f64>> {
    let poles = system.poles();
    (0..40)
        .map(|l| {
            let mut input = system.input().clone();
            for (mut row, pole) in input.row_iter_mut().zip(&poles) {
                row *= pole.powi(l);
            }
            (system.output() * input).map(|z| z.re)
        })
        .collect()
}

/// The largest difference of two kernels, relative to the largest sample.
fn difference(found: &[DMatrix<f64>], expected: &[DMatrix<f64>]) -> f64 {
    let scale = expected.iter().map(DMatrix::amax).fold(0.0, f64::max);
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| (a - b).amax()).fold(0.0, f64::max) / scale
}

fn open(tensors: BTreeMap<String, RawTensor>, declared: &Declared) -> Checkpoint {
    from_tensors("the layer", tensors, declared).unwrap()
}

fn of(checkpoint: &Checkpoint) -> &DiagonalSystem {
    &checkpoint.model.blocks()[0].systems()[0]
}

#[test]
fn poles_as_pairs_of_real_numbers_are_those_of_the_bilinear_class() {
    let layer = Layer::random(6);
    let checkpoint = open(layer.tensors("s5.seq.", false), &Declared::default());
    assert!(difference(&samples(of(&checkpoint)), &layer.kernel(1.0, bilinear)) < 1e-6);
    let said = checkpoint.assumptions().join("\n");
    assert!(said.contains("discretisation `bilinear`"), "{said}");
    assert!(said.contains("--discretisation"), "{said}");

    let checkpoint = open(layer.tensors("s5.seq.", true), &Declared::default());
    assert!(difference(&samples(of(&checkpoint)), &layer.kernel(1.0, zoh)) < 1e-6);
    let said = checkpoint.assumptions().join("\n");
    assert!(said.contains("discretisation `zoh`"), "{said}");
}

#[test]
fn what_is_declared_of_poles_as_pairs_is_believed() {
    let layer = Layer::random(6);
    let declared: Declared = serde_json::from_str(r#"{"discretisation": "zoh"}"#).unwrap();
    let checkpoint = open(layer.tensors("s5.seq.", false), &declared);
    assert!(difference(&samples(of(&checkpoint)), &layer.kernel(1.0, zoh)) < 1e-6);
    let said = checkpoint.assumptions().join("\n");
    assert!(!said.contains("discretisation"), "{said}");
}

#[test]
fn layers_of_event_ssm_are_read_with_unit_steps_only_where_that_is_declared() {
    let layer = Layer::random(6);
    let place = "params/encoder/stages_0/SequenceLayer_1/S5SSM_0/";
    let refused = from_tensors("the layer", layer.flax(place), &Declared::default());
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("Event-SSM"), "{refused}");
    let declared: Declared = serde_json::from_str(r#"{"discretisation": "zoh"}"#).unwrap();
    let checkpoint = open(layer.flax(place), &declared);
    assert!(difference(&samples(of(&checkpoint)), &layer.kernel(2.0, zoh)) < 1e-6);
    let other = open(
        layer.flax("params/encoder/layers_0/seq/"),
        &Declared::default(),
    );
    assert!(difference(&samples(of(&other)), &layer.kernel(2.0, zoh)) < 1e-6);
}

#[test]
fn a_mode_at_the_clip_is_written_at_every_order_with_a_smaller_step() {
    let mut layer = Layer::random(6);
    layer.lambdas[0].re = 0.1;
    let declared: Declared = serde_json::from_str(r#"{"clip_eigs": true}"#).unwrap();
    let full = open(layer.tensors("s5.seq.", true), &declared);
    let folder = tempfile::tempdir().unwrap();
    for order in 1..6 {
        let plan = Plan::new(Rule::Order(order)).unwrap();
        let small = reduce(&full.model, &plan).unwrap().model;
        let path = folder.path().join("small.safetensors");
        drop(write(&full.with_model(small.clone()), &path).unwrap());
        let back = read(&path, &declared).unwrap();
        let found = difference(
            &samples(of(&back)),
            &samples(&small.blocks()[0].systems()[0]),
        );
        assert!(found < 1e-5, "{order}: {found:e}");
    }
}

#[test]
fn a_growing_mode_of_shared_modes_is_refused_by_its_own_sentence() {
    let mut layer = Layer::random(6);
    layer.lambdas[2].re = 0.1;
    let full = open(layer.tensors("s5.seq.", true), &Declared::default());
    for unstable in [false, true] {
        let plan = Plan::new(Rule::Order(3)).unwrap();
        let plan = plan.with_unstable(unstable).unwrap();
        let error = reduce(&full.model, &plan).unwrap_err().to_string();
        assert!(error.contains("`s5.seq`: mode 2, lambda = "), "{error}");
        assert!(error.contains("does not decay"), "{error}");
    }
}
