//! Which array of a file holds the inputs, and which the answers.

use hankelite_archive::{Archive, Dtype};

/// Names that people give to the inputs, after our own and the first place of a tuple or list.
const INPUTS: [&str; 11] = [
    "inputs",
    "0",
    "x",
    "X",
    "input",
    "data",
    "features",
    "sequences",
    "signals",
    "images",
    "u",
];

/// Names that people give to the answers, after the second place.
const ANSWERS: [&str; 8] = ["1", "y", "Y", "label", "target", "t", "answers", "outputs"];

/// A file with its inputs called `inputs`, and its answers `labels` where they are whole numbers, else
/// `targets`; and what was taken for what.
pub(super) struct Roles {
    pub(super) archive: Archive,
    pub(super) note: Option<String>,
}

impl Roles {
    /// By name, by the place in a tuple or list, and for the inputs by shape where only one array fits.
    /// Answers are never guessed by shape: numbers of sequences and weights have as many rows. A file
    /// whose inputs are not found stays as it is.
    pub(super) fn find(archive: Archive) -> Self {
        let inputs = inputs(&archive);
        let answers = inputs.and_then(|inputs| answers(&archive, inputs));
        let role = |name: &str| {
            if Some(name) == inputs {
                return Some("inputs".to_string());
            }
            (Some(name) == answers).then(|| match is_whole(&archive, name) {
                true => "labels".to_string(),
                false => "targets".to_string(),
            })
        };
        let found = [inputs, answers].into_iter().flatten();
        let taken = found.filter_map(|name| Some((name, role(name)?)));
        let taken = taken.filter(|(name, role)| name != role);
        let taken: Vec<String> = taken
            .map(|(name, role)| format!("`{name}` is taken for the {role}"))
            .collect();
        let renamed = archive.renamed(role).filter(|_| !taken.is_empty());
        Self {
            note: renamed.is_some().then(|| taken.join(", ")),
            archive: renamed.unwrap_or(archive),
        }
    }
}

fn is_whole(archive: &Archive, name: &str) -> bool {
    use Dtype::{BOOL, I8, I16, I32, I64, U8, U16, U32, U64};
    let whole = [BOOL, I8, I16, I32, I64, U8, U16, U32, U64];
    archive
        .dtype(name)
        .is_some_and(|dtype| whole.contains(&dtype))
}

/// The first of these names that is in a file and fits.
fn named<'a>(archive: &'a Archive, known: &[&str], fits: impl Fn(&str) -> bool) -> Option<&'a str> {
    let there = |known: &&str| archive.names().find(|name| name == known && fits(name));
    known.iter().find_map(there)
}

/// The inputs have two axes or three; what is called `inputs` is none other, whatever its shape.
fn inputs(archive: &Archive) -> Option<&str> {
    let axes = |name: &str| archive.shape(name).map_or(0, <[usize]>::len);
    let fits = |name: &str| name == "inputs" || (2..=3).contains(&axes(name));
    let mut fitting = archive.names().filter(|name| fits(name));
    let only = fitting.next().filter(|_| fitting.next().is_none());
    named(archive, &INPUTS, fits).or(only)
}

/// The answers have as many rows as the inputs.
fn answers<'a>(archive: &'a Archive, inputs: &str) -> Option<&'a str> {
    if archive.contains("labels") || archive.contains("targets") {
        return None;
    }
    let rows = |name: &str| archive.shape(name).and_then(|shape| shape.first().copied());
    let fits = |name: &str| name != inputs && rows(name).is_some() && rows(name) == rows(inputs);
    named(archive, &ANSWERS, fits)
}
