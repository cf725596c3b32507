//! Products of small integers with AVX2, AVX-512 and its dot product of bytes (VNNI).

use std::arch::x86_64::{__m128i, __m256i, __m512i};

use hankelite_edge::{Dots, LANES, Piece, QUADS};
use pulp::x86::{V3, V3_128b, V4};
use pulp::{NullaryFnOnce, Simd, cast};

use crate::stream::machine::Machine;

/// AVX2: two halves of eight rows.
#[derive(Clone, Copy)]
pub(super) struct Avx2(pub(super) V3);

/// AVX-512 without the dot product of bytes.
#[derive(Clone, Copy)]
pub(super) struct Avx512(pub(super) V4);

pulp::simd_type! {
    /// AVX-512 with the dot product of bytes.
    pub(super) struct Vnni {
        sse: "sse",
        sse2: "sse2",
        fxsr: "fxsr",
        sse3: "sse3",
        ssse3: "ssse3",
        sse4_1: "sse4.1",
        sse4_2: "sse4.2",
        popcnt: "popcnt",
        avx: "avx",
        avx2: "avx2",
        bmi1: "bmi1",
        bmi2: "bmi2",
        fma: "fma",
        lzcnt: "lzcnt",
        avx512f: "avx512f",
        avx512bw: "avx512bw",
        avx512cd: "avx512cd",
        avx512dq: "avx512dq",
        avx512vl: "avx512vl",
        avx512vnni: "avx512vnni",
    }
}

impl Vnni {
    /// The vectors that come with it.
    #[inline(always)]
    pub(super) fn v4(self) -> V4 {
        V4 {
            sse: self.sse,
            sse2: self.sse2,
            fxsr: self.fxsr,
            sse3: self.sse3,
            ssse3: self.ssse3,
            sse4_1: self.sse4_1,
            sse4_2: self.sse4_2,
            popcnt: self.popcnt,
            avx: self.avx,
            avx2: self.avx2,
            bmi1: self.bmi1,
            bmi2: self.bmi2,
            fma: self.fma,
            lzcnt: self.lzcnt,
            avx512f: self.avx512f,
            avx512bw: self.avx512bw,
            avx512cd: self.avx512cd,
            avx512dq: self.avx512dq,
            avx512vl: self.avx512vl,
        }
    }
}

/// A piece that runs with the instructions of a unit.
struct In<P>(P);

impl<P: Piece> NullaryFnOnce for In<P> {
    type Output = P::Output;

    #[inline(always)]
    fn call(self) -> P::Output {
        self.0.run()
    }
}

/// Keeps the compiler from putting a piece in line where it is called.
#[inline(never)]
fn alone<P: Piece>(run: impl FnOnce(P) -> P::Output, piece: P) -> P::Output {
    run(piece)
}

/// The first numbers of a longer row.
#[inline(always)]
fn row<N: Copy, const COUNT: usize>(numbers: &[N]) -> [N; COUNT] {
    numbers.as_chunks().0[0]
}

/// Vectors of 256 bits where there are those of 512.
#[derive(Clone, Copy)]
pub(super) struct Half512(V4);

/// Vectors of 128 bits where there are those of 512.
#[derive(Clone, Copy)]
pub(super) struct Quarter512(V4);

impl Machine for V4 {
    type Simd = V4;
    type Eight = Half512;
    type Four = Quarter512;

