//! A model cannot be built wrong: what its constructors refuse, and what they let pass.

use hankelite::advanced::input_scale;
use hankelite::control::nalgebra::DMatrix;
use hankelite::control::num_complex::Complex64;
use hankelite::control::{DiagonalSystem, Time};
use hankelite::infer::{Network, Path};
use hankelite::model::{
    BatchNorm, Block, BlockParts, Encoder, Gate, Head, LayerNorm, Linear, Model, ModelParts,
    Nonlinearity, Norm, OutputLinear, Placement, Sequence,
};

const CHANNELS: usize = 3;

fn system(time: Time, feedthrough: f64) -> DiagonalSystem {
    let pole = vec![Complex64::new(-0.5, 1.0)];
    DiagonalSystem::siso(time, pole, &[Complex64::ONE], feedthrough).unwrap()
}

fn discrete() -> DiagonalSystem {
    system(Time::Discrete { step: 0.1 }, 0.0)
}

fn linear(inputs: usize, outputs: usize) -> Linear {
    Linear {
        weight: DMatrix::from_element(inputs, outputs, 0.5).into(),
        bias: Some(vec![0.25; outputs]),
    }
}

fn layer_norm(channels: usize) -> Norm {
    Norm::Layer(LayerNorm {
        weight: vec![1.0; channels],
        bias: vec![0.0; channels],
        epsilon: 1e-5,
    })
}

fn layer() -> BlockParts {
    BlockParts {
        name: "layers.0".to_string(),
        systems: vec![discrete(); CHANNELS],
        backward: vec![discrete(); CHANNELS],
        backward_from: 1,
        holds_feedthrough: true,
        class: None,
        activation: Nonlinearity::Gelu,
        output: Some(OutputLinear {
            linear: linear(CHANNELS, 2 * CHANNELS),
            gate: Gate::Halves,
        }),
        norm: Some((layer_norm(CHANNELS), Placement::Post)),
    }
}

fn network() -> ModelParts {
    ModelParts {
        encoder: Some(Encoder::Linear(linear(2, CHANNELS))),
        blocks: vec![Block::new(layer()).unwrap(); 2],
        final_norm: Some(layer_norm(CHANNELS)),
        head: Some(Head {
            pooling: None,
            linear: linear(CHANNELS, 4),
        }),
    }
}

type Change<P> = fn(&mut P);

/// What makes a layer wrong, and words of the refusal.
const WRONG_LAYERS: [(Change<BlockParts>, &str); 16] = [
    (|l| l.systems.clear(), "no systems"),
    (
        |l| l.backward.truncate(1),
        "1 systems backwards in time, expected 3",
    ),
    (
        |l| l.systems[1] = system(Time::Continuous, 0.0),
        "a continuous system",
    ),
    (
        |l| l.backward[2] = system(Time::Discrete { step: 0.1 }, 0.5),
        "feedthrough backwards",
    ),
    (|l| l.backward_from = 2, "lag"),
    (|l| l.systems.push(discrete()), "systems backwards in time"),
    (
        |l| l.output.as_mut().unwrap().linear = linear(2, 6),
        "2 inputs of the linear map",
    ),
    (
        |l| l.output.as_mut().unwrap().linear = linear(3, 5),
        "5 outputs of a gated map",
    ),
    (
        |l| l.output.as_mut().unwrap().linear = linear(3, 8),
        "4 channels behind the layer",
    ),
    (
        |l| l.output.as_mut().unwrap().linear.bias = Some(vec![0.0]),
        "1 numbers in the bias",
    ),
    (
        |l| l.output.as_mut().unwrap().linear.bias.as_mut().unwrap()[5] = f64::NAN,
        "number 5 of the bias is not finite",
    ),
    (
        |l| {
            l.output.as_mut().unwrap().linear.weight =
                DMatrix::from_element(3, 6, f64::INFINITY).into()
        },
        "number 0 of the weight",
    ),
    (
        |l| l.norm = Some((layer_norm(2), Placement::Pre)),
        "2 norm weight",
    ),
    (
        |l| {
            let rows = || vec![1.0; CHANNELS];
            let norm = Norm::Batch(BatchNorm {
                weight: rows(),
                bias: rows(),
                mean: rows(),
                variance: vec![1.0],
                epsilon: 1e-5,
            });
            l.norm = Some((norm, Placement::Pre));
        },
        "1 norm variance",
    ),
    (
        |l| {
            let Some((Norm::Layer(norm), _)) = &mut l.norm else {
                unreachable!()
            };
            norm.epsilon = f64::NAN;
        },
        "norm epsilon",
    ),
    (|l| l.systems.truncate(2), "expected 2"),
];

#[test]
fn a_layer_whose_parts_do_not_fit_is_refused_with_its_name() {
    assert!(Block::new(layer()).is_ok());
    for (change, words) in WRONG_LAYERS {
        let mut parts = layer();
        change(&mut parts);
        let error = Block::new(parts).unwrap_err().to_string();
        assert!(
            error.contains(words) && error.starts_with("layers.0: "),
            "{error}"
        );
    }
}

