//! Many variables in a row, as one leaf of the graph: `cuda/join.cu`.
//!
//! candle's way back through a concatenation fills a tensor with zeros, and adds to it, for each variable:
//! two kernels that the host has to start. The gradient of a variable that stands in a leaf is a part of
//! the leaf's.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, TensorId, Var, bail};

use super::list::{HEAD, List};
use super::{File, address, launch, takes};

/// Gradients by variable.
pub(in crate::nn) type PartGradients = HashMap<TensorId, Tensor>;

/// Variables in single precision that stand in a row, in single or double precision.
pub(in crate::nn) struct Leaf {
    row: Var,
    parts: Vec<Part>,
    list: List,
}

struct Part {
    variable: Tensor,
    range: Range<usize>,
}

impl Leaf {
    /// Of variables and constants; `None` where one of them is computed, stands twice, or is not one that
    /// kernels take.
    pub(in crate::nn) fn new(variables: Vec<Tensor>, dtype: DType) -> Result<Option<Self>> {
        let (mut parts, mut pieces) = (Vec::<Part>::new(), Vec::new());
        let mut end = 0;
        for variable in variables {
            let twice = parts.iter().any(|part| part.variable.id() == variable.id());
            let is_computed = variable.track_op() && !variable.is_variable();
            let fits = takes(variable.device(), variable.dtype()) && variable.is_contiguous();
            if twice || is_computed || !fits {
                return Ok(None);
            }
            let (start, count) = (end, variable.elem_count());
            end += count;
            pieces.push([address(&variable)?, start as u64, count as u64]);
            let range = start..end;
            parts.push(Part { variable, range });
        }
        let Some(first) = parts.first() else {
            return Ok(None);
        };
        let device = first.variable.device();
        let counts = parts.iter().map(|part| part.range.len());
        let list = List::new(device, [0; HEAD], pieces, counts)?;
        let row = Var::zeros(end, dtype, device)?;
        Ok(Some(Self { row, parts, list }))
    }

    /// The row with what the variables hold now.
    pub(in crate::nn) fn row(&self) -> Result<&Tensor> {
        let row = self.row.as_tensor();
        let to = address(row)?;
        let (single, double) = match row.dtype() {
            DType::F32 => (to, 0),
            DType::F64 => (0, to),
            other => bail!("a row of {other:?}, expected f32 or f64"),
        };
        launch(
            row.device(),
            (File::Join, "join_parts"),
            self.list.grid(),
            &[&self.list.pieces, &self.list.tiles, &single, &double],
        )?;
        Ok(row)
    }

    /// Puts in the gradients of the variables, in single precision, where the way back came here.
    pub(in crate::nn) fn gradients(&self, store: &GradStore, to: &mut PartGradients) -> Result<()> {
        let Some(all) = store.get(self.row.as_tensor()) else {
            return Ok(());
        };
        let all = all.to_dtype(DType::F32)?;
        for part in &self.parts {
            let own = all.narrow(0, part.range.start, part.range.len())?;
            to.insert(part.variable.id(), own.reshape(part.variable.shape())?);
        }
        Ok(())
    }
}
