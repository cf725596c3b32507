//! Generated tasks against their definitions.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/sources.rs"]
mod sources;

use common::shared;
use hankelite_data::{DataError, Dataset, Split, Targets};
use sources::{TASKS, answers, contents, file, source, tokens, train, values};

#[test]
fn tasks_do_not_depend_on_threads_and_a_larger_set_begins_with_the_smaller() {
    for text in TASKS {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| contents(&train(text)))
        };
        let one = with(1);
        assert_eq!(one, with(3), "{text}");
        let fewer = contents(&train(&text.replace("count=300", "count=100")));
        assert_eq!(fewer, contents(&train(text).take(100).unwrap()), "{text}");
        let other = contents(&train(&format!("{text},seed=1")));
        assert_ne!(one, other, "{text}");
        let test = Dataset::read(&source(text), Some(Split::Test)).unwrap();
        assert_eq!(test.len(), 40);
        assert_ne!(
            contents(&test.take(30).unwrap()),
            contents(&train(text).take(30).unwrap())
        );
    }
}

/// A sum over the bits of all numbers, as one machine once made them.
#[test]
fn films_signals_and_teachers_are_the_same_on_every_machine() {
    let bits = |values: &[f32]| values.iter().map(|x| u64::from(x.to_bits())).sum::<u64>();
    for (text, inputs) in [
        ("sprites:frames=3,size=8,count=20", 1_333_831_811_126),
        ("sparse:size=16,frames=3,count=20", 2_134_590_278_687),
        ("teacher:length=5,width=3,heads=6,count=20", 657_203_899_479),
    ] {
        let data = train(text);
        let found: u64 = (0..20).map(|i| bits(values(&data, i))).sum();
        assert_eq!(found, inputs, "{text}");
    }
    let teacher = train("teacher:length=5,width=3,heads=6,count=20");
    assert_eq!(bits(answers(&teacher)), 48_669_599_814);
}

#[test]
fn recall_asks_for_its_first_symbol() {
    let data = train("recall:delay=20,classes=3,distractors=5,count=500");
    assert_eq!(
        (data.length(), data.vocabulary(), data.classes()),
        (22, Some(9), Some(3))
    );
    for (index, &label) in data.labels().unwrap().iter().enumerate() {
        let row = tokens(&data, index);
        assert_eq!(row[0] as usize, label);
        assert!(row[1..21].iter().all(|token| (3..8).contains(token)));
        assert_eq!(row[21], 8);
    }
}

#[test]
fn adding_marks_one_number_in_each_half_and_asks_for_their_sum() {
    let data = train("adding:length=9,count=2000");
    let mut marks = [0; 9];
    for (index, answer) in answers(&data).iter().enumerate() {
        let row = values(&data, index);
        let marked: Vec<usize> = (0..9).filter(|t| row[2 * t + 1] == 1.0).collect();
        assert!(
            matches!(marked[..], [i, j] if i < 4 && j >= 4),
            "{marked:?}"
        );
        assert_eq!(*answer, row[2 * marked[0]] + row[2 * marked[1]]);
        assert_eq!(row.iter().skip(1).step_by(2).sum::<f32>(), 2.0);
        assert!(row.iter().step_by(2).all(|u| (0.0..=1.0).contains(u)));
        marked.iter().for_each(|t| marks[*t] += 1);
    }
    // 2000/4 in the first half, 2000/5 in the second; five standard errors are below 100.
    assert!(
        marks[..4].iter().all(|n| (400..600).contains(n)),
        "{marks:?}"
    );
    assert!(
        marks[4..].iter().all(|n| (300..500).contains(n)),
        "{marks:?}"
    );
}

