//! What goes into a graph and comes out.

use crate::schema::{
    Dimension, Kind, Size, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};

/// A tensor that goes into a graph or comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// What its entries are.
    pub entries: PortEntries,
    /// Its sizes.
    pub shape: Vec<Extent>,
}

/// What the entries of a [`Port`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEntries {
    /// Numbers of single precision.
    Float32,
    /// Tokens.
    Int64,
}

/// One size of a [`Port`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// So many.
    Fixed(usize),
    /// As many sequences as you like at once.
    Batch,
    /// As many steps as you like.
    Time,
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Extent::Fixed(size) => size.fmt(f),
            Extent::Batch => f.write_str("batch"),
            Extent::Time => f.write_str("time"),
        }
    }
}

impl Port {
    pub(crate) fn floats(name: &str, shape: Vec<Extent>) -> Self {
        let (name, entries) = (name.to_string(), PortEntries::Float32);
        Self {
            name,
            entries,
            shape,
        }
    }

    pub(crate) fn info(&self) -> ValueInfoProto {
        let kind = match self.entries {
            PortEntries::Float32 => Kind::Float,
            PortEntries::Int64 => Kind::Int64,
        };
        let size = |extent: &Extent| match extent {
            Extent::Fixed(size) => Size::Value(*size as i64),
            named => Size::Named(named.to_string()),
        };
        let dim = self.shape.iter().map(|extent| Dimension {
            size: Some(size(extent)),
        });
        let shape = TensorShapeProto { dim: dim.collect() };
        value(&self.name, kind, Some(shape))
    }
}

/// A value of a graph, with its shape where that is known.
pub(crate) fn value(name: &str, kind: Kind, shape: Option<TensorShapeProto>) -> ValueInfoProto {
    ValueInfoProto {
        name: name.to_string(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: kind as i32,
                shape,
            }),
        }),
    }
}
