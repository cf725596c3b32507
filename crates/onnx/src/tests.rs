//! What stands in a written file, read back.

use hankelite::model::{Model, ModelParts};
use hankelite::rounding::{Entries, Storage};
use prost::Message;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::draws::{DRAWS, PLAIN, model, shared};
use crate::schema::{GraphProto, Kind, ModelProto, NodeProto, TensorProto};
use crate::{Exported, Extent, Form, OnnxError, PortEntries, export};

fn waves() -> Model {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/waves/model.safetensors"
    );
    hankelite::read(file, &hankelite::Declared::default())
        .unwrap()
        .model
}

fn written(model: &Model, entries: Entries, form: Form) -> (Exported, GraphProto) {
    let storage = Storage::nearest(model, entries, 32).unwrap();
    let exported = export(model, &storage, form, &[]).unwrap();
    let file = ModelProto::decode(exported.bytes.as_slice()).unwrap();
    (exported, file.graph.unwrap())
}

fn constant<'g>(graph: &'g GraphProto, name: &str) -> &'g TensorProto {
    let found = graph.initializer.iter().find(|tensor| tensor.name == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

fn floats(tensor: &TensorProto) -> Vec<f32> {
    assert_eq!(tensor.data_type, Kind::Float as i32);
    let each = tensor.raw_data.chunks(4);
    each.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

/// Every value is made once, before it is taken; constants have the bytes of their shape.
fn check(graph: &GraphProto, outside: &[String]) {
    let mut known = outside.to_vec();
    known.extend(graph.input.iter().map(|value| value.name.clone()));
    for tensor in &graph.initializer {
        let count: i64 = tensor.dims.iter().product();
        let bits = match tensor.data_type {
            kind if kind == Kind::Float as i32 => 32,
            kind if kind == Kind::Int64 as i32 => 64,
            kind if kind == Kind::Bfloat16 as i32 => 16,
            kind if kind == Kind::Int8 as i32 => 8,
            _ => 4,
        };
        let bytes = (count as usize * bits).div_ceil(8);
        assert_eq!(tensor.raw_data.len(), bytes, "{}", tensor.name);
        assert!(!known.contains(&tensor.name), "{} twice", tensor.name);
        known.push(tensor.name.clone());
    }
    for node in &graph.node {
        for input in &node.input {
            assert!(known.contains(input), "{} takes {input}", node.name);
        }
        for body in node
            .attribute
            .iter()
            .filter_map(|attribute| attribute.g.as_ref())
        {
            check(body, &known);
        }
        for output in &node.output {
            assert!(!known.contains(output), "{output} twice");
            known.push(output.clone());
        }
    }
    for output in &graph.output {
        assert!(known.contains(&output.name), "{} is not made", output.name);
    }
}

fn nodes<'g>(graph: &'g GraphProto, op: &str) -> Vec<&'g NodeProto> {
    graph
        .node
        .iter()
        .filter(|node| node.op_type == op)
        .collect()
}

#[test]
fn every_network_is_a_graph_in_order() {
    for (index, draw) in DRAWS.iter().enumerate() {
        let model = model(draw, 5 + index as u64);
        for entries in [
            Entries::Full,
            Entries::Bf16,
            Entries::Int8,
            Entries::Int4,
            Entries::Int3,
            Entries::Int2,
        ] {
            for form in [Form::Step, Form::Sequence] {
                let (exported, graph) = written(&model, entries, form);
                check(&graph, &[]);
                assert_eq!(exported.inputs.len(), graph.input.len());
                assert_eq!(exported.outputs.len(), graph.output.len());
                assert_eq!(exported.outputs[0].name, "logits");
                let first = match draw.tokens {
                    true => PortEntries::Int64,
                    false => PortEntries::Float32,
                };
                assert_eq!(exported.inputs[0].entries, first);
                let scans = if form == Form::Step { 0 } else { 3 };
                assert_eq!(nodes(&graph, "Scan").len(), scans);
            }
        }
    }
}

#[test]
fn states_and_numbers_are_as_documented() {
    let model = waves();
    let (exported, graph) = written(&model, Entries::Full, Form::Step);
    assert_eq!(exported.opset, 18);
    let channels = model.blocks()[0].channels();
    let modes = model.blocks()[0].order();
    let state = &exported.inputs[1];
    assert_eq!(state.name, "state.0");
    let shape = [channels, 2, modes].map(Extent::Fixed);
    assert_eq!(state.shape[0], Extent::Batch);
    assert_eq!(state.shape[1..], shape);
    let new: Vec<String> = exported.inputs[1..]
        .iter()
        .map(|port| format!("new_{}", port.name))
        .collect();
    let given: Vec<String> = exported.outputs[1..]
        .iter()
        .map(|port| port.name.clone())
        .collect();
    assert_eq!(new, given);
    // The poles less one, and C B, mode by mode.
    let part = |name: &str| floats(constant(&graph, &format!("layers.0.forward.{name}")));
    let (decay, turn, both) = (part("decay"), part("turn"), part("residues.0"));
    for (channel, system) in model.blocks()[0].systems().iter().enumerate() {
        let residues = system.residues().unwrap();
        for (mode, (pole, residue)) in system.poles().iter().zip(residues).enumerate() {
            let at = channel * modes + mode;
            assert_eq!(decay[at], (pole.re - 1.0) as f32);
            assert_eq!(turn[at], pole.im as f32);
            let parts = [residue.re as f32, -residue.im as f32];
            let [first, second] = [0, 1].map(|part| both[(2 * channel + part) * modes + mode]);
            assert_eq!([first, second], parts);
        }
    }
}

