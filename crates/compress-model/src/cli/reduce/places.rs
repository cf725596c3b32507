//! Where files go whose places are not given.

use std::path::{Path, PathBuf};

/// Where the files of a model go whose places are not given. Of a folder, a folder.
pub(super) struct Places {
    pub(super) output: PathBuf,
    pub(super) image: PathBuf,
    pub(super) report: PathBuf,
}

impl Places {
    /// Beside one another in the current folder: `model-small.pth` and so on.
    pub(super) fn of(checkpoint: &Path) -> Self {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(".index.json").unwrap_or(&name);
        let (stem, ending) = match Path::new(name).extension() {
            Some(ending) if !checkpoint.is_dir() => {
                let ending = ending.to_string_lossy().into_owned();
                (&name[..name.len() - ending.len() - 1], ending)
            }
            _ => (name, "safetensors".to_string()),
        };
        let place = |ending: &str| PathBuf::from(format!("{stem}-small.{ending}"));
        Self {
            output: match checkpoint.is_dir() {
                true => PathBuf::from(format!("{stem}-small")),
                false => place(&ending),
            },
            image: place("edge"),
            report: place("html"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_the_model() {
        let output = |path: &str| Places::of(Path::new(path)).output.display().to_string();
        assert_eq!(output("a/b/model.pth"), "model-small.pth");
        assert_eq!(
            output("model.safetensors.index.json"),
            "model-small.safetensors"
        );
        assert_eq!(output("model"), "model-small.safetensors");
        let folder = tempfile::tempdir().unwrap();
        let small = folder.path().file_name().unwrap().to_string_lossy() + "-small";
        assert_eq!(Places::of(folder.path()).output, Path::new(&*small));
        let places = Places::of(Path::new("x.ckpt"));
        assert_eq!(places.image, Path::new("x-small.edge"));
        assert_eq!(places.report, Path::new("x-small.html"));
    }
}
