//! What the page shows and saves, without a page.

use std::path::Path;
use std::sync::Arc;

use hankelite::archive::{Archive, Container};
use hankelite::infer::{Network, Path as InferPath};
use hankelite::model::{Pooling, Sequence};
use hankelite::rounding::Entries;
use hankelite::stream::{Image, Runner, c_header};
use hankelite::{Declared, Reducer, read};
use hankelite_web::{
    Asked, CHOICES, Download, Fault, File, InMemory, Reading, Reduced, Request, Session, Which,
    in_words,
};

const WAVES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

fn named(name: &str, bytes: Vec<u8>) -> (String, File) {
    (name.to_string(), Arc::new(bytes))
}

fn waves() -> (String, File) {
    named("model.safetensors", std::fs::read(WAVES).unwrap())
}

fn opened(files: &[(String, File)], declared: &Declared) -> Result<Session, Fault> {
    Session::open(files.to_vec(), declared, Reading::Whole)
}

fn session() -> Session {
    opened(&[waves()], &Declared::default()).unwrap()
}

fn reduce(session: &mut Session, request: &Request) -> Result<Reduced, Fault> {
    session.reduce(request, &mut InMemory::default(), &())
}

fn smaller(session: &Session) -> Vec<u8> {
    let file = session.smaller().unwrap();
    let mut bytes = vec![0; usize::try_from(file.length()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn request(output: &str) -> Request {
    Request {
        output: output.to_string(),
        ..Request::default()
    }
}

fn opened_again(name: &str, bytes: &[u8]) -> hankelite::checkpoint::Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    read(&path, &Declared::default()).unwrap()
}

#[test]
fn what_is_saved_holds_the_librarys_reduction_in_every_container() {
    let mut session = session();
    let full = read(WAVES, &Declared::default()).unwrap();
    let wanted = Reducer::new(&full.model).order(8).run().unwrap();
    for name in ["r8.safetensors", "r8.pth", "r8.npz"] {
        let order = Some(8);
        let request = Request {
            order,
            ..request(name)
        };
        reduce(&mut session, &request).unwrap();
        let file = smaller(&session);
        let again = opened_again(name, &file);
        let provenance = again.provenance().unwrap();
        assert_eq!(provenance.method, "balanced, discrete time, real system");
        assert_eq!(provenance.source, "model.safetensors");
        assert_eq!(provenance.orders, [8, 8]);
        let blocks = again.model.blocks().iter().zip(wanted.model.blocks());
        for (found, expected) in blocks {
            for (found, expected) in found.systems().iter().zip(expected.systems()) {
                let apart = found.exponents().iter().zip(expected.exponents());
                assert!(
                    apart
                        .into_iter()
                        .all(|(a, b)| (a - b).norm() < 1e-5 * b.norm())
                );
            }
        }
    }
}

#[test]
fn spectra_are_those_of_the_library() {
    let session = session();
    let opened = serde_json::to_value(session.inspect(&()).unwrap()).unwrap();
    assert_eq!(opened["family"], "S4D");
    assert_eq!(opened["bytes"], 31_136);
    let layers = opened["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    let channels = layers[0]["channels"].as_array().unwrap();
    assert_eq!(channels.len(), 16);
    let values = channels[0]["hankel_singular_values"].as_array().unwrap();
    let values: Vec<f64> = values.iter().map(|v| v.as_f64().unwrap()).collect();
    assert!(values.len() == 64 && values.is_sorted_by(|a, b| a >= b));
}

#[test]
fn data_make_the_cut_better_and_tell_the_accuracy() {
    let mut session = session();
    let known = session.use_data("waves:held_out=300", Vec::new()).unwrap();
    assert_eq!((known.calibrating, known.others), (100, 200));
    assert!(known.accuracy.unwrap() > 0.95);
    let order = Some(8);
    let small = Request {
        order,
        ..request("small.safetensors")
    };
    let made = reduce(&mut session, &small).unwrap();
    let accuracy = made.accuracy.unwrap();
    assert_eq!(accuracy.scored, 200);
    assert_eq!(Some(accuracy.full), known.accuracy);
    assert!(accuracy.reduced > accuracy.full - 0.05);
    let change = made.logit_change.unwrap();
    assert!(change < 0.15, "{change}");
    let times = Some(4.0);
    let quarter = Request {
        times,
        ..request("quarter.safetensors")
    };
    let made = reduce(&mut session, &quarter).unwrap();
    let record = serde_json::to_value(&made).unwrap();
    let bytes = record["bytes"].as_u64().unwrap();
    assert!(bytes <= 31_136 / 4);
    assert!(made.accuracy.unwrap().reduced > 0.9);
    // The image holds integers, as the file says.
    let image = session.save(Download::Image, "quarter.edge").unwrap();
    let runner = Runner::<f32>::from_image(Image::from_bytes(&image)).unwrap();
    assert_eq!((runner.weight_bytes() + runner.state_bytes()) as u64, bytes);
}

#[test]
fn images_headers_and_graphs_are_of_the_file_that_is_saved() {
    let mut session = session();
    let early = session.save(Download::Image, "a.edge").unwrap_err();
    assert_eq!(early.to_string(), "no smaller model yet");
    let order = Some(8);
    let request = Request {
        order,
        ..request("r8.safetensors")
    };
    reduce(&mut session, &request).unwrap();
    let file = smaller(&session);
    let again = opened_again("r8.safetensors", &file);
    let image = Image::new(&again.model, Entries::Full).unwrap();
    let saved = session.save(Download::Image, "r8.edge").unwrap();
    assert_eq!(saved, image.as_bytes());
    let runner = Runner::from_image(image).unwrap();
    let header = c_header(Path::new("r8.h"), "r8.safetensors", &runner);
    let saved = session.save(Download::Header, "r8.h").unwrap();
    assert_eq!(saved, header.as_bytes());
    let graph = session.save(Download::Onnx, "r8.onnx").unwrap();
    let holds = |text: &str| {
        graph
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(holds("hankelite.source_sha256") && holds("r8.safetensors") && holds("logits"));
}

#[test]
fn both_networks_run_sample_by_sample() {
    let mut session = session();
    session.use_data("waves:held_out=300", Vec::new()).unwrap();
    let order = Some(8);
    let request = Request {
        order,
        ..request("r8.npz")
    };
    reduce(&mut session, &request).unwrap();
    let file = smaller(&session);
    let full = read(WAVES, &Declared::default()).unwrap();
    let reduced = opened_again("r8.npz", &file);
    for index in [0, 7, 207] {
        let sample = session.sequence(index).unwrap();
        let values = sample.values.unwrap();
        assert!(sample.label.unwrap() < 10);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        session.rewind();
        for (which, checkpoint) in [(Which::Full, &full), (Which::Reduced, &reduced)] {
            let network = Network::new(&checkpoint.model, 256, InferPath::Auto).unwrap();
            let expected = network.logits(Sequence::Values(&values)).unwrap();
            // In two pieces, as a page does it.
            let (first, rest) = bytes.split_at(400);
            assert_eq!(session.play(which, first).unwrap().len(), 100 * 10);
            let found = session.play(which, rest).unwrap();
            for (found, expected) in found[155 * 10..].iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() < 2e-4 * (1.0 + expected.abs()));
            }
        }
    }
    assert!(session.play(Which::Full, &[0; 3]).is_err());
}

#[test]
fn what_is_declared_changes_the_answers() {
    let wrong = Declared {
        pooling: Some(Pooling::Last),
        ..Declared::default()
    };
    let mut wrong = opened(&[waves()], &wrong).unwrap();
    let opened = serde_json::to_value(wrong.inspect(&()).unwrap()).unwrap();
    assert_eq!(opened["declared"]["pooling"], "last");
    let accuracy = |session: &mut Session| {
        let known = session.use_data("waves:held_out=300", Vec::new()).unwrap();
        known.accuracy.unwrap()
    };
    assert!(accuracy(&mut wrong) < accuracy(&mut session()) - 0.1);
}

#[test]
fn the_choices_are_all_that_there_are() {
    let declared = |key: &str, value: &str| -> Result<Declared, _> {
        serde_json::from_str(&format!("{{\"{key}\":{value}}}"))
    };
    for (key, words) in CHOICES {
        let is_flag = words == ["true", "false"];
        for word in words {
            let value = if is_flag {
                word.to_string()
            } else {
                format!("\"{word}\"")
            };
            let again = serde_json::to_string(&declared(key, &value).unwrap()).unwrap();
            assert_eq!(again, format!("{{\"{key}\":{value}}}"));
        }
        if words.is_empty() {
            assert!(declared(key, "8").is_ok(), "{key}");
        } else if !is_flag {
            // What is wrong is told with all that is right.
            let fault = declared(key, "\"?\"").unwrap_err().to_string();
            let listed = fault.split('`').skip(3).step_by(2).count();
            assert_eq!(listed, words.len(), "{key}: {fault}");
        }
    }
}

#[test]
fn files_with_their_index_are_one_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(WAVES).unwrap();
    let metadata = archive.metadata().unwrap_or("{}").to_string();
    let names: Vec<&str> = archive.names().collect();
    let mut files = Vec::new();
    let mut map = serde_json::Map::new();
    for (number, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let shard = format!("model-0000{}-of-00002.safetensors", number + 1);
        let tensors = names.iter().map(|name| {
            map.insert(name.to_string(), shard.clone().into());
            (name.to_string(), archive.tensor(name).unwrap())
        });
        let part = Archive::in_memory("a new file", tensors.collect());
        let path = folder.path().join(&shard);
        let bytes = part.to_bytes(path, Container::Safetensors, &metadata);
        files.push(named(&shard, bytes.unwrap()));
    }
    let index = serde_json::json!({ "metadata": { "hankelite": metadata }, "weight_map": map });
    let index = serde_json::to_vec(&index).unwrap();
    files.push(named("model.safetensors.index.json", index));
    let mut sharded = opened(&files, &Declared::default()).unwrap();
    let order = Some(8);
    let request = Request {
        order,
        ..request("model-8.safetensors")
    };
    let mut whole = session();
    let mut tensors = [&mut whole, &mut sharded].map(|session| {
        reduce(session, &request).unwrap();
        let file = smaller(session);
        let archive = Archive::from_bytes("model-8.safetensors", file).unwrap();
        let names: Vec<String> = archive.names().map(str::to_string).collect();
        let tensors = names
            .iter()
            .map(|name| archive.tensor(name).unwrap().bytes().to_vec());
        names.iter().cloned().zip(tensors).collect::<Vec<_>>()
    });
    let [whole, sharded] = tensors.each_mut();
    assert_eq!(whole, sharded);

    let last = files.pop().unwrap();
    let fault = opened(&files, &Declared::default()).err().unwrap();
    assert!(fault.to_string().contains("without an index"), "{fault}");
    files.remove(0);
    files.push(last);
    let fault = opened(&files, &Declared::default()).err().unwrap();
    let fault = in_words(fault.as_ref());
    assert!(
        fault.contains("`model-00001-of-00002.safetensors` of the index is missing"),
        "{fault}"
    );
}

#[test]
fn what_cannot_be_done_is_said() {
    let fault = |name: &str, bytes: &[u8]| {
        let opened = opened(&[named(name, bytes.to_vec())], &Declared::default());
        opened.err().map(|fault| in_words(fault.as_ref())).unwrap()
    };
    assert!(fault("a.bin", b"hello world").contains("a.bin"));
    assert!(fault("a.bin", b"").contains("a.bin"));
    let missing = fault("a.index.json", b"{\"weight_map\":{\"a\":\"b\"}}");
    assert!(
        missing.contains("the file `b` of the index is missing"),
        "{missing}"
    );
    let mut session = session();
    let mut failed = |request: &Request| {
        let made = reduce(&mut session, request);
        made.err().map(|fault| fault.to_string()).unwrap()
    };
    assert!(failed(&request("a.npz")).contains("expected an order"));
    let order = Some(99);
    let large = Request {
        order,
        ..request("a.npz")
    };
    assert!(failed(&large).contains("99"));
    let fault = session.use_data("mnist:data", Vec::new()).unwrap_err();
    assert!(fault.to_string().contains("is a file, expected its bytes"));
}

#[test]
fn a_file_that_is_read_by_parts_is_cut_to_the_same_bytes() {
    for name in ["r8.safetensors", "r8.pth", "r8.npz", "r8.msgpack"] {
        let order = Some(8);
        let request = Request {
            order,
            ..request(name)
        };
        let made = [Reading::Whole, Reading::Parts].map(|reading| {
            let declared = Declared::default();
            let mut session = Session::open(vec![waves()], &declared, reading).unwrap();
            reduce(&mut session, &request).unwrap();
            (smaller(&session), session)
        });
        let [(whole, _), (parts, mut session)] = made;
        assert!(whole == parts, "{name}");
        let refused = "of this file the systems alone were read";
        let data = session.use_data("waves", Vec::new()).unwrap_err();
        let image = session.save(Download::Image, "r8.edge").unwrap_err();
        assert_eq!([data.to_string(), image.to_string()], [refused; 2]);
        let shown = serde_json::to_value(session.inspect(&()).unwrap()).unwrap();
        assert_eq!(shown["not_streamed"], refused);
        assert_eq!(shown["parameters"], 5514);
    }
}

#[test]
fn a_size_is_foretold_as_it_is_then_made() {
    let mut session = session();
    for wanted in [
        Request {
            order: Some(6),
            ..request("small.safetensors")
        },
        Request {
            tolerance: Some(1e-3),
            ..request("small.safetensors")
        },
    ] {
        let told = session.preview(&wanted).unwrap();
        assert!(session.smaller().is_err(), "nothing is kept");
        let made = reduce(&mut session, &wanted).unwrap();
        let worst = made.layers.iter().map(|layer| layer.relative_kernel_error);
        assert_eq!(told.kernel_error, worst.fold(0.0, f64::max));
        assert_eq!(told.parameters, made.parameters_after);
        let bytes = &serde_json::to_value(&made).unwrap()["bytes"];
        assert_eq!(serde_json::json!(told.bytes), *bytes);
        session = self::session();
    }
}

#[test]
fn bytes_are_kept_to() {
    let mut session = session();
    session.use_data("waves:held_out=120", Vec::new()).unwrap();
    let bytes = Some(5000);
    let wanted = Request {
        bytes,
        ..request("small.safetensors")
    };
    reduce(&mut session, &wanted).unwrap();
    let small = opened_again("small.safetensors", &smaller(&session));
    let storage = hankelite::rounding::Storage::chosen(&small.model, small.storage().unwrap());
    let size = hankelite::target::Size::of(&small.model, &storage.unwrap()).unwrap();
    assert!(size.total() <= 5000 && size.total() > 4000, "{size:?}");
}

#[test]
fn the_report_tells_what_is_open_and_what_was_made() {
    let mut session = session();
    let alone = session.report(&Asked::default(), &()).unwrap();
    assert!(alone.contains("<h1>model.safetensors</h1>"));
    assert!(alone.contains("S4D, 2 layers, 32 channels"));
    let asked = Asked {
        smaller: true,
        microseconds: vec![2.0, 0.5],
    };
    assert!(session.report(&asked, &()).is_err(), "before there is one");
    session.use_data("waves:held_out=300", Vec::new()).unwrap();
    let order = Some(8);
    let wanted = Request {
        order,
        ..request("small.safetensors")
    };
    let made = reduce(&mut session, &wanted).unwrap();
    let pair = session.report(&asked, &()).unwrap();
    for text in [
        "model.safetensors → small.safetensors",
        "takes 0.5000 µs a step instead of 2.000",
        "4.00 times as fast",
        "input, root mean square",
        "100 sequences of waves:held_out=300, seed 0",
    ] {
        assert!(pair.contains(text), "{text}");
    }
    let accuracy = 100.0 * made.accuracy.unwrap().reduced;
    assert!(pair.contains(&format!("<b>{accuracy:.2} ± ")));
    let hash = "SHA-256 ";
    assert_eq!(pair.matches(hash).count(), 2, "of both files");
}

#[test]
fn a_file_that_is_read_by_parts_has_a_report_without_its_network() {
    let mut session = Session::open(vec![waves()], &Declared::default(), Reading::Parts).unwrap();
    let order = Some(8);
    let wanted = Request {
        order,
        ..request("small.safetensors")
    };
    reduce(&mut session, &wanted).unwrap();
    let asked = Asked {
        smaller: true,
        ..Asked::default()
    };
    let pair = session.report(&asked, &()).unwrap();
    assert!(pair.contains("layers alone were read"));
    assert!(pair.contains("kernel error"));
}
