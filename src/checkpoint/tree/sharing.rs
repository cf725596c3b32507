//! Tensors that a file holds under several names: views of one storage, and modules that were saved
//! twice.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hankelite_archive::{Archive, Dtype};

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Found, OwnLayout, find_layers};

/// A file, and what stands in it under several names.
pub(in crate::checkpoint) struct Shared {
    /// With equal modules tied.
    pub(in crate::checkpoint) archive: Archive,
    /// What the names of two such modules start with.
    modules: Vec<(String, String)>,
}

impl Shared {
    /// Ties modules that hold equal tensors. A module is known by its state space layers: where all
    /// tensors of two of them are equal, so are those around them that are equal too. Cost: one
    /// tensor of every layer is read, and all of those that are equal.
    ///
    /// # Errors
    /// The file can no longer be read.
    pub(in crate::checkpoint) fn find(
        archive: Archive,
        own: Option<&Arc<OwnLayout>>,
    ) -> Result<Self, Fault> {
        let found = find_layers(archive.names(), "", own);
        let mut modules = BTreeSet::new();
        for (first, second) in equal_layers(&archive, &found)? {
            let (first, second) = heads(&found[first].place, &found[second].place);
            modules.insert((first.to_string(), second.to_string()));
        }
        let mut ties = BTreeMap::new();
        for (first, second) in &modules {
            for (name, other) in pairs(&archive, first, second) {
                if !ties.contains_key(name) && is_equal(&archive, &other, name)? {
                    ties.insert(name.to_string(), other);
                }
            }
        }
        Ok(Self {
            archive: archive.tied(ties)?,
            modules: modules.into_iter().collect(),
        })
    }

    /// The same without a look for equal modules.
    pub(in crate::checkpoint) fn apart(archive: Archive) -> Self {
        let modules = Vec::new();
        Self { archive, modules }
    }

    /// All names but those of the second of two equal modules.
    pub(super) fn once(&self) -> Vec<&str> {
        let archive = &self.archive;
        let mut others = BTreeSet::new();
        for (first, second) in &self.modules {
            let pairs = pairs(archive, first, second);
            let tied = pairs.filter(|(name, other)| root(archive, name) == root(archive, other));
            others.extend(tied.map(|(name, _)| name));
        }
        archive
            .names()
            .filter(|name| !others.contains(name) && !is_count(archive, name))
            .collect()
    }
}

/// Whether a tensor is the number of models that PyTorch's `AveragedModel` took the mean of, which
/// stands beside that mean.
fn is_count(archive: &Archive, name: &str) -> bool {
    let head = name.strip_suffix("n_averaged");
    let head = head.filter(|head| head.is_empty() || head.ends_with('.'));
    head.is_some_and(|head| {
        let module = format!("{head}module.");
        archive.names().any(|name| name.starts_with(&module))
    })
}

/// The tensors below the second of two heads that have a counterpart below the first, with that.
fn pairs<'a>(
    archive: &'a Archive,
    first: &'a str,
    second: &'a str,
) -> impl Iterator<Item = (&'a str, String)> {
    let below = archive
        .names()
        .filter_map(move |name| Some((name, name.strip_prefix(second)?)));
    let paired = below.map(move |(name, rest)| (name, format!("{first}{rest}")));
    paired.filter(|(name, other)| name != other && archive.contains(other))
}

/// The first of the tensors that are tied to this one.
fn root<'a>(archive: &'a Archive, name: &'a str) -> &'a str {
    archive.tied_to(name).unwrap_or(name)
}

/// The tensors of a file that are not among those of a tree.
pub(super) struct Beside {
    /// They are tied to one of the tree's, other names of it, or count what it is the mean of.
    pub(super) others: Vec<String>,
    /// They have nothing to do with it.
    pub(super) strange: Vec<String>,
}

impl Beside {
    /// Sorts the tensors of a file by whether they are part of a tree.
    pub(super) fn of(archive: &Archive, is_part: impl Fn(&str) -> bool) -> Self {
        let (parts, beside): (Vec<&str>, Vec<&str>) =
            archive.names().partition(|name| is_part(name));
        let parts: BTreeSet<&str> = parts.into_iter().map(|name| root(archive, name)).collect();
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_string).collect();
        let other = |name: &&str| parts.contains(root(archive, name)) || is_count(archive, name);
        let (others, strange) = beside.into_iter().partition(other);
        Self {
            others: owned(others),
            strange: owned(strange),
        }
    }
}

