//! Streaming against whole sequences, and what a device needs: no allocation, exact snapshots,
//! honest sizes.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "common/draws.rs"]
mod draws;
#[path = "common/models.rs"]
mod models;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use draws::{
    DRAWS, Draw, PLAIN, Signal, model, of_all_lanes, of_orders, shared, storage, streamed,
    streamed_double,
};
use hankelite::infer::{Network, Path};
use hankelite::model::{Block, BlockParts, Gate, Model, ModelParts, Nonlinearity};
use hankelite::rounding::{Entries, MapStorage, Numbers, RoundingError, Storage};
use hankelite::stream::{Arithmetic, Image, Runner, StepFault, StreamError};
use hankelite_control::DiagonalSystem;
use models::{change_layer, changed};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by its nature; this one only counts"
)]
// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn apart<T: Copy + Into<f64>>(found: &[T], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let each = found.iter().zip(expected);
    each.map(|(&x, y)| (x.into() - y).abs()).fold(0.0, f64::max)
}

/// The last outputs of a stream are those of the whole sequence; without pooling, all of them.
fn like<'o, T>(outputs: &'o [T], expected: &[f64]) -> &'o [T] {
    &outputs[outputs.len() - expected.len()..]
}

/// In single precision against double: sequences of their own lengths, several and one at a time, and
/// the sensitivity of the logits to every channel. The logits are within `bound`.
fn compare_precisions(model: &Model, draw: &Draw, bound: f64) {
    let length = 300;
    let signals: Vec<Signal> = [length, 77, 299, 1, 150].map(Signal::new).into();
    let sequences: Vec<_> = signals.iter().map(|signal| signal.sequence(draw)).collect();
    let network = |path| Network::new(model, length, path).unwrap();
    let (single, double) = (network(Path::Auto), network(Path::Double));
    let expected = double.logits_of_all(&sequences).unwrap();
    let found = single.logits_of_all(&sequences).unwrap();
    // A norm over one channel gives nothing but its offset.
    let ran = draw.channels == 1 || found != expected;
    assert!(ran, "{draw:?}: the fast path did not run");
    for (own, other) in found.iter().zip(&expected) {
        assert!(apart(own, other) < bound, "{draw:?}: {}", apart(own, other));
    }
    assert_eq!(single.logits(sequences[1]).unwrap(), found[1], "{draw:?}");
    let importance = |network| hankelite::advanced::importance(network, &sequences).unwrap();
    let pairs = importance(&single).into_iter().zip(importance(&double));
    for (own, other) in pairs {
        let most = other.iter().copied().fold(0.0, f64::max);
        let far = own.iter().zip(&other).map(|(a, b)| (a - b).abs());
        let far = far.fold(0.0, f64::max);
        assert!(far < 1e-4 * most + 1e-12, "{draw:?}: {far:e} {most:e}");
    }
}

/// Every kind of network.
#[test]
fn single_precision_runs_are_those_of_double_precision() {
    for (index, draw) in DRAWS.iter().enumerate() {
        compare_precisions(&model(draw, 11 + index as u64), draw, 1e-4);
    }
}

/// The same where channels share modes, in one direction of time and in both, with every gate and
/// both forms of GELU.
#[test]
fn single_precision_runs_of_shared_modes_are_those_of_double_precision() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let gates = [Gate::None, Gate::Activated, Gate::Response];
    for (index, draw) in DRAWS.iter().enumerate() {
        let model = model(draw, 11 + index as u64);
        let blocks = model.blocks().iter().enumerate().map(|(layer, block)| {
            let [own, other] = [(); 2].map(|()| {
                let dense = index % 2 == 0 && draw.channels > 1;
                shared(&mut random, draw.channels, 5 + layer, dense).systems()[0].clone()
            });
            let turned = DiagonalSystem::new(
                own.time(),
                own.exponents().to_vec(),
                own.input().clone(),
                other.output().clone(),
                DMatrix::zeros(draw.channels, draw.channels),
            );
            let mut parts = block.clone().into_parts();
            if let Some(output) = parts.output.as_mut().filter(|_| !draw.gated) {
                output.gate = gates[layer % gates.len()];
            }
            Block::new(BlockParts {
                systems: vec![own],
                backward: if layer == 1 {
                    vec![turned.unwrap()]
                } else {
                    Vec::new()
                },
                backward_from: 0,
                activation: [Nonlinearity::Gelu, Nonlinearity::GeluTanh][layer % 2],
                ..parts
            })
            .unwrap()
        });
        let blocks = blocks.collect();
        // A sum goes over all channels and modes.
        compare_precisions(&model.with_blocks(blocks).unwrap(), draw, 3e-4);
    }
}

