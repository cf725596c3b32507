//! Files in which the tensors of all layers are stacked on a leading axis, as `nn.scan` of flax makes
//! them: taken apart when they are read, put together when they are written.
//!
//! The tensor `params/layers/seq/B` of three layers is read as `params/layers[0]/seq/B`, `layers[1]`
//! and `layers[2]`. Layers that need fewer modes than another are filled up, as channels are: one
//! tensor holds one order.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use hankelite_archive::{Archive, ArchiveError, Dtype, RawTensor};
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Kind, PADDING_EXPONENT, REAL_POLE_ANGLE, Version, find_layers};

/// Where flax keeps the parameters, and where the statistics of batch norms.
const ROOTS: [&str; 2] = ["params", "batch_stats"];

/// A file with stacked layers.
#[derive(Clone)]
pub(super) struct Scanned {
    /// As it is.
    file: Arc<Archive>,
    stacks: Vec<Stack>,
}

/// A module that was stacked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stack {
    /// What the names of its tensors start with, without what parts it from the rest.
    head: String,
    separator: char,
    layers: usize,
}

impl Stack {
    fn whole(&self, rest: &str) -> String {
        format!("{}{}{rest}", self.head, self.separator)
    }

    fn part(&self, index: usize, rest: &str) -> String {
        format!("{}[{index}]{}{rest}", self.head, self.separator)
    }

    /// What follows the head in the name of a stacked tensor.
    fn rest_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&self.head)?.strip_prefix(self.separator)
    }

    /// What follows the number in the name of a layer's tensor.
    fn rest_of_part<'a>(&self, name: &'a str) -> Option<&'a str> {
        let numbered = name.strip_prefix(&self.head)?.strip_prefix('[')?;
        numbered.split_once(']')?.1.strip_prefix(self.separator)
    }
}

/// The tensor that shows how many axes a kernel has, with their number where nothing is stacked.
fn known_axes(kind: Kind, complex: bool) -> Option<(&'static str, usize)> {
    Some(match kind {
        Kind::S5 { torch: false } => ("Lambda_re", 1),
        Kind::S5 { torch: true } => ("Lambda", if complex { 1 } else { 2 }),
        Kind::Lru => ("nu_log", 1),
        Kind::S4d => ("log_A_real", 2),
        Kind::S4Repo(Version::V4) => ("A_real", 2),
        Kind::AnnotatedS4d => ("A_re", 2),
        Kind::AnnotatedDss | Kind::AnnotatedDplr => ("Lambda_re", 2),
        _ => return None,
    })
}

/// The stacked modules of a file.
fn stacks(archive: &Archive) -> Vec<Stack> {
    let all = |head: &str, layers: usize| {
        let mut below = archive
            .headers()
            .filter(|header| header.name.starts_with(head));
        below.all(|header| header.shape.first() == Some(&layers))
    };
    let mut heads: BTreeMap<String, usize> = BTreeMap::new();
    for layer in find_layers(archive.names(), "", None) {
        let complex = archive.dtype(&format!("{}Lambda", layer.place)) == Some(Dtype::C64);
        let Some((tensor, axes)) = known_axes(layer.kind, complex) else {
            continue;
        };
        let shape = archive.shape(&format!("{}{tensor}", layer.place));
        let layers = match shape {
            Some(shape) if shape.len() == axes + 1 => shape[0],
            _ => continue,
        };
        let mut head = layer.place.as_str();
        if head.is_empty() || !all(head, layers) {
            continue;
        }
        // The module that was stacked holds the layer, whose kernel may stand one level below it.
        let levels = if head.ends_with("kernel.") { 2 } else { 1 };
        for _ in 0..levels {
            let inner = &head[..head.len() - 1];
            match inner.rfind(['.', '/']) {
                Some(at) if &inner[..at] != ROOTS[0] && all(&inner[..=at], layers) => {
                    head = &inner[..=at];
                }
                _ => break,
            }
        }
        heads.insert(head.to_string(), layers);
        let statistics = head.replacen(ROOTS[0], ROOTS[1], 1);
        let there = archive.names().any(|name| name.starts_with(&statistics));
        if there && all(&statistics, layers) {
            heads.insert(statistics, layers);
        }
    }
    let outermost: Vec<String> = heads.keys().cloned().collect();
    heads.retain(|head, _| !outermost.iter().any(|o| o != head && head.starts_with(o)));
    let stack = |(mut head, layers): (String, usize)| {
        let separator = head.pop().unwrap_or('/');
        Stack {
            head,
            separator,
            layers,
        }
    };
    heads.into_iter().map(stack).collect()
}

