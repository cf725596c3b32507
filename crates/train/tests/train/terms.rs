//! Penalties, trust regions and teachers on small networks.

use candle_core::{DType, Device, Tensor};
use hankelite_data::{Dataset, Targets};
use hankelite_train::nn::{
    Architecture, Mode, SequenceModel, TrainableNetwork, TrainableOptions, random_model,
};
use hankelite_train::{
    Composed, Distil, Examples, FilterPenalty, Objective, Recipe, RecipeError, Regularise, Scale,
    Start, Stop, Task, Terms, TrainError, Training, Trust, input, scalar,
};

use crate::points::points;

fn architecture(states: usize, norm: &str) -> Architecture {
    let text = format!(
        "layer = \"s4d\"\nchannels = 3\nstates = {states}\nlayers = 2\ninputs = 2\noutputs = 3\n\
         norm = \"{norm}\""
    );
    toml::from_str(&text).unwrap()
}

fn network(states: usize, norm: &str, seed: u64) -> TrainableNetwork {
    let model = random_model(&architecture(states, norm), 4, seed).unwrap();
    let options = TrainableOptions {
        dtype: DType::F64,
        ..TrainableOptions::new(4)
    };
    TrainableNetwork::from_model(&model, &options, &Device::Cpu).unwrap()
}

fn examples(data: &Dataset) -> Examples {
    let batch = data.batch(&(0..7).collect::<Vec<_>>());
    Examples {
        input: input(&batch, DType::F64, &Device::Cpu).unwrap(),
        targets: batch.targets,
        count: batch.count,
    }
}

fn everything() -> Terms {
    Terms {
        regularise: Some(Regularise {
            penalty: FilterPenalty::FilterNorm,
            weight: 0.1,
        }),
        trust: None,
        distil: Some(Distil {
            labels: 1.3,
            logits: 0.7,
            temperature: 3.0,
            layers: 0.4,
            fade: 0.0,
        }),
    }
}

/// Every entry of every parameter.
#[test]
fn gradients_of_all_terms_agree_with_differences() {
    let folder = tempfile::tempdir().unwrap();
    let examples = examples(&points(folder.path(), 12));
    let (student, teacher) = (network(2, "layer", 1), network(5, "layer", 2));
    let mut objective = Composed::new(&student, &everything(), Some(&teacher), 0.1).unwrap();
    let mut loss = || {
        let loss = objective.loss(&student, &examples, Mode::Evaluate);
        scalar(&loss.unwrap().value).unwrap()
    };
    let mut trained = Composed::new(&student, &everything(), Some(&teacher), 0.1).unwrap();
    let mut random = rand_chacha::rand_core::SeedableRng::seed_from_u64(0);
    let found = trained.loss(&student, &examples, Mode::Train(&mut random));
    let found = found.unwrap();
    let names: Vec<&str> = found.terms.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["penalty", "logits", "layers", "layers"]);
    assert!((scalar(&found.value).unwrap() - loss()).abs() < 1e-12);
    let store = found.value.backward().unwrap();
    for parameter in student.parameters() {
        let var = &parameter.var;
        let before = var.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let own = store.get(var).unwrap().flatten_all().unwrap();
        let own = own.to_vec1::<f64>().unwrap();
        for at in 0..before.len() {
            let mut moved = |by: f64| {
                let mut values = before.clone();
                values[at] += by;
                let values = Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap();
                var.set(&values).unwrap();
                loss()
            };
            let h = 1e-5;
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            moved(0.0);
            let far = (slope - own[at]).abs();
            let name = &parameter.name;
            assert!(
                far < 1e-6 * (1.0 + slope.abs()),
                "{name} {at}: {slope} {}",
                own[at]
            );
        }
    }
}

