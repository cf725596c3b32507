//! Systems that the tests of several files of this room share.

use num_complex::Complex64;

use crate::ssm::{DiagonalSystem, Time};

/// Three pairs, one of them slow, and two real poles.
pub(super) fn pairs_and_real_poles(time: Time, feedthrough: f64) -> DiagonalSystem {
    let exponents = [
        (-0.5, 3.1),
        (-0.4, 0.0),
        (-1.5, -7.0),
        (-0.1, 0.2),
        (-2.0, 0.0),
    ];
    let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
    let residues = [
        (1.0, 0.3),
        (0.2, -0.7),
        (-2.0, 0.1),
        (0.05, 0.02),
        (1.0, 0.0),
    ];
    let residues = residues.map(|(re, im)| Complex64::new(re, im));
    DiagonalSystem::siso(time, exponents, &residues, feedthrough).unwrap()
}
