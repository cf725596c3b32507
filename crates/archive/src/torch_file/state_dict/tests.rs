//! What is found in a pickle, and what is refused.

use super::*;
use crate::pickle::writer::PickleWriter;

/// Writes a tensor into a pickle as PyTorch does.
pub(in crate::torch_file) struct Sample {
    pub(in crate::torch_file) class: &'static str,
    pub(in crate::torch_file) key: &'static str,
    pub(in crate::torch_file) offset: usize,
    pub(in crate::torch_file) shape: Vec<usize>,
    pub(in crate::torch_file) strides: Vec<usize>,
    pub(in crate::torch_file) flag: Option<&'static str>,
}

impl Sample {
    /// Three consecutive `f32` in record 0.
    pub(in crate::torch_file) fn new() -> Sample {
        Sample {
            class: "FloatStorage",
            key: "0",
            offset: 0,
            shape: vec![3],
            strides: vec![1],
            flag: None,
        }
    }

    pub(in crate::torch_file) fn write(&self, pickle: &mut PickleWriter) {
        pickle.global("torch._utils", "_rebuild_tensor_v2");
        pickle.instruction(b'(');
        pickle.instruction(b'(');
        pickle.text("storage");
        pickle.global("torch", self.class);
        pickle.text(self.key);
        pickle.text("cpu");
        pickle.int(3);
        pickle.instruction(b't');
        pickle.instruction(b'Q');
        pickle.size(self.offset);
        pickle.sizes(&self.shape);
        pickle.sizes(&self.strides);
        pickle.plain(&Plain::Bool(false));
        pickle.empty_dict(true);
        let entries = self.flag.map(|flag| (text(flag), Plain::Bool(true)));
        pickle.plain(&Plain::Dict {
            ordered: false,
            entries: entries.into_iter().collect(),
        });
        pickle.instruction(b't');
        pickle.instruction(b'R');
    }
}

fn text(text: &str) -> Plain {
    Plain::Text(text.to_owned())
}

/// A key and what writes its value.
type Entry<'a> = (&'a str, &'a dyn Fn(&mut PickleWriter));