#[test]
fn a_teacher_that_fades_leaves_the_labels_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut examples = examples(&points(folder.path(), 12));
    let (student, teacher) = (network(2, "layer", 1), network(5, "layer", 2));
    let of = |fade: f64| {
        let mut terms = everything();
        terms.distil.as_mut().unwrap().fade = fade;
        Composed::new(&student, &terms, Some(&teacher), 0.0).unwrap()
    };
    let value = |objective: &mut Composed<'_>, examples: &Examples, done: f64| {
        objective.before_step(done);
        let loss = objective.loss(&student, examples, Mode::Evaluate).unwrap();
        (scalar(&loss.value).unwrap(), loss.terms.len())
    };
    let (whole, _) = value(&mut of(0.0), &examples, 0.9);
    let mut fading = of(0.5);
    assert_eq!(value(&mut fading, &examples, 0.0), (whole, 4));
    let (half, _) = value(&mut fading, &examples, 0.25);
    let (none, terms) = value(&mut fading, &examples, 0.5);
    // The teacher is not run any more.
    assert_eq!(terms, 1);
    assert!((half - 0.5 * (whole + none)).abs() < 1e-12 * whole);
    assert_eq!(value(&mut fading, &examples, 0.9), (none, 1));
    // Without labels there is nothing but the teacher.
    examples.targets = Targets::None;
    let (whole, _) = value(&mut of(0.0), &examples, 0.9);
    assert_eq!(value(&mut fading, &examples, 0.9), (whole, 4));
}

#[test]
fn a_teacher_that_agrees_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let examples = examples(&points(folder.path(), 12));
    let (student, teacher) = (network(3, "layer", 4), network(3, "layer", 4));
    let mut objective = Composed::new(&student, &everything(), Some(&teacher), 0.0).unwrap();
    let loss = objective.loss(&student, &examples, Mode::Evaluate).unwrap();
    for (name, value) in &loss.terms[1..] {
        assert!(value.abs() < 1e-14, "{name}: {value}");
    }
    let refused = Composed::new(&student, &everything(), None, 0.0);
    let refused = refused.err().unwrap();
    assert!(matches!(
        refused,
        TrainError::Recipe(RecipeError::NoTeacher)
    ));
}

fn recipe() -> Recipe {
    Recipe {
        epochs: Some(3),
        batch: 16,
        lr: 0.05,
        lr_dynamics: 0.05,
        ..Recipe::default()
    }
}

/// A training with a trust region; gives the network and the share of balls that were left.
fn trained(trust: Option<Trust>, norm: &str) -> (TrainableNetwork, Start, Option<f64>) {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 48);
    let network = network(2, norm, 3);
    let recipe = recipe();
    let training = Training {
        network: &network,
        data: &data,
        validation: None,
        recipe: &recipe,
    };
    let terms = Terms {
        trust,
        ..Terms::default()
    };
    let start = Start::of(&network).unwrap();
    let mut objective = Composed::new(&network, &terms, None, 0.0).unwrap();
    let outcome = training.run(&mut objective, None, &mut (), &Stop::default());
    let active = outcome.unwrap().history[2]
        .terms
        .get("trust_active")
        .copied();
    (network, start, active)
}

fn values(network: &TrainableNetwork) -> Vec<Vec<f64>> {
    let parameters = network.parameters().iter().map(|p| &p.var);
    let all = parameters.chain(network.buffers().iter().map(|b| &b.var));
    all.map(|var| var.flatten_all().unwrap().to_vec1().unwrap())
        .collect()
}

fn trust(text: &str) -> Trust {
    toml::from_str(text).unwrap()
}

#[test]
fn a_radius_of_zero_freezes_and_an_infinite_one_is_a_plain_training() {
    for norm in ["layer", "batch"] {
        let frozen = trained(Some(trust("radius = 0.0")), norm).0;
        assert_eq!(values(&frozen), values(&network(2, norm, 3)));
        let free = trained(Some(trust("radius = inf")), norm).0;
        assert_eq!(values(&free), values(&trained(None, norm).0));
        assert_ne!(values(&free), values(&frozen));
    }
}

