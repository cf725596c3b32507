//! Sources, batches and files; the generated tasks have `tests/tasks.rs`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/sources.rs"]
mod sources;

use std::io::Write;
use std::path::{Path, PathBuf};

use common::shared;
use hankelite::model::Sequence;
use hankelite_archive::{Dtype, RawTensor, write_arrays};
use hankelite_data::{Batches, DataError, Dataset, Source, SourceError, Split, Steps, Targets};
use proptest::prelude::*;
use sources::{TASKS, answers, contents, file, refused, source, tokens, train, values};

#[test]
fn a_printed_source_is_read_as_the_same_source() {
    let files = [
        "some/file.safetensors",
        "mnist:a,b/mnist",
        "mnist:mnist,permuted=true,count=5",
        "fsdd:x,rate=2000,length=9,test_takes=10",
        "imdb:aclImdb.tar.gz,length=1024,count=100,seed=3",
        "listops:dir",
        "text:input.txt,length=64",
        "arrays:x.safetensors,count=7",
        "arrays:notes:x",
        "some/table.csv",
        "csv:a:b.csv",
        "csv:signal.csv,steps=64",
        "csv:signal.csv,steps=64,count=3",
        "lagged-sine:width=0.01",
        "listops",
        "copy:score=answer",
        "mnist:a,b/mnist,order=bottom-up,count=5,seed=2",
        "moving-digits:a,b/mnist,frames=7,size=64,digits=3,count=9,held_out=4,seed=1",
    ];
    for text in files.into_iter().chain(TASKS) {
        let first = source(text);
        assert_eq!(first, source(&first.to_string()), "{text} {first}");
    }
    assert_eq!(source("x:y/z.safetensors").to_string(), "x:y/z.safetensors");
    let Source::Mnist(folder) = source("mnist:a,b") else {
        panic!("the comma belongs to the path");
    };
    assert_eq!(folder, Path::new("a,b"));
}

#[test]
fn a_source_that_makes_no_sense_is_named_with_what_it_could_be() {
    let error = |text: &str| text.parse::<Source>().unwrap_err();
    assert!(matches!(error("ading:length=3"), SourceError::Name { .. }));
    let comma = error("adding,length=3");
    assert!(matches!(&comma, SourceError::Comma { .. }));
    assert!(comma.to_string().contains("`adding:length=3`"));
    let unknown = error("adding:lenght=3");
    assert!(matches!(unknown, SourceError::Key { .. }));
    assert!(
        unknown
            .to_string()
            .contains("length, count, held_out, seed")
    );
    assert!(matches!(
        error("adding:length=3,length=4"),
        SourceError::Twice { .. }
    ));
    for wrong in [
        "0",
        "1",
        "16777217",
        "-1",
        "2.5",
        "",
        "nan",
        "99999999999999999999",
    ] {
        let error = error(&format!("adding:length={wrong}"));
        assert!(
            matches!(error, SourceError::Value { .. }),
            "{wrong}: {error}"
        );
        assert!(error.to_string().contains("2 to 16777216"), "{error}");
    }
    assert!(matches!(
        error("lagged-sine:width=nan"),
        SourceError::Value { .. }
    ));
    assert!(matches!(error("imdb"), SourceError::NoPath { .. }));
    assert!(matches!(error("moving-digits"), SourceError::NoPath { .. }));
    let both = error("mnist:x,permuted=true,order=bottom-up").to_string();
    assert!(both.contains("expected top-down"), "{both}");
    let odd = error("sparse:size=60").to_string();
    assert!(odd.contains("expected a square"), "{odd}");
    assert!(matches!(error("adding:folder"), SourceError::Path { .. }));
    assert!(matches!(
        error("ar:lag=5,length=4"),
        SourceError::Value { .. }
    ));
    let huge = source("adding:length=16777216,count=16777216");
    let error = Dataset::read(&huge, Some(Split::Train)).unwrap_err();
    assert!(matches!(error, DataError::TooLarge { .. }), "{error}");
}

