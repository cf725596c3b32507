//! Short images that request much.

use hankelite_edge::{Header, ImageView, Layer, MAGIC, StepFault, VERSION, code};

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

/// The number that an image is refused for.
fn refused(header: Header, rest: &[u8]) -> &'static str {
    let bytes = (Header::BYTES + rest.len()) as u32;
    let header = Header { bytes, ..header };
    let image: Vec<u8> = header.to_bytes().chain(rest.iter().copied()).collect();
    let mut aligned = vec![0u32; image.len() / 4];
    bytemuck::cast_slice_mut(&mut aligned).copy_from_slice(&image);
    match ImageView::<f32>::new(bytemuck::cast_slice(&aligned)) {
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
