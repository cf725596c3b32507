//! The way out where the name of an output stands for something that is no checkpoint.

use std::path::Path;

use crate::cli::common::quoted;
use crate::cli::report::typed_words;

const ONNX: &str = "onnx";
/// What the second command of a hint is for.
const IMAGE: &str = "for an image, which a device runs";
/// Endings of what runs on a device or in another runtime; an image does too.
const DEVICE: [&str; 20] = [
    ONNX,
    "ort",
    "tflite",
    "mlmodel",
    "mlpackage",
    "pte",
    "ptl",
    "engine",
    "trt",
    "h",
    "hpp",
    "hh",
    "c",
    "cc",
    "cpp",
    "rs",
    "a",
    "o",
    "hex",
    "edge",
];
/// Options of `reduce` that an image takes the place of, or that go with a checkpoint alone.
const OF_CHECKPOINTS: [&str; 3] = ["--image", "--dtype", "--report"];

/// A command that writes what was meant, or the checkpoint under a name of its own.
pub(super) fn hint(path: &Path, ending: &str, command: &str) -> String {
    let words = typed_words();
    let (own, image) = (
        path.with_extension("safetensors"),
        path.with_extension("edge"),
    );
    let device = DEVICE.contains(&ending);
    let alone = words
        .iter()
        .any(|word| OF_CHECKPOINTS.contains(&word.as_str()));
    // An image takes a calibrated reduction.
    let calibrated = words.iter().any(|word| word.starts_with("--calibrate"));
    if device && ending != ONNX && command == "reduce" && calibrated && !alone {
        let command = line(&words, path, &image, true);
        return format!("`{command}` writes an image, which a device runs");
    }
    let checkpoint = line(&words, path, &own, false);
    if device && ["reduce", "convert", "retrain"].contains(&command) {
        let (next, option, image, what) = match ending {
            "h" => ("pack", "--c-header", path, IMAGE),
            ONNX => ("export", "--onnx", path, "for the graph"),
            _ => ("pack", "--output", image.as_path(), IMAGE),
        };
        let next = [
            next.to_string(),
            shown(&own),
            option.to_string(),
            shown(image),
        ];
        return format!(
            "`{checkpoint}`, and then `{}` {what}",
            line(&next, &own, &own, false)
        );
    }
    checkpoint
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The command with another output, which may be an image.
fn line(words: &[String], old: &Path, new: &Path, image: bool) -> String {
    let (old, new) = (shown(old), shown(new));
    let mut line = vec!["compress-model".to_string()];
    for word in words {
        let output = image && (word == "--output" || word == "-o");
        line.push(match word.strip_suffix(old.as_str()) {
            _ if output => "--image".to_string(),
            Some("--output=" | "-o" | "-o=") if image => quoted(&format!("--image={new}")),
            Some(option) if option.is_empty() || option.starts_with('-') => {
                quoted(&format!("{option}{new}"))
            }
            _ => quoted(word),
        });
    }
    line.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_output_of_a_command_is_another() {
        let cases = [
            (
                "reduce m.pth -o a.h --order 3",
                "reduce m.pth --image a.edge --order 3",
            ),
            ("reduce m.pth --output=a.h", "reduce m.pth --image=a.edge"),
            ("reduce m.pth -oa.h", "reduce m.pth --image=a.edge"),
        ];
        for (typed, expected) in cases {
            let words: Vec<String> = typed.split(' ').map(str::to_string).collect();
            let found = line(&words, Path::new("a.h"), Path::new("a.edge"), true);
            assert_eq!(found, format!("compress-model {expected}"));
        }
        let words = ["convert", "m.pth", "a.h"].map(str::to_string);
        let found = line(&words, Path::new("a.h"), Path::new("a.safetensors"), false);
        assert_eq!(found, "compress-model convert m.pth a.safetensors");
    }
}
