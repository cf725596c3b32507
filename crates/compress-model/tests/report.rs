//! Reports, as a person or a script meets them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use common::here;
use hankelite_archive::{Dtype, RawTensor, write_arrays};
use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(arguments).env_remove("COLUMNS");
    command.output().unwrap()
}

fn passes(arguments: &[&str]) -> String {
    let output = run(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {message}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let text = passes(&[arguments, &["--format", "json"]].concat());
    serde_json::from_str(&text).unwrap()
}

fn fails(arguments: &[&str], words: &[&str]) {
    let output = run(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{word:?} in {message}");
    }
}

fn waves() -> String {
    let model = common::top().join("models/waves/model.safetensors");
    model.display().to_string()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// A report as a browser would take it apart.
struct Report {
    html: String,
    data: Value,
    record: Value,
}

impl Report {
    fn read(path: &str) -> Self {
        let html = std::fs::read_to_string(path).unwrap();
        let json = |id: &str| {
            let head = format!("<script type=\"application/json\" id=\"{id}\">");
            let text = html.split_once(&head).unwrap().1;
            serde_json::from_str(text.split_once("</script>").unwrap().0).unwrap()
        };
        let (data, record) = (json("data"), json("record"));
        Self { html, data, record }
    }

    /// The sentence under the title.
    fn verdict(&self) -> &str {
        let text = self.html.split_once("<p class=\"verdict\">").unwrap().1;
        text.split_once("</p>").unwrap().0
    }
}

#[test]
fn a_network_that_is_not_known_has_no_bytes_and_no_time() {
    let folder = Folder::new();
    let tensor = |shape: &[usize], value: f64| {
        let values = vec![value; shape.iter().product()];
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values).unwrap()
    };
    let mut tensors = BTreeMap::from([("feedforward.weight".to_string(), tensor(&[64, 8], 0.1))]);
    for layer in ["a", "b"] {
        let name = |tensor: &str| format!("{layer}.kernel.{tensor}");
        tensors.insert(format!("{layer}.D"), tensor(&[8], 1.0));
        tensors.insert(name("log_dt"), tensor(&[8], -4.0));
        tensors.insert(name("log_A_real"), tensor(&[8, 4], -0.7));
        let turns = (0..32).map(|n| 3.0 * f64::from(n % 4)).collect::<Vec<_>>();
        let turns = RawTensor::from_f64(Dtype::F32, vec![8, 4], &turns).unwrap();
        tensors.insert(name("A_imag"), turns);
        tensors.insert(name("C"), tensor(&[8, 4, 2], 0.5));
    }
    let (full, small) = (
        folder.path("full.safetensors"),
        folder.path("small.safetensors"),
    );
    write_arrays(&full, tensors, "").unwrap();
    let (one, two) = (folder.path("one.html"), folder.path("two.html"));
    let words = [
        "reduce", &full, "--order", "2", "--output", &small, "--report", &one,
    ];
    passes(&words);
    let said = passes(&["report", &full, &small, "--output", &two]);
    assert!(said.contains("layers alone were read"), "{said}");
    assert!(
        said.contains("the kernels of its worst layer change by"),
        "{said}"
    );
    for words in [
        said,
        std::fs::read_to_string(one).unwrap(),
        std::fs::read_to_string(two).unwrap(),
    ] {
        assert!(
            !words.contains("runs in ") && !words.contains("a step instead of"),
            "{words}"
        );
    }
}

#[test]
fn two_models_are_shown_side_by_side() {
    let folder = Folder::new();
    let (small, page) = (folder.path("small.safetensors"), folder.path("report.html"));
    passes(&["reduce", &waves(), "--order", "8", "--output", &small]);
    let data = ["--calibrate", "waves", "--data", "waves", "--limit", "200"];
    let shown = passes(&[&["report", &waves(), &small, "--output", &page][..], &data].concat());
    assert!(
        shown.contains("wrote") && shown.contains("report.html"),
        "{shown}"
    );
    let report = Report::read(&page);
    for word in [
        "44.3 % of the parameters",
        "accuracy is",
        "bytes instead of 31,136",
    ] {
        assert!(
            report.verdict().contains(word),
            "{word} in {}",
            report.verdict()
        );
    }
    // The hash of the shipped model, as models/README.md has it.
    assert!(report.html.contains("SHA-256 839aec4a1e945fb2"));
    assert!(report.html.contains("100 sequences of waves"));
    assert_eq!(report.record["parameters_after"], 2442);
    let layers = report.data["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    for layer in layers {
        // Eight stored states are sixteen real ones, fewer where one of them is real.
        assert_eq!(layer["spectrum"]["cut"][2], 16.0);
        assert!(layer["spectrum"]["cut"][0].as_f64().unwrap() >= 14.0);
        assert_eq!(layer["channels"]["count"], 16);
        for curve in ["full", "error", "input"] {
            let curve = layer["frequency"][curve].as_array().unwrap();
            assert_eq!(curve.len(), 65);
            assert!(curve.iter().all(|value| value.as_f64().unwrap() >= 0.0));
        }
    }
}

#[test]
fn spectra_and_errors_in_a_report_are_those_of_the_commands() {
    let folder = Folder::new();
    let page = folder.path("report.html");
    let arguments = [
        "--order",
        "8",
        "--calibrate",
        "waves",
        "--dry-run",
        "--report",
        &page,
    ];
    let model = waves();
    let command = [&["reduce", &model][..], &arguments, &["--format", "json"]].concat();
    let record: Value = serde_json::from_str(&passes(&command)).unwrap();
    let report = Report::read(&page);
    let spectra = ["inspect", &model, "--format", "json"];
    let spectra: Value = serde_json::from_str(&passes(&spectra)).unwrap();
    for index in 0..2 {
        let layer = &report.data["layers"][index];
        let mut seconds = Vec::new();
        for channel in spectra["layers"][index]["channels"].as_array().unwrap() {
            let sigma = &channel["hankel_singular_values"];
            seconds.push(sigma[1].as_f64().unwrap() / sigma[0].as_f64().unwrap());
        }
        seconds.sort_by(f64::total_cmp);
        let median = layer["spectrum"]["median"][1].as_f64().unwrap();
        assert!(
            seconds[7] <= median + 1e-5 && median <= seconds[8] + 1e-5,
            "{median}"
        );
        // The measure is computed anew from the two models, the record is of the reduction.
        let measures = layer["measures"].as_array().unwrap();
        let kernel = measures.iter().find(|measure| {
            measure["name"]
                .as_str()
                .unwrap()
                .starts_with("kernel error")
        });
        let channels = record["layers"][index]["channels"].as_array().unwrap();
        for (channel, shown) in channels
            .iter()
            .zip(kernel.unwrap()["values"].as_array().unwrap())
        {
            let [error, norm] =
                ["kernel_error", "kernel_norm"].map(|k| channel[k].as_f64().unwrap());
            let (expected, shown) = (100.0 * error / norm, shown.as_f64().unwrap());
            // Four digits of what the program keeps in double precision.
            assert!(
                (shown - expected).abs() < 1e-3 * expected,
                "{shown} {expected}"
            );
        }
        // Long lists of like objects are columns.
        let columns = &report.record["layers"][index]["channels"]["columns"];
        assert_eq!(columns["order"].as_array().unwrap().len(), 16);
    }
    assert_eq!(
        report.record["report"],
        Value::Null,
        "the record is made before the report"
    );
    assert_eq!(record["report"]["path"], page);
}

#[test]
fn commands_write_reports_beside_their_results() {
    let folder = Folder::new();
    let page = folder.path("report.html");
    let small = folder.path("small.safetensors");
    let test = "waves:held_out=200";
    passes(&[
        "reduce",
        &waves(),
        "--order",
        "8",
        "--output",
        &small,
        "--report",
        &page,
    ]);
    assert!(Report::read(&page).verdict().contains("44.3 %"));
    passes(&["inspect", &waves(), "--report", &page]);
    assert!(
        Report::read(&page)
            .verdict()
            .contains("S4D, 2 layers, 32 channels")
    );
    let model = waves();
    let against = [
        "evaluate",
        &model,
        "--against",
        &small,
        "--data",
        test,
        "--report",
        &page,
    ];
    passes(&against);
    assert!(Report::read(&page).verdict().contains("accuracy is"));
}

#[test]
fn commands_that_try_sizes_write_reports_to_choose_from() {
    let folder = Folder::new();
    let page = folder.path("report.html");
    let test = "waves:held_out=200";
    let orders = ["--calibrate", "waves", "--orders", "4,8", "--report", &page];
    passes(&[&["sweep", &waves(), "--data", test][..], &orders].concat());
    let report = Report::read(&page);
    let points = report.data["sizes"]["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    let command = points[1]["command"].as_str().unwrap();
    assert!(command.starts_with("compress-model reduce ") && command.contains("--budget 0.25"));
    assert!(
        points
            .iter()
            .all(|point| point["error"].as_f64().unwrap() > 0.0)
    );
    passes(
        &[
            &["compare", &waves()][..],
            &["--calibrate", "waves", "--orders", "8"],
            &["--report", &page],
        ]
        .concat(),
    );
    assert!(
        Report::read(&page)
            .html
            .contains("balanced, continuous, complex")
    );
    let times = ["--times", "2,4", "--calibrate", "waves", "--report", &page];
    passes(&[&["sweep", &waves()][..], &times].concat());
    let report = Report::read(&page);
    assert_eq!(report.data["sizes"]["points"][0]["details"][0][1], "1/4");
    let target = [
        "--times",
        "4",
        "--calibrate",
        "waves",
        "--dry-run",
        "--report",
        &page,
    ];
    passes(&[&["reduce", &waves()][..], &target].concat());
    assert!(Report::read(&page).verdict().contains("held-out sequences"));
}

#[test]
fn layers_that_share_modes_and_unstable_ones_have_reports_too() {
    let folder = Folder::new();
    let page = folder.path("report.html");
    let unstable = here("data")
        .join("dss_softmax_unstable.pth")
        .display()
        .to_string();
    passes(&["report", &unstable, "--length", "48", "--output", &page]);
    let layer = &Report::read(&page).data["layers"][0];
    let sigma = &layer["measures"];
    assert!(!sigma.as_array().unwrap().is_empty());
    let shared = here("data").join("flax/s5_full_glu.safetensors");
    let shared = shared.display().to_string();
    passes(&[
        "reduce",
        &shared,
        "--order",
        "2",
        "--dry-run",
        "--report",
        &page,
    ]);
    let layer = &Report::read(&page).data["layers"][0];
    assert_eq!(layer["channels"]["count"], 1);
    let [full, error] =
        ["full", "error"].map(|curve| layer["frequency"][curve][3].as_f64().unwrap());
    assert!(error > 0.0 && error < full, "{error} {full}");
}

#[test]
fn one_kind_of_chart_is_drawn_as_a_picture() {
    let folder = Folder::new();
    let (small, picture) = (folder.path("small.safetensors"), folder.path("picture.svg"));
    let model = waves();
    passes(&["reduce", &model, "--order", "8", "--output", &small]);
    for (show, words) in [
        (
            "spectra",
            [
                "real states of the median channels are kept",
                ">median<",
                ">bound<",
            ],
        ),
        (
            "frequency",
            ["The largest error is at", ">gain<", ">error<"],
        ),
        (
            "allocation",
            ["Stored states kept: 8.0, 8.0", "layers.0", "channel"],
        ),
        ("poles", ["slowest keeps 99.97 %", "○ before", "● after"]),
    ] {
        let drawn = [
            "report",
            &model,
            &small,
            "--picture",
            &picture,
            "--show",
            show,
        ];
        assert!(passes(&drawn).contains("wrote"), "{show}");
        let svg = std::fs::read_to_string(&picture).unwrap();
        for word in words {
            assert!(svg.contains(word), "{show}: {word}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{show}");
    }
    fails(
        &["report", &model, "--picture", &model],
        &["model.safetensors"],
    );
}

#[test]
fn longer_sequences_than_those_of_the_calibration_are_warned_of() {
    let folder = Folder::new();
    let small = folder.path("small.safetensors");
    let calibrated = ["--calibrate", "waves", "--order", "4", "--output", &small];
    let model = waves();
    let shown = passes(&[&["reduce", &model][..], &calibrated].concat());
    assert!(
        shown.contains("On sequences of 512 steps, twice as long as those of the calibration"),
        "{shown}"
    );
    let made = json(&["inspect", &small])["provenance"].clone();
    assert_eq!(made["calibrated_steps"], 256);
    assert!(made["change_of_pairs"].as_f64().unwrap() > 0.0);
    for (steps, warns) in [(256, false), (512, true)] {
        let data = folder.path(&format!("{steps}.safetensors"));
        let values: Vec<f64> = (0..2 * steps).map(|t| (0.1 * t as f64).sin()).collect();
        let inputs = RawTensor::from_f64(Dtype::F32, vec![2, steps, 1], &values).unwrap();
        write_arrays(Path::new(&data), [("inputs", inputs)], "").unwrap();
        let logits = folder.path(&format!("logits-{steps}.safetensors"));
        for more in [&["--logits", &logits][..], &["--against", &model]] {
            let output = run(&[&["evaluate", &small, "--data", &data][..], more].concat());
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{message}");
            assert_eq!(
                message.contains("reduced for sequences of 256 steps, these have 512"),
                warns,
                "{message}"
            );
        }
    }
}

/// Dots from left to right and top to bottom, and red, green, blue and opacity of each.
#[cfg(feature = "png")]
fn dots(path: &str) -> ([u32; 2], Vec<u8>) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut dots = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut dots).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgba);
    ([info.width, info.height], dots)
}