impl Scanned {
    /// Takes the stacked layers of a file apart, where there are such.
    pub(super) fn apart(archive: Archive) -> Result<(Archive, Option<Self>), ArchiveError> {
        let stacks = stacks(&archive);
        if stacks.is_empty() {
            return Ok((archive, None));
        }
        let file = Arc::new(archive);
        let scanned = Self { file, stacks };
        Ok((scanned.again(&scanned.file)?, Some(scanned)))
    }

    /// Another file of the same stacks, taken apart. It is held in memory.
    pub(super) fn again(&self, file: &Archive) -> Result<Archive, ArchiveError> {
        let mut tensors = BTreeMap::new();
        for name in file.names() {
            let found = self.stacks.iter().find_map(|s| Some((s, s.rest_of(name)?)));
            let Some((stack, rest)) = found else {
                tensors.insert(name.to_string(), file.tensor(name)?);
                continue;
            };
            for index in 0..stack.layers {
                let row = file.rows(name, index..index + 1)?;
                let shape = row.shape()[1..].to_vec();
                let part = row.reshaped(shape).map_err(|error| error.of(name))?;
                tensors.insert(stack.part(index, rest), part);
            }
        }
        Ok(Archive::in_memory(&file.path().to_string_lossy(), tensors))
    }

    /// The file as it is.
    pub(super) fn file(&self) -> &Archive {
        &self.file
    }

    /// For a person.
    pub(super) fn note(&self) -> String {
        let stacks = self.stacks.iter().map(|stack| {
            let Stack { head, layers, .. } = stack;
            format!("`{head}`, {layers}")
        });
        format!(
            "layers are stacked on a leading axis ({}): each is a layer of its own, and they are \
             written stacked, with one order for all",
            stacks.collect::<Vec<_>>().join("; ")
        )
    }

    /// The stack and the rest of a name that a layer's tensor has.
    fn parted<'a>(&self, name: &'a str) -> Option<(&Stack, &'a str)> {
        let mut stacks = self.stacks.iter();
        stacks.find_map(|stack| Some((stack, stack.rest_of_part(name)?)))
    }

    /// Numbers in all tensors once they are stacked, from the sizes of those of each layer.
    pub(super) fn elements<'a>(&self, sizes: impl Iterator<Item = (&'a str, usize)>) -> usize {
        let mut largest: BTreeMap<String, usize> = BTreeMap::new();
        let mut elsewhere = 0;
        for (name, size) in sizes {
            match self.parted(name) {
                Some((stack, rest)) => {
                    let most = largest.entry(stack.whole(rest)).or_default();
                    *most = (*most).max(stack.layers * size);
                }
                None => elsewhere += size,
            }
        }
        elsewhere + largest.values().sum::<usize>()
    }

    /// Layers that were taken apart, and perhaps changed, as one file.
    ///
    /// # Errors
    /// [`Fault::Stacked`] where tensors of the layers cannot be one.
    pub(super) fn together(&self, parts: &Archive) -> Result<Archive, Fault> {
        let mut tensors = BTreeMap::new();
        for name in parts.names() {
            match self.parted(name) {
                None => {
                    tensors.insert(name.to_string(), parts.tensor(name)?);
                }
                Some((stack, rest)) => {
                    if let Entry::Vacant(place) = tensors.entry(stack.whole(rest)) {
                        place.insert(stacked(parts, stack, rest)?);
                    }
                }
            }
        }
        let file = &self.file;
        let known: BTreeSet<&str> = file.names().collect();
        if !tensors.keys().map(String::as_str).eq(known) {
            for name in file.unseen() {
                tensors.insert(name.to_string(), file.tensor(name)?);
            }
            let path = file.path().to_string_lossy();
            return Ok(Archive::in_memory(&path, tensors));
        }
        let mut changed = BTreeMap::new();
        for (name, tensor) in tensors {
            if tensor != file.tensor(&name)? {
                changed.insert(name, tensor);
            }
        }
        Ok(file.with(changed)?)
    }
}

