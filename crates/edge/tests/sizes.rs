//! Short images that request much, and those at the edge of what there is.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite_edge::{
    Header, ImageView, Input, Layer, MAGIC, Matrix, Plain, SharedSystem, StepFault, VERSION, code,
    step,
};

/// A header of so many channels, and layers right behind it.
fn header(channels: u32, layers: u32) -> Header {
    Header {
        magic: MAGIC,
        version: VERSION,
        number: 4,
        inputs: channels,
        channels,
        outputs: channels,
        layers,
        layers_at: Header::BYTES as u32,
        ..Header::default()
    }
}

/// The image of a header and what lies behind it, in words so that it is aligned.
fn image(header: Header, rest: &[u8]) -> Vec<u32> {
    let bytes = (Header::BYTES + rest.len()) as u32;
    let header = Header { bytes, ..header };
    let image: Vec<u8> = header.to_bytes().chain(rest.iter().copied()).collect();
    let mut aligned = vec![0u32; image.len() / 4];
    bytemuck::cast_slice_mut(&mut aligned).copy_from_slice(&image);
    aligned
}

/// The number that an image is refused for.
fn refused(header: Header, rest: &[u8]) -> &'static str {
    let image = image(header, rest);
    match ImageView::<f32>::new(bytemuck::cast_slice(&image)) {
        Err(StepFault::Record { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_header_alone_has_no_sixteen_million_channels() {
    assert_eq!(refused(header(1 << 24, 0), &[]), "number of channels");
}

#[test]
fn wide_layers_that_all_lie_in_the_same_place_are_refused() {
    let found = refused(header(1 << 13, 1000), &[0; 1 << 15]);
    assert_eq!(found, "number of layers");
}

#[test]
fn layers_that_all_have_the_same_modes_are_refused() {
    let at = (Header::BYTES + 1000 * Layer::BYTES) as u32;
    let layer = Layer {
        dynamics: code::CHANNELS,
        lanes: 16,
        modes_at: at,
        systems_at: at + 4,
        ..Layer::default()
    };
    let layers: Vec<u8> = (0..1000).flat_map(|_| layer.to_bytes()).collect();
    // A hundred modes in sixteen lanes, four numbers each.
    let modes = [[100, 0, 0, 0].as_slice(), &[0; 100 * 16 * 4 * 4]].concat();
    let found = refused(header(16, 1000), &[layers, modes].concat());
    assert_eq!(found, "number of modes");
}

/// It would be read as a norm, from a place that was not checked.
#[test]
fn layers_without_dynamics_and_norm_are_refused() {
    let layer: Vec<u8> = Layer::default().to_bytes().collect();
    assert_eq!(refused(header(16, 1), &layer), "kind of norm");
}

/// Such a layer gives its feedthrough; here there is none.
#[test]
fn a_shared_system_without_modes_steps() {
    let at = (Header::BYTES + Layer::BYTES) as u32;
    let layer = Layer {
        dynamics: code::SHARED,
        systems_at: at,
        ..Layer::default()
    };
    let input_at = at + SharedSystem::BYTES as u32;
    let output_at = input_at + Matrix::BYTES as u32;
    let system = SharedSystem {
        modes: 0,
        poles_at: at,
        input_at,
        output_at,
    };
    let [input, output] = [(0, 16), (16, 0)].map(|(outputs, inputs)| Matrix {
        outputs,
        inputs,
        weights_at: at,
        ..Matrix::default()
    });
    let records = layer.to_bytes().chain(system.to_bytes());
    let records = records.chain(input.to_bytes()).chain(output.to_bytes());
    let records: Vec<u8> = records.collect();
    let image = image(header(16, 1), &records);
    let view = ImageView::<f32>::new(bytemuck::cast_slice(&image)).unwrap();
    let (mut state, mut work) = (vec![0.0; view.state_len()], vec![1.0; view.work_len(1)]);
    let input = Input::Values(&[0.5; 16]);
    let outputs = step(Plain, &view, &mut state, &mut work, input).unwrap();
    assert_eq!(outputs, [0.0; 16]);
}
