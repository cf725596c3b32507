//! From a folder, as Hugging Face keeps models, to one that loads as it is: smaller weights, the state
//! size in its configuration, a section on its card, and all else copied.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hankelite::checkpoint::SizeSettings;
use hankelite::compress::LayerRecord;
use hankelite_archive::{Container, check_output, file_in};
use serde::Serialize;
use tempfile::{Builder, TempDir};

/// Folders within folders are followed so far.
const DEPTH: usize = 8;

/// Larger files are no configuration.
const CONFIGURATION_BYTES: u64 = 1 << 20;

/// Endings of weights that no container has: copied, they would be those of the full model.
const OTHER_WEIGHTS: [&str; 6] = ["h5", "gguf", "onnx", "ot", "tflite", "npy"];

/// What becomes of a folder.
#[derive(Debug, Serialize)]
pub(super) struct FolderChanges {
    /// Numbers of the configuration.
    settings: Vec<SettingChange>,
    /// Settings that are not the number of states of the tensors, and stay.
    disagreements: Vec<String>,
    /// Other weights, which are those of the full model.
    left_out: Vec<String>,
    /// Files that were copied.
    copied: usize,
}

/// A number of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SettingChange {
    file: String,
    setting: String,
    before: usize,
    after: usize,
}

/// A folder on its way. It takes its place when it is complete, and goes away otherwise.
pub(super) struct OutputFolder {
    source: PathBuf,
    output: PathBuf,
    staged: TempDir,
}

/// What stands in a folder that is written.
pub(super) struct Made<'a> {
    pub(super) layers: &'a [LayerRecord],
    pub(super) sizes: SizeSettings,
    /// The card of the smaller model: as a whole, and as a section of the card that is there.
    pub(super) card: [String; 2],
}

/// Whether a folder goes into a folder: the output has no ending of a file.
pub(super) fn is_of_folders(source: &Path, output: &Path) -> bool {
    source.is_dir() && Container::of_path(output).is_none()
}

/// Whether a folder could be written.
pub(super) fn check(source: &Path, output: &Path) -> anyhow::Result<()> {
    if !output.exists() {
        return Ok(check_output(output, &[source])?);
    }
    let here = || output.display().to_string();
    if !output.is_dir() {
        bail!(
            "{}: a file, expected a folder, as the source is one, or a name that ends with .safetensors",
            here()
        );
    }
    if fs::read_dir(output).with_context(here)?.next().is_some() {
        bail!(
            "{}: a folder with something in it, expected a new folder or an empty one",
            here()
        );
    }
    Ok(())
}

impl OutputFolder {
    /// The folder to be made, where a folder goes into a folder.
    pub(super) fn begin(source: &Path, output: &Path) -> anyhow::Result<Option<Self>> {
        if !is_of_folders(source, output) {
            return Ok(None);
        }
        let outer = output
            .parent()
            .filter(|outer| !outer.as_os_str().is_empty());
        let staged = Builder::new()
            .prefix(".hankelite-")
            .tempdir_in(outer.unwrap_or(Path::new(".")))
            .with_context(|| output.display().to_string())?;
        Ok(Some(Self {
            source: source.to_path_buf(),
            output: output.to_path_buf(),
            staged,
        }))
    }

    /// Where its weights go: a file of the name that they had, or the folder itself for several.
    pub(super) fn weights(&self) -> anyhow::Result<PathBuf> {
        let file = file_in(&self.source)?;
        let name = file.file_name().unwrap_or_default();
        Ok(match Container::of_path(&file) {
            Some(Container::Sharded) => self.staged.path().to_path_buf(),
            _ => self.staged.path().join(name),
        })
    }

