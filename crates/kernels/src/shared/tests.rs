//! Against the sums themselves, and against differences.

use super::*;

/// Smooth numbers.
fn wave(count: usize, seed: f64) -> Vec<f64> {
    let number = |i: usize| (1.7 * i as f64 + 0.3 * (i * i) as f64 + seed).sin();
    (0..count).map(number).collect()
}

#[derive(Clone)]
struct Layer {
    channels: usize,
    length: usize,
    exponents: Vec<Complex64>,
    input: Vec<f64>,
    output: Vec<f64>,
    feedthrough: Vec<f64>,
}

impl Layer {
    fn new(channels: usize, modes: usize, directions: usize, dense: bool) -> Self {
        let exponent = |n: usize| {
            let n = n as f64;
            Complex64::new(-0.02 - 0.07 * n, 0.4 * n)
        };
        let rows = if dense { channels } else { 1 };
        Self {
            channels,
            length: 0,
            exponents: (0..modes).map(exponent).collect(),
            input: wave(2 * modes * channels, 0.1),
            output: wave(directions * 2 * modes * channels, 0.7),
            feedthrough: wave(rows * channels, 1.1),
        }
    }

    fn dynamics(&self) -> SharedDynamics<'_, f64> {
        SharedDynamics {
            channels: self.channels,
            exponents: &self.exponents,
            input: &self.input,
            output: &self.output,
            feedthrough: &self.feedthrough,
        }
    }

    fn scan(&self) -> SharedScan<f64> {
        SharedScan::new(self.length, self.dynamics())
    }

    /// Output and states.
    fn run(&self, u: &[f64]) -> [Vec<f64>; 2] {
        let scan = self.scan();
        let sequences = u.len() / (self.length * self.channels);
        let mut y = vec![f64::NAN; u.len()];
        let mut states = vec![f64::NAN; sequences * scan.states()];
        scan.forward(u, &mut y, &mut states);
        [y, states]
    }

    /// By kernels, one sequence.
    fn direct(&self, u: &[f64]) -> Vec<f64> {
        let (h, modes) = (self.channels, self.exponents.len());
        let b = |n: usize, i: usize| {
            Complex64::new(self.input[n * h + i], self.input[(modes + n) * h + i])
        };
        let c = |direction: usize, o: usize, n: usize| {
            let row = &self.output[(direction * h + o) * 2 * modes..][..2 * modes];
            Complex64::new(row[n], -row[modes + n])
        };
        let through = |o: usize, i: usize| match self.feedthrough.len() > h {
            true => self.feedthrough[o * h + i],
            false if o == i => self.feedthrough[o],
            false => 0.0,
        };
        let directions = self.output.len() / (2 * modes * h);
        let mut y = vec![0.0; u.len()];
        for t in 0..self.length {
            for s in 0..self.length {
                for direction in 0..directions {
                    let lag = if direction == 0 {
                        t as i32 - s as i32
                    } else {
                        s as i32 - t as i32
                    };
                    if lag < 0 {
                        continue;
                    }
                    for (n, z) in self.exponents.iter().enumerate() {
                        let drive: Complex64 = (0..h).map(|i| b(n, i) * u[s * h + i]).sum();
                        let state = (z * f64::from(lag)).exp() * drive;
                        (0..h).for_each(|o| y[t * h + o] += (c(direction, o, n) * state).re);
                    }
                }
            }
            for o in 0..h {
                y[t * h + o] += (0..h).map(|i| through(o, i) * u[t * h + i]).sum::<f64>();
            }
        }
        y
    }
}

/// Every shape: modes that fill no vector and several, lengths of less than a tile and of several.
fn layers() -> Vec<Layer> {
    let mut all = Vec::new();
    for (channels, modes, length) in [(3, 1, 1), (3, 5, 7), (2, 19, 40), (5, 4, 33)] {
        for directions in [1, 2] {
            for dense in [false, true] {
                let mut layer = Layer::new(channels, modes, directions, dense);
                layer.length = length;
                all.push(layer);
            }
        }
    }
    // Several tiles.
    let mut long = Layer::new(2, 3, 2, false);
    long.length = TILE / 8 + 300;
    all.push(long);
    all
}

#[test]
fn outputs_are_those_of_the_kernels() {
    for layer in layers().iter().filter(|layer| layer.length < 1000) {
        let each = layer.length * layer.channels;
        let u = wave(3 * each, 2.0);
        let [y, _] = layer.run(&u);
        for (u, y) in u.chunks(each).zip(y.chunks(each)) {
            for (a, b) in y.iter().zip(layer.direct(u)) {
                assert!((a - b).abs() < 1e-11 * (1.0 + b.abs()), "{a} {b}");
            }
        }
    }
}

#[test]
fn tiles_change_the_outputs_by_no_more_than_rounding() {
    let layers = layers();
    let long = layers.last().unwrap();
    assert!(long.scan().tile() < long.length);
    let u = wave(long.length * long.channels, 2.0);
    let [y, states] = long.run(&u);
    // Step by step.
    let (h, modes) = (long.channels, long.exponents.len());
    let mut state = vec![Complex64::ZERO; modes];
    let padded = long.scan().padded;
    for (t, u) in u.chunks(h).enumerate() {
        for (n, z) in long.exponents.iter().enumerate() {
            let part = |from: usize| -> f64 {
                let row = &long.input[(from + n) * h..][..h];
                row.iter().zip(u).map(|(b, u)| b * u).sum()
            };
            state[n] = z.exp() * state[n] + Complex64::new(part(0), part(modes));
            let row = &states[t * 2 * padded..];
            let found = Complex64::new(row[n], row[padded + n]);
            assert!(
                (found - state[n]).norm() < 1e-10 * (1.0 + state[n].norm()),
                "{t}"
            );
        }
    }
    assert!(y.iter().all(|y| y.is_finite()));
}

