//! The step with the vector unit of this machine.

use hankelite_edge::{
    Buffers, Dots, ImageView, Input, Kept, LANES, Layer, Piece, Plain, Processor, QUADS, Real,
    StepFault, Unit, step_layers,
};

use pulp::Simd;

use crate::stream::machine::{Machine, bf16s_of, gather_of, halves_of, integers_of, powers_of};
#[cfg(target_arch = "x86_64")]
use crate::stream::x86;

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
    /// `Vector`, and what most machines compute with. On aarch64 those of `Vector`, NEON; as `Plain`
    /// where the processor has none.
    Narrow,
}

/// What a step works on.
pub(super) struct Step<'s, 'w, T> {
    pub(super) image: ImageView<'s, T>,
    pub(super) layers: &'s [KeptLayer],
    pub(super) state: &'s mut [T],
    pub(super) work: &'w mut [T],
    pub(super) input: Input<'s, T>,
    /// Steps that the input holds of each stream.
    pub(super) steps: usize,
}

/// What a runner keeps of a layer.
#[derive(Debug, Clone)]
pub(super) struct KeptLayer {
    record: Layer,
    back: Option<Vec<u8>>,
}

impl KeptLayer {
    pub(super) fn new<T: Real>(image: &ImageView<'_, T>, index: u32) -> Result<Self, StepFault> {
        let record = image.layer(index)?;
        let mut back = image.has_back(&record).then(|| vec![0; image.width()]);
        if let Some(back) = &mut back {
            image.back(&record, back)?;
        }
        Ok(Self { record, back })
    }

    #[inline(always)]
    fn kept(&self) -> Kept<'_> {
        Kept {
            layer: self.record,
            back: self.back.as_deref(),
        }
    }
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
    fn with<U: Processor<T>>(self, unit: U) -> Result<&'w [T], StepFault> {
        let layers = self.layers;
        let outside = StepFault::Outside {
            what: "layer record",
            at: self.image.header().layers_at,
        };
        let layer = |index: u32| {
            let kept = layers.get(index as usize).map(KeptLayer::kept);
            kept.ok_or(outside)
        };
        let buffers = Buffers {
            state: self.state,
            work: self.work,
            steps: self.steps,
        };
        step_layers(unit, &self.image, layer, buffers, self.input)
    }
}

impl<'s, 'w, T> Step<'s, 'w, T> {
    fn on<U>(self, unit: U) -> On<'s, 'w, T, U> {
        On { step: self, unit }
    }
}

/// A step and what it is done with.
struct On<'s, 'w, T, U> {
    step: Step<'s, 'w, T>,
    unit: U,
}

