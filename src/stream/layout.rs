//! Numbers in the order that the runtime reads them.

use hankelite_edge::{LANES, QUADS, padded};
use nalgebra::DMatrix;

use crate::rounding::{Levels, RoundedMatrix};

/// One number for each channel, padded with zeros.
pub(super) fn lanes(numbers: &[f64]) -> Vec<f64> {
    let mut out = numbers.to_vec();
    out.resize(padded(numbers.len()), 0.0);
    out
}

/// The outputs of a map in the order of an image's rows: every half padded to whole groups of
/// sixteen. `None` pads.
pub(super) fn rows(outputs: usize, halves: usize) -> Vec<Option<usize>> {
    let half = outputs / halves.max(1);
    let of = |k: usize| (0..padded(half)).map(move |row| (row < half).then_some(k * half + row));
    (0..halves).flat_map(of).collect()
}

/// The rows of W (inputs × outputs) sixteen side by side: for each group, for each input.
pub(super) fn tiles(weight: &DMatrix<f64>, rows: &[Option<usize>]) -> Vec<f64> {
    let mut out = Vec::with_capacity(weight.nrows() * rows.len());
    for tile in rows.chunks(LANES) {
        for input in 0..weight.nrows() {
            let entry = |row: &Option<usize>| row.map_or(0.0, |o| weight[(input, o)]);
            out.extend(tile.iter().map(entry));
        }
    }
    out
}

/// A matrix of integers as an image has it.
pub(super) struct Integers {
    /// Bits of an entry: 8, 4, 3 or 2.
    pub(super) bits: u32,
    /// Inputs that share a scale.
    pub(super) group: usize,
    pub(super) weights: Vec<u8>,
    /// Upper halves of f32.
    pub(super) scales: Vec<u16>,
}

/// Lays integers out in the runtime's units. Entries of three bits whose groups are no whole units of
/// 32 inputs take four.
pub(super) fn integers(matrix: &RoundedMatrix, rows: &[Option<usize>]) -> Integers {
    let inputs = matrix.levels().nrows();
    let group = matrix
        .group()
        .min(inputs.next_multiple_of(LANES).max(LANES));
    let bits = match matrix.bits() {
        3 if !group.is_multiple_of(32) => 4,
        bits => bits,
    };
    let levels = Levels::of(bits);
    let (mut weights, mut scales) = (Vec::new(), Vec::new());
    for tile in rows.chunks(LANES) {
        // What pads is multiplied by zeros.
        let entry = |lane: usize, input: usize| {
            let output = tile[lane].filter(|_| input < inputs);
            let level = output.map_or(0, |o| i16::from(matrix.levels()[(input, o)]));
            levels.code(level)
        };
        match bits {
            8 => units(&mut weights, inputs, 4, |bytes, first| {
                fill(bytes, |lane, k| entry(lane, first + k));
            }),
            4 => units(&mut weights, inputs, 8, |bytes, first| {
                let entry = |lane, k| entry(lane, first + k);
                fill(bytes, |lane, k| entry(lane, k) | entry(lane, 4 + k) << 4);
            }),
            2 => units(&mut weights, inputs, 16, |bytes, first| {
                let entry = |lane, k| entry(lane, first + k);
                let pair = |lane, k, q: usize| entry(lane, 4 * q + k) << (2 * q);
                fill(bytes, |lane, k| {
                    (0..4).fold(0, |byte, q| byte | pair(lane, k, q))
                });
            }),
            _ => units(&mut weights, inputs, 32, |bytes, first| {
                three(bytes, |lane, k| entry(lane, first + k));
            }),
        }
        for of in 0..matrix.scales().nrows() {
            let scale = |row: &Option<usize>| row.map_or(0.0, |o| matrix.scales()[(of, o)]);
            scales.extend(tile.iter().map(|row| bf16(scale(row).into())));
        }
    }
    Integers {
        bits,
        group,
        weights,
        scales,
    }
}

/// Appends the units of sixteen rows: their bytes from the first input of each.
fn units(weights: &mut Vec<u8>, inputs: usize, unit: usize, put: impl Fn(&mut Vec<u8>, usize)) {
    for first in (0..inputs).step_by(unit) {
        put(weights, first);
    }
}

/// Appends 64 bytes, four for each lane in turn.
fn fill(bytes: &mut Vec<u8>, byte: impl Fn(usize, usize) -> u8) {
    bytes.extend((0..QUADS).map(|at| byte(at / 4, at % 4)));
}

/// Appends 32 inputs of three bits: two quads in the lower six bits of each of three planes, and two
/// more in what is left, their lower bits in the first two planes, the upper ones in the last.
fn three(bytes: &mut Vec<u8>, entry: impl Fn(usize, usize) -> u8) {
    for plane in 0..3 {
        fill(bytes, |lane, k| {
            let quad = |q: usize| entry(lane, 4 * q + k);
            let above = match plane {
                0 | 1 => quad(6 + plane) & 3,
                _ => quad(6) >> 2 | quad(7) >> 2 << 1,
            };
            quad(2 * plane) | quad(2 * plane + 1) << 3 | above << 6
        });
    }
}

