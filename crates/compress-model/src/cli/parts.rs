//! Files with several sets of weights: one command for each.

use std::path::Path;

use crate::cli::common::quoted;
use crate::cli::report::typed_words;

/// Options whose value is a file that is written.
const OUTPUTS: [&str; 6] = [
    "--output",
    "-o",
    "--image",
    "--report",
    "--card",
    "--picture",
];

/// The command that was typed, once for each set and with files of its own.
pub(super) fn each(parts: &[String]) -> String {
    each_of(&typed_words(), parts)
}

fn each_of(words: &[String], parts: &[String]) -> String {
    let commands = parts.iter().map(|part| {
        let mut before = "";
        let words = words.iter().map(|word| {
            let own = of_part(before, word, part);
            before = word;
            quoted(&own)
        });
        format!("compress-model {}", words.collect::<Vec<_>>().join(" "))
    });
    commands.collect::<Vec<_>>().join("; ")
}

/// A word of the command as it is for one set.
fn of_part(before: &str, word: &str, part: &str) -> String {
    if before == "--part" {
        return part.to_string();
    }
    if OUTPUTS.contains(&before) {
        return beside(word, part);
    }
    match word.split_once('=') {
        Some(("--part", _)) => format!("--part={part}"),
        Some((option, file)) if OUTPUTS.contains(&option) => {
            format!("{option}={}", beside(file, part))
        }
        _ => word.to_string(),
    }
}

/// `small.pth` as `small-ema.pth`.
fn beside(file: &str, part: &str) -> String {
    let path = Path::new(file);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map(|ending| ending.to_string_lossy());
    let ending = ending.map_or(String::new(), |ending| format!(".{ending}"));
    let named = path.with_file_name(format!("{stem}-{part}{ending}"));
    named.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_for_all_sets_becomes_one_for_each() {
        let words = "reduce a.pth --part all --order 4 -o out/small.pth --report=r.html";
        let words: Vec<String> = words.split(' ').map(str::to_string).collect();
        let parts = ["model".to_string(), "my ema".to_string()];
        assert_eq!(
            each_of(&words, &parts),
            "compress-model reduce a.pth --part model --order 4 -o out/small-model.pth \
             --report=r-model.html; \
             compress-model reduce a.pth --part 'my ema' --order 4 -o 'out/small-my ema.pth' \
             '--report=r-my ema.html'"
        );
    }
}
