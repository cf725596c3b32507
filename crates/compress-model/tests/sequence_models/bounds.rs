//! `bounds network`: what theory states of trained networks, on norms that are taken from their files
//! once more.

use hankelite::model::Sequence;
use hankelite_archive::Archive;
use hankelite_data::{Dataset, Source, Split};
use nalgebra::{DMatrix, DVector};
use serde_json::Value;

use crate::program::{MODEL, Work, number};

const DATA: &str = "sparse:size=16,frames=6,count=40,held_out=10";

fn trained(work: &Work, layer: &str, layers: usize) {
    work.pretrain(&format!(
        "[model]\nlayer = \"{layer}\"\nhidden = 24\nlayers = {layers}\ninputs = 16\noutputs = 16\n\
         pooling = \"none\"\nmeasurements = 5\noutput = \"dictionary\"\n[data]\nsource = \"{DATA}\"\n\
         [train]\nepochs = 2\nbatch = 10\nlr = 0.01\n"
    ));
}

fn bounds(work: &Work) -> Value {
    work.json(&["bounds", "network", MODEL, "--data", DATA])
}

fn norm(document: &Value, name: &str) -> f64 {
    let norms = document["norms"].as_array().unwrap();
    let found = norms.iter().find(|pair| pair[0] == name);
    number(&found.unwrap_or_else(|| panic!("{name} in {document}"))[1])
}

fn matrix(work: &Work, name: &str) -> DMatrix<f64> {
    let archive = Archive::open(work.path(MODEL)).unwrap();
    let tensor = archive.tensor(name).unwrap();
    let numbers = tensor.to_f64().unwrap();
    let rows = tensor.shape()[0];
    DMatrix::from_row_slice(rows, numbers.len() / rows, &numbers)
}

fn near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() < 1e-9 * expected.abs(),
        "{found} {expected}"
    );
}

/// The steps of all training sequences, measured: measurements × steps, sequence by sequence.
fn inputs_of(work: &Work) -> Vec<DMatrix<f64>> {
    let source: Source = DATA.parse().unwrap();
    let data = Dataset::read(&source, Some(Split::Train)).unwrap();
    let sensing = matrix(work, "sensing");
    let one = |index| match data.sequence(index) {
        Sequence::Values(values) => {
            let signal = values.iter().map(|&x| f64::from(x));
            &sensing * DMatrix::from_iterator(16, 6, signal)
        }
        other => panic!("{other:?}"),
    };
    (0..data.len()).map(one).collect()
}

fn row_sum(matrix: &DMatrix<f64>) -> f64 {
    matrix
        .row_iter()
        .map(|row| row.abs().sum())
        .fold(0.0, f64::max)
}

#[test]
fn a_fastrnn_is_bounded_by_its_frobenius_norms() {
    let work = Work::new();
    trained(&work, "fastrnn", 1);
    let document = bounds(&work);
    let (w, u) = (
        matrix(&work, "layers.0.state"),
        matrix(&work, "layers.0.input"),
    );
    near(norm(&document, "alpha_F"), w.norm());
    near(norm(&document, "beta_F"), u.norm());
    let inputs = inputs_of(&work);
    let steps = inputs
        .iter()
        .flat_map(|one| one.column_iter().map(|x| x.norm()));
    let largest = steps.fold(0.0, f64::max);
    near(number(&document["training"]["input"]), largest);
    // (52) by its sum of powers.
    let shares = matrix(&work, "layers.0.shares");
    let [gate, keep] = [shares[0], shares[1]].map(|x| 1.0 / (1.0 + (-x).exp()));
    let x = gate * (2.0 * w.norm() - 1.0);
    let powers: f64 = (0..=6).map(|power| (1.0 + x).powi(power)).sum();
    let expected = 2.0 * gate / (inputs.len() as f64).sqrt() * largest * u.norm() * powers;
    near(number(&document["bounds"][0]["value"]), expected);
    let text = work.run(&["bounds", "network", MODEL, "--data", DATA]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        (gate + keep - 1.0).abs() > 1e-6,
        "training left the gates alone"
    );
    assert!(text.contains("but the proof assumes 1"), "{text}");
}

#[test]
fn a_spectralrnn_is_bounded_by_its_singular_values() {
    let work = Work::new();
    trained(&work, "spectralrnn", 1);
    let document = bounds(&work);
    let u = matrix(&work, "layers.0.input");
    near(
        norm(&document, "|U|_2"),
        u.clone().svd(false, false).singular_values[0],
    );
    near(norm(&document, "|Y|_F"), matrix(&work, "dictionary").norm());
    // All singular values are within 1 ± 0.1 by construction.
    assert!((norm(&document, "|W|_2") - 1.0).abs() < 0.1);
    assert!((norm(&document, "|W|_F") - 24f64.sqrt()).abs() < 0.5);
    work.refuses(
        &[
            "bounds",
            "network",
            MODEL,
            "--data",
            DATA,
            "--loss-max",
            "1",
        ],
        &["(55) is an order"],
    );
}

/// A bias enters as the weight of one more input that is always 1.
#[test]
fn an_rnn_and_an_indrnn_are_one_layer_with_biases() {
    for layer in ["rnn", "indrnn"] {
        let work = Work::new();
        trained(&work, layer, 1);
        let document = bounds(&work);
        let state = matrix(&work, "layers.0.state");
        let (recurrent, bias) = match layer {
            "rnn" => {
                let [a, b] =
                    ["input_bias", "state_bias"].map(|n| matrix(&work, &format!("layers.0.{n}")));
                (state, a + b)
            }
            _ => (
                DMatrix::from_diagonal(&DVector::from_column_slice(state.as_slice())),
                matrix(&work, "layers.0.bias"),
            ),
        };
        let u = matrix(&work, "layers.0.input");
        let widened = u.insert_column(5, 0.0);
        let widened =
            DMatrix::from_fn(24, 6, |i, j| if j == 5 { bias[i] } else { widened[(i, j)] });
        near(norm(&document, "alpha_1"), row_sum(&recurrent));
        near(norm(&document, "beta_1"), row_sum(&widened));
        let inputs = inputs_of(&work);
        let mean = inputs.iter().fold(DMatrix::zeros(5, 6), |sum, one| {
            sum + one.component_mul(one)
        });
        let largest = (mean.max() / inputs.len() as f64).sqrt().max(1.0);
        near(number(&document["training"]["input"]), largest);
        assert_eq!(document["bounds"][0]["equation"], "(15)");
    }
}

#[test]
fn an_unfolded_network_is_bounded_and_gates_and_stacks_are_refused() {
    let work = Work::new();
    trained(&work, "reweighted", 2);
    let document = bounds(&work);
    let product = norm(&document, "alpha_1") * norm(&document, "alpha_2");
    near(norm(&document, "Lambda_0"), product);
    for (layer, layers) in [("gru", 1), ("rnn", 2), ("transformer", 1)] {
        let work = Work::new();
        trained(&work, layer, layers);
        work.refuses(
            &["bounds", "network", MODEL, "--data", DATA],
            &[layer, "or one layer of rnn"],
        );
    }
}