/// How many channels stand side by side, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lanes {
    /// 4, 8 or 16.
    pub(super) count: usize,
    /// The channels by falling order, or `None` where they are.
    pub(super) places: Option<Vec<usize>>,
    /// Modes of each group.
    pub(super) modes: Vec<usize>,
}

impl Lanes {
    /// The lanes that take the fewest bytes for channels of these orders, of systems and state
    /// together; wider ones where they take up to a tenth more, since they are faster.
    pub(super) fn new(orders: &[usize]) -> Self {
        let mut places: Vec<usize> = (0..orders.len()).collect();
        places.sort_by_key(|&channel| std::cmp::Reverse(orders[channel]));
        let sorted = orders.is_sorted_by(|a, b| a >= b);
        let modes = |count: usize| {
            let groups = (0..padded(orders.len())).step_by(count);
            let first = |group: usize| places.get(group).map_or(0, |&channel| orders[channel]);
            groups.map(first).collect::<Vec<usize>>()
        };
        let [sixteen, eight, four] = [16, 8, 4].map(|count| (count, modes(count)));
        let cost = |(count, modes): &(usize, Vec<usize>)| count * modes.iter().sum::<usize>();
        let near = |wide, narrow| 10 * cost(wide) <= 11 * cost(narrow);
        let (count, modes) = if near(&sixteen, &eight) && near(&sixteen, &four) {
            sixteen
        } else if near(&eight, &four) {
            eight
        } else {
            four
        };
        Self {
            count,
            places: (!sorted).then_some(places),
            modes,
        }
    }

    /// The channel in a lane; `None` pads.
    pub(super) fn channel(&self, lane: usize, channels: usize) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(lane).copied(),
            None => (lane < channels).then_some(lane),
        }
    }
}

/// The nearest number whose lower sixteen bits are zero, ties to even, as its upper half.
pub(super) fn bf16(value: f64) -> u16 {
    half::bf16::from_f64(value).to_bits()
}

/// The nearest number of half precision.
pub(super) fn f16(value: f64) -> u16 {
    half::f16::from_f64(value).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_sorted_only_where_they_are_not() {
        assert_eq!(Lanes::new(&[3, 3]).places, None);
        assert_eq!(Lanes::new(&[3, 1]).places, None);
        let sorted = Lanes::new(&[1, 3, 2, 3]).places;
        assert_eq!(sorted, Some(vec![1, 3, 2, 0]));
    }

    #[test]
    fn lanes_are_as_wide_as_they_are_cheap() {
        let of = |orders: &[usize]| Lanes::new(orders);
        assert_eq!(of(&[5; 16]).count, 16);
        let quarters: Vec<usize> = (0..16).map(|channel| 1 + channel / 4 * 4).collect();
        assert_eq!(of(&quarters).count, 4);
        assert_eq!(of(&quarters).modes, [13, 9, 5, 1]);
        let halves: Vec<usize> = (0..16).map(|channel| 2 + channel / 8 * 6).collect();
        assert_eq!(of(&halves).count, 8);
        // Within a tenth: 16 · 11 against 8 · (11 + 10).
        let near: Vec<usize> = (0..16).map(|channel| 11 - channel / 8).collect();
        assert_eq!(of(&near).count, 16);
        // Channels that fill no group leave groups without modes.
        assert_eq!(of(&[7, 7, 7, 7]).modes, [7, 0, 0, 0]);
    }

    #[test]
    fn halves_of_a_gated_map_are_padded_each() {
        let rows = rows(6, 2);
        assert_eq!(rows.len(), 32);
        assert_eq!(rows[2], Some(2));
        assert_eq!(rows[3], None);
        assert_eq!(rows[16], Some(3));
    }

    #[test]
    fn every_level_is_where_the_runtime_looks_for_it() {
        let weight = DMatrix::from_fn(40, 3, |i, o| (1.7 * i as f64 + o as f64).sin());
        for bits in [8, 4, 3, 2] {
            let rounded = RoundedMatrix::nearest(&weight, bits, 32).unwrap();
            let laid = integers(&rounded, &rows(3, 1));
            let (offset, step) = if bits == 2 {
                (3, 2)
            } else {
                (1 << (bits - 1), 1)
            };
            for (input, output) in (0..40).flat_map(|i| (0..3).map(move |o| (i, o))) {
                let at = |unit: usize, bytes: usize| {
                    let unit = &laid.weights[input / unit * bytes..];
                    move |offset: usize| i16::from(unit[offset + 4 * output + input % 4])
                };
                let found = match bits {
                    8 => at(4, 64)(0),
                    4 => at(8, 64)(0) >> (input % 8 / 4 * 4) & 15,
                    2 => at(16, 64)(0) >> (input % 16 / 4 * 2) & 3,
                    _ => {
                        let (quad, byte) = (input % 32 / 4, at(32, 192));
                        match quad {
                            0..6 => byte(quad / 2 * 64) >> (quad % 2 * 3) & 7,
                            _ => byte((quad - 6) * 64) >> 6 | (byte(128) >> quad & 1) << 2,
                        }
                    }
                };
                let level = i16::from(rounded.levels()[(input, output)]);
                assert_eq!(
                    step * found - offset,
                    level,
                    "{bits} bits, {input}, {output}"
                );
            }
        }
    }
}