/// Pairs of layers whose tensors are equal one by one, each with the first of its like.
fn equal_layers(archive: &Archive, found: &[Found]) -> Result<Vec<(usize, usize)>, Fault> {
    let mut alike: BTreeMap<Vec<Part<'_>>, Vec<usize>> = BTreeMap::new();
    for (index, layer) in found.iter().enumerate() {
        alike.entry(parts(archive, layer)).or_default().push(index);
    }
    let mut equal = Vec::new();
    for (parts, layers) in alike.iter().filter(|(_, layers)| layers.len() > 1) {
        let largest = parts
            .iter()
            .max_by_key(|(_, _, shape)| shape.iter().product::<usize>());
        let Some((largest, ..)) = largest else {
            continue;
        };
        // Layers that start alike may share their largest tensor and nothing else.
        let mut firsts: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for &index in layers {
            let place = &found[index].place;
            let digest = digest(archive, &format!("{place}{largest}"))?;
            let firsts = firsts.entry(digest).or_default();
            let mut like = None;
            for &first in firsts.iter() {
                if like.is_none() && is_same(archive, [&found[first].place, place], parts)? {
                    like = Some(first);
                }
            }
            match like {
                Some(first) => equal.push((first, index)),
                None => firsts.push(index),
            }
        }
    }
    Ok(equal)
}

/// Whether all tensors of two layers are equal, also those that both have beside their kernels.
fn is_same(archive: &Archive, places: [&str; 2], parts: &[Part<'_>]) -> Result<bool, Fault> {
    let pair = |part: &str| places.map(|place| format!("{place}{part}"));
    let both = |part: &&str| pair(part).iter().all(|name| archive.contains(name));
    let beside = BESIDE_ONE.into_iter().filter(both);
    for part in parts.iter().map(|(part, ..)| *part).chain(beside) {
        let [first, second] = pair(part);
        if !is_equal(archive, &first, &second)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A tensor of a layer: its name after that of the layer, element type and shape.
type Part<'a> = (&'a str, Dtype, &'a [usize]);

/// What may stand beside one of two equal kernels alone: D, and the length that a kernel of S4 was made for.
/// lrnnx has a layer's tensors in the layer, with D, and again in its kernel, with the length.
const BESIDE_ONE: [&str; 2] = ["D", "l_kernel"];

fn parts<'a>(archive: &'a Archive, layer: &Found) -> Vec<Part<'a>> {
    let own = archive.headers().filter(|header| {
        let rest = header.name.strip_prefix(layer.place.as_str());
        layer.is_kernel(header.name) && rest.is_none_or(|rest| !BESIDE_ONE.contains(&rest))
    });
    own.map(|header| {
        (
            &header.name[layer.place.len()..],
            header.dtype,
            header.shape,
        )
    })
    .collect()
}

fn digest(archive: &Archive, name: &str) -> Result<u64, Fault> {
    let mut hasher = DefaultHasher::new();
    archive.tensor(name)?.bytes().hash(&mut hasher);
    Ok(hasher.finish())
}

/// Whether two tensors are tied, or have the same type, shape and bytes.
fn is_equal(archive: &Archive, first: &str, second: &str) -> Result<bool, Fault> {
    if root(archive, first) == root(archive, second) {
        return Ok(true);
    }
    let alike = archive.contains(first)
        && archive.dtype(first) == archive.dtype(second)
        && archive.shape(first) == archive.shape(second);
    Ok(alike && archive.tensor(first)? == archive.tensor(second)?)
}

/// Two names without the parts at their ends that are the same in both.
fn heads<'a>(first: &'a str, second: &'a str) -> (&'a str, &'a str) {
    let (mut left, mut right) = (first, second);
    while let (Some(a), Some(b)) = (last_part(left), last_part(right)) {
        if a != b {
            break;
        }
        left = &left[..left.len() - a.len()];
        right = &right[..right.len() - b.len()];
    }
    (left, right)
}

/// The last part of a name that ends with a separator, with that.
fn last_part(name: &str) -> Option<&str> {
    let inner = name.strip_suffix(['.', '/'])?;
    Some(&name[inner.rfind(['.', '/']).map_or(0, |at| at + 1)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_end_where_two_names_differ() {
        assert_eq!(
            heads("a.s4_layers.0.kernel.", "b.s4_layers.0.kernel."),
            ("a.", "b.")
        );
        assert_eq!(
            heads("s4_layers.0.kernel.", "net.s4_layers.0.kernel."),
            ("", "net.")
        );
        assert_eq!(heads("x.0.kernel.", "x.1.kernel."), ("x.0.", "x.1."));
    }
}