/// A dictionary whose values are written by the closures.
fn dict(pickle: &mut PickleWriter, entries: &[Entry<'_>]) {
    pickle.empty_dict(false);
    pickle.instruction(b'(');
    for (key, value) in entries {
        pickle.text(key);
        value(pickle);
    }
    pickle.instruction(b'u');
}

fn tensor(pickle: &mut PickleWriter) {
    Sample::new().write(pickle);
}

fn weights(pickle: &mut PickleWriter) {
    dict(pickle, &[("w", &tensor)]);
}

/// Reads what the closure writes. Record 0 has twelve bytes.
fn read(build: impl Fn(&mut PickleWriter)) -> Result<StateDict, ArchiveError> {
    read_set(None, build)
}

/// The same of one entry of the top object.
fn read_set(
    set: Option<&str>,
    build: impl Fn(&mut PickleWriter),
) -> Result<StateDict, ArchiveError> {
    let mut pickle = PickleWriter::new();
    build(&mut pickle);
    let record = Record {
        name: "x/data/0".to_owned(),
        index: 0,
        length: 12,
    };
    let records = BTreeMap::from([(record.name.clone(), record)]);
    StateDict::read(
        Path::new("x.pth"),
        &pickle.finish(),
        (&records, "x/"),
        (Root::StateDict, set),
    )
}

fn read_dict(entries: &[Entry<'_>]) -> Result<StateDict, ArchiveError> {
    read(|pickle| dict(pickle, entries))
}

fn read_sample(sample: &Sample) -> Result<StateDict, ArchiveError> {
    read_dict(&[("w", &|pickle| sample.write(pickle))])
}

fn names(state_dict: &StateDict) -> Vec<&str> {
    state_dict.tensors.keys().map(String::as_str).collect()
}

#[test]
fn a_flat_state_dict_has_no_wrapper() {
    let flat = read(weights).unwrap();
    assert_eq!(names(&flat), ["w"]);
    assert_eq!(flat.wrapper, None);
}

#[test]
fn the_most_telling_wrapper_wins() {
    let other = |pickle: &mut PickleWriter| dict(pickle, &[("v", &tensor)]);
    let cases: [(&str, &str); 4] = [
        ("model_state_dict", "state_dict"),
        ("state_dict", "model"),
        ("model", "net"),
        ("network", "ema"),
    ];
    for (first, second) in cases {
        let found = read_dict(&[(second, &other), (first, &weights)]).unwrap();
        assert_eq!(found.wrapper.as_deref(), Some(first));
        assert_eq!(names(&found), ["w"]);
        let note = format!(
            "`{second}` (1 tensor) is not part of the model and is left out of what is written"
        );
        assert_eq!(found.notes, [note]);
    }
}

#[test]
fn the_only_dictionary_of_tensors_is_the_wrapper_whatever_its_name() {
    let number = |pickle: &mut PickleWriter| pickle.int(3);
    let found = read_dict(&[("epoch", &number), ("ema", &weights)]).unwrap();
    assert_eq!(found.wrapper.as_deref(), Some("ema"));
}

#[test]
fn a_loss_beside_a_known_wrapper_is_no_state_dict() {
    let found = read_dict(&[("model", &weights), ("loss", &tensor)]).unwrap();
    assert_eq!(names(&found), ["w"]);
    assert_eq!(found.notes.len(), 1);
}

#[test]
fn wrappers_inside_wrappers_are_followed() {
    let inner = |pickle: &mut PickleWriter| dict(pickle, &[("state_dict", &weights)]);
    let found = read_dict(&[("model", &inner)]).unwrap();
    assert_eq!(found.wrapper.as_deref(), Some("model.state_dict"));
}

#[test]
fn nested_dictionaries_give_dotted_names() {
    let by_number = |pickle: &mut PickleWriter| {
        pickle.empty_dict(false);
        pickle.int(0);
        tensor(pickle);
        pickle.instruction(b's');
    };
    let found = read_dict(&[("a", &tensor), ("b", &weights), ("c", &by_number)]).unwrap();
    assert_eq!(names(&found), ["a", "b.w", "c.0"]);
}

#[test]
fn several_dictionaries_of_tensors_are_listed() {
    let error = read_dict(&[("a", &weights), ("b", &weights)]).unwrap_err();
    assert!(matches!(&error, ArchiveError::SeveralStateDicts { found, .. } if found == "`a`, `b`"));
}

#[test]
fn one_of_several_sets_of_weights_is_read_by_its_name() {
    let twice = |pickle: &mut PickleWriter| dict(pickle, &[("v", &tensor), ("w", &tensor)]);
    let wrapped = |pickle: &mut PickleWriter| dict(pickle, &[("model", &twice)]);
    let file = |pickle: &mut PickleWriter| {
        dict(
            pickle,
            &[
                ("model", &weights),
                ("optimizer", &weights),
                ("ema", &wrapped),
            ],
        );
    };
    let set =
        |name: &str, tensors, read| WeightSet::new(name.into(), tensors, 12 * tensors as u64, read);
    let first = read(file).unwrap();
    assert_eq!(names(&first), ["w"]);
    assert_eq!(first.sets, [set("ema", 2, false), set("model", 1, true)]);
    let other = read_set(Some("ema"), file).unwrap();
    assert_eq!(other.wrapper.as_deref(), Some("ema.model"));
    assert_eq!(names(&other), ["v", "w"]);
    assert_eq!(other.sets, [set("ema", 2, true), set("model", 1, false)]);
    let wrong = read_set(Some("mean"), file).unwrap_err().to_string();
    assert!(
        wrong.contains("no set of weights is called `mean`"),
        "{wrong}"
    );
    assert!(wrong.contains("expected one of `ema`, `model`"), "{wrong}");
    assert!(read(weights).unwrap().sets.is_empty());
    // Where none has a usual name, one has to be chosen.
    let either = |pickle: &mut PickleWriter| dict(pickle, &[("a", &weights), ("b", &weights)]);
    assert_eq!(names(&read_set(Some("b"), either).unwrap()), ["w"]);
}

#[test]
fn without_tensors_the_keys_are_listed() {
    let number = |pickle: &mut PickleWriter| pickle.int(3);
    let error = read_dict(&[("acc", &number), ("optimizer", &weights)]).unwrap_err();
    let expected = "`acc`, `optimizer`";
    assert!(matches!(&error, ArchiveError::NoTensors { found, .. } if found == expected));
}

#[test]
fn a_top_object_that_is_no_dictionary_is_named() {
    let error = read(|pickle| pickle.int(3)).unwrap_err();
    assert!(matches!(error, ArchiveError::NotADict { found: "int", .. }));
    let error = read(tensor).unwrap_err();
    assert!(matches!(
        error,
        ArchiveError::NotADict {
            found: "Tensor",
            ..
        }
    ));
}

#[test]
fn plain_data_are_kept_and_objects_are_noted() {
    let number = |pickle: &mut PickleWriter| pickle.int(3);
    let object = |pickle: &mut PickleWriter| pickle.global("torch", "float32");
    let found = read_dict(&[
        ("epoch", &number),
        ("dtype", &object),
        ("model", &weights),
        ("optimizer_state_dict", &weights),
    ]);
    let found = found.unwrap();
    let kept: Vec<&Plain> = found.document.items.iter().map(|(key, _)| key).collect();
    assert_eq!(kept, [&text("epoch"), &text("model")]);
    let notes = [
        "`dtype` holds Python objects and is left out of what is written",
        "`optimizer_state_dict` (1 tensor) is not part of the model and is left out of what is written",
    ];
    assert_eq!(found.notes, notes);
}

/// `getattr(owner, name)`, as Python names a function that stands in a class.
fn attribute(pickle: &mut PickleWriter, owner: &dyn Fn(&mut PickleWriter), name: &str) {
    pickle.global("__builtin__", "getattr");
    pickle.instruction(b'(');
    owner(pickle);
    pickle.text(name);
    [b't', b'R']
        .into_iter()
        .for_each(|byte| pickle.instruction(byte));
}

/// The settings that are written of those that are read.
fn settings_kept(found: &StateDict) -> &Plain {
    let mut items = found.document.items.iter();
    let settings = items.find_map(|(key, item)| match item {
        Item::Plain(plain) if *key == text("hyper_parameters") => Some(plain),
        _ => None,
    });
    settings.expect("the settings are kept")
}

#[test]
fn settings_that_are_no_plain_data_are_left_out_one_by_one() {
    let number = |pickle: &mut PickleWriter| pickle.int(3);
    let path = |pickle: &mut PickleWriter| {
        pickle.global("pathlib", "PosixPath");
        pickle.plain(&Plain::Tuple(vec![text("data")]));
        pickle.instruction(b'R');
    };
    let class = |pickle: &mut PickleWriter| pickle.global("torch.nn.modules.activation", "ReLU");
    let list = |pickle: &mut PickleWriter| {
        pickle.instruction(b']');
        class(pickle);
        pickle.instruction(b'a');
    };
    let layer = |pickle: &mut PickleWriter| dict(pickle, &[("act", &class), ("order", &number)]);
    let settings = |pickle: &mut PickleWriter| {
        let entries: [Entry<'_>; 5] = [
            ("data_dir", &path),
            ("d_model", &number),
            ("layer", &layer),
            ("loss_weights", &tensor),
            ("acts", &list),
        ];
        dict(pickle, &entries);
    };
    let found = read_dict(&[("state_dict", &weights), ("hyper_parameters", &settings)]).unwrap();
    let kept = |entries: Vec<(Plain, Plain)>| Plain::Dict {
        ordered: false,
        entries,
    };
    let layer = kept(vec![(text("order"), Plain::Int(3))]);
    let expected = kept(vec![
        (text("d_model"), Plain::Int(3)),
        (text("layer"), layer),
    ]);
    assert_eq!(*settings_kept(&found), expected);
    let note = "`hyper_parameters.data_dir` (pathlib.PosixPath), `hyper_parameters.layer.act` \
                (torch.nn.modules.activation.ReLU), `hyper_parameters.loss_weights` (a tensor), \
                `hyper_parameters.acts` (list) are left out of what is written";
    assert_eq!(found.notes[0], note);
    assert_eq!(found.settings["layer.order"], Setting::Whole(3));
}

#[test]
fn functions_among_the_settings_are_named_and_left_out() {
    let number = |pickle: &mut PickleWriter| pickle.int(3);
    let class = |pickle: &mut PickleWriter| pickle.global("torch._C", "_VariableFunctionsClass");
    let tanh = |pickle: &mut PickleWriter| attribute(pickle, &class, "tanh");
    let range = |pickle: &mut PickleWriter| {
        pickle.global("__builtin__", "xrange");
        pickle.plain(&Plain::Tuple(vec![Plain::Int(0), Plain::Int(3)]));
        pickle.instruction(b'R');
    };
    let length = |pickle: &mut PickleWriter| pickle.global("builtins", "len");
    let settings = |pickle: &mut PickleWriter| {
        let entries: [Entry<'_>; 4] = [
            ("act", &tanh),
            ("layers", &range),
            ("size", &length),
            ("d_model", &number),
        ];
        dict(pickle, &entries);
    };
    let found = read_dict(&[("state_dict", &weights), ("hyper_parameters", &settings)]).unwrap();
    let expected = Plain::Dict {
        ordered: false,
        entries: vec![(text("d_model"), Plain::Int(3))],
    };
    assert_eq!(*settings_kept(&found), expected);
    let names = "`hyper_parameters.act` (torch._C._VariableFunctionsClass.tanh), \
                 `hyper_parameters.layers` (__builtin__.xrange), `hyper_parameters.size` \
                 (builtins.len) are left out of what is written";
    assert_eq!(found.notes[0], names);
}

#[test]
fn an_attribute_of_anything_but_a_class_is_refused() {
    let words = |pickle: &mut PickleWriter| pickle.text("words");
    let class = |pickle: &mut PickleWriter| pickle.global("project", "Custom");
    let of_a_value = |pickle: &mut PickleWriter| attribute(pickle, &words, "format");
    let of_python = |pickle: &mut PickleWriter| attribute(pickle, &class, "__globals__");
    let eval = |pickle: &mut PickleWriter| pickle.global("builtins", "eval");
    let settings: [&dyn Fn(&mut PickleWriter); 3] = [&of_a_value, &of_python, &eval];
    let names = [
        "__builtin__.getattr",
        "__builtin__.getattr",
        "builtins.eval",
    ];
    for (setting, expected) in settings.into_iter().zip(names) {
        let settings = |pickle: &mut PickleWriter| dict(pickle, &[("act", setting)]);
        let error = read_dict(&[("w", &tensor), ("hyper_parameters", &settings)]).unwrap_err();
        let found = matches!(&error, ArchiveError::ForeignCode { name, .. } if name == expected);
        assert!(found, "{error}");
    }
}

#[test]
fn a_tensor_in_a_list_is_not_skipped() {
    let list = |pickle: &mut PickleWriter| {
        pickle.instruction(b']');
        tensor(pickle);
        pickle.instruction(b'a');
    };
    let model = |pickle: &mut PickleWriter| dict(pickle, &[("w", &tensor), ("l", &list)]);
    let error = read_dict(&[("model", &model)]).unwrap_err();
    assert!(matches!(
        error,
        ArchiveError::TensorsInside { found: "list", .. }
    ));
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let error = read_dict(&[("a.w", &tensor), ("a", &weights)]).unwrap_err();
    assert!(matches!(error, ArchiveError::DuplicateTensor { tensor, .. } if tensor == "a.w"));
}

#[test]
fn a_tensor_under_a_key_that_is_no_name_is_refused() {
    let error = read(|pickle| {
        pickle.empty_dict(false);
        pickle.plain(&Plain::None);
        tensor(pickle);
        pickle.instruction(b's');
    });
    let error = error.unwrap_err();
    assert!(matches!(
        error,
        ArchiveError::TensorKey { found: "None", .. }
    ));
}

#[test]
fn a_whole_module_is_refused_by_the_name_of_its_class() {
    let error = read(|pickle| pickle.global("torch.nn.modules.linear", "Linear")).unwrap_err();
    let expected = "torch.nn.modules.linear.Linear";
    assert!(matches!(&error, ArchiveError::ForeignCode { name, .. } if name == expected));
    assert!(error.to_string().contains("never runs code"), "{error}");
}

#[test]
fn an_unknown_class_among_the_weights_is_left_out_unless_it_may_be_a_tensor() {
    let custom = |pickle: &mut PickleWriter| pickle.global("project.blocks", "Custom");
    let found = read_dict(&[("w", &tensor), ("x", &custom)]).unwrap();
    assert_eq!(found.tensors.len(), 1);
    let note = "`x` holds Python objects and is left out of what is written";
    assert_eq!(found.notes, [note]);
    let unknown = |pickle: &mut PickleWriter| {
        pickle.global("torch._tensor", "_rebuild_from_type_v2");
    };
    let error = read_dict(&[("w", &tensor), ("x", &unknown)]).unwrap_err();
    let expected = "torch._tensor._rebuild_from_type_v2";
    assert!(matches!(&error, ArchiveError::ForeignCode { name, .. } if name == expected));
    // Beside the weights too, what runs programs is not left out but refused.
    let system = |pickle: &mut PickleWriter| pickle.global("subprocess", "Popen");
    let error = read_dict(&[("w", &tensor), ("x", &system)]).unwrap_err();
    assert!(matches!(&error, ArchiveError::ForeignCode { name, .. } if name.ends_with("Popen")));
}

#[test]
fn parameters_are_unwrapped() {
    let parameter = |pickle: &mut PickleWriter| {
        pickle.global("torch._utils", "_rebuild_parameter");
        pickle.instruction(b'(');
        tensor(pickle);
        pickle.plain(&Plain::Bool(true));
        pickle.empty_dict(true);
        pickle.instruction(b't');
        pickle.instruction(b'R');
    };
    let found = read_dict(&[("w", &parameter)]).unwrap();
    assert_eq!(found.tensors["w"].shape, [3]);
}

#[test]
fn views_must_lie_within_their_record() {
    let huge = usize::MAX / 2;
    let cases: [(usize, Vec<usize>, Vec<usize>); 7] = [
        (1, vec![3], vec![1]),
        (0, vec![4], vec![1]),
        (0, vec![2, 2], vec![2, 2]),
        (huge, vec![1], vec![1]),
        (0, vec![3], vec![huge]),
        (0, vec![huge, huge], vec![0, 0]),
        (0, vec![huge, huge, huge], vec![1, 1, 1]),
    ];
    for (offset, shape, strides) in cases {
        let sample = Sample {
            offset,
            shape,
            strides,
            ..Sample::new()
        };
        let error = read_sample(&sample).unwrap_err();
        assert!(
            matches!(error, ArchiveError::OutsideRecord { .. }),
            "{error}"
        );
    }
    let empty = Sample {
        offset: huge,
        shape: vec![0, huge],
        strides: vec![huge, 1],
        ..Sample::new()
    };
    assert_eq!(read_sample(&empty).unwrap().tensors["w"].span, 0);
}

#[test]
fn an_expansion_to_more_than_memory_is_refused() {
    for extent in [1 << (usize::BITS / 2 + 8), 1 << 24] {
        let sample = Sample {
            shape: vec![extent],
            strides: vec![0],
            ..Sample::new()
        };
        let error = read_sample(&sample).unwrap_err();
        assert!(matches!(error, ArchiveError::TensorForm { .. }), "{error}");
    }
}

/// Stores the value on the stack as an entry of the memo and takes it off.
fn set_aside(pickle: &mut PickleWriter, entry: u8) {
    [b'q', entry, b'0']
        .into_iter()
        .for_each(|byte| pickle.instruction(byte));
}

fn recall(pickle: &mut PickleWriter, entry: u8) {
    pickle.instruction(b'h');
    pickle.instruction(entry);
}

fn is_too_large(error: &ArchiveError) -> bool {
    let source = PickleError::TooLarge;
    matches!(error, ArchiveError::Pickle { source: found, .. }
        if found.to_string() == source.to_string())
}

#[test]
fn dictionaries_of_tensors_doubled_again_and_again_are_refused() {
    let doubled = |pickle: &mut PickleWriter| {
        weights(pickle);
        for _ in 0..18 {
            set_aside(pickle, 0);
            let shared = |pickle: &mut PickleWriter| recall(pickle, 0);
            dict(pickle, &[("x", &shared), ("y", &shared)]);
        }
        set_aside(pickle, 0);
        dict(pickle, &[("model", &|pickle| recall(pickle, 0))]);
    };
    let error = read(doubled).unwrap_err();
    assert!(is_too_large(&error), "{error}");
}

#[test]
fn a_long_list_under_many_keys_is_not_walked_through_for_each() {
    let long = |pickle: &mut PickleWriter| {
        pickle.instruction(b'(');
        tensor(pickle);
        pickle.plain(&Plain::None);
        set_aside(pickle, 1);
        (0..20_000).for_each(|_| recall(pickle, 1));
        pickle.instruction(b't');
        set_aside(pickle, 0);
        pickle.empty_dict(false);
        pickle.instruction(b'(');
        pickle.text("model");
        weights(pickle);
        for index in 0..500 {
            pickle.int(index);
            recall(pickle, 0);
        }
        pickle.instruction(b'u');
    };
    let error = read(long).unwrap_err();
    assert!(is_too_large(&error), "{error}");
}

#[test]
fn notes_and_names_stay_short_however_long_the_keys() {
    let key = "k".repeat(5000);
    let found = read_dict(&[
        ("model", &weights),
        (key.as_str(), &|pickle| {
            pickle.instruction(b'(');
            tensor(pickle);
            pickle.instruction(b't');
        }),
    ]);
    let notes = found.unwrap().notes;
    assert!(notes.len() == 1 && notes[0].len() < 200, "{notes:?}");
    let error = read_dict(&[(key.as_str(), &tensor)]).unwrap_err();
    assert!(matches!(error, ArchiveError::TensorForm { .. }), "{error}");
    assert!(error.to_string().len() < 300, "{error}");
}

#[test]
fn elements_of_an_unsupported_type_are_refused_with_the_tensor_named() {
    for class in ["ComplexDoubleStorage", "QInt8Storage"] {
        let sample = Sample {
            class,
            ..Sample::new()
        };
        let error = read_sample(&sample).unwrap_err();
        let expected = matches!(&error, ArchiveError::TensorStorage { tensor, found, .. }
            if tensor == "w" && found.ends_with(class));
        assert!(expected, "{error}");
    }
}

#[test]
fn a_missing_record_is_named() {
    let sample = Sample {
        key: "7",
        ..Sample::new()
    };
    let error = read_sample(&sample).unwrap_err();
    assert!(matches!(error, ArchiveError::MissingRecord { record, .. } if record == "x/data/7"));
}

#[test]
fn a_conjugate_of_real_numbers_is_refused() {
    let sample = Sample {
        flag: Some("conj"),
        ..Sample::new()
    };
    let error = read_sample(&sample).unwrap_err();
    assert!(matches!(error, ArchiveError::TensorForm { .. }));
}

#[test]
fn a_dictionary_that_holds_itself_is_refused() {
    let error = read(|pickle| {
        dict(pickle, &[("w", &tensor)]);
        pickle.instruction(b'2');
        pickle.text("again");
        pickle.instruction(b'q');
        pickle.instruction(0);
        pickle.instruction(b'0');
        pickle.instruction(b'2');
        // Stack: dict, dict, dict; then key and the dict itself.
        pickle.instruction(b'q');
        pickle.instruction(1);
        pickle.instruction(b'h');
        pickle.instruction(0);
        pickle.instruction(b'h');
        pickle.instruction(1);
        pickle.instruction(b's');
    });
    let error = error.unwrap_err();
    let source = PickleError::TooDeep.to_string();
    let expected = matches!(&error, ArchiveError::Pickle { source: found, .. }
        if found.to_string() == source);
    assert!(expected, "{error}");
}

#[test]
fn no_damaged_byte_can_upset_the_reading() {
    let mut pickle = PickleWriter::new();
    let number = |pickle: &mut PickleWriter| pickle.int(3);
    dict(&mut pickle, &[("model", &weights), ("epoch", &number)]);
    let pickle = pickle.finish();
    let record = Record {
        name: "data/0".to_owned(),
        index: 0,
        length: 12,
    };
    let records = BTreeMap::from([(record.name.clone(), record)]);
    let path = Path::new("x.pth");
    StateDict::read(path, &pickle, (&records, ""), (Root::StateDict, None)).unwrap();
    for at in 0..pickle.len() {
        for byte in 0..=u8::MAX {
            let mut damaged = pickle.clone();
            damaged[at] = byte;
            let _either_way =
                StateDict::read(path, &damaged, (&records, ""), (Root::StateDict, None));
        }
    }
}
