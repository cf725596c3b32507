//! Digits that bounce.

use std::fmt::Display;
use std::path::PathBuf;

use crate::bouncing::{CANVAS, Film, Shape};
use crate::error::content;
use crate::mnist::Images;
use crate::options::{Options, SourceError};
use crate::{DataError, Dataset, Split, mnist};

/// Films of MNIST digits that bounce in a square and overlap, made from the idx files of a folder;
/// the answer at each step is the frame itself.
///
/// ```text
/// corner of a digit at frame t:  room · fold(p + 0.1 t v),  p uniform over [0, 1)²
/// v = (cos θ, sin θ), θ uniform;  fold reflects at 0 and 1;  room = 64 − 28 pixels
/// frame = largest value of any digit at each pixel of 64 × 64, then bilinear to size × size
/// ```
///
/// After Srivastava, Mansimov and Salakhutdinov (2015), with exact reflection, and 16 × 16 as in the
/// compressive sensing experiment of the reweighted ℓ1-ℓ1 network. No digit is in two parts: those
/// of the training file's last tenth make the validation part, those of the test file the test
/// part.
///
/// Keys: `frames` (20), `size` (16), `digits` (2), `count` (8000), `held_out` (1000), `seed` (0).
#[derive(Debug, Clone, PartialEq)]
pub struct MovingDigits {
    pub(super) path: PathBuf,
    film: Film,
}

impl MovingDigits {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            film: Film::parse(options)?,
            path: options.path()?,
        })
    }

    pub(super) fn generate(&self, split: Split) -> Result<Dataset, DataError> {
        let file = match split {
            Split::Test => Split::Test,
            Split::Train | Split::Validation => Split::Train,
        };
        let images = mnist::images(&self.path, file)?;
        let Images { rows, columns, .. } = images;
        let (count, edge) = (images.count(), rows.max(columns));
        if edge > CANVAS || (count < 2 && file == Split::Train) {
            let found = format!("{count} images of {rows} × {columns} pixels");
            let expected = format!("at least 2 of at most {CANVAS} × {CANVAS}");
            return Err(content(&images.path, found, expected));
        }
        let held = (count / 10).max(1);
        let (first, choice) = match split {
            Split::Train => (0, count - held),
            Split::Validation => (count - held, held),
            Split::Test => (0, count),
        };
        self.film.generate(self, split, |draw| Shape {
            rows,
            columns,
            pixels: images.one(first + draw.below(choice)),
        })
    }
}

impl Display for MovingDigits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "moving-digits:{},{}", self.path.display(), self.film)
    }
}