    /// Adds all other files, and puts the folder in its place.
    pub(super) fn finish(self, made: &Made<'_>) -> anyhow::Result<FolderChanges> {
        let mut changes = FolderChanges {
            settings: Vec::new(),
            disagreements: Vec::new(),
            left_out: Vec::new(),
            copied: 0,
        };
        self.copy(Path::new(""), 0, &mut changes)?;
        self.configure(made, &mut changes)?;
        let [whole, section] = &made.card;
        let card = self.staged.path().join("README.md");
        let text = match fs::read_to_string(&card) {
            Ok(found) => format!("{}\n\n{section}", found.trim_end()),
            Err(_) => whole.clone(),
        };
        self.write(&card, &text)?;
        // A folder of the system's own making is for its owner alone.
        let here = || self.output.display().to_string();
        let permissions = fs::metadata(&self.source).with_context(here)?.permissions();
        fs::set_permissions(self.staged.path(), permissions).with_context(here)?;
        fs::rename(self.staged.path(), &self.output).with_context(here)?;
        let _moved = self.staged.keep();
        Ok(changes)
    }

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        fs::write(path, text).with_context(|| self.output.display().to_string())
    }

    /// Copies what is no weights, and what the folder holds besides.
    fn copy(&self, below: &Path, depth: usize, changes: &mut FolderChanges) -> anyhow::Result<()> {
        let from = self.source.join(below);
        let here = || from.display().to_string();
        let entries = fs::read_dir(&from).with_context(here)?;
        let mut names: Vec<_> = entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()
            .with_context(here)?;
        names.sort();
        for name in names {
            let (inside, hidden) = (below.join(&name), name.to_string_lossy().starts_with('.'));
            let (path, to) = (self.source.join(&inside), self.staged.path().join(&inside));
            if hidden {
                continue;
            }
            // Links to files are followed, as the caches of hubs have them.
            let linked = fs::symlink_metadata(&path).with_context(here)?.is_symlink();
            if path.is_dir() && !linked && depth < DEPTH {
                fs::create_dir(&to).with_context(here)?;
                self.copy(&inside, depth + 1, changes)?;
                if fs::read_dir(&to).with_context(here)?.next().is_none() {
                    fs::remove_dir(&to).with_context(here)?;
                }
            } else if is_weights(&path) || !path.is_file() {
                changes.left_out.push(inside.display().to_string());
            } else {
                fs::copy(&path, &to).with_context(|| path.display().to_string())?;
                changes.copied += 1;
            }
        }
        if depth == 0 {
            let read = |name: &String| !self.is_read(name);
            changes.left_out.retain(read);
        }
        Ok(())
    }

    /// Whether a file of the source is part of the checkpoint that was read.
    fn is_read(&self, name: &str) -> bool {
        let Ok(file) = file_in(&self.source) else {
            return false;
        };
        let listed = match Container::of_path(&file) {
            Some(Container::Sharded) => fs::read_to_string(&file).unwrap_or_default(),
            _ => String::new(),
        };
        file == self.source.join(name) || listed.contains(&format!("\"{name}\""))
    }

    /// Sets the number of states in the configuration.
    fn configure(&self, made: &Made<'_>, changes: &mut FolderChanges) -> anyhow::Result<()> {
        let here = || self.output.display().to_string();
        let entries = fs::read_dir(self.staged.path()).with_context(here)?;
        let mut files: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
            .with_context(here)?;
        files.sort();
        for file in files.iter().filter(|file| is_configuration(file)) {
            let Ok(text) = fs::read_to_string(file) else {
                continue;
            };
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let changed = configured(&text, &name, made, changes)?;
            if changed != text {
                self.write(file, &changed)?;
            }
        }
        Ok(())
    }
}

fn ending(path: &Path) -> String {
    let ending = path.extension().unwrap_or_default();
    ending.to_string_lossy().to_ascii_lowercase()
}

fn is_weights(path: &Path) -> bool {
    Container::of_path(path).is_some() || OTHER_WEIGHTS.contains(&ending(path).as_str())
}

/// `config.json` and its like, and any YAML.
fn is_configuration(path: &Path) -> bool {
    let small = fs::metadata(path).is_ok_and(|found| found.len() <= CONFIGURATION_BYTES);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    small
        && match ending(path).as_str() {
            "json" => name.contains("config") && !name.contains("tokenizer"),
            "yml" | "yaml" => true,
            _ => false,
        }
}

