//! Tensors of a Torch file that look at the same elements of one storage.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::contents::Ties;
use crate::tensor::Dtype;
use crate::torch_file::StoredTensor;
use crate::zip_records::Record;

/// Elements of a storage that several tensors look at, not all at the same ones.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) record: Record,
    pub(super) dtype: Dtype,
    /// First element, counted from the start of the record.
    pub(super) first: usize,
    /// How many.
    pub(super) span: usize,
}

/// Each tensor that is the same view as one before it, with that one.
pub(super) fn ties(tensors: &BTreeMap<String, StoredTensor>) -> Ties {
    let mut views = BTreeMap::new();
    let mut ties = Ties::new();
    for (name, stored) in tensors.iter().filter(|(_, stored)| stored.span > 0) {
        match views.entry(view(stored)) {
            Entry::Vacant(place) => {
                place.insert(name);
            }
            Entry::Occupied(first) => {
                ties.insert(name.clone(), (*first.get()).clone());
            }
        }
    }
    ties
}

type View<'a> = (usize, usize, &'a [usize], &'a [usize], u8, bool, bool);

/// What makes two tensors the same view.
fn view(stored: &StoredTensor) -> View<'_> {
    (
        stored.record.index,
        stored.first,
        &stored.shape,
        &stored.strides,
        stored.dtype as u8,
        stored.conjugate,
        stored.negative,
    )
}

/// The tensors that have, perhaps along other axes, exactly the elements of one before them.
pub(super) fn repeats(tensors: &BTreeMap<String, StoredTensor>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let dense = tensors.iter().filter(|(_, stored)| is_dense(stored));
    let repeated =
        dense.filter(|(_, stored)| !seen.insert((stored.record.index, stored.first, stored.span)));
    repeated.map(|(name, _)| name.clone()).collect()
}

/// Whether a tensor has every element between its first and its last once.
fn is_dense(stored: &StoredTensor) -> bool {
    stored.span > 0 && stored.shape.iter().product::<usize>() == stored.span
}

/// The stretches that some tensors look at together, and the stretch of each such tensor. Tensors
/// that are all the same view need none.
pub(super) fn stretches<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a StoredTensor)>,
) -> (Vec<Stretch>, BTreeMap<&'a str, usize>) {
    let mut sorted: Vec<_> = tensors
        .filter(|(_, stored)| stored.span > 0 && !stored.conjugate && !stored.negative)
        .collect();
    sorted.sort_by_key(|(_, stored)| (stored.record.index, stored.dtype as u8, stored.first));
    let (mut found, mut places) = (Vec::new(), BTreeMap::new());
    let mut rest = sorted.as_slice();
    while let Some((_, start)) = rest.first() {
        let mut end = start.first + start.span;
        let inside = rest.iter().take_while(|(_, stored)| {
            let inside = stored.record.index == start.record.index
                && stored.dtype == start.dtype
                && stored.first < end;
            if inside {
                end = end.max(stored.first + stored.span);
            }
            inside
        });
        let count = inside.count();
        let (together, later) = rest.split_at(count);
        rest = later;
        if together
            .iter()
            .any(|(_, stored)| view(stored) != view(start))
        {
            places.extend(together.iter().map(|(name, _)| (*name, found.len())));
            found.push(Stretch {
                record: start.record.clone(),
                dtype: start.dtype,
                first: start.first,
                span: end - start.first,
            });
        }
    }
    (found, places)
}
