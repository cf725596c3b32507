//! Several sets of weights in one file: a network and its running mean, a student and its teacher.
//!
//! They are entries of the top object of a Torch file, of which one is read, or modules of one state
//! dict, whose names start with that of the set.

use std::collections::{BTreeMap, BTreeSet};

use hankelite_archive::{Archive, WeightSet};

use crate::checkpoint::declared::PartName;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::find_layers;

/// What `--part` calls all sets together.
const ALL: &str = "all";

/// Words in the name of a module that holds a network once more.
const COPIES: [&str; 10] = [
    "ema", "swa", "teacher", "student", "average", "averaged", "shadow", "momentum", "target",
    "online",
];

/// Names that wrappers put around a network.
const AROUND: [&str; 2] = ["module", "_orig_mod"];

/// A file as it is read: of its sets of weights, all or the one that was chosen.
pub(super) struct Chosen {
    pub(super) archive: Archive,
    /// All of the file, where there are several.
    pub(super) sets: Vec<WeightSet>,
    /// What the names of the chosen one start with, where the others stay in the file.
    pub(super) below: Option<Below>,
}

/// The module that is read.
#[derive(Debug, Clone)]
pub(super) struct Below {
    /// Its name.
    pub(super) part: PartName,
    /// What the names of its tensors start with.
    pub(super) prefix: String,
}

/// A set of weights within a state dict.
struct Module {
    set: WeightSet,
    prefix: String,
}

/// Takes the set of weights that a person asked for, or the one that the file was written for.
///
/// # Errors
/// [`Fault::NoSuchPart`]; [`Fault::AllParts`] where one file cannot hold what would be written.
pub(super) fn choose(
    archive: Archive,
    asked: Option<PartName>,
    recorded: Option<PartName>,
) -> Result<Chosen, Fault> {
    let entries = || archive.sets().iter();
    let wanted = asked.as_ref().map(PartName::as_str);
    if wanted == Some(ALL) && !archive.sets().is_empty() {
        let parts = entries().map(|set| set.name.clone()).collect();
        return Err(Fault::AllParts { parts });
    }
    let entry = entries().find(|set| Some(set.name.as_str()) == wanted);
    let is_entry = entry.is_some() || wanted.is_some_and(|name| is_wrapper(&archive, name));
    let archive = match entry.filter(|set| !set.read).map(|set| set.name.clone()) {
        Some(other) => archive.of_set(&other)?,
        None => archive,
    };
    let modules = modules(&archive);
    let called = |name: &str| modules.iter().find(|module| module.set.name == name);
    let module = match wanted {
        _ if is_entry => None,
        Some(ALL) => None,
        Some(name) => Some(called(name).ok_or_else(|| no_such_part(name, &archive, &modules))?),
        None => recorded.as_ref().and_then(|part| called(part.as_str())),
    };
    let below = module.and_then(|module| {
        Some(Below {
            part: PartName::new(&module.set.name)?,
            prefix: module.prefix.clone(),
        })
    });
    let mut sets = archive.sets().to_vec();
    sets.extend(modules.into_iter().map(|Module { mut set, prefix }| {
        set.read = below.as_ref().is_none_or(|below| below.prefix == prefix);
        set
    }));
    let archive = match &below {
        Some(below) => archive.below(&below.prefix),
        None => archive,
    };
    Ok(Chosen {
        archive,
        sets,
        below,
    })
}

/// Whether the tensors stand in an entry of that name, the only one.
fn is_wrapper(archive: &Archive, name: &str) -> bool {
    let keys = archive.wrapper().and_then(|keys| keys.strip_prefix(name));
    keys.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn no_such_part(part: &str, archive: &Archive, modules: &[Module]) -> Fault {
    let entries = archive.sets().iter();
    let all = entries.chain(modules.iter().map(|module| &module.set));
    Fault::NoSuchPart {
        part: part.to_string(),
        parts: listed(all),
    }
}

/// Names with sizes.
fn listed<'a>(sets: impl Iterator<Item = &'a WeightSet>) -> String {
    let sets = sets.map(|set| format!("`{}` ({} bytes)", set.name, set.bytes));
    sets.collect::<Vec<_>>().join(", ")
}

/// The modules that hold the same network, one of them by a name that says so.
fn modules(archive: &Archive) -> Vec<Module> {
    let layers = find_layers(archive.names(), "", None);
    let places: Vec<&str> = layers.iter().map(|layer| layer.place.as_str()).collect();
    let root = common(&places);
    let mut inside: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for place in &places {
        let (head, rest) = split(&place[root.len()..]);
        inside.entry(head).or_default().insert(unwrapped(rest));
    }
    let shared = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| a.intersection(b).next().is_some();
    let copies: Vec<&BTreeSet<&str>> = inside
        .iter()
        .filter(|(head, _)| is_copy(head))
        .map(|(_, layers)| layers)
        .collect();
    let heads = inside
        .iter()
        .filter(|(_, layers)| copies.iter().any(|copy| shared(copy, layers)));
    let heads: Vec<&str> = heads.map(|(head, _)| *head).collect();
    if heads.len() < 2 {
        return Vec::new();
    }
    let modules = heads.into_iter().map(|head| Module {
        set: extent(archive, root, head),
        prefix: format!("{root}{head}"),
    });
    modules.collect()
}

