//! Several sets of weights in one file, such as those of a network and their running mean.

use crate::error::ArchiveError;
use crate::pickle::{Budget, Id};
use crate::tensor::byte_length;
use crate::torch_file::state_dict::{Reading, list};
use crate::weight_set::WeightSet;

impl Reading<'_> {
    /// The entry of the top object with a set of weights.
    pub(super) fn set(&mut self, name: &str) -> Result<Id, ArchiveError> {
        let dict = self.dict(self.values.root())?;
        let groups = self.groups(dict)?;
        groups
            .get(name)
            .copied()
            .ok_or_else(|| ArchiveError::NoSuchSet {
                path: self.path.to_owned(),
                set: name.to_owned(),
                found: list(groups.keys().copied()),
            })
    }

    /// The sets of weights of the top object, of which one is read; none where that stands alone.
    pub(super) fn sets(&mut self, read: &str) -> Result<Vec<WeightSet>, ArchiveError> {
        let dict = self.dict(self.values.root())?;
        let groups = self.groups(dict)?;
        if groups.len() < 2 {
            return Ok(Vec::new());
        }
        let sets = groups.into_iter().map(|(name, id)| {
            let (tensors, bytes) = self.extent(id)?;
            Ok(WeightSet::new(
                name.to_owned(),
                tensors,
                bytes,
                name == read,
            ))
        });
        sets.collect()
    }

    /// The tensors anywhere inside a value, and their bytes. One that is not understood counts as empty.
    fn extent(&mut self, id: Id) -> Result<(usize, u64), ArchiveError> {
        self.walks += 1;
        self.seen[id] = self.walks;
        let (mut open, mut tensors, mut bytes) = (vec![id], 0, 0_u64);
        while let Some(id) = open.pop() {
            self.pay(|budget: &mut Budget| budget.steps(1))?;
            if self.is_tensor(id) {
                tensors += 1;
                let stored = self.tensor(id, "").ok();
                let held = stored.and_then(|stored| byte_length(stored.dtype, &stored.shape));
                bytes = bytes.saturating_add(held.unwrap_or(0) as u64);
                continue;
            }
            let children = self.values.children(id);
            self.pay(|budget| budget.steps(children.len()))?;
            for child in children {
                if self.seen[child] != self.walks {
                    self.seen[child] = self.walks;
                    open.push(child);
                }
            }
        }
        Ok((tensors, bytes))
    }
}
