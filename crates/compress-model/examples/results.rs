//! Accuracy straight after reduction, without retraining, for every method at several orders.
//!
//! ```text
//! cargo run --release -p compress-model --example results -- model.pth mnist:data/mnist > docs/results.md
//! ```
//!
//! Prints a Markdown page with one row for each order. Takes one pass over the data for each
//! cell of the table.
#![allow(
    clippy::print_stdout,
    reason = "an example that makes a page prints it"
)]

use std::path::Path;

use hankelite::compress::{Method, RealisationChoice, TimeBase};
use hankelite::infer::{Network, Path as Run, Score};
use hankelite::model::Model;
use hankelite::{Declared, Plan, Rule, read, reduce};
use hankelite_data::{Dataset, Source};

type Failure = Box<dyn std::error::Error>;

/// Column title, method, time base and realisation.
const COLUMNS: [(&str, Method, TimeBase, RealisationChoice); 7] = [
    (
        "modal",
        Method::ModalHinf,
        TimeBase::Discrete,
        RealisationChoice::Real,
    ),
    (
        "continuous, complex",
        Method::Balanced,
        TimeBase::Continuous,
        RealisationChoice::Complex,
    ),
    (
        "discrete, complex",
        Method::Balanced,
        TimeBase::Discrete,
        RealisationChoice::Complex,
    ),
    (
        "discrete, auto",
        Method::Balanced,
        TimeBase::Discrete,
        RealisationChoice::Auto,
    ),
    (
        "discrete, real",
        Method::Balanced,
        TimeBase::Discrete,
        RealisationChoice::Real,
    ),
    (
        "residualised",
        Method::Residualised,
        TimeBase::Discrete,
        RealisationChoice::Real,
    ),
    (
        "H2-optimal",
        Method::H2Optimal,
        TimeBase::Discrete,
        RealisationChoice::Real,
    ),
];

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, source] = arguments.as_slice() else {
        return Err("usage: results CKPT DATA".into());
    };
    let checkpoint = read(Path::new(file), &Declared::default())?;
    let data = Dataset::read(&source.parse::<Source>()?, None)?;
    let full = score(&checkpoint.model, &data)?;
    let states = checkpoint.model.blocks().iter().map(|block| block.order());
    let states = states.max().unwrap_or(0);
    heading(&full, states);
    for order in [states / 2, 3 * states / 8, states / 4, states / 8] {
        let mut row = format!("| {order} |");
        for (_, method, time, realisation) in COLUMNS {
            let plan = Plan::new(Rule::Order(order))?.with_realisation(realisation);
            let plan = plan.with_method(method)?.with_time(time)?;
            let reduced = reduce(&checkpoint.model, &plan)?;
            row += &format!(" {} |", percent(&score(&reduced.model, &data)?));
        }
        println!("{row}");
    }
    Ok(())
}

fn heading(full: &Score, states: usize) {
    println!(
        "Full model, {states} states per channel: {} on {} sequences, mean loss {:.5}.\n",
        percent(full),
        full.examples(),
        full.loss()
    );
    let titles: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
    println!("| states | {} |", titles.join(" | "));
    println!("|---|{}", "---|".repeat(titles.len()));
}

fn percent(score: &Score) -> String {
    let (accuracy, error) = (score.accuracy(), score.standard_error());
    format!("{:.2} ± {:.2} %", 100.0 * accuracy, 100.0 * error)
}

fn score(model: &Model, data: &Dataset) -> Result<Score, Failure> {
    let labels = data.labels().ok_or("the data have no labels")?;
    let network = Network::new(model, data.length(), Run::Auto)?;
    let sequences: Vec<_> = (0..data.len()).map(|index| data.unpadded(index)).collect();
    let mut score = Score::default();
    for (logits, &label) in network.logits_of_all(&sequences)?.iter().zip(labels) {
        score.add(logits, label);
    }
    Ok(score)
}