    #[inline(always)]
    fn simd(self) -> V4 {
        self
    }
    #[inline(always)]
    fn eight(self) -> Half512 {
        Half512(self)
    }
    #[inline(always)]
    fn four(self) -> Quarter512 {
        Quarter512(self)
    }
    /// By permutations of two vectors of sixteen at a time.
    #[inline(always)]
    fn gather(self, from: &[f32], places: &[u8], to: &mut [f32]) {
        let (all, (pairs, last)) = (self.avx512f, V4::as_simd_f32s(from).0.as_chunks::<2>());
        let (to, places) = (V4::as_mut_simd_f32s(to).0, places.as_chunks::<16>().0);
        for at in 0..to.len().min(places.len()) {
            let place = all._mm512_cvtepu8_epi32(cast(places[at]));
            let pair = all._mm512_srli_epi32::<5>(place);
            let mut found = all._mm512_setzero_ps();
            for k in 0..pairs.len() + last.len() {
                let [a, b] = if k < pairs.len() {
                    pairs[k]
                } else {
                    [last[0]; 2]
                };
                let here = all._mm512_cmpeq_epi32_mask(pair, all._mm512_set1_epi32(k as i32));
                let some = all._mm512_permutex2var_ps(cast(a), place, cast(b));
                found = all._mm512_mask_mov_ps(found, here, some);
            }
            to[at] = cast(found);
        }
    }
    #[inline(always)]
    fn halves(self, halves: &[u16]) -> <Self as Simd>::f32s {
        cast(self.avx512f._mm512_cvtph_ps(cast(row::<u16, 16>(halves))))
    }
    #[inline(always)]
    fn bf16s(self, uppers: &[u16]) -> <Self as Simd>::f32s {
        let upper: __m256i = cast(row::<u16, 16>(uppers));
        let wide = self.avx512f._mm512_cvtepu16_epi32(upper);
        cast(self.avx512f._mm512_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    fn integers(self, integers: &[i32]) -> <Self as Simd>::f32s {
        let integers: __m512i = cast(row::<i32, 16>(integers));
        cast(self.avx512f._mm512_cvtepi32_ps(integers))
    }
}

impl Machine for Half512 {
    type Simd = V3;
    type Eight = Self;
    type Four = Quarter512;

    #[inline(always)]
    fn simd(self) -> V3 {
        *self.0
    }
    #[inline(always)]
    fn eight(self) -> Self {
        self
    }
    #[inline(always)]
    fn four(self) -> Quarter512 {
        Quarter512(self.0)
    }
    #[inline(always)]
    fn halves(self, halves: &[u16]) -> <V3 as Simd>::f32s {
        let halves = cast(row::<u16, 8>(halves));
        cast(self.0.avx512vl._mm256_maskz_cvtph_ps(0xff, halves))
    }
}

impl Machine for Quarter512 {
    type Simd = V3_128b;
    type Eight = Self;
    type Four = Self;

    #[inline(always)]
    fn simd(self) -> V3_128b {
        V3_128b(*self.0)
    }
    #[inline(always)]
    fn eight(self) -> Self {
        self
    }
    #[inline(always)]
    fn four(self) -> Self {
        self
    }
    #[inline(always)]
    fn halves(self, halves: &[u16]) -> <V3_128b as Simd>::f32s {
        let [a, b, c, d] = row::<u16, 4>(halves);
        let halves = cast([a, b, c, d, 0, 0, 0, 0]);
        cast(self.0.avx512vl._mm_maskz_cvtph_ps(0xf, halves))
    }
}

impl Machine for V3 {
    type Simd = V3;
    type Eight = V3;
    type Four = V3_128b;

    #[inline(always)]
    fn simd(self) -> V3 {
        self
    }
    #[inline(always)]
    fn eight(self) -> V3 {
        self
    }
    #[inline(always)]
    fn four(self) -> V3_128b {
        V3_128b(self)
    }
    #[inline(always)]
    fn bf16s(self, uppers: &[u16]) -> <Self as Simd>::f32s {
        let upper: __m128i = cast(row::<u16, 8>(uppers));
        let wide = self.avx2._mm256_cvtepu16_epi32(upper);
        cast(self.avx2._mm256_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    fn integers(self, integers: &[i32]) -> <Self as Simd>::f32s {
        let integers: __m256i = cast(row::<i32, 8>(integers));
        cast(self.avx._mm256_cvtepi32_ps(integers))
    }
}

impl Machine for V3_128b {
    type Simd = V3_128b;
    type Eight = V3_128b;
    type Four = V3_128b;

    #[inline(always)]
    fn simd(self) -> V3_128b {
        self
    }
    #[inline(always)]
    fn eight(self) -> V3_128b {
        self
    }
    #[inline(always)]
    fn four(self) -> V3_128b {
        self
    }
}

impl Dots for Avx512 {
    type Bytes = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    fn load(self, bytes: &[u8; QUADS]) -> __m512i {
        cast(*bytes)
    }
    #[inline(always)]
    fn bits<const SHIFT: i32>(self, bytes: __m512i, mask: u8) -> __m512i {
        let (words, all) = (self.0.avx512bw, self.0.avx512f);
        // Shifts of 16 bits: the mask leaves nothing of the neighbour.
        let shifted = match SHIFT {
            2 => words._mm512_srli_epi16::<2>(bytes),
            4 => words._mm512_srli_epi16::<4>(bytes),
            5 => words._mm512_srli_epi16::<5>(bytes),
            6 => words._mm512_srli_epi16::<6>(bytes),
            _ => bytes,
        };
        all._mm512_and_si512(shifted, all._mm512_set1_epi8(mask.cast_signed()))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        self.0.avx512f._mm512_or_si512(a, b)
    }
    #[inline(always)]
    fn same(self, sum: i32) -> __m512i {
        self.0.avx512f._mm512_set1_epi32(sum)
    }
    /// In two steps of 16 bits, which hold the product of two bytes, but not the sum of two.
    #[inline(always)]
    fn add_dots(self, sums: __m512i, bytes: __m512i, x: u32) -> __m512i {
        let (words, all) = (self.0.avx512bw, self.0.avx512f);
        let x = all._mm512_set1_epi32(x.cast_signed());
        let even = words._mm512_srai_epi16::<8>(words._mm512_slli_epi16::<8>(x));
        let odd = words._mm512_srai_epi16::<8>(x);
        let low = all._mm512_and_si512(bytes, all._mm512_set1_epi32(0x00ff_00ff));
        let high = words._mm512_srli_epi16::<8>(bytes);
        let sums = all._mm512_add_epi32(sums, words._mm512_madd_epi16(low, even));
        all._mm512_add_epi32(sums, words._mm512_madd_epi16(high, odd))
    }
    /// Two products of at most 127 · 128 each fit 16 bits.
    #[inline(always)]
    fn add_small_dots(self, sums: __m512i, bytes: __m512i, x: u32) -> __m512i {
        let (words, all) = (self.0.avx512bw, self.0.avx512f);
        let pairs = words._mm512_maddubs_epi16(bytes, all._mm512_set1_epi32(x.cast_signed()));
        let quads = words._mm512_madd_epi16(pairs, all._mm512_set1_epi32(0x0001_0001));
        all._mm512_add_epi32(sums, quads)
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        self.0.avx512f._mm512_add_epi32(a, b)
    }
    #[inline(always)]
    fn add_eighths(self, sums: __m512i, eights: __m512i) -> __m512i {
        let all = self.0.avx512f;
        all._mm512_add_epi32(sums, all._mm512_srai_epi32::<3>(eights))
    }
    #[inline(always)]
    fn store(self, sums: __m512i) -> [i32; LANES] {
        cast(sums)
    }

    #[inline(always)]
    fn apart<P: Piece>(self, piece: P) -> P::Output {
        alone(|piece| self.0.vectorize(In(piece)), piece)
    }
}

impl Dots for Vnni {
    type Bytes = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    fn load(self, bytes: &[u8; QUADS]) -> __m512i {
        cast(*bytes)
    }
    #[inline(always)]
    fn bits<const SHIFT: i32>(self, bytes: __m512i, mask: u8) -> __m512i {
        Avx512(self.v4()).bits::<SHIFT>(bytes, mask)
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_or_si512(a, b)
    }
    #[inline(always)]
    fn same(self, sum: i32) -> __m512i {
        self.avx512f._mm512_set1_epi32(sum)
    }
    #[inline(always)]
    fn add_dots(self, sums: __m512i, bytes: __m512i, x: u32) -> __m512i {
        let x = self.avx512f._mm512_set1_epi32(x.cast_signed());
        #[expect(
            unsafe_code,
            reason = "pulp has the token of this instruction, not the call"
        )]
        // SAFETY: a `Vnni` exists only where the processor was found to have the instruction.
        unsafe {
            std::arch::x86_64::_mm512_dpbusd_epi32(sums, bytes, x)
        }
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_add_epi32(a, b)
    }
    #[inline(always)]
    fn add_eighths(self, sums: __m512i, eights: __m512i) -> __m512i {
        Avx512(self.v4()).add_eighths(sums, eights)
    }
    #[inline(always)]
    fn store(self, sums: __m512i) -> [i32; LANES] {
        cast(sums)
    }

    #[inline(always)]
    fn apart<P: Piece>(self, piece: P) -> P::Output {
        alone(|piece| self.vectorize(In(piece)), piece)
    }
}

/// One half of [`Avx2`].
impl Avx2 {
    #[inline(always)]
    fn bits_of<const SHIFT: i32>(self, bytes: __m256i, mask: u8) -> __m256i {
        let units = self.0.avx2;
        let shifted = match SHIFT {
            2 => units._mm256_srli_epi16::<2>(bytes),
            4 => units._mm256_srli_epi16::<4>(bytes),
            5 => units._mm256_srli_epi16::<5>(bytes),
            6 => units._mm256_srli_epi16::<6>(bytes),
            _ => bytes,
        };
        units._mm256_and_si256(shifted, self.0.avx._mm256_set1_epi8(mask.cast_signed()))
    }
    /// As [`Avx512::add_dots`].
    #[inline(always)]
    fn add_to(self, sums: __m256i, bytes: __m256i, x: u32) -> __m256i {
        let units = self.0.avx2;
        let x = self.0.avx._mm256_set1_epi32(x.cast_signed());
        let even = units._mm256_srai_epi16::<8>(units._mm256_slli_epi16::<8>(x));
        let odd = units._mm256_srai_epi16::<8>(x);
        let low = units._mm256_and_si256(bytes, self.0.avx._mm256_set1_epi32(0x00ff_00ff));
        let high = units._mm256_srli_epi16::<8>(bytes);
        let sums = units._mm256_add_epi32(sums, units._mm256_madd_epi16(low, even));
        units._mm256_add_epi32(sums, units._mm256_madd_epi16(high, odd))
    }
    /// As [`Avx512::add_small_dots`].
    #[inline(always)]
    fn add_small_to(self, sums: __m256i, bytes: __m256i, x: u32) -> __m256i {
        let units = self.0.avx2;
        let x = self.0.avx._mm256_set1_epi32(x.cast_signed());
        let ones = self.0.avx._mm256_set1_epi32(0x0001_0001);
        let quads = units._mm256_madd_epi16(units._mm256_maddubs_epi16(bytes, x), ones);
        units._mm256_add_epi32(sums, quads)
    }
}

impl Dots for Avx2 {
    type Bytes = [__m256i; 2];
    type Sums = [__m256i; 2];

    #[inline(always)]
    fn load(self, bytes: &[u8; QUADS]) -> [__m256i; 2] {
        cast(*bytes)
    }
    #[inline(always)]
    fn bits<const SHIFT: i32>(self, [a, b]: [__m256i; 2], mask: u8) -> [__m256i; 2] {
        [
            self.bits_of::<SHIFT>(a, mask),
            self.bits_of::<SHIFT>(b, mask),
        ]
    }
    #[inline(always)]
    fn or(self, [a, b]: [__m256i; 2], [c, d]: [__m256i; 2]) -> [__m256i; 2] {
        let units = self.0.avx2;
        [units._mm256_or_si256(a, c), units._mm256_or_si256(b, d)]
    }
    #[inline(always)]
    fn same(self, sum: i32) -> [__m256i; 2] {
        [self.0.avx._mm256_set1_epi32(sum); 2]
    }
    #[inline(always)]
    fn add_dots(self, [s, t]: [__m256i; 2], [a, b]: [__m256i; 2], x: u32) -> [__m256i; 2] {
        [self.add_to(s, a, x), self.add_to(t, b, x)]
    }
    #[inline(always)]
    fn add_small_dots(self, [s, t]: [__m256i; 2], [a, b]: [__m256i; 2], x: u32) -> [__m256i; 2] {
        [self.add_small_to(s, a, x), self.add_small_to(t, b, x)]
    }
    #[inline(always)]
    fn add(self, [a, b]: [__m256i; 2], [c, d]: [__m256i; 2]) -> [__m256i; 2] {
        let units = self.0.avx2;
        [units._mm256_add_epi32(a, c), units._mm256_add_epi32(b, d)]
    }
    #[inline(always)]
    fn add_eighths(self, sums: [__m256i; 2], eights: [__m256i; 2]) -> [__m256i; 2] {
        let units = self.0.avx2;
        [
            units._mm256_add_epi32(sums[0], units._mm256_srai_epi32::<3>(eights[0])),
            units._mm256_add_epi32(sums[1], units._mm256_srai_epi32::<3>(eights[1])),
        ]
    }
    #[inline(always)]
    fn store(self, sums: [__m256i; 2]) -> [i32; LANES] {
        cast(sums)
    }

    #[inline(always)]
    fn apart<P: Piece>(self, piece: P) -> P::Output {
        alone(|piece| self.0.vectorize(In(piece)), piece)
    }
}

#[cfg(test)]
mod tests {
    use hankelite_edge::Plain;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn all_dots<D: Dots>(unit: D, bytes: [&[u8; QUADS]; 2], x: [u32; 2]) -> Vec<[i32; LANES]> {
        let [first, second] = bytes.map(|bytes| unit.load(bytes));
        let sums = unit.add_dots(unit.same(-77), first, x[0]);
        let sums = unit.add_dots(sums, second, x[1]);
        let small = [
            unit.bits::<0>(first, 15),
            unit.bits::<4>(first, 15),
            unit.bits::<0>(first, 7 << 3),
            unit.bits::<0>(first, 127),
            unit.bits::<6>(first, 3),
            unit.or(unit.bits::<6>(first, 3), unit.bits::<5>(second, 4)),
        ];
        let small = small.map(|small| unit.store(unit.add_small_dots(sums, small, x[1])));
        let eighths = unit.add_eighths(unit.same(5), sums);
        let sums = [sums, eighths].map(|sums| unit.store(sums));
        small.into_iter().chain(sums).collect()
    }

    #[test]
    fn every_unit_gives_the_same_integers() {
        // Where the compiler has the instruction enabled, as for Miri, it is tested.
        assert!(Vnni::try_new().is_some() || !cfg!(target_feature = "avx512vnni"));
        let random = &mut ChaCha8Rng::seed_from_u64(3);
        // Miri takes a thousand times as long.
        for round in 0..if cfg!(miri) { 2 } else { 200 } {
            // The largest values first: they overflow whatever can.
            let mut byte = || if round == 0 { 255 } else { random.random() };
            let bytes: [[u8; QUADS]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| byte()));
            let x = match round {
                0 => [0x7f7f_7f7f, 0x8181_8181],
                _ => [random.random(), random.random()],
            };
            let bytes = bytes.each_ref();
            let expected = all_dots(Plain, bytes, x);
            if let Some(simd) = V3::try_new() {
                assert_eq!(simd.vectorize(|| all_dots(Avx2(simd), bytes, x)), expected);
            }
            if let Some(simd) = V4::try_new() {
                assert_eq!(
                    simd.vectorize(|| all_dots(Avx512(simd), bytes, x)),
                    expected
                );
            }
            if let Some(all) = Vnni::try_new() {
                assert_eq!(all.vectorize(|| all_dots(all, bytes, x)), expected);
            }
        }
    }
}
