//! The whole method by the program.

use serde_json::Value;

use crate::program::{Program, loss};

const CONFIG: &str = r#"
seeds = [0, 1]

[model]
layer = "dss-exp"
channels = 4
states = 4
layers = 2
inputs = 2
outputs = 3

[data]
source = "POINTS"
hold_out = 0.2

[pretrain]
epochs = 3
batch = 16
lr = 0.02

[reduce]
orders = [2, 1]

[train]
epochs = 2
batch = 16
lr = 0.02
"#;

const PIPELINE: [&str; 4] = ["pipeline", "config.toml", "--output", "all"];

fn program(config: &str) -> Program {
    let program = Program::new(120);
    program.config(config);
    program
}

#[test]
fn every_arm_is_trained_and_reported_and_a_second_run_gives_the_same_bytes() {
    let program = program(CONFIG);
    let report = program.json(&[&PIPELINE[..], &["--report", "page.html"]].concat());
    shows_everything(&program, &report);
    let rows = report["rows"].as_array().unwrap();
    // For each seed: pretraining, the unreduced network, five arms at two orders.
    assert_eq!(rows.len(), 2 * (1 + 1 + 5 * 2));
    let steps = |arm: &str| -> Vec<u64> {
        let own = rows.iter().filter(|row| row["arm"] == arm);
        own.map(|row| row["steps"].as_u64().unwrap()).collect()
    };
    // 96 sequences in batches of 16.
    assert!(steps("reduced").iter().all(|&steps| steps == 12));
    assert!(
        steps("skew-hippo-long")
            .iter()
            .all(|&steps| steps == 12 + 18)
    );
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1 + 5 * 2);
    for cell in cells {
        assert_eq!(cell["after"]["count"], 2);
    }
    // Unreduced, nothing changes before the main training.
    let full = |row: &&serde_json::Value| row["order"] == 4 && row["arm"] == "reduced";
    for row in rows.iter().filter(full) {
        let pretrained = rows
            .iter()
            .find(|other| other["arm"].is_null() && other["seed"] == row["seed"]);
        let (before, after) = (loss(&row["before"]), loss(&pretrained.unwrap()["after"]));
        assert!((before - after).abs() < 1e-5, "{before} {after}");
    }
    let text = String::from_utf8(program.bytes("all/report.md")).unwrap();
    assert!(
        text.contains("| states | reduced | skew-hippo | random |"),
        "{text}"
    );
    assert!(program.bytes("all/report.svg").starts_with(b"<svg"));

    // Stopped in the middle, it goes on to the same weights.
    let weights = "all/seed-1/order-2/skew-hippo/model.safetensors";
    let expected = program.bytes(weights);
    let folder = program.path("all/seed-1/order-2/skew-hippo");
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::remove_file(program.path("all/seed-1/order-1/reduced/record.json")).unwrap();
    let reported = program.json(&[&PIPELINE[..], &["--resume", "--finished"]].concat());
    assert_eq!(reported["rows"].as_array().unwrap().len(), rows.len() - 2);
    let again = program.json(&[&PIPELINE[..], &["--resume"]].concat());
    assert_eq!(program.bytes(weights), expected);
    assert_eq!(again["rows"].as_array().unwrap().len(), rows.len());
    for (a, b) in again["cells"].as_array().unwrap().iter().zip(cells) {
        assert_eq!((&a["before"], &a["after"]), (&b["before"], &b["after"]));
    }
    program.refuses(&PIPELINE, &["not empty"]);
    program.config(&CONFIG.replace("lr = 0.02", "lr = 0.01"));
    let resume = [&PIPELINE[..], &["--resume"]].concat();
    program.refuses(&resume, &["other settings"]);
}

/// A page for a browser, taken apart.
struct Page {
    html: String,
    data: Value,
    record: Value,
}

impl Page {
    fn read(program: &Program, name: &str) -> Self {
        let html = String::from_utf8(program.bytes(name)).unwrap();
        let json = |id: &str| {
            let head = format!("<script type=\"application/json\" id=\"{id}\">");
            let text = html.split_once(&head).unwrap().1;
            serde_json::from_str(text.split_once("</script>").unwrap().0).unwrap()
        };
        let (data, record) = (json("data"), json("record"));
        Self { html, data, record }
    }
}

