//! The numbers in `config.json`, or in YAML, beside a checkpoint. Only the digits of a number are
//! changed; all other text stays as it is.

use std::ops::Range;
use std::path::Path;

use crate::checkpoint::layout::SizeKeys;

/// More text is no configuration.
const LIMIT: u64 = 1 << 20;

/// A number that stands under one of the keys that were looked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Number {
    /// Name of its file.
    pub(super) file: String,
    pub(super) key: &'static str,
    pub(super) value: usize,
    /// Where its digits stand.
    place: Range<usize>,
}

/// The files of a configuration.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    files: Vec<(String, String)>,
}

impl Configuration {
    /// `config.json` and all YAML in a folder, but not in the folders below it. What is no text has no
    /// numbers.
    pub(super) fn read(folder: &Path) -> std::io::Result<Self> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let known = name == "config.json" || name.ends_with(".yaml") || name.ends_with(".yml");
            let short = std::fs::metadata(&path).is_ok_and(|f| f.is_file() && f.len() <= LIMIT);
            if known
                && short
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                files.push((name.to_string(), text));
            }
        }
        files.sort();
        Ok(Self { files })
    }

    /// The names of the files.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, _)| name.as_str())
    }

    /// The numbers under some keys.
    pub(super) fn numbers(&self, keys: &SizeKeys) -> Vec<Number> {
        let keys = keys.names.iter();
        keys.flat_map(|key| self.under(key)).collect()
    }

    /// The numbers under one key, wherever it stands.
    pub(super) fn under(&self, key: &'static str) -> Vec<Number> {
        let files = self.files.iter();
        let found = files.flat_map(|(file, text)| {
            let places = places(text, key).into_iter();
            places.filter_map(move |place| {
                Some(Number {
                    file: file.clone(),
                    key,
                    value: text[place.clone()].parse().ok()?,
                    place,
                })
            })
        });
        found.collect()
    }

    /// The texts of files with other numbers, by their names.
    pub(super) fn with(&self, numbers: &[(Number, usize)]) -> Vec<(String, String)> {
        let files = self.files.iter().filter_map(|(file, text)| {
            let mut own: Vec<_> = numbers.iter().filter(|(n, _)| n.file == *file).collect();
            own.sort_by_key(|(number, _)| std::cmp::Reverse(number.place.start));
            let mut text = text.clone();
            for (number, value) in &own {
                text.replace_range(number.place.clone(), &value.to_string());
            }
            (!own.is_empty()).then(|| (file.clone(), text))
        });
        files.collect()
    }
}

/// Where the digits of whole numbers under a key stand in JSON or YAML.
fn places(text: &str, key: &str) -> Vec<Range<usize>> {
    let found = text.match_indices(key);
    let places = found.filter_map(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + key.len()..]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let word = |c: char| c.is_alphanumeric() || "_-./\\".contains(c);
        let quote = before.chars().next_back().filter(|c| "\"'".contains(*c));
        let outside = &before[..before.len() - quote.map_or(0, char::len_utf8)];
        if line.trim_start().starts_with('#') || outside.ends_with(word) {
            return None;
        }
        let after = match quote {
            Some(quote) => after.strip_prefix(quote)?,
            None => after,
        };
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let behind = value[digits..].chars().next();
        if digits == 0 || behind.is_some_and(|c| c.is_alphanumeric() || "_.+-".contains(c)) {
            return None;
        }
        let start = text.len() - value.len();
        Some(start..start + digits)
    });
    places.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::layout::Kind;

    fn of(file: &str, text: &str) -> Configuration {
        let files = vec![(file.to_string(), text.to_string())];
        Configuration { files }
    }

    #[test]
    fn only_the_digits_of_a_number_change() {
        let text = "{\n  \"state_size\" : 16,\n  \"ssm_state_size\": 16, \"a\": {\"state_size\":8},\n  \
                    \"say\": \"\\\"state_size\\\": 3\", \"state_size_max\": 4, \"state_size\": 1.5}\n";
        let configuration = of("config.json", text);
        let numbers = configuration.under("state_size");
        let values: Vec<usize> = numbers.iter().map(|number| number.value).collect();
        assert_eq!(values, [16, 8]);
        let changed =
            configuration.with(&numbers.into_iter().map(|n| (n, 124)).collect::<Vec<_>>());
        let expected = text.replace("\"state_size\" : 16", "\"state_size\" : 124");
        let expected = expected.replace("\"state_size\":8", "\"state_size\":124");
        assert_eq!(changed, [("config.json".to_string(), expected)]);
    }

    #[test]
    fn yaml_is_read_with_its_remarks() {
        let text = "# state_size: 3\nmodel:\n  state_size: 16  # as published\n  x_state_size: 2\n";
        let configuration = of("a.yml", text);
        let numbers = configuration
            .numbers(&Kind::Hyena(crate::checkpoint::layout::HyenaForm::Complex).size_keys());
        assert_eq!(numbers.len(), 1);
        assert_eq!(numbers[0].value, 16);
        let changed = configuration.with(&[(numbers[0].clone(), 4)]);
        assert_eq!(
            changed[0].1,
            text.replace("state_size: 16", "state_size: 4")
        );
    }
}