#[test]
fn streaming_equals_the_convolution_over_16k_steps() {
    let length = 16 * 1024;
    let signal = Signal::new(length);
    for (index, draw) in DRAWS.iter().enumerate() {
        let model = model(draw, 1 + index as u64);
        let network = Network::new(&model, length, Path::Double).unwrap();
        let expected = network.logits(signal.sequence(draw)).unwrap();
        let single = streamed(&mut Runner::new(&model).unwrap(), &signal);
        let difference = apart(like(&single, &expected), &expected);
        assert!(difference < 1e-4, "{draw:?}: {difference:e} in f32");
        let double = streamed_double(&mut Runner::double(&model).unwrap(), &signal);
        let difference = apart(like(&double, &expected), &expected);
        assert!(difference < 1e-10, "{draw:?}: {difference:e} in f64");
    }
}

#[test]
fn the_plain_path_gives_the_same_numbers_to_rounding() {
    let signal = Signal::new(500);
    for draw in &DRAWS {
        let model = model(draw, 3);
        let vector = streamed(&mut Runner::new(&model).unwrap(), &signal);
        let plain = Runner::new(&model)
            .unwrap()
            .with_arithmetic(Arithmetic::Plain);
        let plain = streamed(&mut plain.clone(), &signal);
        let plain: Vec<f64> = plain.into_iter().map(f64::from).collect();
        let difference = apart(&vector, &plain);
        assert!(difference < 2e-5, "{draw:?}: {difference:e}");
    }
}

/// The lanes are independent and sums have one order, so the width does not show.
#[test]
fn narrow_vectors_give_the_same_bits() {
    let signal = Signal::new(500);
    for draw in &DRAWS {
        let model = model(draw, 3);
        let wide = streamed(&mut Runner::new(&model).unwrap(), &signal);
        let mut narrow = Runner::new(&model)
            .unwrap()
            .with_arithmetic(Arithmetic::Narrow);
        let narrow = streamed(&mut narrow, &signal);
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&wide), bits(&narrow), "{draw:?}");
    }
}

#[test]
fn a_step_allocates_nothing() {
    let signal = Signal::new(1);
    for draw in &DRAWS {
        let model = model(draw, 4);
        let mut runner = Runner::new(&model).unwrap();
        let kept = runner.snapshot();
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..3 {
            let outputs = match draw.tokens {
                true => runner.step_tokens(&[3]),
                false => runner.step(&signal.values),
            };
            assert_eq!(outputs.unwrap().len(), 10);
        }
        runner.restore(&kept).unwrap();
        runner.reset();
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "{draw:?}");
    }
    // The counter counts.
    let before = ALLOCATIONS.with(Cell::get);
    std::hint::black_box(vec![1.0; 3]);
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1);
}

#[test]
fn reset_and_restore_bring_the_outputs_back_bit_for_bit() {
    let signal = Signal::new(40);
    for draw in &DRAWS {
        let mut runner = Runner::new(&model(draw, 5)).unwrap();
        let first = streamed(&mut runner, &signal);
        let kept = runner.snapshot();
        let second = streamed(&mut runner, &signal);
        runner.restore(&kept).unwrap();
        assert_eq!(streamed(&mut runner, &signal), second);
        assert_ne!(first, second);
        runner.reset();
        assert_eq!(streamed(&mut runner, &signal), first);
    }
}

#[test]
fn streams_side_by_side_give_what_each_gives_alone() {
    let signals = [3, 4, 5].map(|shift| Signal::new(30 + shift));
    let draw = DRAWS[1];
    let model = model(&draw, 6);
    let alone = signals
        .each_ref()
        .map(|s| streamed(&mut Runner::new(&model).unwrap(), s));
    let mut runner = Runner::new(&model).unwrap().with_streams(3).unwrap();
    assert_eq!(runner.streams(), 3);
    for step in 0..30 {
        let inputs = signals
            .iter()
            .flat_map(|s| s.values[2 * step..2 * step + 2].to_vec());
        let inputs: Vec<f32> = inputs.collect();
        let outputs = runner.step(&inputs).unwrap();
        let expected = alone
            .iter()
            .flat_map(|a| a[10 * step..10 * step + 10].to_vec());
        assert_eq!(outputs, expected.collect::<Vec<f32>>());
    }
}