#[test]
fn parameters_stay_in_their_balls() {
    let rho = 0.02;
    let part = "frequency = 0.0\nothers = inf\nscale = \"states\"\nradius = 0.02";
    let (network, start, active) = trained(Some(trust(part)), "layer");
    assert!(active.unwrap() > 0.3, "{active:?}");
    let fresh = self::network(2, "layer", 3);
    for (now, then) in network.parameters().iter().zip(fresh.parameters()) {
        let channels = now.var.dims()[0];
        let rows = |p: &hankelite_train::nn::Parameter| {
            let rows = p.var.reshape((channels, ())).unwrap();
            rows.to_vec2::<f64>().unwrap()
        };
        let apart = rows(now).into_iter().zip(rows(then)).map(|(a, b)| {
            let squares = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2));
            squares.sum::<f64>().sqrt()
        });
        let farthest = apart.fold(0.0, f64::max);
        let name = now.name.rsplit('.').next().unwrap();
        match name {
            "frequency" => assert_eq!(farthest, 0.0),
            "log_step" | "log_decay" | "weights" | "feedthrough" => {
                let radius = rho / 2f64.sqrt();
                assert!(farthest <= radius * (1.0 + 1e-12), "{name} {farthest}");
                assert!(farthest > 0.5 * radius, "{name} {farthest}");
            }
            _ => assert!(farthest > 0.05, "{name} {farthest}"),
        }
    }
    let moved = start.moved(&network).unwrap();
    assert_eq!(moved["frequency"], 0.0);
    assert!(
        moved["weights"] > 0.0 && moved["weights"] < 0.1,
        "{moved:?}"
    );
}

#[test]
fn only_a_penalty_keeps_filters_small() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 48);
    let norm = |weight: f64, penalty: FilterPenalty| {
        let network = network(2, "layer", 3);
        let recipe = Recipe {
            epochs: Some(15),
            ..recipe()
        };
        let training = Training {
            network: &network,
            data: &data,
            validation: None,
            recipe: &recipe,
        };
        let regularise = Some(Regularise { penalty, weight });
        let terms = Terms {
            regularise,
            ..Terms::default()
        };
        let mut objective = Composed::new(&network, &terms, None, 0.0).unwrap();
        let outcome = training.run(&mut objective, None, &mut (), &Stop::default());
        outcome.unwrap();
        // Measured by an objective of its own.
        let terms = Terms {
            regularise: Some(Regularise {
                penalty,
                weight: 1.0,
            }),
            ..Terms::default()
        };
        let mut measure = Composed::new(&network, &terms, None, 0.0).unwrap();
        let loss = measure.loss(&network, &examples(&data), Mode::Evaluate);
        loss.unwrap().terms[0].1
    };
    for penalty in [FilterPenalty::Measure, FilterPenalty::FilterNorm] {
        assert!(norm(1.0, penalty) < 0.7 * norm(0.0, penalty), "{penalty:?}");
    }
}

#[test]
fn ranges_are_named() {
    let cases = [
        (
            "[regularise]\nweight = -1.0",
            "`weight` is -1, expected 0 to 1000000",
        ),
        (
            "[trust]\nradius = nan",
            "`radius` is NaN, expected 0 to inf",
        ),
        ("[trust]\nstep = -0.5", "`step` is -0.5, expected 0 to inf"),
        (
            "[distil]\nlayers = -1.0",
            "`layers` is -1, expected 0 to 1000000",
        ),
    ];
    for (text, message) in cases {
        let terms: Terms = toml::from_str(text).unwrap();
        assert_eq!(terms.check().unwrap_err().to_string(), message);
    }
    for text in [
        "[regularise]\nlambda = 1.0",
        "[trust]\nrho = 1.0",
        "[distil]\nteacher = \"x\"",
    ] {
        let error = toml::from_str::<Terms>(text).unwrap_err().to_string();
        assert!(error.contains("unknown field"), "{error}");
    }
    let plain = Task::default();
    assert_eq!(plain.label_smoothing, 0.0);
    let scale: Scale = trust("scale = \"states\"").scale;
    assert_eq!(scale, Scale::States);
}
