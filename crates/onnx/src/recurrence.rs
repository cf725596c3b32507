//! State spaces in real arithmetic.
//!
//! A mode s ← a s + u is a pair of numbers, and d = a − 1 is what is stored: a pole next to 1 keeps its
//! digits in single precision. With (s₁, s₂) = (Re s, Im s),
//!
//! ```text
//! s ← s + Re d ∘ s + Im d ∘ (−s₂, s₁) + (u₁, u₂)
//! ```

use hankelite::advanced::SharedMaps;
use hankelite::model::Block;
use hankelite::rounding::{MapStorage, SharedStorage};
use hankelite_control::DiagonalSystem;
use num_complex::Complex64;

use crate::OnnxError;
use crate::graph::Graph;
use crate::map;
use crate::schema::AttributeProto;

/// What a layer's systems hold, in the order of their inputs and outputs.
pub(crate) enum Systems {
    /// One for each channel, of as many outputs each. All get as many modes as the largest has: the
    /// others are zero.
    Bank(Vec<Channel>, usize),
    /// One for all channels, as maps of real numbers, and a − 1 of its modes.
    Shared(SharedMaps, Vec<Complex64>),
}

/// The system of one channel.
pub(crate) struct Channel {
    /// a − 1 of every mode.
    differences: Vec<Complex64>,
    /// C B of every mode, for each output.
    residues: Vec<Vec<Complex64>>,
    /// D, for each output.
    feedthrough: Vec<f64>,
}

impl Channel {
    /// Modes that no output sees, as a layout of one width pads with, are left out.
    fn of(system: &DiagonalSystem) -> Self {
        let (input, output) = (system.input(), system.output());
        let seen = |mode: &usize| {
            let mut outputs = output.column(*mode).into_iter();
            outputs.any(|c| c * input[(*mode, 0)] != Complex64::ZERO)
        };
        let modes: Vec<usize> = (0..system.order()).filter(seen).collect();
        let poles = system.poles();
        let of = |row: usize| {
            let residue = |&mode: &usize| output[(row, mode)] * input[(mode, 0)];
            modes.iter().map(residue).collect()
        };
        Self {
            differences: modes.iter().map(|&mode| poles[mode] - 1.0).collect(),
            residues: (0..output.nrows()).map(of).collect(),
            feedthrough: system.feedthrough().as_slice().to_vec(),
        }
    }
}

/// The constants of a recurrence.
struct Constants {
    /// Re d.
    decay: String,
    /// −Im d and Im d.
    turn: String,
    /// Indices that exchange the parts of a state along `axis`.
    exchanged: String,
    axis: i64,
}

/// A recurrence that was prepared, and what it takes at each step.
pub(crate) struct Recurrence {
    constants: Constants,
    /// What is added to the state at each step.
    pub(crate) drive: String,
    /// Sizes of the state of one stream.
    pub(crate) sizes: Vec<usize>,
    /// What the modes of a bank are added up with, for each output.
    residues: Vec<String>,
    /// The axes of the parts and the modes of a bank.
    parts: String,
}

impl Systems {
    pub(crate) fn of(block: &Block, systems: &[DiagonalSystem]) -> Result<Self, OnnxError> {
        let outputs = systems.first().map_or(0, |system| system.output().nrows());
        let fits = |system: &DiagonalSystem| {
            system.input().ncols() == 1 && system.output().nrows() == outputs
        };
        if systems.iter().all(fits) {
            return Ok(Self::Bank(
                systems.iter().map(Channel::of).collect(),
                outputs,
            ));
        }
        match systems {
            [one] if one.input().ncols() == one.output().nrows() => {
                let differences = one.poles().into_iter().map(|pole| pole - 1.0);
                Ok(Self::Shared(SharedMaps::of(one), differences.collect()))
            }
            _ => Err(OnnxError::Systems {
                layer: block.name().to_string(),
            }),
        }
    }

    /// Prepares the constants, and what is added to the states for the input `x`, whose last axis
    /// counts the channels.
    pub(crate) fn recurrence(
        &self,
        graph: &mut Graph,
        x: &str,
        storage: &SharedStorage,
    ) -> Result<Recurrence, OnnxError> {
        match self {
            Self::Bank(channels, outputs) => bank(graph, x, channels, *outputs),
            Self::Shared(maps, differences) => {
                shared(graph, x, differences, (maps, &storage.input))
            }
        }
    }

    /// What the systems give: of a bank from what [`Recurrence::readout`] gives at each step, of a
    /// shared system from its states.
    pub(crate) fn response(
        &self,
        graph: &mut Graph,
        [x, read]: [&str; 2],
        storage: &SharedStorage,
    ) -> Result<String, OnnxError> {
        let (y, d) = match self {
            Self::Bank(channels, outputs) => {
                // Output c of channel h is column c H + h.
                let all = 0..*outputs;
                let d = all.flat_map(|c| channels.iter().map(move |own| own.feedthrough[c]));
                let through = match outputs {
                    1 => x.to_string(),
                    _ => beside(graph, &vec![x; *outputs]),
                };
                (read.to_string(), Some((d.collect(), through)))
            }
            Self::Shared(maps, _) => {
                let from = match maps.feedthrough {
                    Some(_) => read.to_string(),
                    None => beside(graph, &[read, x]),
                };
                let y = map::apply(graph, "output", &from, (&maps.output, &storage.output))?;
                (y, maps.feedthrough.clone().map(|d| (d, x.to_string())))
            }
        };
        let d = d.filter(|(d, _): &(Vec<f64>, String)| d.iter().any(|&d| d != 0.0));
        let Some((d, x)) = d else {
            return Ok(y);
        };
        let d = graph.floats("feedthrough", &[d.len()], d)?;
        let through = graph.node("Mul", &[&x, &d]);
        Ok(graph.node("Add", &[&y, &through]))
    }
}