/// Two streams of two inputs, four chunks of seven steps and one of three.
fn chunks_are_steps(image: &Image, name: &str) {
    const CHUNK: usize = 7;
    let inputs = Signal::new(2 * 31).values;
    let of = || Runner::from_image(image.clone()).unwrap();
    let mut steps = of().with_streams(2).unwrap();
    let mut chunks = of().with_streams(2).unwrap().with_steps(CHUNK).unwrap();
    let expected = inputs
        .chunks(4)
        .map(|one| steps.step(one).unwrap().to_vec());
    let expected: Vec<f32> = expected.flatten().collect();
    let found = inputs.chunks(4 * CHUNK);
    let found = found.map(|some| chunks.run_chunk(some).unwrap().to_vec());
    assert_eq!(found.collect::<Vec<_>>().concat(), expected, "{name}");
    assert_eq!(chunks.snapshot(), steps.snapshot(), "{name}");
    // More than there is room for, and no whole steps.
    assert!(chunks.run_chunk(&[0.0; 4 * (CHUNK + 1)]).is_err());
    assert!(chunks.run_chunk(&inputs[..5]).is_err());
    assert_eq!(chunks.snapshot(), steps.snapshot(), "{name}");
}

#[test]
fn chunks_give_what_step_after_step_gives() {
    for draw in DRAWS.iter().filter(|draw| !draw.tokens) {
        let model = model(draw, 7);
        let image = Image::new(&model, Entries::Full).unwrap();
        chunks_are_steps(&image, &format!("{draw:?}"));
    }
    for (name, model, _) in of_all_lanes() {
        for entries in [Entries::Int8, Entries::Int4, Entries::Int3, Entries::Int2] {
            let storage = storage(&model, entries, Numbers::F16);
            let image = Image::packed(&model, &storage).unwrap();
            chunks_are_steps(&image, &format!("{name:?} {entries:?}"));
        }
    }
}

#[test]
fn a_silent_input_leaves_no_subnormal_states() {
    // The input of a lone layer is exactly zero; nothing else in it keeps the states alive.
    let model = changed(&model(&PLAIN, 8), |parts| {
        (parts.encoder, parts.head, parts.final_norm) = (None, None, None);
        parts.blocks.truncate(1);
        change_layer(parts, 0, |layer| (layer.norm, layer.output) = (None, None));
    });
    let mut runner = Runner::new(&model).unwrap();
    runner.step(&[1.0; 16]).unwrap();
    for _ in 0..200_000 {
        runner.step(&[0.0; 16]).unwrap();
    }
    let state = runner.snapshot();
    assert!(state.numbers().iter().all(|x| !x.is_subnormal()));
    let outputs = runner.step(&[0.0; 16]).unwrap();
    assert!(outputs.iter().all(|y| y.abs() < 1e-15));
}

#[test]
fn ten_million_steps_do_not_drift() {
    // One channel is enough: a mean over a constant input must stay where it is.
    let draw = Draw {
        channels: 1,
        modes: 1,
        ..PLAIN
    };
    let model = model(&draw, 9);
    let mut runner = Runner::new(&model).unwrap();
    let mut double = Runner::double(&model).unwrap();
    for _ in 0..10_000_000 {
        runner.step(&[0.3, -0.4]).unwrap();
    }
    let inputs = [0.3, -0.4].map(|x: f32| f64::from(x));
    for _ in 0..100_000 {
        double.step(&inputs).unwrap();
    }
    let settled: Vec<f64> = double.step(&inputs).unwrap().to_vec();
    let difference = apart(runner.step(&[0.3, -0.4]).unwrap(), &settled);
    assert!(difference < 1e-4, "{difference:e}");
}