/// The number behind `name="` in the head of an SVG file.
#[cfg(feature = "png")]
fn side(svg: &str, name: &str) -> u32 {
    let behind = svg.split(&format!(" {name}=\"")).nth(1).unwrap();
    let number: f64 = behind.split('"').next().unwrap().parse().unwrap();
    (2.0 * number).ceil() as u32
}

#[cfg(feature = "png")]
#[test]
fn a_name_that_ends_in_png_makes_the_same_picture_in_dots() {
    let folder = Folder::new();
    let (model, [svg, png]) = (waves(), ["p.svg", "p.PNG"].map(|name| folder.path(name)));
    let report = ["report", &model, "--show", "poles", "--picture"];
    for picture in [&svg, &png] {
        assert!(passes(&[&report[..], &[picture]].concat()).contains("wrote"));
    }
    let svg = std::fs::read_to_string(&svg).unwrap();
    let ([width, height], dots) = dots(&png);
    assert_eq!(
        [width, height],
        ["width", "height"].map(|name| side(&svg, name))
    );
    // Only words of the title stand in the topmost 20 units.
    let top = &dots[..(40 * width * 4) as usize];
    let dark = top
        .chunks_exact(4)
        .filter(|dot| dot[..3].iter().all(|&ink| ink < 110));
    let dark = dark.count();
    assert!((300..20_000).contains(&dark), "{dark}");
    let compare = [
        "compare",
        &model,
        "--calibrate",
        "waves",
        "--sequences",
        "10",
        "--orders",
        "4",
    ];
    passes(&[&compare[..], &["--picture", &png]].concat());
    assert_eq!(side_by_header(&png), [760 * 2 + 400 * 2, 480 * 2]);
}

