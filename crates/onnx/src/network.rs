//! A network as a graph.

use hankelite::model::{
    Block, Encoder, Gate, Head, Model, Nonlinearity, Norm, OutputLinear, Placement, Pooling,
};
use hankelite::rounding::{MapStorage, SharedStorage, Storage};
use hankelite_control::DiagonalSystem;

use crate::graph::Graph;
use crate::port::{Extent, Port, PortEntries, value};
use crate::recurrence::{Recurrence, Systems};
use crate::schema::{AttributeProto, GraphProto, Kind};
use crate::{Form, OnnxError, map};

/// A graph so far, with what goes in and comes out.
pub(crate) struct Writer {
    form: Form,
    graph: Graph,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
}

/// The systems of a layer in one direction.
struct Direction<'a> {
    systems: &'a [DiagonalSystem],
    storage: &'a SharedStorage,
    /// The lag at which kernels backwards in time start; `None` forwards.
    backward_from: Option<usize>,
}

/// What stands between the last layer and the logits.
pub(crate) struct Ending<'a> {
    pub(crate) head: &'a Head,
    pub(crate) storage: &'a MapStorage,
}

impl Writer {
    /// The whole network, whose numbers are those of `applied`.
    pub(crate) fn written(
        applied: &Model,
        storage: &Storage,
        form: Form,
    ) -> Result<Self, OnnxError> {
        let mut writer = Self {
            form,
            graph: Graph::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let mut x = writer.encoder(applied, &storage.encoder)?;
        let layers = applied.blocks().iter().zip(&storage.layers);
        let mut width = None;
        for (index, (block, stored)) in layers.enumerate() {
            let (found, expected) = (block.channels(), width.unwrap_or(block.channels()));
            if found != expected {
                let layer = block.name().to_string();
                return Err(OnnxError::Channels {
                    layer,
                    found,
                    expected,
                });
            }
            width = Some(block.width());
            x = writer.layer(index, block, (&x, &stored.map, &stored.shared))?;
        }
        writer.graph.place = "end".to_string();
        if let Some(norm) = applied.final_norm() {
            x = writer.norm(norm, &x)?;
        }
        let ending = applied.head().map(|head| Ending {
            head,
            storage: &storage.head,
        });
        let width = width.or(applied.encoder().map(Encoder::width));
        writer.ending(&x, ending, width.unwrap_or(0))?;
        Ok(writer)
    }

    pub(crate) fn finish(self, name: &str) -> (GraphProto, Vec<Port>, Vec<Port>) {
        let graph = GraphProto {
            node: self.graph.nodes,
            name: name.to_string(),
            initializer: self.graph.constants,
            input: self.inputs.iter().map(Port::info).collect(),
            output: self.outputs.iter().map(Port::info).collect(),
        };
        (graph, self.inputs, self.outputs)
    }

    /// Streams, and steps where the graph has all of them.
    fn leading(&self) -> Vec<Extent> {
        match self.form {
            Form::Step => vec![Extent::Batch],
            Form::Sequence => vec![Extent::Batch, Extent::Time],
        }
    }

    fn encoder(&mut self, model: &Model, storage: &MapStorage) -> Result<String, OnnxError> {
        self.graph.place = "encoder".to_string();
        let mut shape = self.leading();
        let plural = match self.form {
            Form::Step => "",
            Form::Sequence => "s",
        };
        if let Some(Encoder::Embedding(table)) = model.encoder() {
            let name = format!("token{plural}");
            let entries = PortEntries::Int64;
            // The table's columns are the rows of the constant: their memory is the same.
            let dims = [table.ncols(), table.nrows()];
            let numbers = table.as_slice().iter().copied();
            let rows = self.graph.floats("table", &dims, numbers)?;
            let x = self.graph.node("Gather", &[&rows, &name]);
            self.inputs.push(Port {
                name,
                entries,
                shape,
            });
            return Ok(x);
        }
        let name = format!("sample{plural}");
        let first = model.blocks().first().map(Block::channels);
        let width = model.inputs().or(first).unwrap_or(0);
        shape.push(Extent::Fixed(width));
        self.inputs.push(Port::floats(&name, shape));
        match model.encoder() {
            Some(Encoder::Linear(linear)) => {
                map::apply(&mut self.graph, "map", &name, (linear, storage))
            }
            _ => Ok(name),
        }
    }

    fn layer(
        &mut self,
        index: usize,
        block: &Block,
        (x, map, shared): (&str, &MapStorage, &SharedStorage),
    ) -> Result<String, OnnxError> {
        let place = format!("layers.{index}");
        self.graph.place.clone_from(&place);
        let input = match block.norm() {
            Some((norm, Placement::Pre)) => self.norm(norm, x)?,
            _ => x.to_string(),
        };
        let forward = Direction {
            systems: block.systems(),
            storage: shared,
            backward_from: None,
        };
        self.graph.place = format!("{place}.forward");
        let mut y = self.direction(index, block, &input, &forward)?;
        if !block.backward().is_empty() {
            let backward = Direction {
                systems: block.backward(),
                storage: &SharedStorage::default(),
                backward_from: Some(block.backward_from()),
            };
            self.graph.place = format!("{place}.backward");
            let later = self.direction(index, block, &input, &backward)?;
            y = self.graph.node("Add", &[&y, &later]);
        }
        self.graph.place = place;
        let activated = self.activated(block.activation(), &y)?;
        let branch = match block.output() {
            None => activated,
            Some(output) => self.mixed(output, map, [&y, &activated])?,
        };
        match block.norm() {
            None => Ok(branch),
            Some((_, Placement::Pre)) => Ok(self.graph.node("Add", &[&branch, x])),
            Some((norm, Placement::Post)) => {
                let sum = self.graph.node("Add", &[&branch, x]);
                self.norm(norm, &sum)
            }
        }
    }

    /// What the systems of a layer give in one direction.
    fn direction(
        &mut self,
        index: usize,
        block: &Block,
        x: &str,
        own: &Direction<'_>,
    ) -> Result<String, OnnxError> {
        let systems = Systems::of(block, own.systems)?;
        let recurrence = systems.recurrence(&mut self.graph, x, own.storage)?;
        let read = match (self.form, own.backward_from) {
            (Form::Step, None) => self.step(index, &recurrence),
            (Form::Step, Some(_)) => {
                let layer = block.name().to_string();
                return Err(OnnxError::Bidirectional { layer });
            }
            (Form::Sequence, from) => self.scan(x, &recurrence, from),
        };
        systems.response(&mut self.graph, [x, &read], own.storage)
    }

    /// One step: the state goes in and comes out.
    fn step(&mut self, index: usize, recurrence: &Recurrence) -> String {
        let sizes = recurrence.sizes.iter().map(|&size| Extent::Fixed(size));
        let shape: Vec<Extent> = std::iter::once(Extent::Batch).chain(sizes).collect();
        let state = format!("state.{index}");
        let next = recurrence.advance(&mut self.graph, &state, &recurrence.drive);
        self.state(&state, &next, shape);
        recurrence.readout(&mut self.graph, &next)
    }

    /// A state that goes in under a name and comes out as `new_…`.
    fn state(&mut self, name: &str, next: &str, shape: Vec<Extent>) {
        let new = format!("new_{name}");
        self.graph.named(next, &new);
        self.inputs.push(Port::floats(name, shape.clone()));
        self.outputs.push(Port::floats(&new, shape));
    }

    /// All steps, from a state of zeros.
    fn scan(&mut self, x: &str, recurrence: &Recurrence, from: Option<usize>) -> String {
        let mut body = self.graph.inner("scan");
        let [state, drive, next, read] =
            ["state", "drive", "next", "read"].map(|name| format!("{}.{name}", body.place));
        let advanced = recurrence.advance(&mut body, &state, &drive);
        // A kernel that starts at lag 1 is read before the sample of the step comes in.
        let seen = match from {
            Some(lag) if lag > 0 => &state,
            _ => &advanced,
        };
        let output = recurrence.readout(&mut body, seen);
        body.named(&advanced, &next);
        body.named(&output, &read);
        let values = |names: [&String; 2]| names.map(|name| value(name, Kind::Float, None)).into();
        let body = GraphProto {
            node: body.nodes,
            name: body.place,
            initializer: body.constants,
            input: values([&state, &drive]),
            output: values([&next, &read]),
        };
        let start = self.zeros(x, &recurrence.sizes);
        let direction = vec![i64::from(from.is_some())];
        let attributes = vec![
            AttributeProto::graph("body", body),
            AttributeProto::int("num_scan_inputs", 1),
            AttributeProto::ints("scan_input_axes", vec![1]),
            AttributeProto::ints("scan_input_directions", direction.clone()),
            AttributeProto::ints("scan_output_axes", vec![1]),
            AttributeProto::ints("scan_output_directions", direction),
        ];
        let inputs = [start.as_str(), recurrence.drive.as_str()];
        self.graph
            .nodes_of("Scan", &inputs, attributes, 2)
            .remove(1)
    }

    /// Zeros for as many sequences as `x` has.
    fn zeros(&mut self, x: &str, sizes: &[usize]) -> String {
        let ends = ["start", "end"].into_iter().zip([0, 1]);
        let ends = ends.map(|(name, at)| AttributeProto::int(name, at));
        let batch = self.graph.node_with("Shape", &[x], ends.collect());
        let sizes: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
        let sizes = self.graph.indices("sizes", &sizes);
        let axis = AttributeProto::int("axis", 0);
        let shape = self
            .graph
            .node_with("Concat", &[&batch, &sizes], vec![axis]);
        self.graph.node("ConstantOfShape", &[&shape])
    }

    fn norm(&mut self, norm: &Norm, x: &str) -> Result<String, OnnxError> {
        let graph = &mut self.graph;
        let (weight, bias, epsilon) = norm.affine();
        let dims = [weight.len()];
        match norm {
            Norm::Layer(_) => {
                let weight = graph.floats("norm.weight", &dims, weight.iter().copied())?;
                let bias = graph.floats("norm.bias", &dims, bias.iter().copied())?;
                let attributes = vec![
                    AttributeProto::int("axis", -1),
                    AttributeProto::float("epsilon", epsilon as f32),
                ];
                Ok(graph.node_with("LayerNormalization", &[x, &weight, &bias], attributes))
            }
            Norm::Batch(batch) => {
                let each = weight.iter().zip(&batch.variance);
                let factors = each.map(|(w, variance)| w / (variance + epsilon).sqrt());
                let factors: Vec<f64> = factors.collect();
                let offsets = bias.iter().zip(&batch.mean).zip(&factors);
                let offsets: Vec<f64> = offsets.map(|((b, mean), w)| b - mean * w).collect();
                let factors = graph.floats("norm.factors", &dims, factors)?;
                let offsets = graph.floats("norm.offsets", &dims, offsets)?;
                let scaled = graph.node("Mul", &[x, &factors]);
                Ok(graph.node("Add", &[&scaled, &offsets]))
            }
        }
    }

    fn number(&mut self, name: &str, value: f64) -> Result<String, OnnxError> {
        self.graph.floats(name, &[], [value])
    }

    fn activated(&mut self, activation: Nonlinearity, y: &str) -> Result<String, OnnxError> {
        let (one, half) = (self.number("one", 1.0)?, self.number("half", 0.5)?);
        let inner = match activation {
            Nonlinearity::Gelu => {
                let root = self.number("root", std::f64::consts::SQRT_2)?;
                let scaled = self.graph.node("Div", &[y, &root]);
                self.graph.node("Erf", &[&scaled])
            }
            Nonlinearity::GeluTanh => {
                let cubic = self.number("cubic", 0.044715)?;
                let ratio = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
                let ratio = self.number("ratio", ratio)?;
                let square = self.graph.node("Mul", &[y, y]);
                let cube = self.graph.node("Mul", &[&square, y]);
                let small = self.graph.node("Mul", &[&cube, &cubic]);
                let sum = self.graph.node("Add", &[y, &small]);
                let scaled = self.graph.node("Mul", &[&sum, &ratio]);
                self.graph.node("Tanh", &[&scaled])
            }
        };
        let above = self.graph.node("Add", &[&inner, &one]);
        let product = self.graph.node("Mul", &[y, &above]);
        Ok(self.graph.node("Mul", &[&product, &half]))
    }

    /// The map between the channels and its gate, from what the systems give and the activation of that.
    fn mixed(
        &mut self,
        output: &OutputLinear,
        storage: &MapStorage,
        [y, activated]: [&str; 2],
    ) -> Result<String, OnnxError> {
        let graph = &mut self.graph;
        let mixed = map::apply(graph, "map", activated, (&output.linear, storage))?;
        let (value, gate) = match output.gate {
            Gate::None => return Ok(mixed),
            Gate::Activated => (activated.to_string(), mixed),
            Gate::Response => (y.to_string(), mixed),
            Gate::Halves => {
                let half = (output.linear.weight.ncols() / 2) as i64;
                let halves = graph.indices("halves", &[half, half]);
                let axis = vec![AttributeProto::int("axis", -1)];
                let mut both = graph.nodes_of("Split", &[&mixed, &halves], axis, 2);
                let gate = both.remove(1);
                (both.remove(0), gate)
            }
        };
        let gate = graph.node("Sigmoid", &[&gate]);
        Ok(graph.node("Mul", &[&value, &gate]))
    }

    /// Pooling and head, or the outputs of the last layer where there is none.
    fn ending(
        &mut self,
        x: &str,
        ending: Option<Ending<'_>>,
        width: usize,
    ) -> Result<(), OnnxError> {
        let mut shape = self.leading();
        let Some(Ending { head, storage }) = ending else {
            shape.push(Extent::Fixed(width));
            self.graph.named(x, "outputs");
            self.outputs.insert(0, Port::floats("outputs", shape));
            return Ok(());
        };
        if head.pooling.is_some() {
            shape.truncate(1);
        }
        let pooled = match (self.form, head.pooling) {
            (Form::Step, Some(Pooling::Mean)) => self.running_mean(x, width)?,
            (Form::Sequence, Some(Pooling::Mean)) => {
                let time = self.graph.indices("time", &[1]);
                let keep = AttributeProto::int("keepdims", 0);
                self.graph.node_with("ReduceMean", &[x, &time], vec![keep])
            }
            (Form::Sequence, Some(Pooling::Last)) => {
                let last =
                    self.graph
                        .constant("last", Kind::Int64, &[], (-1i64).to_le_bytes().into());
                let axis = AttributeProto::int("axis", 1);
                self.graph.node_with("Gather", &[x, &last], vec![axis])
            }
            (_, None) | (Form::Step, Some(Pooling::Last)) => x.to_string(),
        };
        let map = (&head.linear, storage);
        let logits = map::apply(&mut self.graph, "head", &pooled, map)?;
        shape.push(Extent::Fixed(head.linear.weight.ncols()));
        self.graph.named(&logits, "logits");
        self.outputs.insert(0, Port::floats("logits", shape));
        Ok(())
    }

    /// The mean over all steps so far, m ← m + (x − m)/n.
    fn running_mean(&mut self, x: &str, width: usize) -> Result<String, OnnxError> {
        let one = self.number("one", 1.0)?;
        let count = self.graph.node("Add", &["count", &one]);
        let change = self.graph.node("Sub", &[x, "mean"]);
        let share = self.graph.node("Div", &[&change, &count]);
        let mean = self.graph.node("Add", &["mean", &share]);
        let of = |width| vec![Extent::Batch, Extent::Fixed(width)];
        self.state("mean", &mean, of(width));
        self.state("count", &count, of(1));
        Ok(mean)
    }
}