#[test]
fn fewer_modes_take_fewer_bytes() {
    let sizes = |draw: &Draw| {
        let runner = Runner::new(&model(draw, 10)).unwrap();
        (runner.weight_bytes(), runner.state_bytes())
    };
    let full = sizes(&Draw {
        channels: 64,
        modes: 32,
        ..PLAIN
    });
    let small = sizes(&Draw {
        channels: 64,
        modes: 4,
        ..PLAIN
    });
    // 3 layers × 64 channels × 28 modes fewer, at 16 bytes of weights and 8 of state.
    assert_eq!(full.0 - small.0, 3 * 64 * 28 * 16);
    assert_eq!(full.1 - small.1, 3 * 64 * 28 * 8);
    // One loud channel costs itself and three beside it.
    let ragged = model(
        &Draw {
            channels: 64,
            modes: 4,
            ..PLAIN
        },
        10,
    );
    let loud = model(
        &Draw {
            channels: 64,
            modes: 32,
            ..PLAIN
        },
        10,
    );
    let ragged = changed(&ragged, |parts| {
        for (index, from) in loud.blocks().iter().enumerate() {
            change_layer(parts, index, |layer| {
                layer.systems[37] = from.systems()[37].clone()
            });
        }
    });
    let runner = Runner::new(&ragged).unwrap();
    assert_eq!(runner.state_bytes() - small.1, 3 * 4 * 28 * 8);
}

#[test]
fn modes_of_residue_zero_cost_nothing() {
    let plain = model(&PLAIN, 11);
    let longer = |system: &DiagonalSystem| {
        let mut exponents = system.exponents().to_vec();
        let mut residues = system.residues().unwrap();
        exponents.push(Complex64::new(-1.0, 0.0));
        residues.push(Complex64::ZERO);
        DiagonalSystem::siso(system.time(), exponents, &residues, 0.3).unwrap()
    };
    let padded = changed(&plain, |parts| {
        change_layer(parts, 0, |layer| {
            layer.systems = layer.systems.iter().map(longer).collect();
        });
    });
    let plain = Runner::new(&plain).unwrap();
    let padded = Runner::new(&padded).unwrap();
    assert_eq!(padded.image().as_bytes(), plain.image().as_bytes());
}

/// One system that all channels share, against the same sums written out.
#[test]
fn a_shared_system_streams_as_its_recurrence() {
    let random = &mut ChaCha8Rng::seed_from_u64(12);
    for (channels, modes, dense) in [(6, 5, false), (16, 20, true), (3, 16, true), (4, 0, true)] {
        let block = shared(random, channels, modes, dense);
        let system = block.systems()[0].clone();
        let model = Model::new(ModelParts {
            encoder: None,
            blocks: vec![block],
            final_norm: None,
            head: None,
        })
        .unwrap();
        let mut runner = Runner::new(&model).unwrap();
        let mut double = Runner::double(&model).unwrap();
        let mut state = nalgebra::DVector::<Complex64>::zeros(modes);
        let poles = nalgebra::DVector::from_vec(system.poles());
        for step in 0..300 {
            let u: Vec<f32> = (0..channels)
                .map(|h| ((step * (h + 1)) as f32).sin())
                .collect();
            let wide: Vec<f64> = u.iter().map(|&u| u.into()).collect();
            let input = nalgebra::DVector::from_vec(wide.clone());
            state = state.component_mul(&poles) + system.input() * input.map(Complex64::from);
            let y = (system.output() * &state).map(|y| y.re) + system.feedthrough() * input;
            let gelu = |a: f64| 0.5 * a * (1.0 + libm::erf(a * std::f64::consts::FRAC_1_SQRT_2));
            let expected: Vec<f64> = y.iter().map(|&y| gelu(y)).collect();
            assert!(
                apart(runner.step(&u).unwrap(), &expected) < 1e-4,
                "step {step}"
            );
            assert!(
                apart(double.step(&wide).unwrap(), &expected) < 1e-11,
                "step {step}"
            );
        }
    }
}

