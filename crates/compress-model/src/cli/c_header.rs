//! `pack --c-header`: where the header goes.

use std::path::{Path, PathBuf};

/// The runtime's own header, in `device`.
const RUNTIME: &str = "hankelite.h";

/// Where a header goes.
pub(super) fn place(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let name = path.file_name().unwrap_or_default();
    if name == RUNTIME {
        let clash = "the runtime's own header has this name; expected another";
        return Err(clash.to_string());
    }
    match path.extension().is_some_and(|ending| ending == "h") {
        true => Ok(path),
        false => Err("expected a name that ends in .h".to_string()),
    }
}

/// Whether a name stands for C, which an image is not.
pub(super) fn is_c(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    ["h", "hh", "hpp", "c", "cc", "cpp"]
        .iter()
        .any(|c| ending == *c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_endings_and_the_name_of_the_runtime_are_refused() {
        assert_eq!(place("a/model.h"), Ok(PathBuf::from("a/model.h")));
        for name in ["model", "model.hpp", "model.c", ".h", ""] {
            assert_eq!(place(name).unwrap_err(), "expected a name that ends in .h");
        }
        let clash = place("src/hankelite.h").unwrap_err();
        assert!(clash.contains("the runtime's own header"), "{clash}");
    }
}