/// One tensor of all layers.
fn stacked(parts: &Archive, stack: &Stack, rest: &str) -> Result<RawTensor, Fault> {
    let refuse = |why: String| Fault::Stacked {
        tensor: stack.whole(rest),
        why,
    };
    let mut tensors = Vec::with_capacity(stack.layers);
    for index in 0..stack.layers {
        tensors.push(parts.tensor(&stack.part(index, rest))?);
    }
    let dtype = tensors[0].dtype();
    if let Some(other) = tensors.iter().find(|tensor| tensor.dtype() != dtype) {
        let other = other.dtype();
        return Err(refuse(format!("layers of {dtype:?} and {other:?}")));
    }
    let mut shape = tensors[0].shape().to_vec();
    let axes = 0..shape.len();
    let extents = |axis: usize| -> Vec<usize> { tensors.iter().map(|t| t.shape()[axis]).collect() };
    if tensors
        .iter()
        .any(|tensor| tensor.shape().len() != shape.len())
    {
        return Err(refuse("layers of different numbers of axes".to_string()));
    }
    let uneven: Vec<usize> = axes
        .filter(|&axis| extents(axis).iter().any(|n| *n != shape[axis]))
        .collect();
    match uneven.as_slice() {
        [] => {}
        [axis] if extents(*axis) == orders(parts, stack, rest) => {
            let most = extents(*axis).into_iter().max().unwrap_or(0);
            shape[*axis] = most;
            for tensor in &mut tensors {
                let name = stack.whole(rest);
                let filled = filled(tensor, &name, *axis, most);
                *tensor = filled.map_err(|error| error.of(&name))?;
            }
        }
        [axis, ..] => {
            return Err(refuse(format!(
                "layers with {:?} entries on one axis, which cannot be filled up; reduce all layers to \
                 one order",
                extents(*axis)
            )));
        }
    }
    let bytes: Vec<u8> = tensors
        .into_iter()
        .flat_map(RawTensor::into_bytes)
        .collect();
    shape.insert(0, stack.layers);
    let made = RawTensor::new(dtype, shape, bytes);
    made.map_err(|error| error.of(&stack.whole(rest)).into())
}

/// The modes of each layer: of those tensors of the same kernel that have nothing but modes, or modes
/// and channels, in the order in which families keep them.
fn orders(parts: &Archive, stack: &Stack, rest: &str) -> Vec<usize> {
    const DECAYS: [(&str, usize); 6] = [
        ("Lambda", 0),
        ("Lambda_re", 0),
        ("nu_log", 0),
        ("A_re", 0),
        ("A_real", 1),
        ("log_A_real", 1),
    ];
    let kernel = rest.rfind(['.', '/']).map_or("", |at| &rest[..=at]);
    let extent = |index: usize| {
        DECAYS.iter().find_map(|(tensor, axis)| {
            let shape = parts.shape(&stack.part(index, &format!("{kernel}{tensor}")))?;
            shape.get(*axis).copied()
        })
    };
    (0..stack.layers).filter_map(extent).collect()
}

/// A tensor with modes that do nothing behind those that it has: they decay, and their B and C are
/// zero. Steps go on as they are.
fn filled(
    tensor: &RawTensor,
    name: &str,
    axis: usize,
    most: usize,
) -> Result<RawTensor, hankelite_archive::TensorError> {
    let shape = tensor.shape();
    let inner: usize = shape[axis + 1..].iter().product();
    let (row, missing) = (shape[axis] * inner, (most - shape[axis]) * inner);
    let last = name.rsplit(['.', '/']).next().unwrap_or(name);
    let padding = match last {
        "Lambda" | "Lambda_re" | "A_re" => Some(PADDING_EXPONENT),
        "nu_log" => Some((-PADDING_EXPONENT).ln()),
        "theta_log" => Some(REAL_POLE_ANGLE.ln()),
        "log_step" => None,
        _ => Some(0.0),
    };
    let mut full = shape.to_vec();
    full[axis] = most;
    if tensor.dtype() == Dtype::C64 {
        let values = tensor.to_c64()?;
        let rows = values.chunks(row.max(1)).flat_map(|row| {
            let padding = Complex64::from(padding.unwrap_or(0.0));
            [Cow::Borrowed(row), Cow::Owned(vec![padding; missing])]
        });
        let values: Vec<Complex64> = rows.flat_map(Cow::into_owned).collect();
        return RawTensor::from_c64(full, &values);
    }
    let values = tensor.to_f64()?;
    let rows = values.chunks(row.max(1)).flat_map(|row| {
        let padding = padding.unwrap_or(*row.last().unwrap_or(&0.0));
        [Cow::Borrowed(row), Cow::Owned(vec![padding; missing])]
    });
    let values: Vec<f64> = rows.flat_map(Cow::into_owned).collect();
    RawTensor::from_f64(tensor.dtype(), full, &values)
}
