//! How flax and torch name and lay out the maps and norms of a network, and what they have by
//! default where no tensor shows it.

use std::sync::Arc;

use nalgebra::DMatrix;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::Encoded;
use crate::checkpoint::tensors::Tensors;
use crate::model::{BatchNorm, Encoder, LayerNorm, Linear, Nonlinearity, Norm};

/// A framework.
#[derive(Debug)]
pub(super) struct Framework {
    /// The matrix of a linear map.
    matrix: &'static str,
    /// Whether its first axis is that of the inputs.
    inputs_first: bool,
    /// The matrix of an embedding. Where that has the name of the matrix of a map, it is known by
    /// the bias that is not there.
    table: &'static str,
    /// The factors of a norm.
    factors: &'static str,
    /// Mean and variance of a batch norm.
    statistics: [&'static str; 2],
    /// Where these stand: in the place of the first the second.
    roots: Option<[&'static str; 2]>,
    /// A count beside them that nothing needs.
    count: Option<&'static str>,
    /// GELU without further arguments.
    pub(super) gelu: Nonlinearity,
    /// ε of layer norms, and of batch norms.
    epsilons: [f64; 2],
}

pub(super) static FLAX: Framework = Framework {
    matrix: "kernel",
    inputs_first: true,
    table: "embedding",
    factors: "scale",
    statistics: ["mean", "var"],
    roots: Some(["params", "batch_stats"]),
    count: None,
    gelu: Nonlinearity::GeluTanh,
    epsilons: [1e-6, 1e-5],
};

pub(super) static TORCH: Framework = Framework {
    matrix: "weight",
    inputs_first: false,
    table: "weight",
    factors: "weight",
    statistics: ["running_mean", "running_var"],
    roots: None,
    count: Some("num_batches_tracked"),
    gelu: Nonlinearity::Gelu,
    epsilons: [1e-5, 1e-5],
};

impl Framework {
    /// Whether it names tensors so.
    pub(super) fn names<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> bool {
        names.any(|name| {
            let before = name.strip_suffix(self.matrix);
            before.is_some_and(|before| before.ends_with(['.', '/']))
        })
    }

    /// The tensors of a linear map.
    pub(super) fn map(&self, head: &str) -> [String; 2] {
        [self.matrix, "bias"].map(|part| format!("{head}{part}"))
    }

    /// The matrix of a linear map with its axes, as far as they are known.
    pub(super) fn map_axes(
        &self,
        head: &str,
        inputs: Option<usize>,
        outputs: Option<usize>,
    ) -> (String, Vec<Option<usize>>) {
        let axes = match self.inputs_first {
            true => vec![inputs, outputs],
            false => vec![outputs, inputs],
        };
        (format!("{head}{}", self.matrix), axes)
    }

    /// The tensors of an encoder: a table, or a linear map.
    pub(super) fn encoder(&self, head: &str, has: impl Fn(&str) -> bool) -> Vec<String> {
        match self.is_table(head, has) {
            true => vec![format!("{head}{}", self.table)],
            false => self.map(head).to_vec(),
        }
    }

    fn is_table(&self, head: &str, has: impl Fn(&str) -> bool) -> bool {
        has(&format!("{head}{}", self.table))
            && (self.table != self.matrix || !has(&format!("{head}bias")))
    }

    /// The factors of a norm.
    pub(super) fn factors(&self, head: &str) -> String {
        format!("{head}{}", self.factors)
    }

    /// The tensors of a norm that it needs, with statistics where there are such.
    pub(super) fn norm(&self, head: &str, has: impl Fn(&str) -> bool) -> Vec<String> {
        let mut parts = vec![self.factors(head), format!("{head}bias")];
        let statistics = self.statistics(head);
        if has(&statistics[0]) {
            parts.extend(statistics);
        }
        parts
    }

    fn statistics(&self, head: &str) -> [String; 2] {
        let head = match self.roots {
            Some([root, other]) => head.replacen(root, other, 1),
            None => head.to_string(),
        };
        self.statistics.map(|part| format!("{head}{part}"))
    }

    /// A tensor of a norm that nothing needs.
    pub(super) fn count(&self, head: &str) -> Option<String> {
        self.count.map(|count| format!("{head}{count}"))
    }
}

impl Framework {
    /// A linear map with a bias; what is not given of its sizes may be any.
    pub(super) fn decode_map(
        &self,
        tensors: &Tensors<'_>,
        head: &str,
        inputs: Option<usize>,
        outputs: Option<usize>,
    ) -> Result<Linear, Fault> {
        let [matrix, bias] = self.map(head);
        let show = |size: Option<usize>, what: &str| size.map_or(what.into(), |n| n.to_string());
        let mut axes = [show(inputs, "inputs"), show(outputs, "outputs")];
        if !self.inputs_first {
            axes.reverse();
        }
        let expected = format!("[{}]", axes.join(", "));
        let found = tensors.values(&matrix, &expected)?;
        let fits =
            |wanted: Option<usize>, n: usize| n > 0 && wanted.is_none_or(|wanted| wanted == n);
        let weight = match *found.shape.as_slice() {
            [i, o] if self.inputs_first && fits(inputs, i) && fits(outputs, o) => {
                DMatrix::from_row_slice(i, o, &found.data)
            }
            // The memory of a row-major (outputs, inputs) tensor.
            [o, i] if !self.inputs_first && fits(inputs, i) && fits(outputs, o) => {
                DMatrix::from_vec(i, o, found.data)
            }
            _ => return Err(tensors.wrong_shape(&matrix, found.shape, &expected)),
        };
        let columns = weight.ncols();
        let bias = tensors.shaped(&bias, &[&[columns]], &format!("[{columns}]"))?;
        Ok(Linear {
            weight: Arc::new(weight),
            bias: Some(bias.data),
        })
    }

    pub(super) fn decode_encoder(
        &self,
        tensors: &Tensors<'_>,
        head: &str,
        channels: usize,
    ) -> Result<Encoder, Fault> {
        if !self.is_table(head, |name| tensors.contains(name)) {
            let map = self.decode_map(tensors, head, None, Some(channels))?;
            return Ok(Encoder::Linear(map));
        }
        let table = format!("{head}{}", self.table);
        let expected = format!("[vocabulary, {channels}]");
        let found = tensors.values(&table, &expected)?;
        match *found.shape.as_slice() {
            [rows, columns] if columns == channels && rows > 0 => {
                let table = DMatrix::from_vec(columns, rows, found.data);
                Ok(Encoder::Embedding(Arc::new(table)))
            }
            _ => Err(tensors.wrong_shape(&table, found.shape, &expected)),
        }
    }

    pub(super) fn decode_norm(
        &self,
        tensors: &Tensors<'_>,
        head: &str,
        channels: usize,
    ) -> Result<Norm, Fault> {
        let expected = format!("[{channels}]");
        let read =
            |name: &str| Ok::<_, Fault>(tensors.shaped(name, &[&[channels]], &expected)?.data);
        let weight = read(&self.factors(head))?;
        let bias = read(&format!("{head}bias"))?;
        let [mean, variance] = self.statistics(head);
        if !tensors.contains(&mean) {
            let epsilon = self.epsilons[0];
            return Ok(Norm::Layer(LayerNorm {
                weight,
                bias,
                epsilon,
            }));
        }
        if let Some(count) = self.count(head) {
            tensors.set_aside(&count);
        }
        Ok(Norm::Batch(BatchNorm {
            weight,
            bias,
            mean: read(&mean)?,
            variance: read(&variance)?,
            epsilon: self.epsilons[1],
        }))
    }
}

impl Framework {
    pub(super) fn encode_map(&self, head: &str, linear: &Linear, out: &mut Vec<Encoded>) {
        let (inputs, outputs) = linear.weight.shape();
        let (shape, data) = match self.inputs_first {
            true => (vec![inputs, outputs], linear.weight.transpose()),
            false => (vec![outputs, inputs], linear.weight.as_ref().clone()),
        };
        let [matrix, bias] = self.map(head);
        out.push(Encoded::weight(matrix, shape, data.as_slice().to_vec()));
        if let Some(values) = &linear.bias {
            out.push(Encoded::weight(bias, vec![outputs], values.clone()));
        }
    }

    pub(super) fn encode_encoder(&self, head: &str, encoder: &Encoder, out: &mut Vec<Encoded>) {
        match encoder {
            Encoder::Linear(linear) => self.encode_map(head, linear, out),
            Encoder::Embedding(table) => out.push(Encoded::weight(
                format!("{head}{}", self.table),
                vec![table.ncols(), table.nrows()],
                table.as_slice().to_vec(),
            )),
        }
    }

    pub(super) fn encode_norm(&self, head: &str, norm: &Norm, out: &mut Vec<Encoded>) {
        let (weight, bias, _) = norm.affine();
        let mut parts = vec![(self.factors(head), weight), (format!("{head}bias"), bias)];
        if let Norm::Batch(batch) = norm {
            let [mean, variance] = self.statistics(head);
            parts.push((mean, &batch.mean));
            parts.push((variance, &batch.variance));
        }
        for (name, data) in parts {
            out.push(Encoded::weight(name, vec![data.len()], data.to_vec()));
        }
    }
}