/// The text of a configuration with the new number of states.
fn configured(
    text: &str,
    file: &str,
    made: &Made<'_>,
    changes: &mut FolderChanges,
) -> anyhow::Result<String> {
    let orders = || made.layers.iter().map(|layer| layer.order);
    let stored = made.layers.iter().map(|layer| layer.order_before);
    let (stored, order) = (stored.max().unwrap_or(0), orders().max().unwrap_or(0));
    let mut text = text.to_string();
    for setting in made.sizes.names {
        for (at, before) in numbers(&text, setting).into_iter().rev() {
            let after = match before {
                _ if before == stored => order,
                // Both of each pair of modes are counted.
                _ if before == 2 * stored => 2 * order,
                _ => {
                    changes.disagreements.push(format!(
                        "{file}: `{setting}` is {before}, which stays, but the tensors have {stored} states"
                    ));
                    continue;
                }
            };
            if orders().any(|other| other != order) {
                bail!(
                    "{file} has one number of states for all layers (`{setting}`), and the reduced layers have \
                     {:?}: give one size to all with --order {order}",
                    orders().collect::<Vec<_>>()
                );
            }
            set(&mut text, (at, before), after);
            changes.settings.push(change(file, setting, before, after));
            let blocks = made
                .sizes
                .divisor
                .map(|blocks| (blocks, numbers(&text, blocks)));
            let (blocks, found) = blocks.unwrap_or_default();
            if let Some(&(at, count)) = found.first().filter(|(_, n)| *n == 0 || after % n != 0) {
                set(&mut text, (at, count), 1);
                changes.settings.push(change(file, blocks, count, 1));
            }
        }
    }
    Ok(text)
}

fn change(file: &str, setting: &str, before: usize, after: usize) -> SettingChange {
    SettingChange {
        file: file.to_string(),
        setting: setting.to_string(),
        before,
        after,
    }
}

fn set(text: &mut String, (at, before): (usize, usize), after: usize) {
    let digits = text[at..].find(|c: char| !c.is_ascii_digit());
    let end = digits.map_or(text.len(), |digits| at + digits);
    debug_assert_eq!(text[at..end].parse(), Ok(before));
    text.replace_range(at..end, &after.to_string());
}

/// Whole numbers that a setting has in a text of JSON or YAML, and where their digits begin. What is
/// around them stays as it is, comments and order among it.
fn numbers(text: &str, setting: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(setting) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c)) {
            continue;
        }
        let behind = &text[at + setting.len()..];
        let behind = behind
            .trim_start_matches(['"', '\''])
            .trim_start_matches([' ', '\t']);
        let Some(value) = behind.strip_prefix(':').map(str::trim_start) else {
            continue;
        };
        let end = value
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(value.len());
        let whole = !value[end..].starts_with(|c: char| c.is_alphanumeric() || "._".contains(c));
        if let Some(number) = value[..end].parse().ok().filter(|_| whole) {
            found.push((text.len() - value.len(), number));
        }
    }
    found
}

impl FolderChanges {
    /// What a person reads: one line for what was written, then notes.
    pub(super) fn line(&self) -> String {
        let settings = self.settings.iter().map(|change| {
            let SettingChange {
                file,
                setting,
                before,
                after,
            } = change;
            format!("`{setting}` {before} → {after} in {file}")
        });
        let settings: Vec<String> = settings.collect();
        let files = if self.copied == 1 { "file" } else { "files" };
        match settings.is_empty() {
            true => format!(
                "{} other {files} copied; no configuration names the number of states",
                self.copied
            ),
            false => format!(
                "{} other {files} copied, {}",
                self.copied,
                settings.join(", ")
            ),
        }
    }

    pub(super) fn warnings(&self) -> &[String] {
        &self.disagreements
    }

    pub(super) fn note(&self) -> Option<String> {
        let left_out = (!self.left_out.is_empty()).then(|| self.left_out.join(", "))?;
        Some(format!(
            "left out, since these are of the full model: {left_out}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_whole_name() {
        let json = "{\"a\": {\"state_size\" : 16}, \"my_state_size\": 16, \"state_size_x\": 16}";
        assert_eq!(numbers(json, "state_size"), [(23, 16)]);
        let yaml =
            "# state_size of all\nstate_size: 16  # modes\nother_state_size: 8\nx: 'state_size'\n";
        assert_eq!(numbers(yaml, "state_size"), [(32, 16)]);
        assert_eq!(numbers("state_size: 1.5", "state_size"), []);
        let mut text = yaml.to_string();
        set(&mut text, (32, 16), 4);
        assert!(text.contains("state_size: 4  # modes\nother_state_size: 8"));
    }
}
