//! Shapes that bounce in a square: what moving digits and sprites share.

use std::f64::consts::TAU;
use std::fmt::Display;

use crate::draw::Draw;
use crate::generate::Sizes;
use crate::options::{Options, SourceError};
use crate::{DataError, Dataset, Split};

/// Pixels along an edge of the square in which shapes move.
pub(super) const CANVAS: usize = 64;
/// The way of a frame, as a share of the room that a shape has.
const SPEED: f64 = 0.1;

/// A picture, rows × columns, values of 0 … 1, at most [`CANVAS`] along both.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) pixels: Vec<f32>,
}

/// Films of shapes that bounce; the answer at each step is the frame itself.
///
/// ```text
/// corner of a shape at frame t:  room · fold(p + 0.1 t v),  p uniform over [0, 1)²
/// v = (cos θ, sin θ), θ uniform;  fold reflects at 0 and 1;  room = 64 − edge, in pixels
/// frame = largest value of any shape at each pixel of 64 × 64, then bilinear to size × size
/// ```
///
/// Corners are rounded to pixels. Width size², row by row from the top.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Film {
    frames: usize,
    size: usize,
    shapes: usize,
    sizes: Sizes,
}

impl Film {
    /// Keys `frames` (20), `size` (16), `digits` (2), `count` (8000), `held_out` (1000), `seed`.
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            frames: options.number("frames", 20, 1..=1 << 16)?,
            size: options.number("size", 16, 1..=CANVAS)?,
            shapes: options.number("digits", 2, 1..=64)?,
            sizes: Sizes::parse(options, 8000, 1000)?,
        })
    }

    /// The films of a part. `shape` draws one of its shapes.
    pub(super) fn generate(
        &self,
        data: &impl Display,
        split: Split,
        shape: impl Fn(&mut Draw) -> Shape + Sync,
    ) -> Result<Dataset, DataError> {
        let width = self.size * self.size;
        self.sizes.check(data, split, 2 * self.frames * width)?;
        let films = self.sizes.sequences(split, |draw| self.film(draw, &shape));
        let values = films.concat();
        Ok(Dataset::of_own_values(values, width, self.frames))
    }

    fn film(&self, draw: &mut Draw, shape: impl Fn(&mut Draw) -> Shape) -> Vec<f32> {
        let shapes = (0..self.shapes).map(|_| (shape(draw), Motion::draw(draw)));
        let shapes: Vec<_> = shapes.collect();
        let mut film = Vec::with_capacity(self.frames * self.size * self.size);
        for t in 0..self.frames {
            let mut canvas = vec![0.0; CANVAS * CANVAS];
            for (shape, motion) in &shapes {
                paint(&mut canvas, shape, motion.corner(shape, t));
            }
            film.extend(resized(&canvas, self.size));
        }
        film
    }
}

impl Display for Film {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (frames, size, shapes) = (self.frames, self.size, self.shapes);
        write!(
            f,
            "frames={frames},size={size},digits={shapes},{}",
            self.sizes
        )
    }
}

/// Where a shape starts and how it moves, down and to the right, as shares of its room.
struct Motion {
    start: [f64; 2],
    way: [f64; 2],
}

impl Motion {
    fn draw(draw: &mut Draw) -> Self {
        let start = [draw.unit(), draw.unit()];
        let angle = TAU * draw.unit();
        let way = [SPEED * libm::sin(angle), SPEED * libm::cos(angle)];
        Self { start, way }
    }

    /// The top left pixel of the shape at frame t.
    fn corner(&self, shape: &Shape, t: usize) -> [usize; 2] {
        let room = [CANVAS - shape.rows, CANVAS - shape.columns];
        [0, 1].map(|axis| {
            let share = fold(self.start[axis] + t as f64 * self.way[axis]);
            (share * room[axis] as f64).round() as usize
        })
    }
}

/// The way back and forth between 0 and 1: the distance to the nearest even number.
fn fold(x: f64) -> f64 {
    let within = x - 2.0 * (x / 2.0).floor();
    within.min(2.0 - within)
}

fn paint(canvas: &mut [f32], shape: &Shape, [top, left]: [usize; 2]) {
    for (row, pixels) in shape.pixels.chunks_exact(shape.columns).enumerate() {
        let start = (top + row) * CANVAS + left;
        for (below, &pixel) in canvas[start..start + shape.columns].iter_mut().zip(pixels) {
            *below = below.max(pixel);
        }
    }
}

/// Bilinear values at the centres of size × size cells of the canvas, without smoothing: pixel i
/// looks at (i + ½) 64/size − ½. At 16 it is the mean of the four middle pixels of 4 × 4.
fn resized(canvas: &[f32], size: usize) -> Vec<f32> {
    let places: Vec<(usize, usize, f32)> = (0..size)
        .map(|i| {
            let place = (i as f64 + 0.5) * CANVAS as f64 / size as f64 - 0.5;
            let low = place.floor();
            let next = (low as usize + 1).min(CANVAS - 1);
            (low as usize, next, (place - low) as f32)
        })
        .collect();
    let mut out = Vec::with_capacity(size * size);
    for &(top, bottom, down) in &places {
        for &(left, right, across) in &places {
            let row = |row: usize| {
                let at = |column: usize| canvas[row * CANVAS + column];
                at(left) + across * (at(right) - at(left))
            };
            out.push(row(top) + down * (row(bottom) - row(top)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_turns_at_the_walls_and_keeps_its_speed() {
        assert_eq!(
            [0.25, 1.25, 1.75, 2.25, -0.25, -1.25].map(fold),
            [0.25, 0.75, 0.25, 0.25, 0.25, 0.75]
        );
        let shape = Shape {
            rows: 4,
            columns: 14,
            pixels: vec![1.0; 56],
        };
        let motion = Motion {
            start: [0.9, 0.0],
            way: [0.1, -0.04],
        };
        let corners: Vec<_> = (0..4).map(|t| motion.corner(&shape, t)).collect();
        assert_eq!(corners, [[54, 0], [60, 2], [54, 4], [48, 6]]);
    }

    #[test]
    fn sixteen_pixels_are_the_means_of_the_middles_and_sixty_four_the_canvas() {
        let canvas: Vec<f32> = (0..CANVAS * CANVAS).map(|i| (i % 97) as f32).collect();
        assert_eq!(resized(&canvas, CANVAS), canvas);
        let at = |row: usize, column: usize| canvas[row * CANVAS + column];
        let small = resized(&canvas, 16);
        for (i, &found) in small.iter().enumerate() {
            let (row, column) = (4 * (i / 16) + 1, 4 * (i % 16) + 1);
            let middle = at(row, column) + at(row, column + 1);
            let middle = middle + at(row + 1, column) + at(row + 1, column + 1);
            assert_eq!(found, middle / 4.0);
        }
        assert!(resized(&canvas, 1).len() == 1 && resized(&canvas, 63).len() == 63 * 63);
    }
}