/// Values one after the other along the last axis.
fn beside(graph: &mut Graph, values: &[&str]) -> String {
    let axis = AttributeProto::int("axis", -1);
    graph.node_with("Concat", values, vec![axis])
}

/// States are channels × (real, imaginary) × modes.
fn bank(
    graph: &mut Graph,
    x: &str,
    channels: &[Channel],
    outputs: usize,
) -> Result<Recurrence, OnnxError> {
    let most = channels.iter().map(|own| own.differences.len()).max();
    // A graph has no tensors without entries.
    let modes = most.unwrap_or(0).max(1);
    let dims = [channels.len(), 1, modes];
    let differences = |part: fn(&Complex64) -> f64| {
        let own = channels.iter().map(move |own| own.differences.as_slice());
        own.flat_map(move |own| filled_up(own, part, modes))
    };
    let decay = graph.floats("decay", &dims, differences(|d| d.re))?;
    let turn = graph.floats("turn", &dims, differences(|d| d.im))?;
    // Constants times constants: a runtime computes them once.
    let signs = graph.floats("signs", &[2, 1], [-1.0, 1.0])?;
    let turn = graph.node("Mul", &[&turn, &signs]);
    let dims = [channels.len(), 2, modes];
    let residues = (0..outputs).map(|output| {
        let own = channels.iter().map(|own| own.residues[output].as_slice());
        let pairs = own.flat_map(|own| {
            filled_up(own, |r| r.re, modes).chain(filled_up(own, |r| -r.im, modes))
        });
        graph.floats(&format!("residues.{output}"), &dims, pairs)
    });
    let residues = residues.collect::<Result<_, _>>()?;
    let parts = graph.indices("parts", &[-2, -1]);
    let drive = graph.node("Unsqueeze", &[x, &parts]);
    let real = graph.floats("real", &[2, 1], [1.0, 0.0])?;
    let drive = graph.node("Mul", &[&drive, &real]);
    Ok(Recurrence {
        constants: Constants {
            decay,
            turn,
            exchanged: graph.indices("exchanged", &[1, 0]),
            axis: 2,
        },
        drive,
        sizes: vec![channels.len(), 2, modes],
        residues,
        parts,
    })
}

/// A part of numbers, then zeros, so many in all.
fn filled_up(
    numbers: &[Complex64],
    part: fn(&Complex64) -> f64,
    count: usize,
) -> impl Iterator<Item = f64> {
    let zeros = std::iter::repeat(0.0);
    numbers.iter().map(part).chain(zeros).take(count)
}

/// States are real parts, imaginary parts, and the zeros that the maps have behind them.
fn shared(
    graph: &mut Graph,
    x: &str,
    differences: &[Complex64],
    (maps, storage): (&SharedMaps, &MapStorage),
) -> Result<Recurrence, OnnxError> {
    let (modes, parts) = (differences.len(), maps.input.weight.ncols());
    let padding = std::iter::repeat_n(0.0, parts - 2 * modes);
    let pairs = |first: fn(&Complex64) -> f64, second: fn(&Complex64) -> f64| {
        let both = differences.iter().map(first);
        let both = both.chain(differences.iter().map(second));
        both.chain(padding.clone()).collect::<Vec<f64>>()
    };
    let exchanged = (modes..2 * modes).chain(0..modes).chain(2 * modes..parts);
    let exchanged: Vec<i64> = exchanged.map(|part| part as i64).collect();
    Ok(Recurrence {
        constants: Constants {
            decay: graph.floats("decay", &[parts], pairs(|d| d.re, |d| d.re))?,
            turn: graph.floats("turn", &[parts], pairs(|d| -d.im, |d| d.im))?,
            exchanged: graph.indices("exchanged", &exchanged),
            axis: 1,
        },
        drive: map::apply(graph, "input", x, (&maps.input, storage))?,
        sizes: vec![parts],
        residues: Vec::new(),
        parts: String::new(),
    })
}

impl Recurrence {
    /// The state of the next step.
    pub(crate) fn advance(&self, graph: &mut Graph, state: &str, drive: &str) -> String {
        let own = &self.constants;
        let axis = AttributeProto::int("axis", own.axis);
        let exchanged = graph.node_with("Gather", &[state, &own.exchanged], vec![axis]);
        let turned = graph.node("Mul", &[&exchanged, &own.turn]);
        let decayed = graph.node("Mul", &[state, &own.decay]);
        let change = graph.node("Add", &[&decayed, &turned]);
        let kept = graph.node("Add", &[state, &change]);
        graph.node("Add", &[&kept, drive])
    }

    /// What [`Systems::response`] takes, from a state.
    pub(crate) fn readout(&self, graph: &mut Graph, state: &str) -> String {
        let read = |graph: &mut Graph, residues: &String| {
            let products = graph.node("Mul", &[state, residues]);
            let keep = AttributeProto::int("keepdims", 0);
            graph.node_with("ReduceSum", &[&products, &self.parts], vec![keep])
        };
        match self.residues.as_slice() {
            [] => state.to_string(),
            [one] => read(graph, one),
            several => {
                let outputs: Vec<String> = several.iter().map(|own| read(graph, own)).collect();
                beside(
                    graph,
                    &outputs.iter().map(String::as_str).collect::<Vec<_>>(),
                )
            }
        }
    }
}
