//! A graph as it is put together.

use crate::OnnxError;
use crate::schema::{AttributeProto, Kind, NodeProto, TensorProto};

/// Nodes and constants so far. A value is known by its name.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) constants: Vec<TensorProto>,
    /// What names begin with: the part of the network at hand.
    pub(crate) place: String,
}

impl Graph {
    /// A graph inside this one, whose names are its own.
    pub(crate) fn inner(&self, name: &str) -> Self {
        Self {
            place: format!("{}.{name}", self.place),
            ..Self::default()
        }
    }

    /// The value that an operator makes of others.
    pub(crate) fn node(&mut self, op: &str, inputs: &[&str]) -> String {
        self.node_with(op, inputs, Vec::new())
    }

    /// The same with attributes.
    pub(crate) fn node_with(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        self.nodes_of(op, inputs, attributes, 1).remove(0)
    }

    /// The same for an operator with several outputs.
    pub(crate) fn nodes_of(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
        outputs: usize,
    ) -> Vec<String> {
        let name = format!("{}/{op}.{}", self.place, self.nodes.len());
        let output: Vec<String> = (0..outputs).map(|out| format!("{name}:{out}")).collect();
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|input| input.to_string()).collect(),
            output: output.clone(),
            name,
            op_type: op.to_string(),
            attribute,
        });
        output
    }

    /// Gives a value a name that whoever runs the graph knows.
    pub(crate) fn named(&mut self, value: &str, name: &str) {
        self.nodes.push(NodeProto {
            input: vec![value.to_string()],
            output: vec![name.to_string()],
            name: format!("{name}/Identity"),
            op_type: "Identity".to_string(),
            attribute: Vec::new(),
        });
    }

    fn name_of(&self, name: &str) -> String {
        format!("{}.{name}", self.place)
    }

    /// A constant of single precision.
    pub(crate) fn floats(
        &mut self,
        name: &str,
        dims: &[usize],
        numbers: impl IntoIterator<Item = f64>,
    ) -> Result<String, OnnxError> {
        let mut bytes = Vec::new();
        for value in numbers {
            let number = value as f32;
            if !number.is_finite() {
                let name = self.name_of(name);
                return Err(OnnxError::NotFinite { name, value });
            }
            bytes.extend(number.to_le_bytes());
        }
        Ok(self.constant(name, Kind::Float, dims, bytes))
    }

    /// A list of indices or sizes.
    pub(crate) fn indices(&mut self, name: &str, numbers: &[i64]) -> String {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        self.constant(name, Kind::Int64, &[numbers.len()], bytes.collect())
    }

    /// A constant of these bytes.
    pub(crate) fn constant(
        &mut self,
        name: &str,
        kind: Kind,
        dims: &[usize],
        raw_data: Vec<u8>,
    ) -> String {
        let name = self.name_of(name);
        self.constants.push(TensorProto {
            dims: dims.iter().map(|&size| size as i64).collect(),
            data_type: kind as i32,
            name: name.clone(),
            raw_data,
        });
        name
    }
}