#[test]
fn an_image_computes_the_model_that_its_storage_stands_for() {
    let signal = Signal::new(300);
    for (draw, model, lanes) in of_all_lanes() {
        for (entries, numbers) in Entries::ALL
            .map(|e| [(e, Numbers::F32), (e, Numbers::F16)])
            .concat()
        {
            let storage = storage(&model, entries, numbers);
            let applied = storage.applied(&model).unwrap();
            let expected = streamed_double(&mut Runner::double(&applied).unwrap(), &signal);
            let image = Image::packed(&model, &storage).unwrap();
            let shares = image.shares().unwrap();
            assert_eq!(shares.lanes, [lanes; 3], "{draw:?}");
            let bytes = shares.systems + shares.maps + shares.rest;
            assert_eq!(bytes, image.as_bytes().len());
            let found = streamed(&mut Runner::from_image(image).unwrap(), &signal);
            let difference = apart(&found, &expected);
            // Inputs of integers have 8 bits: half a 127th of the largest input for each of three
            // maps and the head, over sums of tens of inputs with weights below 1.7/√inputs.
            let near = if entries.bits().is_some() { 0.1 } else { 1e-4 };
            assert!(
                difference < near,
                "{draw:?} {entries:?} {numbers:?}: {difference:e}"
            );
            let double = Image::packed_double(&model, &storage).unwrap();
            let found = streamed_double(&mut Runner::from_image(double).unwrap(), &signal);
            let difference = apart(&found, &expected);
            assert!(
                difference < 1e-10,
                "{draw:?} {entries:?} {numbers:?}: {difference:e} in f64"
            );
        }
    }
}

#[test]
fn all_arithmetic_agrees_on_what_is_rounded() {
    let signal = Signal::new(200);
    let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (draw, model, _) in of_all_lanes() {
        for (entries, numbers) in Entries::ALL
            .map(|e| [(e, Numbers::F32), (e, Numbers::F16)])
            .concat()
        {
            let image = Image::packed(&model, &storage(&model, entries, numbers)).unwrap();
            let [vector, plain, narrow] =
                [Arithmetic::Vector, Arithmetic::Plain, Arithmetic::Narrow].map(|arithmetic| {
                    let runner = Runner::from_image(image.clone()).unwrap();
                    streamed(&mut runner.with_arithmetic(arithmetic), &signal)
                });
            assert_eq!(
                bits(&vector),
                bits(&narrow),
                "{draw:?} {entries:?} {numbers:?}"
            );
            let plain: Vec<f64> = plain.into_iter().map(f64::from).collect();
            let difference = apart(&vector, &plain);
            // The integers are the same. Where the last digit of an input decides how it is rounded
            // to 8 bits, one input differs by a 127th of the largest.
            let near = if entries.bits().is_some() { 1e-2 } else { 2e-5 };
            assert!(
                difference < near,
                "{draw:?} {entries:?} {numbers:?}: {difference:e}"
            );
        }
    }
}

#[test]
fn rounded_streams_side_by_side_give_what_each_gives_alone() {
    let signals = [3, 4, 5].map(|shift| Signal::new(30 + shift));
    for (_, model, _) in of_all_lanes() {
        let image = Image::packed(&model, &storage(&model, Entries::Int4, Numbers::F16)).unwrap();
        let alone = signals
            .each_ref()
            .map(|s| streamed(&mut Runner::from_image(image.clone()).unwrap(), s));
        let mut runner = Runner::from_image(image).unwrap().with_streams(3).unwrap();
        for step in 0..30 {
            let inputs = signals
                .each_ref()
                .map(|s| s.values[2 * step..2 * step + 2].to_vec());
            let outputs = runner.step(&inputs.concat()).unwrap();
            let expected = alone
                .each_ref()
                .map(|a| a[10 * step..10 * step + 10].to_vec());
            assert_eq!(outputs, expected.concat());
        }
    }
}

#[test]
fn inputs_that_are_not_finite_are_not_hidden_by_rounding() {
    let image = Image::new(&model(&PLAIN, 27), Entries::Int8).unwrap();
    for loud in [f32::NAN, f32::INFINITY] {
        let mut runner = Runner::from_image(image.clone()).unwrap();
        let outputs = runner.step(&[loud, 0.0]).unwrap();
        assert!(outputs.iter().any(|y| !y.is_finite()), "{outputs:?}");
    }
}