/// The tensors below a head, which ends with a separator.
fn extent(archive: &Archive, root: &str, head: &str) -> WeightSet {
    let below = archive.headers().filter(|header| {
        let rest = header.name.strip_prefix(root);
        rest.is_some_and(|rest| rest.starts_with(head))
    });
    let (mut tensors, mut bits) = (0, 0_usize);
    for header in below {
        tensors += 1;
        bits += header.shape.iter().product::<usize>() * header.dtype.bitsize();
    }
    let name = head.trim_end_matches(['.', '/']).to_string();
    WeightSet::new(name, tensors, (bits / 8) as u64, true)
}

/// What all places start with, up to a separator.
fn common<'a>(places: &[&'a str]) -> &'a str {
    let Some((first, others)) = places.split_first() else {
        return "";
    };
    let mut length = 0;
    loop {
        let (head, _) = split(&first[length..]);
        let next = length + head.len();
        let all = others.iter().all(|place| place.starts_with(&first[..next]));
        if head.is_empty() || !all {
            return &first[..length];
        }
        length = next;
    }
}

/// The first part of a name with its separator, and the rest.
fn split(name: &str) -> (&str, &str) {
    let end = name.find(['.', '/']).map_or(0, |at| at + 1);
    name.split_at(end)
}

/// Without the names of wrappers at the start.
fn unwrapped(mut name: &str) -> &str {
    loop {
        let (head, rest) = split(name);
        if !AROUND.contains(&head.trim_end_matches(['.', '/'])) {
            return name;
        }
        name = rest;
    }
}

fn is_copy(head: &str) -> bool {
    let head = head.trim_end_matches(['.', '/']);
    head.split(['_', '-']).any(|word| COPIES.contains(&word))
}

impl Chosen {
    /// The name that a file which is written records; none of an entry, which it holds alone.
    pub(super) fn part(&self) -> Option<PartName> {
        self.below.as_ref().map(|below| below.part)
    }

    /// For a person: what the archive says, which sets there are and which is read.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.archive.notes().to_vec();
        if self.sets.len() < 2 {
            return notes;
        }
        // What follows says so of all entries that are not read.
        let entries = self.archive.sets().iter();
        let heads: Vec<String> = entries.map(|set| format!("`{}` (", set.name)).collect();
        notes.retain(|note| !heads.iter().any(|head| note.starts_with(head)));
        let all = listed(self.sets.iter());
        let read = self.sets.iter().filter(|set| set.read);
        let read: Vec<String> = read.map(|set| format!("`{}`", set.name)).collect();
        let every = read.len() == self.sets.len();
        let what = match (&self.below, every, read.join(", ")) {
            (Some(_), _, read) => format!("{read} is read, the others are copied as they are"),
            (None, true, _) => {
                "the layers of all are read; --part NAME takes one and copies the others"
                    .to_string()
            }
            (None, false, read) => format!(
                "{read} is read, and a file that is written holds it alone; --part NAME takes another"
            ),
        };
        notes.push(format!(
            "the file holds several sets of weights, {all}: {what}"
        ));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_hold_a_network_once_more_are_known_by_their_names() {
        let layer =
            |place: &str| ["log_dt", "A_imag", "C", "log_A_real"].map(|t| format!("{place}{t}"));
        let of = |places: &[&str]| {
            let number = hankelite_archive::RawTensor::from_f64(
                hankelite_archive::Dtype::F32,
                vec![3],
                &[0.0; 3],
            );
            let number = number.unwrap();
            let names = places.iter().flat_map(|place| layer(place));
            let tensors = names.map(|name| (name, number.clone())).collect();
            let archive = Archive::in_memory("both", tensors);
            let modules = modules(&archive).into_iter();
            modules
                .map(|module| (module.set.name, module.prefix, module.set.bytes))
                .collect::<Vec<_>>()
        };
        let set = |name: &str, prefix: &str, bytes| (name.to_string(), prefix.to_string(), bytes);
        assert_eq!(
            of(&[
                "net.teacher.l.0.",
                "net.teacher.l.1.",
                "net.student.module.l.0."
            ]),
            [
                set("student", "net.student.", 48),
                set("teacher", "net.teacher.", 96)
            ]
        );
        assert_eq!(
            of(&["params/l/", "ema_params/l/"]),
            [
                set("ema_params", "ema_params/", 48),
                set("params", "params/", 48)
            ]
        );
        // Two halves of one network.
        assert!(of(&["encoder.l.0.", "decoder.l.0."]).is_empty());
        assert!(of(&["teacher.l.0."]).is_empty());
        assert!(of(&["teacher.a.0.", "head.b.0."]).is_empty());
        assert!(of(&["l.0.", "l.1."]).is_empty());
    }
}