impl<'w, T: Number, U: Processor<T>> pulp::NullaryFnOnce for On<'_, 'w, T, U> {
    type Output = Result<&'w [T], StepFault>;

    #[inline(always)]
    fn call(self) -> Self::Output {
        self.step.with(self.unit)
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

/// The vectors of pulp, and what multiplies integers beside them.
#[derive(Clone, Copy)]
struct Wide<S, D> {
    simd: S,
    dots: D,
}

impl<S: Copy, D: Dots> Dots for Wide<S, D> {
    type Bytes = D::Bytes;
    type Sums = D::Sums;

    #[inline(always)]
    fn load(self, bytes: &[u8; QUADS]) -> D::Bytes {
        self.dots.load(bytes)
    }
    #[inline(always)]
    fn bits<const SHIFT: i32>(self, bytes: D::Bytes, mask: u8) -> D::Bytes {
        self.dots.bits::<SHIFT>(bytes, mask)
    }
    #[inline(always)]
    fn or(self, a: D::Bytes, b: D::Bytes) -> D::Bytes {
        self.dots.or(a, b)
    }
    #[inline(always)]
    fn same(self, sum: i32) -> D::Sums {
        self.dots.same(sum)
    }
    #[inline(always)]
    fn add_dots(self, sums: D::Sums, bytes: D::Bytes, x: u32) -> D::Sums {
        self.dots.add_dots(sums, bytes, x)
    }
    #[inline(always)]
    fn add_small_dots(self, sums: D::Sums, bytes: D::Bytes, x: u32) -> D::Sums {
        self.dots.add_small_dots(sums, bytes, x)
    }
    #[inline(always)]
    fn add(self, a: D::Sums, b: D::Sums) -> D::Sums {
        self.dots.add(a, b)
    }
    #[inline(always)]
    fn add_eighths(self, sums: D::Sums, eights: D::Sums) -> D::Sums {
        self.dots.add_eighths(sums, eights)
    }
    #[inline(always)]
    fn store(self, sums: D::Sums) -> [i32; LANES] {
        self.dots.store(sums)
    }
    #[inline(always)]
    fn apart<P: Piece>(self, piece: P) -> P::Output {
        self.dots.apart(piece)
    }
}

impl<S: Machine, D> Wide<S, D> {
    #[inline(always)]
    fn machine(self) -> S {
        self.simd
    }
    #[inline(always)]
    fn simd(self) -> S::Simd {
        self.simd.simd()
    }
}

macro_rules! two_of {
    ($by:ident, $name:ident) => {
        #[inline(always)]
        fn $name(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            self.simd.simd().$by(a, b)
        }
    };
}

macro_rules! vectors_of {
    ($t:ident, $vector:ident, $width:ident, [$view:ident, $view_mut:ident, $splat:ident],
     [$add:ident, $sub:ident, $mul:ident, $fma:ident, $div:ident, $max:ident, $min:ident],
     [$halves:path, $bf16s:path, $integers:path, $powers:path, $gather:path], $of:ident) => {
        impl<S: Machine, D: Copy> Unit<$t> for Wide<S, D> {
            type Vector = <S::Simd as Simd>::$vector;
            type Eight = Wide<S::Eight, Plain>;
            type Four = Wide<S::Four, Plain>;
            const WIDTH: usize = S::Simd::$width;

            #[inline(always)]
            fn eight(self) -> Self::Eight {
                Wide {
                    simd: self.simd.eight(),
                    dots: Plain,
                }
            }
            #[inline(always)]
            fn four(self) -> Self::Four {
                Wide {
                    simd: self.simd.four(),
                    dots: Plain,
                }
            }
            #[inline(always)]
            fn vectors(numbers: &[$t]) -> &[Self::Vector] {
                S::Simd::$view(numbers).0
            }
            #[inline(always)]
            fn vectors_mut(numbers: &mut [$t]) -> &mut [Self::Vector] {
                S::Simd::$view_mut(numbers).0
            }
            #[inline(always)]
            fn splat(self, value: $t) -> Self::Vector {
                self.simd.simd().$splat(value)
            }
            #[inline(always)]
            fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                self.simd.simd().$fma(a, b, c)
            }
            two_of!($add, add);
            two_of!($sub, sub);
            two_of!($mul, mul);
            two_of!($div, div);
            two_of!($max, max);
            two_of!($min, min);
            #[inline(always)]
            fn power_of_two(self, shifted: Self::Vector) -> Self::Vector {
                $powers(self.$of(), shifted)
            }
            #[inline(always)]
            fn gather(self, from: &[$t], places: &[u8], to: &mut [$t]) {
                $gather(self.simd, from, places, to);
            }
            #[inline(always)]
            fn halves(self, halves: &[u16]) -> Self::Vector {
                $halves(self.$of(), halves)
            }
            #[inline(always)]
            fn bf16s(self, uppers: &[u16]) -> Self::Vector {
                $bf16s(self.$of(), uppers)
            }
            #[inline(always)]
            fn integers(self, integers: &[i32]) -> Self::Vector {
                $integers(self.$of(), integers)
            }
        }

        impl Number for $t {
            #[expect(private_interfaces, reason = "nobody else runs a step")]
            fn dispatch<'w>(step: Step<'_, 'w, Self>) -> Result<&'w [Self], StepFault> {
                #[cfg(target_arch = "x86_64")]
                if let Some(all) = x86::Vnni::try_new() {
                    let simd = all.v4();
                    return all.vectorize(step.on(Wide { simd, dots: all }));
                }
                #[cfg(target_arch = "x86_64")]
                if let Some(simd) = pulp::x86::V4::try_new() {
                    let dots = x86::Avx512(simd);
                    return simd.vectorize(step.on(Wide { simd, dots }));
                }
                Self::dispatch_narrow(step)
            }
            #[expect(private_interfaces, reason = "nobody else runs a step")]
            fn dispatch_narrow<'w>(step: Step<'_, 'w, Self>) -> Result<&'w [Self], StepFault> {
                #[cfg(target_arch = "x86_64")]
                if let Some(simd) = pulp::x86::V3::try_new() {
                    let dots = x86::Avx2(simd);
                    return simd.vectorize(step.on(Wide { simd, dots }));
                }
                #[cfg(target_arch = "aarch64")]
                if let Some(simd) = pulp::aarch64::Neon::try_new() {
                    let dots = Plain;
                    return simd.vectorize(step.on(Wide { simd, dots }));
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
    [as_simd_f32s, as_mut_simd_f32s, splat_f32s],
    [
        add_f32s,
        sub_f32s,
        mul_f32s,
        mul_add_e_f32s,
        div_f32s,
        max_f32s,
        min_f32s
    ],
    [
        Machine::halves,
        Machine::bf16s,
        Machine::integers,
        Machine::powers,
        Machine::gather
    ],
    machine
);
vectors_of!(
    f64,
    f64s,
    F64_LANES,
    [as_simd_f64s, as_mut_simd_f64s, splat_f64s],
    [
        add_f64s,
        sub_f64s,
        mul_f64s,
        mul_add_e_f64s,
        div_f64s,
        max_f64s,
        min_f64s
    ],
    [
        halves_of::<_, f64>,
        bf16s_of::<_, f64>,
        integers_of::<_, f64>,
        powers_of::<_, f64>,
        gather_of
    ],
    simd
);