#[test]
fn copy_says_its_first_ten_symbols_again() {
    for (text, masked) in [
        ("copy:lag=7,count=50", false),
        ("copy:lag=7,score=answer,count=50", true),
    ] {
        let data = train(text);
        let Targets::StepClasses {
            labels,
            classes: 10,
            mask,
        } = data.targets()
        else {
            panic!("{text}");
        };
        for (index, answer) in labels.chunks_exact(27).enumerate() {
            let row = tokens(&data, index);
            assert!(row[..10].iter().all(|token| *token < 8));
            let rest: Vec<u32> = (10..27).map(|t| if t == 17 { 9 } else { 8 }).collect();
            assert_eq!(row[10..], rest);
            assert!(answer[..17].iter().all(|label| *label == 8));
            assert_eq!(answer[17..], row[..10]);
        }
        let counted = |mask: &Vec<bool>| mask.iter().enumerate().all(|(i, m)| *m == (i % 27 >= 17));
        assert_eq!(mask.as_ref().map(counted), masked.then_some(true));
    }
}

#[test]
fn the_sine_process_has_its_mean_and_covariance() {
    for width in [0.1, 1.0, 2.5] {
        let text = format!("lagged-sine:length=40,width={width},count=4000");
        let data = train(&text);
        assert!(data.notes().is_empty());
        let h = |t: f64| (-(t / width).powi(2)).exp() / (width * std::f64::consts::PI.sqrt());
        for (index, &answer) in answers(&data).iter().enumerate() {
            assert_eq!(answer, f64::from(values(&data, index)[20]).sin() as f32);
        }
        for lag in [0, 1, 2, 5] {
            for first in [0, 15, 34] {
                let product = |index: usize| {
                    let row = values(&data, index);
                    (f64::from(row[first]) - 1.0) * (f64::from(row[first + lag]) - 1.0)
                };
                let mean = (0..4000).map(product).sum::<f64>() / 4000.0;
                let expected = h(lag as f64);
                // Var(x y) = h(0)² + h(t)² for Gaussian x, y; five standard errors.
                let error = ((h(0.0).powi(2) + expected.powi(2)) / 4000.0).sqrt();
                assert!(
                    (mean - expected).abs() < 5.0 * error,
                    "{width} {lag} {mean} {expected}"
                );
            }
        }
    }
    let smooth = train("lagged-sine:length=200,width=10,count=500");
    assert!(
        smooth.notes()[0].contains("diagonal"),
        "{:?}",
        smooth.notes()
    );
    assert_eq!(train("lagged-sine:length=1000,width=100,count=1").len(), 1);
}

#[test]
fn trivial_answers_cost_what_the_specification_says() {
    let loss = |text: &str| source(text).trivial_answer().unwrap().loss;
    let floor = |text: &str| source(text).trivial_answer().unwrap().floor.unwrap();
    // Figures of the specifications, to their digits.
    for (width, constant, linear) in [
        (1.0, 0.1646, 0.0709),
        (0.1, 0.4975, 0.4917),
        (0.01, 0.5, 0.5),
    ] {
        let text = format!("lagged-sine:width={width}");
        assert!((loss(&text) - constant).abs() < 6e-5, "{}", loss(&text));
        assert!((floor(&text) - linear).abs() < 6e-5, "{}", floor(&text));
    }
    assert!((loss("copy:lag=100") - 0.1733).abs() < 5e-5);
    assert!((loss("ar") - 0.5263).abs() < 5e-5 && floor("ar") == 0.1);
    assert_eq!(loss("adding"), 1.0 / 6.0);
    // And to those of the data: five standard errors of a mean over 20000.
    for (text, deviation) in [
        ("adding:length=4,count=20000", 0.2),
        ("ar:lag=1,pairs=0,count=20000", 0.75),
        ("lagged-sine:length=2,count=20000", 0.25),
        ("recall:delay=0,count=20000", 0.1),
    ] {
        let found = train(text).constant_answer().unwrap().loss;
        let error = 5.0 * deviation / 20_000f64.sqrt();
        assert!(
            (found - loss(text)).abs() < error,
            "{text}: {found} {}",
            loss(text)
        );
    }
}

