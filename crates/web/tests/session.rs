//! What the page shows and saves, without a page.

use hankelite::{Declared, Reducer, read};
use hankelite_web::{Request, Session};

const WAVES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

fn session() -> Session {
    Session::open("model.safetensors", std::fs::read(WAVES).unwrap()).unwrap()
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
    let session = session();
    let full = read(WAVES, &Declared::default()).unwrap();
    let wanted = Reducer::new(&full.model).order(8).run().unwrap();
    for name in ["r8.safetensors", "r8.pth", "r8.npz"] {
        let order = Some(8);
        let request = Request {
            order,
            ..request(name)
        };
        let made = session.reduce(&request, None, &()).unwrap();
        let again = opened_again(name, &made.file);
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
        assert!(made.image.is_some());
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
    let session = session();
    let data = || Some(("waves:held_out=300".to_string(), Vec::new()));
    let order = Some(8);
    let small = Request {
        order,
        ..request("small.safetensors")
    };
    let made = session.reduce(&small, data(), &()).unwrap();
    let accuracy = made.record.accuracy.unwrap();
    assert_eq!(accuracy.scored, 200);
    assert!(accuracy.full > 0.95 && accuracy.reduced > accuracy.full - 0.05);
    let change = made.record.logit_change.unwrap();
    assert!(change < 0.15, "{change}");
    let times = Some(4.0);
    let quarter = Request {
        times,
        ..request("quarter.safetensors")
    };
    let made = session.reduce(&quarter, data(), &()).unwrap();
    let record = serde_json::to_value(&made.record).unwrap();
    assert!(record["bytes"].as_u64().unwrap() <= 31_136 / 4);
    assert!(made.record.accuracy.unwrap().reduced > 0.9);
}

#[test]
fn what_cannot_be_done_is_said() {
    let fault = |name: &str, bytes: &[u8]| {
        let opened = Session::open(name, bytes.to_vec());
        opened.err().map(|fault| fault.to_string()).unwrap()
    };
    assert!(fault("a.bin", b"hello world").contains("a.bin"));
    assert!(fault("a.bin", b"").contains("a.bin"));
    assert!(fault("a.index.json", b"{\"weight_map\":{\"a\":\"b\"}}").contains("a.index.json"));
    let session = session();
    let failed = |request: &Request, data| {
        let made = session.reduce(request, data, &());
        made.err().map(|fault| fault.to_string()).unwrap()
    };
    assert!(failed(&request("a.npz"), None).contains("expected an order"));
    let order = Some(99);
    let large = Request {
        order,
        ..request("a.npz")
    };
    assert!(failed(&large, None).contains("99"));
    let order = Some(4);
    let small = Request {
        order,
        ..request("a.npz")
    };
    let file = Some(("mnist:data".to_string(), Vec::new()));
    assert!(failed(&small, file).contains("is a file, expected its bytes"));
}