#[test]
fn a_network_whose_parts_do_not_follow_one_another_is_refused() {
    let changes: [(Change<ModelParts>, &str); 6] = [
        (
            |n| n.encoder = Some(Encoder::Linear(linear(2, 4))),
            "layers.0: found 3 channels, expected 4",
        ),
        (
            |n| {
                n.encoder = Some(Encoder::Embedding(
                    DMatrix::from_element(3, 2, f64::NAN).into(),
                ))
            },
            "the encoder: number 0 of the table is not finite",
        ),
        (
            |n| n.head.as_mut().unwrap().linear = linear(4, 4),
            "the head: found 4 inputs",
        ),
        (
            |n| n.final_norm = Some(layer_norm(1)),
            "the last normalisation",
        ),
        (
            |n| n.head.as_mut().unwrap().linear.bias.as_mut().unwrap()[0] = f64::NAN,
            "the head: number 0 of the bias is not finite",
        ),
        (
            |n| {
                crate::models::change_layer(n, 1, |layer| {
                    (layer.output, layer.norm) = (None, None);
                    layer.systems.truncate(2);
                    layer.backward.truncate(2);
                });
            },
            "expected 2",
        ),
    ];
    assert!(Model::new(network()).is_ok());
    for (change, words) in changes {
        let mut parts = network();
        change(&mut parts);
        let error = Model::new(parts).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn other_systems_must_fit_the_layer() {
    let block = Block::new(layer()).unwrap();
    let three = || vec![discrete(); CHANNELS];
    assert_eq!(block.with_systems(three(), three()).unwrap(), block);
    let few = block.with_systems(three(), Vec::new()).unwrap_err();
    assert!(
        few.to_string()
            .contains("found 0 systems backwards in time, expected 3"),
        "{few}"
    );
    let two = || vec![discrete(); 2];
    assert!(block.with_systems(two(), two()).is_err());
}

#[test]
fn layers_out_of_an_unknown_network_need_not_follow_one_another() {
    let lone = |channels: usize| {
        let parts = BlockParts {
            systems: vec![discrete(); channels],
            backward: Vec::new(),
            output: None,
            norm: None,
            ..layer()
        };
        Block::new(parts).unwrap()
    };
    let parts = ModelParts {
        encoder: None,
        blocks: vec![lone(2), lone(5)],
        final_norm: None,
        head: None,
    };
    assert_eq!(Model::new(parts).unwrap().blocks()[1].width(), 5);
}

#[test]
fn a_convolution_requested_of_a_system_with_several_inputs_is_refused() {
    let ones = |rows, columns| DMatrix::from_element(rows, columns, Complex64::ONE);
    let (time, pole) = (Time::Discrete { step: 0.1 }, Complex64::new(-0.5, 1.0));
    let through = DMatrix::zeros(CHANNELS, CHANNELS);
    let (input, output) = (ones(1, CHANNELS), ones(CHANNELS, 1));
    let system = DiagonalSystem::new(time, vec![pole], input, output, through).unwrap();
    let parts = BlockParts {
        systems: vec![system],
        backward: Vec::new(),
        ..layer()
    };
    let model = Model::new(ModelParts {
        blocks: vec![Block::new(parts).unwrap()],
        ..network()
    });
    let model = model.unwrap();
    let error = Network::new(&model, 8, Path::Fft)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("run by their recurrence"), "{error}");
    let outputs = |path| {
        let network = Network::new(&model, 8, path).unwrap();
        let values = hankelite::model::Sequence::Values(&[0.5; 16]);
        network.logits(values).unwrap()
    };
    assert_eq!(outputs(Path::Auto), outputs(Path::Recurrence));
}

#[test]
fn batch_norms_tell_inputs_of_another_scale() {
    let length = 400;
    let signs = |at: usize| f32::from(u8::from((at * at / 7).is_multiple_of(2))) * 2.0 - 1.0;
    let values: Vec<f32> = (0..2 * length).map(signs).collect();
    // The encoder gives 0.25 + 0.5 (u1 + u2): of independent signs a variance of one half.
    let norm = Norm::Batch(BatchNorm {
        weight: vec![2.0, -0.5, 0.0],
        bias: vec![1.0; CHANNELS],
        mean: vec![0.25; CHANNELS],
        variance: vec![0.5; CHANNELS],
        epsilon: 1e-5,
    });
    let with = |norm: Norm, placement| {
        let mut parts = network();
        let normed = |_| {
            Block::new(BlockParts {
                norm: Some((norm.clone(), placement)),
                ..layer()
            })
        };
        parts.blocks = (0..2).map(normed).collect::<Result<_, _>>().unwrap();
        Model::new(parts).unwrap()
    };
    let power = |model: &Model, factor: f32| {
        let scaled: Vec<f32> = values.iter().map(|x| x * factor).collect();
        input_scale(model, &[Sequence::Values(&scaled)], length).unwrap()
    };
    let model = with(norm.clone(), Placement::Pre);
    let (own, tripled) = (power(&model, 1.0).unwrap(), power(&model, 3.0).unwrap());
    assert_eq!(own.layer, "layers.0");
    assert!((own.power - 1.0).abs() < 0.2, "{own:?}");
    let ratio = tripled.power / own.power;
    assert!((ratio - 9.0).abs() < 1e-3, "{ratio}");
    // After a layer, the norm tells of the next one's input.
    let later = power(&with(norm, Placement::Post), 1.0).unwrap();
    assert!(later.power.is_finite());
    assert_eq!(
        power(&with(layer_norm(CHANNELS), Placement::Pre), 3.0),
        None
    );
}