/// A sum Σ g y of the outputs of a layer for an input.
struct Weighted {
    u: Vec<f64>,
    g: Vec<f64>,
}

impl Weighted {
    fn of(layer: &Layer) -> Self {
        let count = 2 * layer.length * layer.channels;
        Self {
            u: wave(count, 2.0),
            g: wave(count, 5.0),
        }
    }

    fn value(&self, layer: &Layer, u: &[f64]) -> f64 {
        let [y, _] = layer.run(u);
        y.iter().zip(&self.g).map(|(y, g)| y * g).sum()
    }

    /// The derivative by what `change` moves by its number.
    fn near(&self, layer: &Layer, change: impl Fn(&mut Layer, &mut [f64], f64), own: f64) {
        let at = |by: f64| {
            let (mut layer, mut u) = (layer.clone(), self.u.clone());
            change(&mut layer, &mut u, by);
            self.value(&layer, &u)
        };
        let h = 1e-5;
        let slope = (at(h) - at(-h)) / (2.0 * h);
        let apart = (slope - own).abs();
        assert!(apart < 1e-6 * (10.0 + slope.abs()), "{slope} {own}");
    }
}

/// Some places of a list.
fn some(count: usize) -> [usize; 3] {
    [0, (count - 1) / 2, count - 1]
}

#[test]
fn gradients_are_those_of_differences() {
    for layer in layers() {
        let sum = Weighted::of(&layer);
        let scan = layer.scan();
        let [_, states] = layer.run(&sum.u);
        let mut of_u = vec![f64::NAN; sum.u.len()];
        let (mut sums, mut scratch) = (vec![0.0; scan.sums()], vec![f64::NAN; scan.scratch()]);
        let way = SharedWay {
            u: &sum.u,
            g: &sum.g,
            states: &states,
        };
        scan.backward(way, &mut of_u, &mut sums, &mut scratch);
        let found = scan.gradient(&layer.exponents, &sums);
        for at in some(of_u.len()) {
            sum.near(&layer, |_, u, by| u[at] += by, of_u[at]);
        }
        for n in some(layer.exponents.len()) {
            let own = found.exponents[n];
            sum.near(&layer, |layer, _, by| layer.exponents[n].re += by, own.re);
            sum.near(&layer, |layer, _, by| layer.exponents[n].im += by, own.im);
        }
        for at in some(found.input.len()) {
            sum.near(
                &layer,
                |layer, _, by| layer.input[at] += by,
                found.input[at],
            );
        }
        for at in some(found.output.len()) {
            sum.near(
                &layer,
                |layer, _, by| layer.output[at] += by,
                found.output[at],
            );
        }
        for at in some(found.feedthrough.len()) {
            let own = found.feedthrough[at];
            sum.near(&layer, |layer, _, by| layer.feedthrough[at] += by, own);
        }
    }
}

#[test]
fn single_precision_is_near() {
    let mut layer = Layer::new(4, 6, 1, false);
    layer.length = 300;
    let u = wave(300 * 4, 2.0);
    let [y, _] = layer.run(&u);
    let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let (input, output) = (narrow(&layer.input), narrow(&layer.output));
    let scan = SharedScan::new(
        300,
        SharedDynamics {
            channels: 4,
            exponents: &layer.exponents,
            input: &input,
            output: &output,
            feedthrough: &narrow(&layer.feedthrough),
        },
    );
    let (mut found, mut states) = (vec![0.0; 300 * 4], vec![0.0; scan.states()]);
    scan.forward(&narrow(&u), &mut found, &mut states);
    let largest = y.iter().fold(0.0f64, |m, y| m.max(y.abs()));
    for (a, b) in found.iter().zip(&y) {
        assert!((f64::from(*a) - b).abs() < 1e-5 * largest, "{a} {b}");
    }
}

#[test]
fn slow_modes_do_not_drift_in_single_precision() {
    let length = 8192;
    let exponents = [Complex64::new(-1e-5, 0.3), Complex64::new(-2e-4, 2.9)];
    for directions in [1, 2] {
        let scan = SharedScan::<f32>::new(
            length,
            SharedDynamics {
                channels: 1,
                exponents: &exponents,
                input: &[1.0, 1.0, 0.0, 0.0],
                output: &vec![0.5; 4 * directions],
                feedthrough: &[0.0],
            },
        );
        let mut u = vec![0.0; length];
        (u[0], u[length - 1]) = (1.0, 1.0);
        let (mut y, mut states) = (vec![0.0; length], vec![0.0; scan.states()]);
        scan.forward(&u, &mut y, &mut states);
        let (forward, backward) = states.split_at(states.len() / directions);
        let padded = forward.len() / (2 * length);
        for (n, z) in exponents.iter().enumerate() {
            let last = length - 1;
            let found = |states: &[f32], t: usize| {
                let row = &states[t * 2 * padded..];
                Complex64::new(row[n].into(), row[padded + n].into())
            };
            for lag in [CHUNK, length / 2, last - 1] {
                let expected = (z * lag as f64).exp();
                let apart = (found(forward, lag) - expected).norm();
                assert!(apart < 2e-5, "{lag} {apart}");
                if directions == 2 {
                    let apart = (found(backward, last - lag) - expected).norm();
                    assert!(apart < 2e-5, "{lag} {apart}");
                }
            }
        }
    }
}
