use super::*;

fn system(modes: usize, channels: usize, through: f64) -> DiagonalSystem {
    let wave = |i: usize, seed: f64| (1.3 * i as f64 + seed).sin();
    let matrix = |rows: usize, columns: usize, seed: f64| {
        DMatrix::from_fn(rows, columns, |i, j| {
            let at = i * columns + j;
            Complex64::new(wave(at, seed), wave(at, seed + 0.9))
        })
    };
    let exponents = (0..modes).map(|n| Complex64::new(-0.3 - 0.5 * n as f64, 2.0 * n as f64));
    let time = Time::Discrete { step: 0.1 };
    let d = DMatrix::from_diagonal_element(channels, channels, through);
    let (input, output) = (matrix(modes, channels, 0.2), matrix(channels, modes, 0.4));
    DiagonalSystem::new(time, exponents.collect(), input, output, d).unwrap()
}

/// ‖k‖ by its samples.
fn direct(systems: &[DiagonalSystem], length: usize) -> f64 {
    let mut square = 0.0;
    for system in systems {
        let powers = system.scaled_exponents();
        for l in 0..length {
            let scaled = DMatrix::from_fn(system.order(), system.input().ncols(), |n, h| {
                system.input()[(n, h)] * (powers[n] * l as f64).exp()
            });
            let mut k = (system.output() * scaled).map(|k| k.re);
            if l == 0 {
                k += system.feedthrough();
            }
            square += k.norm_squared();
        }
    }
    square.sqrt()
}

#[test]
fn the_norm_of_the_kernel_is_that_of_its_samples() {
    for length in [1, 7, 60] {
        for systems in [
            vec![system(4, 3, 0.7)],
            vec![system(4, 3, 0.7), system(4, 3, 0.0)],
        ] {
            let found = kernel_norm(&systems, &systems[0].scaled_exponents(), length);
            let expected = direct(&systems, length);
            assert!(
                (found - expected).abs() < 1e-12 * expected,
                "{found} {expected}"
            );
        }
    }
}

#[test]
fn rates_are_scaled_where_a_small_step_of_a_pole_would_turn_the_kernel_over() {
    // Two modes that nearly cancel, of large weights.
    let plain = system(2, 3, 0.1);
    let near = [-0.3, -0.301].map(Complex64::from).to_vec();
    let row = plain.input().row(0).into_owned();
    let input = DMatrix::from_rows(&[row.clone(), row]);
    let column = plain.output().column(0) * Complex64::from(1e3);
    let output = DMatrix::from_columns(&[column.clone(), -column]);
    let through = plain.feedthrough().clone();
    let system = DiagonalSystem::new(plain.time(), near, input, output, through).unwrap();
    let systems = [system];
    let scales = pole_scales(&systems, 50);
    // As by a difference of the kernels, the first decay moved by a millionth; γ B is what is held,
    // so that the input moves too.
    let moved = |by: f64| {
        let (time, own) = (systems[0].time(), &systems[0]);
        let mut exponents = own.exponents().to_vec();
        let before = gain(0.1 * exponents[0].re);
        exponents[0].re *= by.exp();
        let mut input = own.input().clone();
        let factor = Complex64::from(gain(0.1 * exponents[0].re) / before);
        input.row_mut(0).iter_mut().for_each(|b| *b *= factor);
        let parts = (own.output().clone(), own.feedthrough().clone());
        DiagonalSystem::new(time, exponents, input, parts.0, parts.1).unwrap()
    };
    let kernel = |system: &DiagonalSystem, l: usize| {
        let z = system.scaled_exponents();
        let powers = DMatrix::from_fn(2, 3, |n, h| {
            system.input()[(n, h)] * (z[n] * l as f64).exp()
        });
        (system.output() * powers).map(|k| k.re)
    };
    let (ahead, behind) = (moved(1e-6), moved(-1e-6));
    let apart = (0..50).map(|l| (kernel(&ahead, l) - kernel(&behind, l)).norm_squared());
    let steep = apart.sum::<f64>().sqrt() / 2e-6;
    let expected = direct(&systems, 50) / steep;
    assert!(expected < 0.1, "{expected}");
    assert!(
        (scales.decay[0] - expected).abs() < 1e-6 * expected,
        "{scales:?} {expected}"
    );
}