/// The level does not show the class, and the spectrum does: a pulse train is not a sine.
#[test]
fn waves_are_told_by_their_form_not_by_their_level() {
    let data = train("waves:count=4000");
    let labels = data.labels().unwrap();
    let power = |index: usize| {
        let row = values(&data, index);
        row.iter().map(|x| f64::from(x * x)).sum::<f64>() / 256.0
    };
    let mut counts = [0.0; 10];
    let mut level = [0.0; 10];
    for (index, &label) in labels.iter().enumerate() {
        counts[label] += 1.0;
        level[label] += power(index).ln();
    }
    // Standard deviation of ln power about 0.85, of a count of 400 about 19.
    for (count, level) in counts.iter().zip(level) {
        assert!((count - 400.0f64).abs() < 5.0 * 19.0, "{count}");
        assert!((level / count - level_of_all(&data)).abs() < 5.0 * 0.85 / 20.0);
    }
}

fn level_of_all(data: &Dataset) -> f64 {
    let power = |index| {
        values(data, index)
            .iter()
            .map(|x| f64::from(x * x))
            .sum::<f64>()
            / 256.0
    };
    (0..data.len()).map(|i| power(i).ln()).sum::<f64>() / data.len() as f64
}

#[test]
fn the_autoregressive_process_keeps_its_equation() {
    let data = train("ar:lag=3,length=12,pairs=2,scale=0.5,count=4000");
    assert_eq!(data.width(), Some(5));
    let x = |index: usize, t: usize| match t {
        12 => f64::from(answers(&data)[index]),
        t => f64::from(values(&data, index)[5 * t]) / 0.5,
    };
    let mean = |of: &dyn Fn(usize) -> f64| (0..4000).map(of).sum::<f64>() / 4000.0;
    for t in [3, 7, 12] {
        let noise = |index: usize| x(index, t) - 0.9 * x(index, t - 3);
        let power = mean(&|index| noise(index).powi(2));
        assert!(
            (power - 0.1).abs() < 5.0 * 0.1 * (2f64 / 4000.0).sqrt(),
            "{power}"
        );
        let shared = mean(&|index| noise(index) * x(index, t - 3));
        assert!(
            shared.abs() < 5.0 * (0.1f64 * 0.5263 / 4000.0).sqrt(),
            "{shared}"
        );
        let variance = mean(&|index| x(index, t).powi(2));
        assert!((variance - 0.5263).abs() < 5.0 * 0.5263 * (2f64 / 4000.0).sqrt());
    }
    for t in 0..12 {
        let row = &values(&data, 1)[5 * t + 1..5 * t + 5];
        let angles = [t as f64, t as f64 * 10_000f64.powf(-0.5)];
        for (found, angle) in row.chunks_exact(2).zip(angles) {
            assert!((f64::from(found[0]) - 0.5 * angle.sin()).abs() < 1e-6);
            assert!((f64::from(found[1]) - 0.5 * angle.cos()).abs() < 1e-6);
        }
    }
}