#[test]
fn integers_are_those_of_the_storage() {
    let model = model(&PLAIN, 3);
    for entries in [Entries::Int8, Entries::Int4] {
        let storage = Storage::nearest(&model, entries, 16).unwrap();
        let hankelite::rounding::MapStorage::Integers(rounded) = &storage.layers[0].map else {
            panic!("a map of integers was requested");
        };
        let (exported, graph) = written(&model, entries, Form::Step);
        assert_eq!(exported.opset, 21);
        let weight = constant(&graph, "layers.0.map.weight");
        let (inputs, outputs) = rounded.levels().shape();
        assert_eq!(weight.dims, [inputs as i64, outputs as i64]);
        for input in 0..inputs {
            for output in 0..outputs {
                let at = input * outputs + output;
                let found = match entries {
                    Entries::Int8 => weight.raw_data[at] as i8,
                    // The sign is that of the upper bit of four.
                    _ => (weight.raw_data[at / 2] >> (at % 2 * 4) << 4) as i8 >> 4,
                };
                assert_eq!(found, rounded.levels()[(input, output)]);
            }
        }
        assert_eq!(
            nodes(&graph, "DequantizeLinear").len(),
            model.blocks().len()
        );
    }
}

/// The model with a second direction in its first layer.
fn both_ways(model: &Model) -> Model {
    let mut blocks = model.blocks().to_vec();
    let mut parts = blocks[0].clone().into_parts();
    let without = parts.systems.iter().map(|system| {
        let residues = system.residues().unwrap();
        let exponents = system.exponents().to_vec();
        hankelite_control::DiagonalSystem::siso(system.time(), exponents, &residues, 0.0).unwrap()
    });
    parts.backward = without.collect();
    blocks[0] = hankelite::model::Block::new(parts).unwrap();
    model.with_blocks(blocks).unwrap()
}

#[test]
fn layers_in_both_directions_are_sequences_only() {
    let model = both_ways(&model(&PLAIN, 3));
    let (_, graph) = written(&model, Entries::Full, Form::Sequence);
    check(&graph, &[]);
    let directions = nodes(&graph, "Scan").into_iter().map(|node| {
        let own = node
            .attribute
            .iter()
            .find(|own| own.name == "scan_input_directions");
        own.unwrap().ints[0]
    });
    assert_eq!(directions.collect::<Vec<_>>(), [0, 1, 0, 0]);
    let refused = export(&model, &Storage::single(&model), Form::Step, &[]).unwrap_err();
    let layer = "layers.0".to_string();
    assert_eq!(refused, OnnxError::Bidirectional { layer });
}

#[test]
fn channels_that_share_a_system_have_states_of_their_parts() {
    let random = &mut ChaCha8Rng::seed_from_u64(8);
    for dense in [false, true] {
        let model = Model::new(ModelParts {
            encoder: None,
            blocks: vec![shared(random, 6, 11, dense)],
            final_norm: None,
            head: None,
        });
        let model = model.unwrap();
        for form in [Form::Step, Form::Sequence] {
            let (exported, graph) = written(&model, Entries::Int8, form);
            check(&graph, &[]);
            assert_eq!(exported.outputs[0].name, "outputs");
            let weights = nodes(&graph, "MatMul").len();
            assert_eq!(weights, 2);
            assert_eq!(
                nodes(&graph, "Concat").len() - usize::from(form == Form::Sequence),
                usize::from(dense)
            );
        }
        // Twice eleven parts, and zeros up to 32.
        let (exported, _) = written(&model, Entries::Full, Form::Step);
        assert_eq!(exported.inputs[1].shape, [Extent::Batch, Extent::Fixed(32)]);
    }
}

#[test]
fn what_single_precision_cannot_hold_is_refused_by_name() {
    let mut parts = waves().into_parts();
    let mut head = parts.head.take().unwrap();
    head.linear.bias = Some(vec![1e300; head.linear.weight.ncols()]);
    parts.head = Some(head);
    let model = Model::new(parts).unwrap();
    let refused = export(&model, &Storage::single(&model), Form::Step, &[]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a number of `end.head.bias` is 1e300, which is no finite number in single precision"
    );
}
