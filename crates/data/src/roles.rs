//! Which array of a file holds the inputs, and which the answers.

use hankelite_archive::{Archive, Dtype};

/// Names that people give to the inputs.
const INPUTS: [&str; 9] = [
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

/// Names that people give to the answers.
const ANSWERS: [&str; 7] = ["y", "Y", "label", "target", "t", "answers", "outputs"];

/// A file with its inputs called `inputs`, and its answers `labels` where they are whole numbers, else
/// `targets`; and what was taken for what.
pub(super) struct Roles {
    pub(super) archive: Archive,
    pub(super) note: Option<String>,
}

impl Roles {
    /// By the names that stand in `docs/data.md`, by others that are usual, and by shape where there
    /// is no doubt. A file whose inputs are not found stays as it is.
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
        let mut taken: Vec<String> = Vec::new();
        for name in [inputs, answers].into_iter().flatten() {
            let called = role(name).unwrap_or_default();
            if called != name {
                taken.push(format!("`{name}` is taken for the {called}"));
            }
        }
        let note = (!taken.is_empty()).then(|| taken.join(", "));
        match note.as_ref().and_then(|_| archive.renamed(role)) {
            Some(archive) => Self { archive, note },
            None => Self {
                archive,
                note: None,
            },
        }
    }
}

fn axes(archive: &Archive, name: &str) -> usize {
    archive.shape(name).map_or(0, <[usize]>::len)
}

fn is_whole(archive: &Archive, name: &str) -> bool {
    use Dtype::{BOOL, I8, I16, I32, I64, U8, U16, U32, U64};
    let whole = [BOOL, I8, I16, I32, I64, U8, U16, U32, U64];
    archive
        .dtype(name)
        .is_some_and(|dtype| whole.contains(&dtype))
}

/// One of several arrays by a usual name; the only one that fits, where none has such a name.
fn named<'a>(archive: &'a Archive, known: &[&str], fits: impl Fn(&str) -> bool) -> Option<&'a str> {
    let by_name = known
        .iter()
        .find_map(|known| archive.names().find(|name| name == known));
    let mut fitting = archive.names().filter(|name| fits(name));
    let only = fitting.next().filter(|_| fitting.next().is_none());
    by_name.filter(|name| fits(name)).or(only)
}

/// The inputs have two axes or three; of a list of arrays they are the first.
fn inputs(archive: &Archive) -> Option<&str> {
    if archive.contains("inputs") {
        return archive.names().find(|name| *name == "inputs");
    }
    let fits = |name: &str| (2..=3).contains(&axes(archive, name));
    let first = archive.names().find(|name| *name == "0" && fits(name));
    first.or_else(|| named(archive, &INPUTS, fits))
}

/// The answers have as many rows as the inputs.
fn answers<'a>(archive: &'a Archive, inputs: &str) -> Option<&'a str> {
    const OWN: [&str; 7] = [
        "labels",
        "targets",
        "lengths",
        "mask",
        "classes",
        "vocabulary",
        "inputs",
    ];
    if archive.contains("labels") || archive.contains("targets") {
        return None;
    }
    let rows = |name: &str| archive.shape(name).and_then(|shape| shape.first().copied());
    let fits = |name: &str| {
        name != inputs
            && !OWN.contains(&name)
            && axes(archive, name) > 0
            && rows(name) == rows(inputs)
    };
    let second = archive.names().find(|name| *name == "1" && fits(name));
    second.or_else(|| named(archive, &ANSWERS, fits))
}
