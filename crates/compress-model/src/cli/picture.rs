//! Where `--picture` goes: an SVG file, or a PNG file by its name.

use std::path::Path;

use hankelite_archive::write_whole;

/// Whether a picture is to be a PNG file.
fn is_png(path: &Path) -> bool {
    let ending = path.extension();
    ending.is_some_and(|ending| ending.eq_ignore_ascii_case("png"))
}

/// Refuses, before long work, a PNG picture that could not be drawn here.
pub(super) fn check_drawn(path: &Path) -> anyhow::Result<()> {
    match is_png(path) {
        true => png::check(),
        false => Ok(()),
    }
}

/// Writes an SVG picture, as PNG where the name ends in `.png`.
pub(super) fn write_picture(path: &Path, svg: &str) -> anyhow::Result<()> {
    match is_png(path) {
        true => Ok(write_whole(path, png::of(svg)?)?),
        false => Ok(write_whole(path, svg)?),
    }
}

#[cfg(feature = "png")]
mod png {
    use crate::report::Fonts;

    pub(super) fn check() -> anyhow::Result<()> {
        Ok(Fonts::of_machine().map(drop)?)
    }

    pub(super) fn of(svg: &str) -> anyhow::Result<Vec<u8>> {
        Ok(Fonts::of_machine()?.png(svg)?)
    }
}

#[cfg(not(feature = "png"))]
mod png {
    use anyhow::bail;

    pub(super) fn check() -> anyhow::Result<()> {
        bail!(
            "this program was built without the feature `png`, which draws PNG pictures; \
             expected a name that ends in .svg"
        )
    }

    pub(super) fn of(_: &str) -> anyhow::Result<Vec<u8>> {
        check()?;
        Ok(Vec::new())
    }
}