/// The page of a run with all arms: its words, its sizes and its record.
fn shows_everything(program: &Program, report: &Value) {
    assert_eq!(report["report"]["path"], "page.html");
    let page = Page::read(program, "page.html");
    let verdict = page.html.split_once("<p class=\"verdict\">").unwrap().1;
    let verdict = verdict.split_once("</p>").unwrap().0;
    for words in [
        "Reduced from 4 to ",
        " the unreduced network",
        " bytes instead of ",
        "a fresh network of its size",
    ] {
        assert!(verdict.contains(words), "{words} in {verdict}");
    }
    for words in [
        "pretrain.lr",
        "SHA-256",
        "--report page.html",
        "skew-hippo-kept",
    ] {
        assert!(page.html.contains(words), "{words}");
    }
    shows_curves(&page.data);
    let sizes = &page.data["sizes"];
    assert_eq!(sizes["points"].as_array().unwrap().len(), 2);
    let cell = &report["cells"][0];
    let full = sizes["full"]["x"].as_f64().unwrap();
    assert_eq!(full, cell["bytes"].as_f64().unwrap() / 1000.0);
    assert!(sizes["points"][0]["x"].as_f64().unwrap() < full);
    let orders = &page.record["settings"]["reduce"]["orders"];
    assert_eq!(*orders, serde_json::json!([2, 1]));
    let seeds = &page.record["histories"]["columns"]["seed"];
    assert_eq!(seeds.as_array().unwrap().len(), 2 * 12);
    let after = &page.record["results"]["cells"][0]["after"]["mean"];
    let expected = cell["after"]["mean"].as_f64().unwrap();
    assert!((after.as_f64().unwrap() - expected).abs() < 1e-5 * expected.abs());
}

/// Every arm over states, and every training over epochs.
fn shows_curves(data: &Value) {
    // Accuracy after and before training: five arms at two orders, and the unreduced network.
    let over_states = data["charts"][0].as_array().unwrap();
    assert_eq!(over_states.len(), 2);
    for chart in over_states {
        assert_eq!(chart["places"], serde_json::json!([1.0, 2.0, 4.0]));
        let lines = chart["lines"].as_array().unwrap();
        assert_eq!(lines.len(), 5);
        assert!(lines[0]["values"][2].is_number() && lines[1]["values"][2].is_null());
        let error = |line: &Value| line["errors"][0].as_f64().unwrap();
        assert!(lines.iter().all(|line| error(line) >= 0.0));
    }
    // The pretraining, and a chart for each number of states.
    let trainings = data["charts"][1].as_array().unwrap();
    assert_eq!(trainings.len(), 1 + 3);
    assert_eq!(trainings[0]["places"].as_array().unwrap().len(), 3);
    let long = &trainings[3]["lines"][3];
    assert_eq!(long["name"], "skew-hippo-long");
    assert_eq!(long["values"].as_array().unwrap().len(), 5);
}

#[test]
fn a_page_never_takes_the_place_of_the_settings() {
    let program = program(CONFIG);
    let over = [&PIPELINE[..], &["--report", "config.toml"]].concat();
    program.refuses(&over, &["config.toml"]);
    assert!(
        String::from_utf8(program.bytes("config.toml"))
            .unwrap()
            .contains("[reduce]")
    );
}

/// Full order, no rescaling or that to the pretrained measure, frozen, no penalty: the identity.
#[test]
fn a_frozen_pipeline_at_full_order_changes_nothing() {
    for rescale in ["none", "match"] {
        let config = CONFIG.replace("seeds = [0, 1]", "seeds = [3]\narms = [\"reduced\"]");
        let config = config.replace("orders = [2, 1]", "orders = [4]");
        let config = format!(
            "rescale = \"{rescale}\"\n{config}\n[trust]\nradius = 0.0\n\n[regularise]\nweight = 0.0\n"
        );
        let program = program(&config);
        program.json(&PIPELINE);
        let against = program.json(&[
            "evaluate",
            "all/seed-3/pretrain/model.safetensors",
            "--against",
            "all/seed-3/order-4/reduced/model.safetensors",
            "--data",
            "points.safetensors",
        ]);
        let difference = against["against"]["max_difference"].as_f64().unwrap();
        assert!(difference < 1e-5, "{rescale}: {difference}");
    }
}

