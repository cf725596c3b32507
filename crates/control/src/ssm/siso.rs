//! The view of a diagonal system with one input and one output.

use num_complex::Complex64;

use crate::ssm::{DiagonalSystem, SystemError, Time};

/// Steps between two exact powers when a kernel is formed by recurrence.
const KERNEL_BLOCK: usize = 64;

/// A [`DiagonalSystem`] that was checked to have one input and one output; see
/// [`DiagonalSystem::as_siso`]. Only the products c_i b_i count, the residues.
#[derive(Debug, Clone, Copy)]
pub struct Siso<'a>(&'a DiagonalSystem);

impl DiagonalSystem {
    /// The system as one with one input and one output.
    ///
    /// # Errors
    /// [`SystemError::NotSiso`].
    pub fn as_siso(&self) -> Result<Siso<'_>, SystemError> {
        let (inputs, outputs) = (self.input().ncols(), self.output().nrows());
        if (inputs, outputs) == (1, 1) {
            Ok(Siso(self))
        } else {
            Err(SystemError::NotSiso { inputs, outputs })
        }
    }

    /// The residues c_i b_i of a system with one input and one output.
    ///
    /// # Errors
    /// [`SystemError::NotSiso`].
    pub fn residues(&self) -> Result<Vec<Complex64>, SystemError> {
        Ok(self.as_siso()?.residues().collect())
    }

    /// [`Siso::kernel`] of a system with one input and one output.
    ///
    /// # Errors
    /// [`SystemError::NotSiso`], [`SystemError::WrongTime`].
    pub fn kernel(&self, length: usize) -> Result<Vec<f64>, SystemError> {
        self.as_siso()?.kernel(length)
    }
}

impl<'a> Siso<'a> {
    /// The system itself.
    pub fn system(self) -> &'a DiagonalSystem {
        self.0
    }

    /// The exponents λ, also in discrete time.
    pub fn exponents(self) -> &'a [Complex64] {
        self.0.exponents()
    }

    /// The residues c_i b_i.
    pub fn residues(self) -> impl ExactSizeIterator<Item = Complex64> + 'a {
        let weights = self.0.output().iter().zip(self.0.input().iter());
        weights.map(|(c, b)| c * b)
    }

    /// Exponent and residue of each mode.
    pub fn modes(self) -> impl ExactSizeIterator<Item = (Complex64, Complex64)> + 'a {
        self.0.exponents().iter().copied().zip(self.residues())
    }

    /// D.
    pub fn feedthrough(self) -> f64 {
        self.0.feedthrough()[(0, 0)]
    }

    /// The convolution kernel k[0..length] of a discrete system, without the feedthrough.
    ///
    /// ```text
    /// k[l] = Re Σ_i c_i b_i a_i^l
    /// ```
    ///
    /// Every 64th power is taken by the exponential, the others by recurrence. Cost O(n L).
    ///
    /// # Errors
    /// [`SystemError::WrongTime`] for a continuous system.
    pub fn kernel(self, length: usize) -> Result<Vec<f64>, SystemError> {
        if self.0.time() == Time::Continuous {
            return Err(SystemError::WrongTime {
                found: "continuous",
                expected: "discrete",
            });
        }
        let exponents = self.0.scaled_exponents();
        let mut kernel = vec![0.0; length];
        for (&z, residue) in exponents.iter().zip(self.residues()) {
            let pole = z.exp();
            for (block, samples) in kernel.chunks_mut(KERNEL_BLOCK).enumerate() {
                let mut term = residue * (z * (block * KERNEL_BLOCK) as f64).exp();
                for sample in samples {
                    *sample += term.re;
                    term *= pole;
                }
            }
        }
        Ok(kernel)
    }
}
