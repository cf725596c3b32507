//! The two number types: f32 on devices, f64 where the same code is checked to the last digits.

use crate::real::SQRT_2_OVER_PI;
use crate::record::code;
use crate::{Plain, Real, Unit, functions};

/// Square roots.
#[cfg(not(miri))]
mod root {
    pub(super) use libm::{sqrt as f64, sqrtf as f32};
}

/// Those of libm are an instruction in assembly, which Miri does not know.
#[cfg(miri)]
mod root {
    extern crate std;

    pub(super) fn f32(x: f32) -> f32 {
        x.sqrt()
    }
    pub(super) fn f64(x: f64) -> f64 {
        x.sqrt()
    }
}

impl Real for f32 {
    const TINY: Self = 1e-20;
    const EXACT: bool = false;
    const BYTES: u32 = 4;

    #[inline(always)]
    fn singles(numbers: &[Self]) -> Option<&[f32]> {
        Some(numbers)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        root::f32(self)
    }
    #[inline(always)]
    fn power_of_two(shifted: Self) -> Self {
        f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
    }
    #[inline(always)]
    fn gelu(self) -> Self {
        functions::gelu(Plain, self)
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        functions::sigmoid(Plain, self)
    }
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn activate<U: Unit<Self>>(unit: U, activation: u8, numbers: &mut [Self]) {
        let vectors = U::vectors_mut(numbers);
        if activation == code::GELU_TANH {
            let factors = [2.0 * SQRT_2_OVER_PI, 2.0 * SQRT_2_OVER_PI * 0.044_715];
            for y in vectors {
                *y = functions::gelu_tanh(unit, *y, factors.map(|factor| factor as f32));
            }
        } else {
            for y in vectors {
                *y = functions::gelu(unit, *y);
            }
        }
    }
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn gate<U: Unit<Self>>(unit: U, gates: &mut [Self], values: &[Self]) {
        let (gates, values) = (U::vectors_mut(gates), U::vectors(values));
        for at in 0..gates.len().min(values.len()) {
            gates[at] = unit.mul(values[at], functions::sigmoid(unit, gates[at]));
        }
    }
}

impl Real for f64 {
    const TINY: Self = 1e-150;
    const EXACT: bool = true;
    const BYTES: u32 = 8;

    #[inline(always)]
    fn singles(_: &[Self]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        root::f64(self)
    }
    fn gelu(self) -> Self {
        0.5 * self * (1.0 + libm::erf(self * core::f64::consts::FRAC_1_SQRT_2))
    }
    fn sigmoid(self) -> Self {
        1.0 / (1.0 + libm::exp(-self))
    }
    #[inline(always)]
    fn power_of_two(shifted: Self) -> Self {
        f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52))
    }
    fn activate<U: Unit<Self>>(_: U, activation: u8, numbers: &mut [Self]) {
        for y in numbers {
            *y = match activation {
                code::GELU_TANH => y.gelu_tanh(),
                _ => y.gelu(),
            };
        }
    }
    fn gate<U: Unit<Self>>(_: U, gates: &mut [Self], values: &[Self]) {
        for (gate, value) in gates.iter_mut().zip(values) {
            *gate = *value * gate.sigmoid();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exp;

    /// Of so many numbers Miri sees a few: it takes a thousand times as long.
    const EACH: usize = if cfg!(miri) { 1009 } else { 1 };

    #[test]
    fn halves_are_exact() {
        for bits in (0..=u16::MAX).step_by(EACH) {
            let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            // The largest exponent stands for what is not finite.
            if exponent == 31 {
                continue;
            }
            // Exact, which a power by a function need not be.
            let power_of_two = |power: i32| f64::from_bits(((1023 + power) as u64) << 52);
            let value = match exponent {
                0 => mantissa * power_of_two(-24),
                _ => (1024.0 + mantissa) * power_of_two(exponent - 25),
            };
            let value = if bits >> 15 == 1 { -value } else { value };
            assert_eq!(f64::from_half(bits), value);
            assert_eq!(f64::from(f32::from_half(bits)), value);
        }
    }

    #[test]
    fn fast_functions_agree_with_the_exact_ones() {
        for i in (-100_000..=100_000).step_by(EACH) {
            let x = i as f32 * 1e-3;
            let wide = f64::from(x);
            let scale = wide.abs().max(1.0);
            let apart = f64::from(x.gelu()) - wide.gelu();
            assert!(apart.abs() < 5e-7 * scale, "gelu {x}");
            let tanh = libm::tanh(SQRT_2_OVER_PI * (wide + 0.044715 * wide.powi(3)));
            let exact = 0.5 * wide * (1.0 + tanh);
            let apart = f64::from(x.gelu_tanh()) - exact;
            assert!(apart.abs() < 5e-7 * scale, "gelu by a tanh {x}");
            assert!((wide.gelu_tanh() - exact).abs() < 1e-14 * scale);
            let apart = f64::from(x.sigmoid()) - wide.sigmoid();
            assert!(apart.abs() < 3e-7, "sigmoid {x}");
            if wide.abs() <= 80.0 {
                let ratio = f64::from(exp(x)) / libm::exp(wide);
                assert!((ratio - 1.0).abs() < 4e-7, "exp {x}");
            }
        }
    }
}