#[test]
fn smaller_entries_take_fewer_bytes() {
    let draw = Draw {
        channels: 64,
        modes: 2,
        gated: true,
        ..PLAIN
    };
    let model = model(&draw, 13);
    let signal = Signal::new(200);
    let expected = streamed(&mut Runner::new(&model).unwrap(), &signal);
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    let full = Image::new(&model, Entries::Full).unwrap().as_bytes().len();
    // 3 layers, 128 × 64 entries; integers have two scales for each row besides.
    let scales = 128 * 2 * 2;
    for (entries, bytes, near) in [
        (Entries::Bf16, 128 * 64 * 2, 0.05),
        (Entries::Int8, 128 * 64 + scales, 0.05),
        (Entries::Int4, 128 * 64 / 2 + scales, 0.6),
        (Entries::Int3, 128 * 64 / 8 * 3 + scales, 1.2),
        (Entries::Int2, 128 * 64 / 4 + scales, 2.5),
    ] {
        let image = Image::new(&model, entries).unwrap();
        let saved = full - image.as_bytes().len();
        let expected_saved = 3 * (128 * 64 * 4 - bytes);
        // What aligns the parts may differ.
        assert!(saved.abs_diff(expected_saved) < 3 * 128, "{entries:?}");
        let found = streamed(&mut Runner::from_image(image).unwrap(), &signal);
        let difference = apart(&found, &expected);
        assert!(
            difference > 0.0 && difference < near,
            "{entries:?}: {difference:e}"
        );
    }
}

/// 4 layers of 16 channels, gated 4-bit maps, 4.5 modes a channel and all else in halves.
#[test]
fn a_small_model_takes_few_bytes_beside_its_numbers() {
    let draw = Draw {
        gated: true,
        ..PLAIN
    };
    let model = of_orders(&model(&draw, 28), |h| 3 + h / 4);
    let model = changed(&model, |parts| {
        let fourth = parts.blocks[0].clone();
        parts.blocks.push(fourth);
    });
    let mut storage = Storage::nearest(&model, Entries::Int4, 16)
        .unwrap()
        .with_numbers(Numbers::F16);
    let head = &model.head().unwrap().linear;
    storage.head = MapStorage::nearest(head, Entries::Int8, 16).unwrap();
    let runner = Runner::<f32>::from_image(Image::packed(&model, &storage).unwrap()).unwrap();
    let modes = 4 * 16 * (3 + 4 + 5 + 6) / 4;
    // d and r; the map, its scales and bias; feedthrough; norm.
    let layers = modes * 8 + 4 * (16 * 32 / 2 + 32 * 2 + 32 * 2 + 16 * 2 + 2 * 16 * 2 + 4);
    // Encoder with bias; last norm; head with scales and bias, its rows filled up to sixteen.
    let ends = (2 * 16 * 4 + 32) + (4 + 64) + (16 * 16 + 32 + 32);
    // A header, five layers, six matrices, the numbers of modes, the places.
    let records = 44 + 5 * 32 + 6 * 24 + 4 * 4 * 2 + 4 * 16;
    let found = runner.weight_bytes();
    assert!(found <= layers + ends + records + 16, "{found} bytes");
    assert_eq!(runner.state_bytes(), 4 * (2 * modes + 2 * 16 + 2));
}

#[test]
fn what_cannot_be_streamed_is_refused_with_the_reason() {
    let two_ways = changed(&model(&PLAIN, 14), |parts| {
        change_layer(parts, 1, |layer| {
            let without = |system: &DiagonalSystem| {
                let residues = system.residues().unwrap();
                let exponents = system.exponents().to_vec();
                DiagonalSystem::siso(system.time(), exponents, &residues, 0.0).unwrap()
            };
            layer.backward = layer.systems.iter().map(without).collect();
        });
    });
    let error = Runner::new(&two_ways).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("layer `layers.1` is bidirectional"),
        "{error}"
    );

    // Layers out of a network that is not known need not follow one another.
    let narrow = changed(&model(&PLAIN, 14), |parts| {
        (parts.encoder, parts.head, parts.final_norm) = (None, None, None);
        change_layer(parts, 2, |layer| {
            (layer.norm, layer.output) = (None, None);
            layer.systems.pop();
        });
    });
    let error = Runner::new(&narrow).unwrap_err().to_string();
    assert!(error.ends_with("is 15, expected 16"), "{error}");

    let loud = changed(&model(&PLAIN, 14), |parts| {
        parts.head.as_mut().unwrap().linear.bias.as_mut().unwrap()[3] = 1e300;
    });
    let error = Runner::new(&loud).unwrap_err().to_string();
    assert!(error.contains("a bias of the head is 1000"), "{error}");
    assert!(Runner::double(&loud).is_ok());

    let mixed = changed(&model(&PLAIN, 14), |parts| {
        change_layer(parts, 1, |layer| {
            layer.activation = Nonlinearity::GeluTanh;
        });
    });
    let error = Runner::new(&mixed).unwrap_err().to_string();
    assert!(
        error.contains("layer `layers.1` has another form of GELU"),
        "{error}"
    );

    let other = Storage::default();
    let fault = RoundingError::Matrix("a storage of 0 layers, expected 3".to_string());
    assert_eq!(
        Image::packed(&model(&PLAIN, 14), &other).unwrap_err(),
        StreamError::Rounding(fault)
    );
}