/// As the first bytes of a PNG file have it.
#[cfg(feature = "png")]
fn side_by_header(path: &str) -> [u32; 2] {
    let file = std::fs::read(path).unwrap();
    assert!(file.starts_with(b"\x89PNG\r\n\x1a\n"));
    [16, 20].map(|at| u32::from_be_bytes(file[at..at + 4].try_into().unwrap()))
}

#[cfg(not(feature = "png"))]
#[test]
fn a_program_without_png_says_so_before_any_work() {
    let folder = Folder::new();
    let (model, png) = (waves(), folder.path("p.png"));
    fails(
        &["report", &model, "--picture", &png],
        &["built without the feature `png`", ".svg"],
    );
}

#[test]
fn a_reduced_file_holds_how_it_was_made() {
    let folder = Folder::new();
    for ending in ["safetensors", "pth", "npz"] {
        let (small, card) = (
            folder.path(&format!("small.{ending}")),
            folder.path("README.md"),
        );
        let model = waves();
        let plain = ["reduce", &model, "--order", "8", "--output", &small];
        passes(&plain);
        let made = json(&["inspect", &small]);
        let made = &made["provenance"];
        assert_eq!(made["source"], "model.safetensors");
        assert!(
            made["source_sha256"]
                .as_str()
                .unwrap()
                .starts_with("839aec4a1e945fb2")
        );
        assert_eq!(made["orders"], serde_json::json!([8, 8]));
        assert!(
            made["method"]
                .as_str()
                .unwrap()
                .contains("balanced, discrete time, real system")
        );
        // One layer after the other or all at once, the note is the same.
        let shown = ["--card", &card];
        passes(&[&plain[..], &shown].concat());
        let again = json(&["inspect", &small]);
        assert_eq!(again["provenance"], *made);
        let text = std::fs::read_to_string(&card).unwrap();
        for word in [
            "---\ntags:\n",
            "SHA-256 `839aec4a",
            "2,442 instead of 5,514",
            "[8, 8] instead of [32, 32]",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
        // A copy keeps the note; a model of other systems has none.
        assert!(passes(&["inspect", &small]).contains("reduced from model.safetensors"));
        let twice = folder.path("twice.safetensors");
        passes(&[
            "reduce",
            &small,
            "--calibrate",
            "waves",
            "--order",
            "4",
            "--output",
            &twice,
        ]);
        let shown = passes(&["inspect", &twice]);
        assert!(
            shown.contains(&format!("reduced from small.{ending}")),
            "{shown}"
        );
        assert!(
            shown.contains("calibrated on 100 sequences of waves"),
            "{shown}"
        );
    }
}

#[test]
fn a_report_never_takes_the_place_of_what_it_reads() {
    let folder = Folder::new();
    let small = folder.path("small.safetensors");
    passes(&["reduce", &waves(), "--order", "8", "--output", &small]);
    let before = std::fs::read(&small).unwrap();
    fails(
        &["report", &waves(), &small, "--output", &small],
        &["small.safetensors"],
    );
    fails(
        &["inspect", &small, "--report", &small],
        &["small.safetensors"],
    );
    let both = [
        "reduce", &small, "--order", "4", "--output", "x.html", "--report", "x.html",
    ];
    fails(&both, &["--output and --report are both x.html"]);
    assert_eq!(std::fs::read(&small).unwrap(), before);
    let other = here("data")
        .join("s4d_classifier.pth")
        .display()
        .to_string();
    let page = folder.path("page.html");
    fails(
        &["report", &waves(), &other, "--output", &page],
        &["second model", "expected"],
    );
    assert!(!Path::new(&page).exists());
}

/// S4D layers alone, whose numbers are drawn from sines.
fn write_layers(path: &str, layers: usize, channels: usize, modes: usize) {
    let tensor = |shape: &[usize], value: &dyn Fn(f64) -> f64| {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| value(i as f64)).collect();
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values).unwrap()
    };
    let mut tensors = BTreeMap::new();
    for layer in 0..layers {
        let shift = layer as f64;
        let mut add = |name: &str, made| tensors.insert(format!("s4_layers.{layer}.{name}"), made);
        add("D", tensor(&[channels], &|i| (i + shift).sin()));
        add(
            "kernel.log_dt",
            tensor(&[channels], &|i| -5.0 + 2.0 * (0.7 * i + shift).sin()),
        );
        let grid = [channels, modes];
        add(
            "kernel.log_A_real",
            tensor(&grid, &|i| -0.7 + 0.1 * (1.3 * i).sin()),
        );
        add(
            "kernel.A_imag",
            tensor(&grid, &|i| 3.1 * (i % modes as f64)),
        );
        add(
            "kernel.C",
            tensor(&[channels, modes, 2], &|i| (2.1 * i + shift).sin()),
        );
    }
    let listed = tensors
        .iter()
        .map(|(name, made)| (name.as_str(), made.clone()));
    write_arrays(Path::new(path), listed, "").unwrap();
}

#[test]
fn six_layers_of_512_channels_fit_into_three_megabytes() {
    let folder = Folder::new();
    let (full, page) = (folder.path("large.safetensors"), folder.path("large.html"));
    write_layers(&full, 6, 512, 32);
    passes(&[
        "reduce",
        &full,
        "--order",
        "8",
        "--dry-run",
        "--report",
        &page,
    ]);
    let report = Report::read(&page);
    assert!(report.html.len() < 3_000_000, "{} bytes", report.html.len());
    let layers = report.data["layers"].as_array().unwrap();
    let channels: u64 = layers
        .iter()
        .map(|l| l["channels"]["count"].as_u64().unwrap())
        .sum();
    assert_eq!(channels, 3072);
}