#[test]
fn parts_that_are_not_there_are_errors() {
    let error = Dataset::read(&source("imdb:x"), Some(Split::Validation)).unwrap_err();
    assert!(matches!(error, DataError::NoPart { .. }), "{error}");
    assert!(error.hint().unwrap().contains("hold"));
    let error = Dataset::read(&source("x.safetensors"), Some(Split::Train)).unwrap_err();
    assert!(matches!(error, DataError::NoSplits { .. }), "{error}");
}

#[test]
fn an_epoch_holds_every_sequence_once_and_goes_on_anywhere() {
    let data = train("adding:length=2,count=103");
    let epoch = Batches::new(&data, 10, 4, 2).unwrap();
    assert_eq!(epoch.len(), 11);
    let all: Vec<&[usize]> = epoch.from(0).collect();
    assert_eq!(all[10].len(), 3);
    let mut flat = all.concat();
    flat.sort_unstable();
    assert!(flat.into_iter().eq(0..103));
    assert!(epoch.from(7).eq(all[7..].iter().copied()));
    assert_eq!((epoch.get(7), epoch.get(11)), (Some(all[7]), None));
    assert_eq!(epoch, Batches::new(&data, 10, 4, 2).unwrap());
    assert_ne!(epoch, Batches::new(&data, 10, 4, 3).unwrap());
    assert_ne!(epoch, Batches::new(&data, 10, 5, 2).unwrap());
    for size in [0, 104] {
        let error = Batches::new(&data, size, 0, 0).unwrap_err();
        assert!(
            matches!(error, DataError::BatchSize { most: 103, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_batch_holds_the_rows_asked_for() {
    for text in TASKS {
        let data = train(text);
        let indices = [5, 0, 299, 5];
        let batch = data.batch(&indices);
        assert_eq!((batch.count, batch.length), (4, data.length()));
        for (place, &index) in indices.iter().enumerate() {
            match (batch.sequence(place), data.sequence(index)) {
                (Sequence::Values(a), Sequence::Values(b)) => assert_eq!(a, b),
                (Sequence::Tokens(a), Sequence::Tokens(b)) => assert_eq!(a, b),
                _ => panic!("{text}"),
            }
        }
        assert_eq!(batch, contents(&data.select(&indices)));
        if let (Targets::Classes { labels, .. }, Some(all)) = (&batch.targets, data.labels()) {
            assert_eq!(labels[..], [all[5], all[0], all[299], all[5]]);
        }
    }
}

#[test]
fn held_out_sequences_are_not_among_those_that_stay() {
    let data = train("adding:length=2,count=50");
    let (stay, held) = data.hold_out(20, 3).unwrap();
    let mut joined: Vec<&[f32]> = (0..30).map(|i| values(&stay, i)).collect();
    joined.extend((0..20).map(|i| values(&held, i)));
    let mut all: Vec<&[f32]> = (0..50).map(|i| values(&data, i)).collect();
    joined.sort_by(|a, b| a.partial_cmp(b).unwrap());
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(joined, all);
    assert_eq!(contents(&held), contents(&data.sample(20, 3).unwrap()));
    assert_ne!(contents(&held), contents(&data.sample(20, 4).unwrap()));
    for count in [0, 50] {
        let error = data.hold_out(count, 0).unwrap_err();
        assert!(
            matches!(error, DataError::Subset { most: 49, .. }),
            "{error}"
        );
    }
    assert!(matches!(
        data.take(51),
        Err(DataError::Subset { most: 50, .. })
    ));
}

#[test]
fn written_arrays_are_read_as_the_same_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    for text in TASKS.into_iter().chain(["copy:lag=3,score=answer,count=9"]) {
        let data = train(text);
        data.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let again = Dataset::read(&Source::Arrays(path.clone()), None).unwrap();
        assert_eq!(contents(&again), contents(&data), "{text}");
        assert_eq!(again.vocabulary(), data.vocabulary());
        assert_eq!(again.classes(), data.classes());
        again.write(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{text}");
        let some = source(&format!("arrays:{},count=5,seed=1", path.display()));
        assert_eq!(Dataset::read(&some, None).unwrap().len(), 5);
    }
}

/// A safetensors file of tensors (name, type, shape, bytes).
fn safetensors(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.to_string(), entry);
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}

fn f64s(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn i64s(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn arrays_of_other_types_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = safetensors(&[
        ("inputs", "I64", &[2, 2, 1], i64s(&[-1, 2, 3, 4])),
        ("targets", "F64", &[2], f64s(&[0.5, -0.5])),
        ("lengths", "I64", &[2], i64s(&[2, 1])),
    ]);
    let path = file(folder.path(), "a.safetensors", &bytes);
    let data = Dataset::read(&Source::Arrays(path), None).unwrap();
    assert_eq!(values(&data, 0), [-1.0, 2.0]);
    assert_eq!(
        (answers(&data), data.lengths()),
        (&[0.5, -0.5][..], Some(&[2, 1][..]))
    );
    let bytes = safetensors(&[
        ("inputs", "I64", &[1, 3], i64s(&[4, 0, 1])),
        ("labels", "I64", &[1, 3], i64s(&[0, 0, 2])),
        ("mask", "I64", &[1, 3], i64s(&[0, 0, 1])),
        ("vocabulary", "I64", &[1], i64s(&[7])),
    ]);
    let path = file(folder.path(), "b.safetensors", &bytes);
    let data = Dataset::read(&Source::Arrays(path), None).unwrap();
    assert_eq!((data.vocabulary(), data.classes()), (Some(7), Some(3)));
    assert_eq!(data.constant_answer().unwrap().accuracy, Some(1.0));
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn arrays_that_cannot_be_data_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = ("inputs", "F64", &[2, 2][..], f64s(&[0.0, 1.0, 2.0, 3.0]));
    let tokens = ("inputs", "I64", &[2, 2][..], i64s(&[0, 1, 2, 3]));
    let cases = [
        (
            vec![("inputs", "F64", &[1, 2][..], f64s(&[0.0, f64::NAN]))],
            "NaN at index 1",
        ),
        (
            vec![("inputs", "F64", &[1, 2][..], f64s(&[1e300, 0.0]))],
            "inf at index 0",
        ),
        (
            vec![("inputs", "F64", &[0, 2][..], f64s(&[]))],
            "at least one sequence",
        ),
        (
            vec![("inputs", "I64", &[1, 2][..], i64s(&[0, -1]))],
            "holds -1",
        ),
        (
            vec![("inputs", "F64", &[4][..], f64s(&[0.0; 4]))],
            "shape [4]",
        ),
        (
            vec![inputs.clone(), ("labels", "I64", &[3][..], i64s(&[0; 3]))],
            "[2]",
        ),
        (
            vec![inputs.clone(), ("labels", "I64", &[2][..], i64s(&[0, -2]))],
            "holds -2",
        ),
        (
            vec![
                inputs.clone(),
                ("labels", "I64", &[2][..], i64s(&[0, 4_000_000_000])),
            ],
            "expected below 4194304",
        ),
        (
            vec![("inputs", "I64", &[1, 2][..], i64s(&[0, 1 << 40]))],
            "below",
        ),
        (
            vec![
                inputs.clone(),
                ("labels", "F64", &[2][..], f64s(&[0.0, 1.0])),
            ],
            "labels",
        ),
        (
            vec![
                inputs.clone(),
                ("targets", "F64", &[2][..], f64s(&[0.0, f64::INFINITY])),
            ],
            "inf",
        ),
        (
            vec![inputs.clone(), ("lengths", "I64", &[2][..], i64s(&[1, 3]))],
            "sequence 1",
        ),
        (
            vec![inputs.clone(), ("lengths", "I64", &[2][..], i64s(&[0, 1]))],
            "sequence 0",
        ),
        (
            vec![
                inputs,
                ("labels", "I64", &[2][..], i64s(&[0, 5])),
                ("classes", "I64", &[1][..], i64s(&[5])),
            ],
            "`classes`",
        ),
        (
            vec![tokens, ("vocabulary", "I64", &[1][..], i64s(&[3]))],
            "`vocabulary`",
        ),
    ];
    for (tensors, word) in cases {
        let path = file(folder.path(), "x.safetensors", &safetensors(&tensors));
        let error = refused(path.to_str().unwrap());
        assert!(
            error.contains(word) && error.contains("x.safetensors"),
            "{word}: {error}"
        );
    }
}

const REVIEWS: [(&str, &[u8]); 5] = [
    ("train/neg/10_2.txt", b"bad"),
    ("train/neg/2_1.txt", b"worse than \xff"),
    ("train/pos/0_9.txt", b"good"),
    ("test/neg/0_1.txt", b"no"),
    ("test/pos/0_10.txt", b"yes"),
];

fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        let name = format!("aclImdb/{name}");
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

#[test]
fn reviews_from_a_folder_and_from_an_archive_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in REVIEWS {
        file(&folder.path().join("aclImdb"), name, bytes);
    }
    let archive = tar_of(&REVIEWS);
    let plain = file(folder.path(), "a.tar", &archive);
    let packed = file(folder.path(), "a.tar.gz", &gzip(&archive));
    let of = |path: &Path| train(&format!("imdb:{},length=6", path.display()));
    let data = of(folder.path());
    assert_eq!(contents(&data), contents(&of(&plain)));
    assert_eq!(contents(&data), contents(&of(&packed)));
    assert_eq!(data.labels(), Some(&[0, 0, 1][..]));
    assert_eq!(data.lengths(), Some(&[3, 6, 4][..]));
    assert_eq!(tokens(&data, 0), [99, 98, 101, 0, 0, 0]);
    assert_eq!(data.notes(), ["1 of 3 texts cut to 6 bytes"]);
    let short = file(folder.path(), "short.tar.gz", &gzip(&archive)[..60]);
    assert!(refused(&format!("imdb:{}", short.display())).contains("short.tar.gz"));
    let missing = refused(&format!("imdb:{}/nothing", folder.path().display()));
    assert!(missing.contains("nothing"), "{missing}");
    let empty = file(
        folder.path(),
        "e.tar",
        &tar_of(&[("test/neg/0_1.txt", b"")]),
    );
    let error = refused(&format!("imdb:{}", empty.display()));
    assert!(error.contains("pos"), "{error}");
}

fn wav(channels: u16, rate: u32, samples: &[i16]) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels,
        sample_rate: rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    samples
        .iter()
        .for_each(|sample| writer.write_sample(*sample).unwrap());
    writer.finalize().unwrap();
    bytes.into_inner()
}

#[test]
fn recordings_become_means_of_groups_of_unit_loudness() {
    let folder = tempfile::tempdir().unwrap();
    let samples: Vec<i16> = (0..26).map(|i| (i * i * 7 % 101) as i16 - 50).collect();
    file(folder.path(), "3_ann_0.wav", &wav(1, 8000, &samples));
    file(folder.path(), "1_ann_7.wav", &wav(1, 8000, &samples[..12]));
    let text = |keys: &str| format!("fsdd:{},{keys}", folder.path().display());
    let data = Dataset::read(&source(&text("length=5")), None).unwrap();
    // 26 samples are four groups of six; the rest of two is dropped.
    let groups = samples[..24].chunks(6);
    let means: Vec<f64> = groups
        .map(|g| g.iter().map(|&x| f64::from(x)).sum::<f64>() / 6.0)
        .collect();
    let loudness = (means.iter().map(|x| x * x).sum::<f64>() / 4.0).sqrt() + 1e-6;
    for (found, mean) in values(&data, 0).iter().zip(&means) {
        assert!((f64::from(*found) - mean / loudness).abs() < 1e-6);
    }
    assert_eq!((values(&data, 0)[4], data.lengths()), (0.0, Some(&[4][..])));
    assert_eq!(data.labels(), Some(&[3][..]));
    assert_eq!(train(&text("length=5")).labels(), Some(&[1][..]));
    assert_eq!(
        train(&text("length=1")).notes(),
        ["1 of 1 recordings cut to 1 steps"]
    );
    assert!(refused(&text("rate=3000")).contains("2666.7"));
    assert!(refused(&text("test_takes=0")).contains("test part"));
    for (name, bytes, word) in [
        ("3_ann_1.wav", wav(2, 8000, &samples), "2 channels"),
        (
            "3_ann_1.wav",
            wav(1, 8000, &samples)[..60].to_vec(),
            "3_ann_1.wav",
        ),
        ("3_ann_1.wav", b"RIFX".to_vec(), "WAV"),
        ("3_ann_1.wav", wav(1, 8000, &samples[..3]), "3 samples"),
        ("x_ann_1.wav", wav(1, 8000, &samples), "{digit}"),
    ] {
        let path = file(folder.path(), name, &bytes);
        let error = refused(&text("length=5"));
        assert!(error.contains(word), "{word}: {error}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn trees_are_read_from_both_forms_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str| {
        let path = file(folder.path(), "t.tsv", text.as_bytes());
        Dataset::read(
            &source(&format!("listops:{},length=9", path.display())),
            None,
        )
    };
    let first = "Source\tTarget\n( ( ( [MAX 1 ) 7 ) ] )\t7\r\n5\t5\n";
    let data = read(first).unwrap();
    assert_eq!(
        (data.labels(), data.lengths()),
        (Some(&[7, 5][..]), Some(&[4, 1][..]))
    );
    assert_eq!(tokens(&data, 0), [12, 2, 8, 15, 0, 0, 0, 0, 0]);
    assert_eq!(data.vocabulary(), Some(16));
    let old = read("2\t[FIRST 2 [LAST 3 4 ] ]\n").unwrap();
    assert_eq!((old.labels(), old.vocabulary()), (Some(&[2][..]), Some(18)));
    for (text, word) in [
        ("6\t[MAX 1 7 ]\n", "line 1: value"),
        ("7\t[MAX 1 7\n", "does not end"),
        ("7\t[MAX 1 7 ] ]\n", "behind the end"),
        ("7\t]\n", "without an operator"),
        ("7\t[MAX ]\n", "without arguments"),
        ("7\t[MAX 1 x ]\n", "word \"x\""),
        ("7 [MAX 1 7 ]\n", "no tab"),
        ("9\t[MAX 1 2 3 4 5 6 7 8 9 ]\n", "11 tokens"),
        ("\n", "no line"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(
            error.contains(word) && error.contains("t.tsv"),
            "{word}: {error}"
        );
    }
    let deep = format!("7\t{}7{}\n", "[MAX ".repeat(2000), " ]".repeat(2000));
    let path = file(folder.path(), "deep.tsv", deep.as_bytes());
    let error = refused(&format!("listops:{},length=9000", path.display()));
    assert!(error.contains("deeper than 1000"), "{error}");
    file(folder.path(), "a_test.tsv", first.as_bytes());
    let of_folder = format!("listops:{}", folder.path().display());
    assert_eq!(Dataset::read(&source(&of_folder), None).unwrap().len(), 2);
    let error = Dataset::read(&source(&of_folder), Some(Split::Train)).unwrap_err();
    assert!(matches!(error, DataError::NoFile { .. }), "{error}");
    file(folder.path(), "b_test.tsv", first.as_bytes());
    assert!(refused(&of_folder).contains("a_test.tsv, b_test.tsv"));
}

#[test]
fn each_byte_of_a_text_is_answered_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let text: Vec<u8> = (0..100).collect();
    let path = file(folder.path(), "t.txt.gz", &gzip(&text));
    let data = train(&format!("text:{},length=20", path.display()));
    assert_eq!((data.len(), data.vocabulary()), (4, Some(256)));
    let Targets::StepClasses { labels, .. } = data.targets() else {
        panic!("one each step")
    };
    assert!(tokens(&data, 3).iter().copied().eq(60..80));
    assert!(labels[60..].iter().copied().eq(61..81));
    assert!(refused(&format!("text:{},length=10", path.display())).contains("test part"));
}

#[test]
#[ignore = "needs data sets beside the project"]
fn permuted_pixels_are_the_same_pixels_in_one_order() {
    let folder = shared("data/mnist");
    let plain = Dataset::read(&Source::Mnist(folder.clone()), None).unwrap();
    let permuted = Dataset::read(&Source::PermutedMnist(folder.clone()), None).unwrap();
    let other = Dataset::read(&Source::PermutedMnist(folder), Some(Split::Train)).unwrap();
    assert_eq!(
        (plain.len(), plain.classes(), other.len()),
        (10_000, Some(10), 10_000)
    );
    let mean = contents(&plain);
    let Steps::Values(pixels) = &mean.steps else {
        panic!("pixels are numbers")
    };
    let mean = pixels.iter().map(|&x| f64::from(x)).sum::<f64>() / pixels.len() as f64;
    assert!((mean - 0.132515).abs() < 1e-6, "{mean}");
    let sorted = |data: &Dataset| {
        let mut row = values(data, 17).to_vec();
        row.sort_by(f32::total_cmp);
        row
    };
    assert_eq!(sorted(&plain), sorted(&permuted));
    assert_ne!(values(&plain, 17), values(&permuted, 17));
}

/// Figures from `tests/reference/fsdd_values.py`, which prepares the same files with NumPy.
#[test]
#[ignore = "needs data sets beside the project"]
fn spoken_digits_are_prepared_as_by_the_reference_script() {
    let path = shared("data/fsdd/fsdd_recordings.tar.xz");
    let text = format!("fsdd:{}", path.display());
    let (train, test) = (train(&text), Dataset::read(&source(&text), None).unwrap());
    assert_eq!((train.len(), test.len()), (2700, 300));
    let first = [
        -0.01344682,
        1.2492938,
        0.7684299,
        -0.35739133,
        -0.59831357,
        -1.0535445,
    ];
    for (found, expected) in values(&test, 0).iter().zip(first) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    let last = [-0.20689164, 0.67239785, -0.11990311, 1.7338929];
    for (found, expected) in values(&train, 2699)[100..104].iter().zip(last) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    for (data, expected) in [
        (&train, 868_460.017_977_699_2),
        (&test, 94_079.488_162_128_08),
    ] {
        let all = (0..data.len()).flat_map(|i| values(data, i).to_vec());
        let sum: f64 = all.map(|x| f64::from(x).abs()).sum();
        assert!((sum / expected - 1.0).abs() < 1e-7, "{sum}");
    }
}

#[test]
#[ignore = "needs data sets beside the project"]
fn the_original_trees_all_have_their_published_values() {
    let counts = [
        ("test", 500),
        ("test_d8", 10_000),
        ("test_d14", 10_000),
        ("test_d20a", 10_000),
    ];
    for (name, count) in counts.into_iter().chain([("test_d20s", 10_000)]) {
        let path = shared(&format!("data/listops/{name}.tsv.gz"));
        // Reading computes every value and would refuse one that differs.
        let data = Dataset::read(&source(&format!("listops:{}", path.display())), None).unwrap();
        assert_eq!(data.len(), count);
    }
}

#[test]
#[ignore = "needs data sets beside the project"]
fn the_reviews_have_their_published_lengths() {
    let path = shared("data/imdb/aclImdb_labelled.tar.xz");
    let data = train(&format!("imdb:{},length=16384", path.display()));
    assert_eq!((data.len(), data.notes().len()), (25_000, 0));
    let (lengths, labels) = (data.lengths().unwrap(), data.labels().unwrap());
    for (class, shortest, longest) in [(0, 52, 8969), (1, 70, 13_704)] {
        let of = || (0..25_000).filter(|&i| labels[i] == class);
        assert_eq!(of().count(), 12_500);
        let (min, max) = (
            of().map(|i| lengths[i]).min(),
            of().map(|i| lengths[i]).max(),
        );
        assert_eq!((min, max), (Some(shortest), Some(longest)));
    }
    // Shares from the notes beside the files, to their digits.
    for (most, share) in [(1024, 0.530), (2048, 0.834), (4096, 0.971)] {
        let found = lengths.iter().filter(|&&n| n <= most).count() as f64 / 25_000.0;
        assert!((found - share).abs() <= 0.0005, "{most}: {found}");
    }
}

/// Good files of every kind, and the sources that read them.
fn good_files(folder: &Path) -> Vec<(PathBuf, Vec<u8>, String)> {
    let idx = [2051u32, 2, 2, 2]
        .iter()
        .flat_map(|word| word.to_be_bytes());
    let labels: Vec<u8> = [2049u32, 2]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    file(
        folder,
        "mnist/t10k-labels-idx1-ubyte",
        &[labels, vec![1, 2]].concat(),
    );
    let arrays = safetensors(&[
        ("inputs", "I64", &[2, 2], i64s(&[1, 2, 3, 4])),
        ("labels", "I64", &[2], i64s(&[0, 1])),
        ("lengths", "I64", &[2], i64s(&[2, 1])),
    ]);
    let samples: Vec<i16> = (0..200).map(|i| (i * 37 % 211) as i16).collect();
    let images: Vec<u8> = idx.chain([9; 8]).collect();
    let films = "moving-digits:D/mnist,frames=2,count=1,held_out=2";
    let kinds: [(&str, Vec<u8>, &str); 8] = [
        (
            "mnist/t10k-images-idx3-ubyte",
            images.clone(),
            "mnist:D/mnist",
        ),
        ("mnist/t10k-images-idx3-ubyte", images, films),
        ("wav/3_ann_0.wav", wav(1, 8000, &samples), "fsdd:D/wav"),
        ("r.tar", tar_of(&REVIEWS), "imdb:D/r.tar"),
        ("r.tar.gz", gzip(&tar_of(&REVIEWS)), "imdb:D/r.tar.gz"),
        (
            "t.tsv",
            b"Source\tTarget\n[MAX 1 7 ]\t7\n3\t( ( [SM 1 ) [MED 2 3 ] ) ]\n".to_vec(),
            "listops:D/t.tsv",
        ),
        ("t.txt", (0..100).collect(), "text:D/t.txt,length=4"),
        ("a.safetensors", arrays, "D/a.safetensors"),
    ];
    let placed = kinds.into_iter().map(|(name, bytes, text)| {
        let text = text.replacen('D', &folder.display().to_string(), 1);
        (file(folder, name, &bytes), bytes, text)
    });
    placed.collect()
}

/// Every damaged file is read or refused, never a panic; the good ones are read.
#[test]
fn damaged_files_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut seed = 1u64;
    let mut random = move |below: usize| {
        // xorshift64
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below.max(1) as u64) as usize
    };
    for (path, good, text) in good_files(folder.path()) {
        let read = || Dataset::read(&source(&text), None);
        read().unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut refused = 0;
        for _ in 0..600 {
            let mut bytes = good.clone();
            // Headers stand at the front: half of the damage is done there.
            for _ in 0..1 + random(3) {
                let reach = if random(2) == 0 {
                    bytes.len().min(64)
                } else {
                    bytes.len()
                };
                let place = random(reach);
                bytes[place] = random(256) as u8;
            }
            if random(4) == 0 {
                bytes.truncate(random(good.len()));
            }
            std::fs::write(&path, &bytes).unwrap();
            match read() {
                Ok(data) => assert_eq!(contents(&data).count, data.len()),
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        assert!(refused > 10, "{text}: only {refused} refused");
        std::fs::write(&path, &good).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_text_is_a_source_or_refused(
        name in "(mnist|fsdd|imdb|listops|text|arrays|recall|adding|copy|lagged-sine|ar|waves|moving-digits|sprites|sparse|teacher|.{0,6}):?",
        rest in "((length|count|seed|lag|width|scale|rate|x|.{0,3})(=[-+.0-9e]{0,8}|.{0,4}),?){0,4}",
    ) {
        if let Ok(first) = format!("{name}{rest}").parse::<Source>() {
            prop_assert_eq!(&first, &first.to_string().parse::<Source>().unwrap());
        }
    }
}

/// What `tests/reference/make_arrays.py` wrote.
fn as_others_write(name: &str) -> Result<Dataset, DataError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/arrays");
    Dataset::read(&Source::Arrays(path.join(name)), None)
}

#[test]
fn arrays_are_read_as_numpy_and_torch_write_them() {
    let expected: Vec<f32> = (0..24).map(|k| k as f32 / 4.0).collect();
    let cases = [
        ("x.npy", false, "`x` is taken for the inputs"),
        ("fortran.npy", false, "`fortran` is taken for the inputs"),
        (
            "xy.npz",
            true,
            "`x` is taken for the inputs, `y` is taken for the labels",
        ),
        ("tensor.pt", false, "`0` is taken for the inputs"),
        (
            "tuple.pt",
            true,
            "`0` is taken for the inputs, `1` is taken for the labels",
        ),
        (
            "list.pt",
            true,
            "`0` is taken for the inputs, `1` is taken for the labels",
        ),
        (
            "dict.pt",
            true,
            "`x` is taken for the inputs, `y` is taken for the labels",
        ),
        ("one.pt", false, "`signal` is taken for the inputs"),
    ];
    for (name, labelled, note) in cases {
        let data = as_others_write(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (data.len(), data.length(), data.width()),
            (4, 3, Some(2)),
            "{name}"
        );
        let batch = data.batch(&[0, 1, 2, 3]);
        assert_eq!(batch.steps, Steps::Values(expected.clone()), "{name}");
        assert_eq!(data.classes(), labelled.then_some(3), "{name}");
        assert_eq!(data.notes(), [note], "{name}");
    }
    let error = as_others_write("two.pt").unwrap_err().to_string();
    assert!(
        error.contains("`a` of shape [4, 3, 2], `b` of shape [4, 3, 2]"),
        "{error}"
    );
}

/// A table of this text; `FILE` in the source stands for its path.
fn table(text: &str, from: &str) -> Result<Dataset, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.csv");
    std::fs::write(&path, text).unwrap();
    let from = source(&from.replace("FILE", &path.display().to_string()));
    Dataset::read(&from, None)
}

fn all_values(data: &Dataset) -> Vec<f32> {
    match data.batch(&(0..data.len()).collect::<Vec<_>>()).steps {
        Steps::Values(values) => values,
        Steps::Tokens(_) => panic!("numbers"),
    }
}

#[test]
fn a_row_is_a_sequence_with_the_class_of_its_column() {
    // The columns of a data frame have numbers for names.
    let framed = table("0,label,1\n1,2,3\n4,0,5.5\n", "FILE").unwrap();
    assert_eq!((framed.len(), framed.classes()), (2, Some(3)));
    let data = table("a,Label,b\n1,2,3\n4,0,5.5\n", "FILE").unwrap();
    assert_eq!((data.len(), data.length(), data.width()), (2, 2, Some(1)));
    assert_eq!(all_values(&data), [1.0, 3.0, 4.0, 5.5]);
    assert_eq!(data.classes(), Some(3));
    let short = table("1,2,3\n4,5,\n", "csv:FILE").unwrap();
    assert_eq!(short.lengths(), Some(&[3, 2][..]));
}

#[test]
fn with_steps_a_row_is_a_step() {
    let data = table("x,y\n1,2\n3,4\n5,6\n7,8\n9,9\n", "csv:FILE,steps=2").unwrap();
    assert_eq!((data.len(), data.length(), data.width()), (2, 2, Some(2)));
    assert_eq!(all_values(&data), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn a_table_that_is_none_is_refused_with_its_place() {
    let cases = [
        ("1,2\n3,x\n", "FILE", "`x` in line 2"),
        ("1,x\n3,4\n", "FILE", "`x` in line 1"),
        ("1,nan\n3,4\n", "FILE", "`nan` in line 1"),
        (
            "1\n2\n3\n",
            "FILE",
            "3 rows of 1 numbers, expected one sequence a row",
        ),
        (
            "1,2\n3\n",
            "csv:FILE,steps=1",
            "1 numbers in row 2, expected 2",
        ),
        (
            "1\n2\n",
            "csv:FILE,steps=4",
            "2 rows, expected at least steps=4",
        ),
        (
            "label,a,b\n0.5,1,2\n",
            "FILE",
            "0.5 in column `label` of row 1",
        ),
        ("", "FILE", "0 rows of 0 numbers"),
    ];
    for (text, source, expected) in cases {
        let error = table(text, source).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn answers_are_not_guessed_by_shape() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.safetensors");
    let inputs = RawTensor::from_f64(Dtype::F32, vec![2, 3], &[0.5; 6]).unwrap();
    let ids = RawTensor::new(Dtype::I64, vec![2], vec![1; 16]).unwrap();
    write_arrays(&path, [("inputs", inputs), ("ids", ids)], "").unwrap();
    let data = Dataset::read(&Source::Arrays(path), None).unwrap();
    assert!(data.labels().is_none() && data.notes().is_empty());
}
