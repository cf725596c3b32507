//! Complex numbers as two tensors.

use candle_core::{Result, Tensor};

/// Real and imaginary part, of one shape.
#[derive(Clone)]
pub(super) struct Pair(pub(super) Tensor, pub(super) Tensor);

impl Pair {
    pub(super) fn scaled(&self, by: &Tensor) -> Result<Self> {
        Ok(Self(self.0.broadcast_mul(by)?, self.1.broadcast_mul(by)?))
    }

    /// a b, where b may be broadcast.
    pub(super) fn times(&self, other: &Self) -> Result<Self> {
        let by = |a: &Tensor, b: &Tensor| a.broadcast_mul(b);
        Ok(Self(
            (by(&self.0, &other.0)? - by(&self.1, &other.1)?)?,
            (by(&self.0, &other.1)? + by(&self.1, &other.0)?)?,
        ))
    }

    /// a conj(b), where b may be broadcast.
    pub(super) fn times_conjugate(&self, other: &Self) -> Result<Self> {
        let by = |a: &Tensor, b: &Tensor| a.broadcast_mul(b);
        Ok(Self(
            (by(&self.0, &other.0)? + by(&self.1, &other.1)?)?,
            (by(&self.1, &other.0)? - by(&self.0, &other.1)?)?,
        ))
    }

    /// Both parts by one function of tensors.
    pub(super) fn each(&self, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self(part(&self.0)?, part(&self.1)?))
    }

    pub(super) fn plus(&self, other: &Self) -> Result<Self> {
        Ok(Self((&self.0 + &other.0)?, (&self.1 + &other.1)?))
    }

    pub(super) fn over(&self, real: &Tensor) -> Result<Self> {
        Ok(Self(self.0.div(real)?, self.1.div(real)?))
    }

    pub(super) fn conjugate(&self) -> Result<Self> {
        Ok(Self(self.0.clone(), self.1.neg()?))
    }

    /// |x|².
    pub(super) fn square(&self) -> Result<Tensor> {
        self.0.sqr()? + self.1.sqr()?
    }

    /// e^x − 1 without cancellation, for Re x ≤ 0:
    ///
    /// ```text
    /// expm1(a) = 2 tanh(a/2)/(1 − tanh(a/2))
    /// Re = expm1(a) cos b − 2 sin²(b/2),   Im = e^a sin b
    /// ```
    pub(super) fn expm1(&self) -> Result<Self> {
        let tanh = (&self.0 * 0.5)?.tanh()?;
        let expm1 = ((&tanh * 2.0)? / (1.0 - tanh)?)?;
        let half = (&self.1 * 0.5)?.sin()?.sqr()?;
        let re = (expm1.mul(&self.1.cos()?)? - (half * 2.0)?)?;
        Ok(Self(re, (expm1 + 1.0)?.mul(&self.1.sin()?)?))
    }
}