#[test]
fn all_terms_work_together_and_the_record_says_how_far_it_went() {
    let config = CONFIG.replace("seeds = [0, 1]", "seeds = [0]\narms = [\"reduced\"]");
    let config = format!(
        "rescale = \"match\"\nrescale_fresh = \"unit\"\n{config}\n\
         [trust]\nradius = 0.05\n\n[regularise]\nweight = 0.001\n\n[distil]\nlayers = 0.1\n"
    );
    let program = program(&config.replace("orders = [2, 1]", "orders = [2]\ncalibrate = 20"));
    let report = program.json(&PIPELINE);
    let row = &report["rows"][2];
    assert_eq!((&row["order"], &row["arm"]), (&2.into(), &"reduced".into()));
    for part in [
        "step",
        "decay",
        "frequency",
        "weights",
        "feedthrough",
        "others",
    ] {
        let moved = row["moved"][part].as_f64().unwrap();
        assert!(moved <= 0.06, "{part} {moved}");
    }
    let record = program.bytes("all/seed-0/order-2/reduced/record.json");
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let terms = &record["history"][0]["terms"];
    for term in ["penalty", "logits", "layers", "trust_active"] {
        assert!(terms[term].as_f64().is_some(), "{term} in {terms}");
    }
    assert_eq!(record["rescaled"].as_array().unwrap().len(), 2);
}

#[test]
fn retrain_takes_the_same_tables() {
    let program = Program::new(120);
    program.json(&["pretrain", "config.toml", "--output", "run"]);
    let model = "run/model.safetensors";
    let reduce = [
        "reduce",
        model,
        "--order",
        "1",
        "--output",
        "small.safetensors",
    ];
    program.json(&reduce);
    let retrain = "rescale = \"match\"\nteacher = \"run/model.safetensors\"\n\n[data]\n\
                   source = \"POINTS\"\n\n[train]\nepochs = 2\nbatch = 16\nkeep_start = false\n\n[distil]\n\
                   temperature = 1.0\n\n[regularise]\npenalty = \"filter-norm\"\nweight = 0.01\n\n\
                   [trust]\nothers = 0.0\n";
    program.config(retrain);
    let better = [
        "retrain",
        "small.safetensors",
        "--config",
        "config.toml",
        "--output",
        "b.pth",
    ];
    let record = program.json(&better);
    assert_eq!(record["moved"]["others"], 0.0);
    assert!(record["moved"]["weights"].as_f64().unwrap() > 0.0);
    assert_eq!(record["rescaled"].as_array().unwrap().len(), 2);
    let terms = &record["history"][1]["terms"];
    assert!(terms["logits"].as_f64().unwrap() > 0.0, "{terms}");
    let refused = |config: &str, words: &[&str]| {
        program.config(config);
        let output = [
            "retrain",
            "small.safetensors",
            "--config",
            "config.toml",
            "--output",
            "c.pth",
        ];
        program.refuses(&output, words);
    };
    let no_teacher = retrain.replace("teacher = \"run/model.safetensors\"\n", "");
    refused(&no_teacher, &["needs a teacher"]);
    refused(
        "rescale = \"match\"\n[data]\nsource = \"POINTS\"",
        &["`rescale` is match", "`teacher`"],
    );
    refused(
        "[data]\nsource = \"POINTS\"\n[trust]\nrho = 1.0",
        &["unknown field `rho`"],
    );
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let cases = [
        ("seeds = [0, 1]", "seeds = []", "at least one entry"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "holds 1 twice"),
        (
            "orders = [2, 1]",
            "orders = [5]",
            "`orders` holds 5, expected at most 4",
        ),
        ("orders = [2, 1]", "orders = [0]", "`orders` holds 0"),
        ("[pretrain]", "[pretrain]\nseed = 4", "takes its `seeds`"),
        (
            "seeds = [0, 1]",
            "checkpoint = \"x.pth\"",
            "either `checkpoint` or the tables",
        ),
        (
            "seeds = [0, 1]",
            "checkpoint_steps = 3",
            "without `checkpoint`",
        ),
        (
            "seeds = [0, 1]",
            "rescale_fresh = \"match\"",
            "expected none or unit",
        ),
        ("[reduce]", "[reduce]\norder = 3", "unknown field `order`"),
    ];
    for (from, to, word) in cases {
        program(&CONFIG.replace(from, to)).refuses(&PIPELINE, &[word]);
    }
}
