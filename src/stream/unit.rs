//! The step with the vector unit of this machine.

use hankelite_edge::{
    Buffers, ImageView, Input, LANES, Layer, Plain, Real, StepFault, Unit, step_layers,
};
use pulp::{Arch, Simd, WithSimd};

/// Which arithmetic a step uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// The widest vectors that this processor has, with fused products.
    #[default]
    Vector,
    /// One number at a time, as a device without vector unit computes. Sums have the same order;
    /// only the rounding inside fused products differs.
    Plain,
    /// Vectors of 256 bits with fused products (AVX2), also where there are wider ones: the bits of
    /// `Vector`, and what most machines compute with. As `Plain` where the processor has none.
    Narrow,
}

/// What a step works on.
pub(super) struct Step<'s, 'w, T> {
    pub(super) image: ImageView<'s, T>,
    pub(super) layers: &'s [Layer],
    pub(super) state: &'s mut [T],
    pub(super) work: &'w mut [T],
    pub(super) input: Input<'s, T>,
}

impl<'w, T: Number> Step<'_, 'w, T> {
    pub(super) fn run(self, arithmetic: Arithmetic) -> Result<&'w [T], StepFault> {
        match arithmetic {
            Arithmetic::Vector => T::dispatch(self),
            Arithmetic::Plain => self.with(Plain),
            Arithmetic::Narrow => T::dispatch_narrow(self),
        }
    }

    #[inline(always)]
    fn with<U: Unit<T>>(self, unit: U) -> Result<&'w [T], StepFault> {
        let layers = self.layers;
        let outside = StepFault::Outside {
            what: "layer record",
            at: self.image.header().layers_at,
        };
        let layer = |index: u32| layers.get(index as usize).copied().ok_or(outside);
        let buffers = Buffers {
            state: self.state,
            work: self.work,
        };
        step_layers(unit, &self.image, layer, buffers, self.input)
    }
}

/// f32 or f64, with the vectors of this processor.
pub trait Number: Real {
    #[doc(hidden)]
    #[expect(private_interfaces, reason = "nobody else runs a step")]
    fn dispatch<'w>(step: Step<'_, 'w, Self>) -> Result<&'w [Self], StepFault>;
    #[doc(hidden)]
    #[expect(private_interfaces, reason = "nobody else runs a step")]
    fn dispatch_narrow<'w>(step: Step<'_, 'w, Self>) -> Result<&'w [Self], StepFault>;
}

/// The vectors of pulp.
#[derive(Clone, Copy)]
struct Wide<S>(S);

macro_rules! vectors_of {
    ($t:ident, $vector:ident, $width:ident, $view:ident, $view_mut:ident, $splat:ident, $add:ident,
     $sub:ident, $mul:ident, $fma:ident) => {
        impl<S: Simd> Unit<$t> for Wide<S> {
            type Vector = S::$vector;

            #[inline(always)]
            fn vectors(lanes: &[$t; LANES]) -> &[S::$vector] {
                S::$view(lanes).0
            }
            #[inline(always)]
            fn vectors_mut(lanes: &mut [$t; LANES]) -> &mut [S::$vector] {
                S::$view_mut(lanes).0
            }
            #[inline(always)]
            fn splat(self, value: $t) -> S::$vector {
                self.0.$splat(value)
            }
            #[inline(always)]
            fn add(self, a: S::$vector, b: S::$vector) -> S::$vector {
                self.0.$add(a, b)
            }
            #[inline(always)]
            fn sub(self, a: S::$vector, b: S::$vector) -> S::$vector {
                self.0.$sub(a, b)
            }
            #[inline(always)]
            fn mul(self, a: S::$vector, b: S::$vector) -> S::$vector {
                self.0.$mul(a, b)
            }
            #[inline(always)]
            fn mul_add(self, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                self.0.$fma(a, b, c)
            }
        }

        impl<'w> WithSimd for Step<'_, 'w, $t> {
            type Output = Result<&'w [$t], StepFault>;

            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
                // Without a vector unit a fused product would be a call.
                if S::$width == 1 {
                    self.with(Plain)
                } else {
                    self.with(Wide(simd))
                }
            }
        }

        impl Number for $t {
            #[expect(private_interfaces, reason = "nobody else runs a step")]
            fn dispatch<'w>(step: Step<'_, 'w, Self>) -> Result<&'w [Self], StepFault> {
                Arch::new().dispatch(step)
            }
            #[expect(private_interfaces, reason = "nobody else runs a step")]
            fn dispatch_narrow<'w>(step: Step<'_, 'w, Self>) -> Result<&'w [Self], StepFault> {
                #[cfg(target_arch = "x86_64")]
                if let Some(units) = pulp::x86::V3::try_new() {
                    return Simd::vectorize(units, step);
                }
                step.with(Plain)
            }
        }
    };
}

vectors_of!(
    f32,
    f32s,
    F32_LANES,
    as_simd_f32s,
    as_mut_simd_f32s,
    splat_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    mul_add_e_f32s
);
vectors_of!(
    f64,
    f64s,
    F64_LANES,
    as_simd_f64s,
    as_mut_simd_f64s,
    splat_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    mul_add_e_f64s
);