/// Value and depth of the tree that begins at word `at`, by recursion over words, not tokens.
fn evaluate(words: &[&str], at: &mut usize) -> (u32, usize) {
    let word = words[*at];
    *at += 1;
    if let Ok(digit) = word.parse() {
        return (digit, 1);
    }
    let (mut arguments, mut depth) = (Vec::new(), 0);
    while words[*at] != "]" {
        let (value, below) = evaluate(words, at);
        arguments.push(value);
        depth = depth.max(below);
    }
    *at += 1;
    let mut sorted = arguments.clone();
    sorted.sort_unstable();
    let n = sorted.len();
    let value = match word {
        "[MIN" => sorted[0],
        "[MAX" => sorted[n - 1],
        "[SM" => arguments.iter().sum::<u32>() % 10,
        "[MED" if n % 2 == 1 => sorted[n / 2],
        "[MED" => (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
        other => panic!("{other}"),
    };
    (value, depth + 1)
}

/// The true tokens of every tree.
fn trees(data: &Dataset) -> Vec<Vec<u32>> {
    let lengths = data.lengths().unwrap().iter().enumerate();
    lengths
        .map(|(i, &n)| tokens(data, i)[..n].to_vec())
        .collect()
}

#[test]
fn trees_keep_the_published_rules_and_have_their_values() {
    let text = "listops:min_length=20,max_length=120,max_depth=5,max_args=4,count=3000";
    let (task, data) = (source(text), train(text));
    assert_eq!(
        (data.length(), data.vocabulary(), data.classes()),
        (120, Some(16), Some(10))
    );
    let (mut deepest, mut counts) = (0, [0usize; 15]);
    for (index, tree) in trees(&data).iter().enumerate() {
        let spelled = task.spelled(tree);
        let words: Vec<&str> = spelled.split(' ').collect();
        let mut at = 0;
        let (value, depth) = evaluate(&words, &mut at);
        assert_eq!(
            (at, value as usize),
            (words.len(), data.labels().unwrap()[index])
        );
        assert!(tree.len() > 20 && tree.len() < 120);
        assert!(
            tokens(&data, index)[tree.len()..]
                .iter()
                .all(|token| *token == 0)
        );
        deepest = deepest.max(depth);
        tree.iter()
            .for_each(|token| counts[*token as usize - 1] += 1);
    }
    assert_eq!(deepest, 5);
    // Digits are alike, operators are alike, and every operator is closed.
    let within = |counts: &[usize]| {
        let mean = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
        counts
            .iter()
            .all(|&n| (n as f64 - mean).abs() < 6.0 * mean.sqrt())
    };
    assert!(
        within(&counts[..10]) && within(&counts[10..14]),
        "{counts:?}"
    );
    assert_eq!(counts[10..14].iter().sum::<usize>(), counts[14]);
}

#[test]
fn no_tree_stands_twice_or_in_two_parts() {
    let text = "listops:min_length=3,max_length=8,max_depth=3,count=800,held_out=400";
    let mut all = std::collections::HashSet::new();
    for split in [Split::Train, Split::Validation, Split::Test] {
        for tree in trees(&Dataset::read(&source(text), Some(split)).unwrap()) {
            assert!(all.insert(tree));
        }
    }
    assert_eq!(all.len(), 1600);
    // Ten digits make ten trees of one token.
    let few = source("listops:min_length=0,max_length=2,max_depth=1,count=1000");
    let error = Dataset::read(&few, Some(Split::Train)).unwrap_err();
    assert!(matches!(error, DataError::TooFew { .. }), "{error}");
}

fn part(text: &str, split: Split) -> Dataset {
    Dataset::read(&source(text), Some(split)).unwrap()
}

/// idx files of flat images of 28 × 28 pixels, one for each brightness.
fn flat_digits(folder: &std::path::Path, name: &str, brightness: &[u8]) {
    let words = [2051u32, brightness.len() as u32, 28, 28];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    for &value in brightness {
        bytes.extend([value; 28 * 28]);
    }
    file(folder, &format!("{name}-images-idx3-ubyte"), &bytes);
}

/// The rows and columns that are not dark in a frame of 64 × 64.
fn lit(frame: &[f32]) -> [Vec<usize>; 2] {
    let rows = (0..64).filter(|i| frame[64 * i..64 * i + 64].iter().any(|&x| x > 0.0));
    let columns = (0..64).filter(|j| frame.iter().skip(*j).step_by(64).any(|&x| x > 0.0));
    [rows.collect(), columns.collect()]
}

/// Every frame holds the whole digit, which moves by 3.6 pixels a frame, to rounding, and turns at
/// the walls.
#[test]
fn a_digit_moves_at_one_speed_and_turns_at_the_walls() {
    let folder = tempfile::tempdir().unwrap();
    flat_digits(folder.path(), "t10k", &[51, 102, 255]);
    let keys = "digits=1,size=64,frames=40,count=1,held_out=60";
    let text = format!("moving-digits:{},{keys}", folder.path().display());
    let data = part(&text, Split::Test);
    assert_eq!(
        (data.len(), data.length(), data.width()),
        (60, 40, Some(4096))
    );
    let mut turns = 0;
    for index in 0..60 {
        let film = values(&data, index);
        let corners: Vec<[f64; 2]> = film
            .chunks_exact(4096)
            .map(|frame| {
                let lit = lit(frame);
                lit.map(|places| {
                    assert_eq!((places.len(), places[27] - places[0]), (28, 27));
                    places[0] as f64
                })
            })
            .collect();
        // A reflected way unfolds to a straight line; while nothing turns, so is the way itself.
        for axis in 0..2 {
            let steps: Vec<f64> = corners
                .windows(2)
                .map(|w| w[1][axis] - w[0][axis])
                .collect();
            let fastest = steps
                .iter()
                .fold(0.0, |most, step| f64::max(most, step.abs()));
            assert!(fastest <= 4.0, "{fastest}");
            for (step, next) in steps.iter().zip(&steps[1..]) {
                let turned = step * next < 0.0;
                turns += usize::from(turned);
            }
        }
        let way: Vec<f64> = corners
            .windows(2)
            .map(|w| (w[1][0] - w[0][0]).hypot(w[1][1] - w[0][1]))
            .collect();
        // Slower only in the frames in which it turns, at most 39 · 0.1 + 1 on each axis.
        let whole = way.iter().filter(|way| (**way - 3.6).abs() <= 1.5).count();
        assert!(whole >= 39 - 10, "{whole} of 39 whole steps");
    }
    assert!(turns > 100, "{turns}");
}

#[test]
fn no_digit_is_in_two_parts_and_the_brighter_one_is_in_front() {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<u8> = (1..=20).map(|k| 10 * k).collect();
    flat_digits(folder.path(), "train", &all);
    flat_digits(folder.path(), "t10k", &[5, 255]);
    let keys = "size=64,frames=3,count=100,held_out=100";
    let text = format!("moving-digits:{},{keys}", folder.path().display());
    let seen = |split: Split| {
        let data = part(&text, split);
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..data.len() {
            for frame in values(&data, index).chunks_exact(4096) {
                let levels = frame.iter().map(|x| (x * 255.0).round() as u8);
                let levels: std::collections::BTreeSet<u8> = levels.filter(|&x| x > 0).collect();
                assert!((1..=2).contains(&levels.len()), "{levels:?}");
                let brightest = levels.last().copied().unwrap();
                let lit = frame
                    .iter()
                    .filter(|x| (*x * 255.0).round() as u8 == brightest);
                assert!(lit.count() >= 28 * 28, "the brighter digit is whole");
                seen.extend(levels);
            }
        }
        seen.into_iter().collect::<Vec<u8>>()
    };
    assert_eq!(seen(Split::Train), all[..18]);
    assert_eq!(seen(Split::Validation), all[18..]);
    assert_eq!(seen(Split::Test), [5, 255]);
    flat_digits(folder.path(), "train", &[7]);
    let error = Dataset::read(&source(&text), Some(Split::Train)).unwrap_err();
    assert!(matches!(error, DataError::Content { .. }), "{error}");
}

/// The answer to a film is the film, in [0, 1], and it neither stands still nor goes dark.
fn assert_films(data: &Dataset, width: usize) {
    let Targets::StepValues {
        values: answers,
        width: found,
        mask: None,
    } = data.targets()
    else {
        panic!("numbers for each step");
    };
    assert_eq!((*found, data.width()), (width, Some(width)));
    for index in 0..data.len() {
        let film = values(data, index);
        let own = film.len();
        assert_eq!(film, &answers[index * own..(index + 1) * own]);
        assert!(film.iter().all(|x| (0.0..=1.0).contains(x)));
        let frames: Vec<&[f32]> = film.chunks_exact(width).collect();
        assert!(frames.windows(2).all(|pair| pair[0] != pair[1]));
        let bright = |frame: &&[f32]| frame.iter().any(|&x| x > 0.5);
        assert!(frames.iter().all(bright));
    }
}

#[test]
fn films_are_answered_by_themselves() {
    assert_films(&train("sprites:count=50"), 256);
}

#[test]
#[ignore = "needs data sets beside the project"]
fn films_of_digits_are_answered_by_themselves() {
    let folder = shared("data/mnist");
    let text = format!("moving-digits:{},count=50,held_out=50", folder.display());
    for split in [Split::Train, Split::Validation, Split::Test] {
        assert_films(&part(&text, split), 256);
    }
    // Two digits of mean brightness 0.1325 on 28² of 64² pixels, less their overlap.
    let text = format!("moving-digits:{},held_out=1000", folder.display());
    let data = part(&text, Split::Test);
    let pixels = (0..1000).flat_map(|i| values(&data, i));
    let mean = pixels.map(|&x| f64::from(x)).sum::<f64>() / (1000.0 * 20.0 * 256.0);
    let most = 2.0 * 0.1325 * (28.0f64 / 64.0).powi(2);
    assert!(mean < 1.02 * most && mean > 0.85 * most, "{mean} {most}");
}

#[test]
fn pixels_come_from_the_lowest_row_up() {
    let folder = tempfile::tempdir().unwrap();
    let word = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    let images = [word(&[2051, 1, 3, 2]), vec![0, 51, 102, 153, 204, 255]].concat();
    file(folder.path(), "t10k-images-idx3-ubyte", &images);
    let labels = [word(&[2049, 1]), vec![7]].concat();
    file(folder.path(), "t10k-labels-idx1-ubyte", &labels);
    let read = |keys: &str| {
        part(
            &format!("mnist:{}{keys}", folder.path().display()),
            Split::Test,
        )
    };
    assert_eq!(values(&read(""), 0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    let up = read(",order=bottom-up");
    assert_eq!(values(&up, 0), [0.8, 1.0, 0.4, 0.6, 0.0, 0.2]);
    assert_eq!(up.labels(), Some(&[7][..]));
}

/// Atom (j, k) of the dictionary by its definition, of length edge².
fn atom(edge: usize, j: usize, k: usize) -> Vec<f64> {
    let cosine = |count: usize, j: usize| {
        let angle = |i: usize| std::f64::consts::PI * (i as f64 + 0.5) * j as f64 / count as f64;
        let plain: Vec<f64> = (0..edge).map(|i| angle(i).cos()).collect();
        let mean = plain.iter().sum::<f64>() / edge as f64;
        let shift = if j > 0 { mean } else { 0.0 };
        let moved: Vec<f64> = plain.iter().map(|x| x - shift).collect();
        let norm = moved.iter().map(|x| x * x).sum::<f64>().sqrt();
        moved.into_iter().map(|x| x / norm).collect::<Vec<f64>>()
    };
    let (down, across) = (cosine(edge, j), cosine(2 * edge, k));
    down.iter()
        .flat_map(|x| across.iter().map(move |y| x * y))
        .collect()
}

#[test]
fn sparse_signals_are_slowly_varying_atoms() {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let signals = |text: &str| -> Vec<Vec<Vec<f64>>> {
        let data = train(text);
        let film = |i: usize| -> Vec<Vec<f64>> {
            let frames = values(&data, i).chunks_exact(data.width().unwrap());
            frames
                .map(|frame| frame.iter().map(|&x| f64::from(x)).collect())
                .collect()
        };
        (0..data.len()).map(film).collect()
    };
    // One atom that never changes: its amplitude is AR(1).
    let atoms: Vec<Vec<f64>> = (0..32).map(|n| atom(4, n / 8, n % 8)).collect();
    let mut used = std::collections::BTreeSet::new();
    let (mut power, mut product, mut pairs) = (0.0, 0.0, 0.0);
    for film in signals("sparse:size=16,active=1,change=0,count=4000,frames=2") {
        let [first, second] = [&film[0], &film[1]];
        let best = (0..32).max_by(|&a, &b| {
            let share = |n: usize| dot(&atoms[n], first).abs();
            share(a).total_cmp(&share(b))
        });
        let best = best.unwrap();
        used.insert(best);
        let amplitudes = [first, second].map(|frame| {
            let amplitude = dot(&atoms[best], frame);
            let rest = frame
                .iter()
                .zip(&atoms[best])
                .map(|(x, a)| (x - amplitude * a).abs());
            assert!(rest.fold(0.0, f64::max) < 1e-6, "one atom");
            amplitude
        });
        power += amplitudes[0].powi(2);
        product += amplitudes[0] * amplitudes[1];
        pairs += 1.0;
    }
    assert_eq!(used.len(), 32);
    // Five standard errors of a mean square of 4000 normal numbers.
    assert!((power / pairs - 1.0).abs() < 5.0 * (2.0f64 / 4000.0).sqrt());
    assert!((product / pairs - 0.98).abs() < 5.0 * (2.0f64 / 4000.0).sqrt());
    // The mean square is that of the trivial answer, whether atoms change or not.
    for change in ["0", "0.3", "1"] {
        let text = format!("sparse:size=16,active=3,change={change},count=4000,frames=3");
        let last = signals(&text);
        let power = last.iter().map(|film| dot(&film[2], &film[2])).sum::<f64>() / 4000.0;
        let expected = 16.0 * source(&text).trivial_answer().unwrap().loss;
        assert!(
            (power - expected).abs() < 5.0 * (14.0f64 / 4000.0).sqrt(),
            "{change}: {power}"
        );
    }
}

/// With one number for a token many are clipped to ±1, so its answer there can be seen.
#[test]
fn the_teacher_is_one_function_for_all_parts_and_seeds() {
    let answer = |text: &str, split: Split, tokens: &[f32]| -> f32 {
        let data = part(text, split);
        let found: Vec<f32> = (0..data.len())
            .filter(|&i| values(&data, i) == tokens)
            .map(|i| answers(&data)[i])
            .collect();
        assert!(
            found.len() > 5 && found.iter().all(|y| *y == found[0]),
            "{found:?}"
        );
        found[0]
    };
    let one = "teacher:length=1,width=1,heads=9,count=500,held_out=500";
    let at_one = answer(one, Split::Train, &[1.0]);
    assert_eq!(answer(one, Split::Test, &[1.0]), at_one);
    assert_eq!(
        answer(&format!("{one},seed=5"), Split::Train, &[1.0]),
        at_one
    );
    assert_eq!(answer(one, Split::Train, &[-1.0]), -at_one);
    assert_ne!(
        answer(&format!("{one},teacher=1"), Split::Train, &[1.0]),
        at_one
    );
    // Attention over equal tokens is the token.
    let two = one.replace("length=1", "length=2");
    let equal = answer(&two, Split::Train, &[1.0, 1.0]);
    assert!((equal - at_one).abs() < 1e-6, "{equal} {at_one}");

    let data = train("teacher:count=2000");
    assert_eq!((data.length(), data.width()), (16, Some(8)));
    let norms = (0..2000).flat_map(|i| values(&data, i).chunks_exact(8));
    let norms: Vec<f32> = norms
        .map(|x| x.iter().map(|x| x * x).sum::<f32>().sqrt())
        .collect();
    assert!(norms.iter().all(|norm| *norm <= 1.0 + 1e-6));
    // P(‖z‖² ≤ 1) of eight normal numbers is 0.0018.
    let inside = norms.iter().filter(|norm| **norm < 1.0 - 1e-6).count() as f64;
    assert!((inside / 32_000.0 - 0.00175).abs() < 5.0 * (0.00175f64 / 32_000.0).sqrt());
    let spread = data.constant_answer().unwrap().loss;
    assert!(spread > 1e-3 && spread < 1.0, "{spread}");
}
