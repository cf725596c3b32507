//! An image as C, for `device/hankelite.c`.

use std::fmt::Write;
use std::path::Path;

use crate::model::InputKind;
use crate::stream::Runner;

/// Bytes on a line.
const EACH: usize = 24;

/// The image of a runner as a C header, for `device/hankelite.c`: sizes as macros, and the bytes. `path`
/// is the header's own, which names what is in it; `from` is what the image was made of.
///
/// ```
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/models/waves/model.safetensors");
/// # let model = hankelite::read(model, &hankelite::Declared::default())?.model;
/// use hankelite::stream::{Runner, c_header};
///
/// let text = c_header("out/waves.h".as_ref(), "model.safetensors", &Runner::new(&model)?);
/// assert!(text.contains("#define WAVES_OUTPUTS 10\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn c_header(path: &Path, from: &str, runner: &Runner<f32>) -> String {
    let name = identifier(path);
    let upper = name.to_ascii_uppercase();
    let bytes = runner.image().as_bytes();
    let mut text = comment(path, from, runner);
    // Strings take what is written to them.
    let _ = write!(
        text,
        "#ifndef {upper}_H\n#define {upper}_H\n\n#include <stdint.h>\n\n"
    );
    for (what, value) in sizes(runner) {
        let _ = writeln!(text, "#define {upper}_{what} {value}");
    }
    let _ = write!(
        text,
        "\n/* A union with a float, so that the bytes lie where a float can. */\n\
         static const union {{\n    uint8_t bytes[{upper}_IMAGE_BYTES];\n    float aligned;\n}} \
         {name}_image = {{{{\n"
    );
    for line in bytes.chunks(EACH) {
        line.iter().for_each(|byte| {
            let _ = write!(text, "{byte},");
        });
        text.push('\n');
    }
    text + "}};\n\n#endif\n"
}

/// What the macros hold. State and work are counted in floats, and in bytes.
fn sizes(runner: &Runner<f32>) -> Vec<(&'static str, usize)> {
    let (state, work) = (runner.state_bytes(), runner.work_bytes());
    let inputs = match runner.takes() {
        InputKind::Tokens { vocabulary } => ("VOCABULARY", vocabulary),
        InputKind::Numbers { width } => ("INPUTS", width),
    };
    vec![
        ("IMAGE_BYTES", runner.weight_bytes()),
        inputs,
        ("OUTPUTS", runner.outputs()),
        ("STATE", state / size_of::<f32>()),
        ("STATE_BYTES", state),
        ("WORK", work / size_of::<f32>()),
        ("WORK_BYTES", work),
    ]
}

/// How the header is used.
fn comment(path: &Path, from: &str, runner: &Runner<f32>) -> String {
    let name = identifier(path);
    let upper = name.to_ascii_uppercase();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let (step, inputs) = match runner.takes() {
        InputKind::Tokens { .. } => (
            "hk_step_token(&model, state, work, token)",
            format!("a token below {upper}_VOCABULARY"),
        ),
        InputKind::Numbers { .. } => (
            "hk_step(&model, state, work, inputs)",
            format!("{upper}_INPUTS floats"),
        ),
    };
    let text = format!(
        "The image of {from}, written by `compress-model pack`, for hankelite.c and hankelite.h.\n\
         \n\
         \x20   #include \"hankelite.h\"\n\
         \x20   #include \"{file}\"\n\
         \x20   static float state[{upper}_STATE], work[{upper}_WORK];\n\
         \x20   static hk_model model;\n\
         \n\
         \x20   hk_check(&model, {name}_image.bytes, {upper}_IMAGE_BYTES)   once; HK_OK, or the image is spoiled\n\
         \x20   hk_reset(&model, state)   at the start of a signal\n\
         \x20   {step}   for each sample: {inputs}\n\
         \x20   hk_logits(&model, work)   the {upper}_OUTPUTS outputs of the latest step"
    );
    // Names of files may hold what ends a comment or a line.
    let text = text.replace("*/", "* /").replace("/*", "/ *");
    let lines: Vec<&str> = text.lines().collect();
    format!("/* {}\n */\n", lines.join("\n * ").replace(" * \n", " *\n"))
}

/// What the names in the header begin with: the file's name as C has names.
fn identifier(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = stem.to_ascii_lowercase().chars().map(letter).collect();
    // Names that begin with underscores are the compiler's.
    let name = name.trim_start_matches('_');
    match name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => name.to_string(),
        false => format!("model_{name}").trim_end_matches('_').to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_c() {
        for (path, expected) in [
            ("a/small.h", "small"),
            ("Small-2.b.h", "small_2_b"),
            ("8 bits.h", "model_8_bits"),
            ("__x.h", "x"),
            ("é.h", "model"),
        ] {
            assert_eq!(identifier(Path::new(path)), expected, "{path}");
        }
    }
}
