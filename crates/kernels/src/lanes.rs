//! How the rows of a batch are laid into vector lanes.

use crate::fourier::Point;
use crate::real::{LANE_WIDTH, LaneReal};

/// Batch × L × H numbers are cut into slabs of a few sequences; a slab fills both parts of the
/// points of every group.
///
/// With H ≥ 16 a slab is two sequences, and a group is sixteen channels of both. With H < 16 a
/// part holds ⌊16/H⌋ sequences, so that no lane stays empty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lanes {
    /// H.
    pub channels: usize,
    /// L, steps of a sequence.
    pub length: usize,
    /// Sequences in one part of a point.
    pub stacked: usize,
    /// Groups of channels.
    pub groups: usize,
}

impl Lanes {
    /// The layout of sequences of `length` steps and `channels` channels.
    pub fn new(channels: usize, length: usize) -> Self {
        Self {
            channels,
            length,
            stacked: (LANE_WIDTH / channels).max(1),
            groups: channels.div_ceil(LANE_WIDTH),
        }
    }

    /// The same with one sequence in each part of a point, whatever lanes stay empty.
    pub fn unstacked(channels: usize, length: usize) -> Self {
        Self {
            stacked: 1,
            ..Self::new(channels, length)
        }
    }

    /// Numbers in the slab of a full pair of parts.
    pub fn slab(&self) -> usize {
        2 * self.stacked * self.length * self.channels
    }

    /// The channels of a group: the first one, and how many.
    pub fn channels_of(&self, group: usize) -> (usize, usize) {
        let first = group * LANE_WIDTH;
        (first, (self.channels - first).min(LANE_WIDTH))
    }

    /// The channel of every lane of a group; empty lanes have none.
    pub fn channel_of_lane(&self, group: usize, lane: usize) -> Option<usize> {
        let (first, width) = self.channels_of(group);
        (lane < width * self.stacked).then(|| first + lane % width)
    }

    /// points[0..L] ← the rows of a slab.
    pub fn pack<T: LaneReal>(&self, slab: &[T], group: usize, points: &mut [Point<T>]) {
        let (first, width) = self.channels_of(group);
        let points = &mut points[..self.length];
        let row = self.length * self.channels;
        if width == LANE_WIDTH && slab.len() == 2 * row {
            let (re, im) = slab.split_at(row);
            let rows = re
                .chunks_exact(self.channels)
                .zip(im.chunks_exact(self.channels));
            for (point, (re, im)) in points.iter_mut().zip(rows) {
                point.re.copy_from_slice(&re[first..first + LANE_WIDTH]);
                point.im.copy_from_slice(&im[first..first + LANE_WIDTH]);
            }
            return;
        }
        points.fill(Point::zero());
        for (index, sequence) in slab.chunks_exact(row).enumerate() {
            let (part, place) = (index / self.stacked, index % self.stacked * width);
            let rows = sequence.chunks_exact(self.channels);
            for (point, row) in points.iter_mut().zip(rows) {
                let lanes = if part == 0 {
                    &mut point.re
                } else {
                    &mut point.im
                };
                lanes[place..place + width].copy_from_slice(&row[first..first + width]);
            }
        }
    }

    /// The reverse of [`Lanes::pack`].
    pub fn unpack<T: LaneReal>(&self, points: &[Point<T>], group: usize, slab: &mut [T]) {
        let (first, width) = self.channels_of(group);
        let row = self.length * self.channels;
        for (index, sequence) in slab.chunks_exact_mut(row).enumerate() {
            let (part, place) = (index / self.stacked, index % self.stacked * width);
            let rows = sequence.chunks_exact_mut(self.channels);
            for (point, row) in points.iter().zip(rows) {
                let lanes = if part == 0 { &point.re } else { &point.im };
                let row = &mut row[first..first + width];
                if width == LANE_WIDTH {
                    row.copy_from_slice(lanes);
                } else {
                    row.copy_from_slice(&lanes[place..place + width]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_gives_the_packed_rows_back() {
        for (channels, items) in [(1, 32), (1, 3), (5, 6), (5, 4), (16, 2), (16, 1), (40, 2)] {
            let lanes = Lanes::new(channels, 3);
            let count = items * 3 * channels;
            assert!(count <= lanes.slab());
            let slab: Vec<f64> = (0..count).map(|x| x as f64).collect();
            let mut back = vec![0.0; count];
            for group in 0..lanes.groups {
                let mut points = vec![Point::zero(); 3];
                lanes.pack(&slab, group, &mut points);
                lanes.unpack(&points, group, &mut back);
            }
            assert_eq!(slab, back, "{channels} channels, {items} sequences");
        }
    }
}
