//! SVG pictures as PNG, their text in a font of the machine.

use resvg::render;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, FaceInfo, Family, Query, Style, Weight};
use resvg::usvg::{Options, Tree};
use thiserror::Error;

/// Dots of a PNG for one unit of its SVG, either way.
const SCALE: f32 = 2.0;

/// Why a picture is not drawn as PNG.
#[derive(Debug, Error)]
pub enum PngError {
    /// Without a font a picture would lack its text, without an error.
    #[error(
        "no font was found on this machine, expected one for the text of a PNG picture, such as \
         DejaVu Sans; SVG needs none"
    )]
    NoFont,
    /// The SVG is not one.
    #[error("the picture is no SVG that can be drawn")]
    Svg(#[from] resvg::usvg::Error),
    /// The picture does not fit into memory, or is empty.
    #[error("a picture of {width} by {height} dots cannot be drawn")]
    Size {
        /// Dots from left to right.
        width: u32,
        /// Dots from top to bottom.
        height: u32,
    },
    /// The dots could not be encoded.
    #[error("the picture could not be encoded as PNG: {cause}")]
    Encode {
        /// The encoder's error.
        cause: String,
    },
}

/// The fonts that the text of pictures is drawn with, one of them as `sans-serif`.
pub struct Fonts(Database);

impl Fonts {
    /// Those of the machine.
    ///
    /// # Errors
    /// [`PngError::NoFont`].
    pub fn of_machine() -> Result<Self, PngError> {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        Self::new(fonts)
    }

    fn new(mut fonts: Database) -> Result<Self, PngError> {
        let sans = Query {
            families: &[Family::SansSerif],
            ..Query::default()
        };
        if fonts.query(&sans).is_none() {
            let name = plainest(&fonts).ok_or(PngError::NoFont)?;
            fonts.set_sans_serif_family(name);
        }
        Ok(Self(fonts))
    }

    /// An SVG picture as a PNG file of twice its size.
    ///
    /// # Errors
    /// [`PngError`].
    pub fn png(self, svg: &str) -> Result<Vec<u8>, PngError> {
        let mut options = Options {
            font_family: self.0.family_name(&Family::SansSerif).to_string(),
            ..Options::default()
        };
        *options.fontdb_mut() = self.0;
        let tree = Tree::from_str(svg, &options)?;
        let size = tree.size();
        let [width, height] =
            [size.width(), size.height()].map(|side| (side * SCALE).ceil() as u32);
        let mut dots = Pixmap::new(width, height).ok_or(PngError::Size { width, height })?;
        render(
            &tree,
            Transform::from_scale(SCALE, SCALE),
            &mut dots.as_mut(),
        );
        dots.encode_png().map_err(|error| PngError::Encode {
            cause: error.to_string(),
        })
    }
}

/// The family that is read best: upright, of normal weight, without serifs by its name.
fn plainest(fonts: &Database) -> Option<String> {
    let unlike = |face: &FaceInfo, name: &str| {
        let (slanted, heavy) = (face.style != Style::Normal, face.weight != Weight::NORMAL);
        (slanted, heavy, face.monospaced, !name.contains("Sans"))
    };
    let named = fonts
        .faces()
        .filter_map(|face| Some((face, face.families.first()?.0.as_str())));
    let best = named.min_by_key(|(face, name)| unlike(face, name));
    best.map(|(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_fonts_is_refused() {
        let refused = Fonts::new(Database::new());
        assert!(matches!(refused, Err(PngError::NoFont)));
    }

    /// Whatever font a machine has, and whatever it takes for `sans-serif`.
    #[test]
    fn words_are_drawn_in_a_font_that_is_there() {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        fonts.set_sans_serif_family("a font that is nowhere");
        let fonts = Fonts::new(fonts).expect("a machine that draws pictures has a font");
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"90\" height=\"30\">\
                   <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
                   <text x=\"5\" y=\"20\" font-family=\"sans-serif\">states</text></svg>";
        let file = fonts.png(svg).expect("a small picture is drawn");
        let dots = Pixmap::decode_png(&file).expect("it can be decoded");
        assert_eq!((dots.width(), dots.height()), (180, 60));
        let dark = dots.pixels().iter().filter(|dot| dot.green() < 100).count();
        assert!((100..4000).contains(&dark), "{dark}");
    }

    #[test]
    fn what_is_no_svg_is_refused() {
        let fonts = Fonts::of_machine().expect("a machine that draws pictures has a font");
        assert!(matches!(fonts.png(""), Err(PngError::Svg(_))));
    }
}
