//! The `S4Model` classifier of `example.py`, known by the names and shapes of all its tensors.

use std::collections::BTreeSet;
use std::sync::Arc;

use hankelite_archive::Archive;

use crate::checkpoint::layout::{Found, OwnLayout, find_layers};
use crate::checkpoint::tree::sharing::Beside;
use crate::checkpoint::tree::{Recognised, unmarked};

/// What the names of all layers have in them.
const MARK: &str = "s4_layers.";
/// Tensors of LayerNorm and BatchNorm1d.
const NORM: [&str; 5] = [
    "weight",
    "bias",
    "running_mean",
    "running_var",
    "num_batches_tracked",
];

/// Looks for the classifier. With one tensor more or less, or one of another shape, it is not that.
/// Other names of its own tensors do no harm.
pub(super) fn recognise(archive: &Archive, own: Option<&Arc<OwnLayout>>) -> Recognised {
    let marked = archive.names().filter_map(|name| name.split_once(MARK));
    let prefixes: BTreeSet<&str> = marked.map(|(at, _)| at).collect();
    let mut first = Recognised::Other;
    for at in prefixes {
        let tree = Tree::new(archive, at, own);
        let beside = Beside::of(archive, |name| {
            let inside = name.strip_prefix(at);
            inside.is_some_and(|name| tree.is_known(name))
        });
        match tree.misfit(&beside.strange) {
            None => {
                return Recognised::Whole {
                    at: at.to_string(),
                    layers: tree.layers,
                    others: beside.others,
                };
            }
            Some(why) if matches!(first, Recognised::Other) => first = Recognised::Unlike { why },
            Some(_) => {}
        }
    }
    first
}

/// What could be a classifier.
struct Tree<'a> {
    archive: &'a Archive,
    at: &'a str,
    /// The names after the prefix.
    names: BTreeSet<&'a str>,
    /// Numbers of the layers.
    numbers: BTreeSet<usize>,
    layers: Vec<Found>,
}

impl<'a> Tree<'a> {
    fn new(archive: &'a Archive, at: &'a str, own: Option<&Arc<OwnLayout>>) -> Self {
        let names: BTreeSet<&str> = archive.names().filter_map(|n| n.strip_prefix(at)).collect();
        let inside = names.iter().filter_map(|name| name.strip_prefix(MARK));
        let numbers = inside.filter_map(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let numbers: BTreeSet<usize> = numbers.collect();
        let found = find_layers(names.iter().copied(), "", own);
        let layers = (0..numbers.len()).map(|index| layer(&names, &found, index));
        Self {
            archive,
            at,
            layers: layers.collect(),
            names,
            numbers,
        }
    }

    /// Why this is not the whole classifier and nothing else.
    fn misfit(&self, strange: &[String]) -> Option<String> {
        if !strange.is_empty() {
            return Some(none_of(strange));
        }
        self.missing().or_else(|| self.misshapen())
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.at)
    }

    fn is_known(&self, name: &str) -> bool {
        let map = |rest: &str| matches!(rest, "weight" | "bias");
        let part = |head: &str| name.strip_prefix(head);
        let numbered = |head: &str| {
            let (number, rest) = part(head)?.split_once('.')?;
            let number = number.parse::<usize>().ok()?;
            (number < self.layers.len()).then_some(rest)
        };
        part("encoder.").is_some_and(map)
            || part("decoder.").is_some_and(map)
            || numbered("norms.").is_some_and(|rest| NORM.contains(&rest))
            || numbered(MARK).is_some_and(|rest| {
                let linear = rest.strip_prefix("output_linear.");
                linear.is_some_and(|rest| map(rest.strip_prefix("0.").unwrap_or(rest)))
            })
            || self.layers.iter().any(|layer| layer.holds(name))
    }

    /// What the classifier needs in any case, where it is not there.
    fn missing(&self) -> Option<String> {
        let mut needed = vec!["encoder.weight", "decoder.weight", "decoder.bias"];
        let each = |index: usize| ["weight", "bias"].map(|part| format!("norms.{index}.{part}"));
        let norms: Vec<String> = (0..self.layers.len()).flat_map(each).collect();
        needed.extend(norms.iter().map(String::as_str));
        let lacks = |name: &&&str| !self.names.contains(**name);
        if let Some(missing) = needed.iter().find(lacks) {
            return Some(format!("there is no tensor `{}`", self.full(missing)));
        }
        if let Some(gap) = (0..self.layers.len()).find(|index| !self.numbers.contains(index)) {
            return Some(format!("there is no layer `{}{MARK}{gap}`", self.at));
        }
        let empty = self
            .layers
            .iter()
            .find(|layer| !self.names.iter().any(|name| name.starts_with(&layer.place)));
        let bare = (0..self.layers.len()).map(|index| format!("{MARK}{index}."));
        let bare = bare.filter(|place| {
            !["0.", ""].iter().any(|kind| {
                let weight = format!("{place}output_linear.{kind}weight");
                self.names.contains(weight.as_str())
            })
        });
        let empty = empty.map(|layer| format!("there is no tensor `{}…`", self.full(&layer.place)));
        empty.or_else(|| {
            let place = bare.into_iter().next()?;
            let name = self.full(&place);
            Some(format!("there is no tensor `{name}output_linear.0.weight`"))
        })
    }

    /// A tensor whose shape is none that the classifier has.
    fn misshapen(&self) -> Option<String> {
        let shape = |name: &str| self.archive.shape(&self.full(name));
        let channels = *shape("norms.0.weight")?.first()?;
        let norms = (0..self.layers.len()).map(|i| (format!("norms.{i}.weight"), "channels"));
        let ends = ["encoder.weight", "decoder.weight", "decoder.bias"];
        let ends = ends.map(|name| (name.to_string(), name));
        let mut wrong = ends.into_iter().chain(norms).filter_map(|(name, kind)| {
            let found = shape(&name)?;
            let (fits, expected) = match kind {
                "encoder.weight" if shape("encoder.bias").is_none() => (
                    matches!(found, [_, h] if *h == channels),
                    format!("[tokens, {channels}]"),
                ),
                "encoder.weight" => (
                    matches!(found, [h, _] if *h == channels),
                    format!("[{channels}, inputs]"),
                ),
                "decoder.weight" => (
                    matches!(found, [_, h] if *h == channels),
                    format!("[classes, {channels}]"),
                ),
                "decoder.bias" => (found.len() == 1, "[classes]".to_string()),
                _ => (found == [channels], format!("[{channels}]")),
            };
            (!fits).then(|| {
                let name = self.full(&name);
                format!("tensor `{name}` has shape {found:?}, expected {expected}")
            })
        });
        wrong.next()
    }
}

/// The layer of a number: one that was found, or one some of whose tensors are missing.
fn layer(names: &BTreeSet<&str>, found: &[Found], index: usize) -> Found {
    let place = format!("{MARK}{index}.");
    let mut inside = found.iter().filter(|layer| layer.place.starts_with(&place));
    match inside.next() {
        Some(layer) => layer.clone(),
        None => {
            let d = format!("{place}D");
            let has_d = names.contains(d.as_str());
            Found {
                feedthrough: Some(d).filter(|_| has_d),
                ..unmarked(format!("{place}kernel."))
            }
        }
    }
}

/// Tensors that do not belong to the classifier, in words.
fn none_of(strange: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = strange
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = match strange.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (tensors, are) = match strange.len() {
        1 => ("tensor", "is"),
        _ => ("tensors", "are"),
    };
    let shown = shown.join(", ");
    format!("{tensors} {shown}{more} {are} none of the classifier of example.py")
}
