//! Blobs that bounce.

use std::f64::consts::TAU;
use std::fmt::Display;

use crate::bouncing::{Film, Shape};
use crate::draw::Draw;
use crate::options::{Options, SourceError};
use crate::{DataError, Dataset, Split};

/// Pixels along an edge of a sprite, as of an MNIST digit.
const EDGE: usize = 28;

/// Films of blobs that bounce in a square and overlap; the answer at each step is the frame itself.
///
/// ```text
/// blob:  e^{−(x² + y²)/2},  (x, y) = (u/σ_1, v/σ_2) in pixels along its own turned axes
/// σ_1 uniform over 4 … 7, σ_2 over 1.5 … 3, the angle over a whole turn;  28 × 28 pixels
/// corner of a blob at frame t:  36 · fold(p + 0.1 t v),  p uniform over [0, 1)²
/// v = (cos θ, sin θ), θ uniform;  fold reflects at 0 and 1
/// frame = largest value of any blob at each pixel of 64 × 64, then bilinear to size × size
/// ```
///
/// The shape and the motion of [`MovingDigits`](crate::MovingDigits) without any file.
///
/// Keys: `frames` (20), `size` (16), `digits` (2), `count` (8000), `held_out` (1000), `seed` (0).
#[derive(Debug, Clone, PartialEq)]
pub struct Sprites(Film);

impl Sprites {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self(Film::parse(options)?))
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        self.0.generate(self, split, blob)
    }
}

impl Display for Sprites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sprites:{}", self.0)
    }
}

fn blob(draw: &mut Draw) -> Shape {
    let (long, short) = (4.0 + 3.0 * draw.unit(), 1.5 + 1.5 * draw.unit());
    let angle = TAU * draw.unit();
    let (sin, cos) = (libm::sin(angle), libm::cos(angle));
    let middle = (EDGE - 1) as f64 / 2.0;
    let pixel = |place: usize| {
        let (down, across) = (
            (place / EDGE) as f64 - middle,
            (place % EDGE) as f64 - middle,
        );
        let along = (cos * across + sin * down) / long;
        let beside = (cos * down - sin * across) / short;
        libm::exp(-0.5 * (along * along + beside * beside)) as f32
    };
    Shape {
        rows: EDGE,
        columns: EDGE,
        pixels: (0..EDGE * EDGE).map(pixel).collect(),
    }
}
