//! `pack --arduino`: an image, the C runtime and a sketch, as a library folder of the Arduino tools.

use std::fs::{create_dir, create_dir_all, rename, write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hankelite::model::InputKind;
use hankelite::stream::{C_RUNTIME, Runner, c_header};
use hankelite_archive::check_destination;

/// The header with the image, whose names then begin with `model`.
const HEADER: &str = "src/model.h";

/// The sketch; its folder has its name.
const SKETCH: &str = "examples/Stream/Stream.ino";

/// Where a library goes: the tools take names of letters, digits and a few signs.
pub(super) fn place(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_good) {
        true => Ok(path),
        false => Err(
            "expected a folder named by letters, digits, `_`, `.` and `-`, as the Arduino tools \
             name libraries"
                .to_string(),
        ),
    }
}

/// Refuses a folder that is there, or one that could not be written.
pub(super) fn check(folder: &Path, input: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        bail!("{}: already there, expected a new folder", folder.display());
    }
    Ok(check_destination(folder, &[input])?)
}

/// Writes the library whole or not at all. `from` is what the image was made of.
pub(super) fn write_library(folder: &Path, from: &str, runner: &Runner) -> anyhow::Result<()> {
    let failed = || format!("{}: cannot be written", folder.display());
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let parent = match folder.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let beside = tempfile::tempdir_in(parent).with_context(failed)?;
    // A folder of its own has the rights of any other.
    let library = beside.path().join("library");
    create_dir(&library).with_context(failed)?;
    for (file, text) in files(&name, from, runner) {
        let path = library.join(file);
        create_dir_all(path.parent().unwrap_or(&library)).with_context(failed)?;
        write(path, text).with_context(failed)?;
    }
    rename(&library, folder).with_context(failed)
}

fn files(name: &str, from: &str, runner: &Runner) -> Vec<(String, String)> {
    let runtime = C_RUNTIME.iter();
    let runtime = runtime.map(|(file, text)| (format!("src/{file}"), (*text).to_string()));
    let made = [
        ("library.properties", properties(name, from)),
        (HEADER, c_header(Path::new(HEADER), from, runner)),
        (SKETCH, sketch(runner)),
    ];
    let made = made.map(|(file, text)| (file.to_string(), text));
    runtime.chain(made).collect()
}

/// What the tools show. A line is a property, so names lose their line ends.
fn properties(name: &str, from: &str) -> String {
    let from: String = from.chars().filter(|c| !c.is_control()).collect();
    format!(
        "name={name}\n\
         version={}\n\
         author=compress-model\n\
         maintainer=compress-model\n\
         sentence=One sample in, the outputs of the model out.\n\
         paragraph=The image of {from}, and the runtime for it in C. For boards with 32 bits.\n\
         category=Data Processing\n\
         url={}\n\
         architectures=*\n\
         includes=hankelite.h,model.h\n",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_REPOSITORY"),
    )
}

fn sketch(runner: &Runner) -> String {
    let step = match runner.takes() {
        InputKind::Tokens { .. } => {
            "  // A token is a whole number, here from the serial line.\n\
             \x20 if (Serial.available() == 0) return;\n\
             \x20 const int code = hk_step_token(&model, state, work, (uint32_t)Serial.parseInt());\n"
        }
        InputKind::Numbers { .. } => {
            "  // In the unit and at the rate of the training data. Here: analogue pins from A0 on, -1 to 1.\n\
             \x20 float inputs[MODEL_INPUTS];\n\
             \x20 for (int i = 0; i < MODEL_INPUTS; i++) inputs[i] = analogRead(A0 + i) / 511.5f - 1.0f;\n\
             \x20 const int code = hk_step(&model, state, work, inputs);\n"
        }
    };
    format!("{SKETCH_START}{step}{SKETCH_END}")
}

const SKETCH_START: &str = "\
// One step for each sample, and the largest output every SHOWN steps.
#include <hankelite.h>
#include <model.h>

const uint32_t SHOWN = 256;

static float state[MODEL_STATE], work[MODEL_WORK];
static hk_model model;
static uint32_t steps;

void setup() {
  Serial.begin(115200);
  // hk_reset starts a new signal, too.
  if (hk_check(&model, model_image.bytes, MODEL_IMAGE_BYTES) != HK_OK || hk_reset(&model, state) != HK_OK)
    Serial.println(\"the image is spoiled\");
}

void loop() {
";

const SKETCH_END: &str = "  if (code != HK_OK) {
    Serial.println(code);
    return;
  }
  if (++steps % SHOWN != 0) return;
  const float *outputs = hk_logits(&model, work);
  int largest = 0;
  for (int i = 1; i < MODEL_OUTPUTS; i++)
    if (outputs[i] > outputs[largest]) largest = i;
  Serial.println(largest);
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_libraries() {
        for good in ["Waves", "out/my-model_2.1", "8"] {
            assert_eq!(place(good), Ok(PathBuf::from(good)));
        }
        for bad in ["", "a b", "-x", ".x", "é", "..", "/"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_property_is_one_line() {
        let text = properties("Waves", "a\nurl=b.pth");
        assert_eq!(text.lines().count(), 10);
        assert!(text.lines().all(|line| line.contains('=')), "{text}");
    }
}