#[test]
fn inputs_of_another_shape_are_refused() {
    let mut runner = Runner::new(&model(&PLAIN, 14)).unwrap();
    let length = StepFault::Length {
        what: "input",
        found: 3,
        expected: 2,
    };
    assert_eq!(
        runner.step(&[0.0; 3]).unwrap_err(),
        StreamError::Step(length)
    );
    let kind = StepFault::Kind {
        expected: "numbers",
    };
    assert_eq!(
        runner.step_tokens(&[0]).unwrap_err(),
        StreamError::Step(kind)
    );
    let mut tokens = Runner::new(&model(&DRAWS[4], 14)).unwrap();
    let outside = StepFault::Token {
        token: 7,
        vocabulary: 7,
    };
    assert_eq!(
        tokens.step_tokens(&[7]).unwrap_err(),
        StreamError::Step(outside)
    );
    let other = Runner::new(&model(&DRAWS[1], 14)).unwrap().snapshot();
    assert!(matches!(
        runner.restore(&other),
        Err(StreamError::Step(StepFault::Length { what: "state", .. }))
    ));
    let none = runner.with_streams(0).unwrap_err().to_string();
    assert_eq!(none, "0 streams at once, expected 1 to 65535");
}

#[test]
fn a_spoiled_image_is_refused_and_never_panics() {
    let half = model(&DRAWS[1], 15);
    let rounded = |entries| Image::packed(&half, &storage(&half, entries, Numbers::F16)).unwrap();
    for image in [
        Image::new(&half, Entries::Int8).unwrap(),
        rounded(Entries::Int3),
        rounded(Entries::Int2),
    ] {
        let bytes = image.as_bytes();
        assert!(Image::is_image(bytes));
        let whole = Runner::<f32>::from_image(Image::from_bytes(bytes)).unwrap();
        assert_eq!(whole.inputs(), 2);
        let wrong = Runner::<f64>::from_image(Image::from_bytes(bytes)).unwrap_err();
        assert!(
            wrong
                .to_string()
                .contains("the size of a number is 0x4, expected 0x8")
        );
        for length in (0..bytes.len()).step_by(97) {
            let cut = Image::from_bytes(&bytes[..length]);
            assert!(Runner::<f32>::from_image(cut).is_err(), "{length} bytes");
        }
        // Any change of a word gives an error or an image that runs.
        let random = &mut ChaCha8Rng::seed_from_u64(16);
        for round in 0..6000 {
            let mut changed = bytes.to_vec();
            let at = match round % 3 {
                0 => random.random_range(0..44),
                // The records of the layers stand before the head, near the end.
                1 => random.random_range(bytes.len() * 3 / 4..bytes.len()),
                _ => random.random_range(0..bytes.len()),
            };
            changed[at] = random.random();
            if let Ok(mut runner) = Runner::<f32>::from_image(Image::from_bytes(&changed)) {
                let inputs = vec![0.5; runner.inputs()];
                let _ = runner.step(&inputs);
                let _ = runner.step_tokens(&[0]);
            }
        }
    }
}

#[test]
fn an_image_of_another_version_is_refused_with_what_to_do() {
    let image = Image::new(&model(&PLAIN, 15), Entries::Full).unwrap();
    let mut bytes = image.as_bytes().to_vec();
    // All that were ever written, and one to come.
    for found in [1, 2, 3, 5] {
        bytes[4..8].copy_from_slice(&u32::to_le_bytes(found));
        let error = Runner::<f32>::from_image(Image::from_bytes(&bytes)).unwrap_err();
        assert_eq!(error, StreamError::Step(StepFault::Version { found }));
        let words =
            format!("an image of version {found}, expected version 4: pack the checkpoint again");
        assert_eq!(error.to_string(), words);
    }
}
