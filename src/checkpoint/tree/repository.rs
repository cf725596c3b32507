//! The sequence model of the full state-spaces/s4 repository (`SequenceModel` between encoder and
//! `SequenceDecoder`), known by its names and by the settings of the run.

use std::collections::BTreeSet;
use std::sync::Arc;

use hankelite_archive::{Archive, Setting};

use crate::checkpoint::declared::Declared;
use crate::checkpoint::layout::{Found, OwnLayout, find_layers};
use crate::checkpoint::settle::{Settings, decoder_mode};
use crate::checkpoint::tree::Recognised;
use crate::checkpoint::tree::sharing::Beside;

/// What the names of all layers have in them.
const MARK: &str = "model.layers.";
/// Tensors of LayerNorm and BatchNorm1d.
const NORM: [&str; 5] = [
    "weight",
    "bias",
    "running_mean",
    "running_var",
    "num_batches_tracked",
];
/// Settings that no tensor shows, and the values with which the network is the one that is known.
const KNOWN: [(&str, &[&str]); 5] = [
    (".norm", &["layer", "batch"]),
    (".layer.activation", &["gelu"]),
    (".layer.final_act", &["glu", "id", "none"]),
    (".layer.postact", &["glu", "id", "none"]),
    (".pool.stride", &["1"]),
];

/// Looks for the repository's model. With one tensor more or less, or with settings that ask for
/// another network, it is not that.
pub(super) fn recognise(
    archive: &Archive,
    own: Option<&Arc<OwnLayout>>,
    declared: Declared,
) -> Recognised {
    let (names, settings) = (archive.names(), archive.settings());
    let mut marked = archive.names().filter_map(|name| name.split_once(MARK));
    let Some((at, _)) = marked.next() else {
        return Recognised::Other;
    };
    let layers = find_layers(archive.names(), at, own);
    let tensors: BTreeSet<&str> = names.filter_map(|n| n.strip_prefix(at)).collect();
    let beside = Beside::of(archive, |name| {
        let inside = name.strip_prefix(at);
        inside.is_some_and(|name| is_known(name, &layers))
    });
    let strange = beside.strange.first();
    let unlike = strange
        .map(|name| format!("tensor `{name}` is none of the repository's plain model"))
        .or_else(|| missing(&tensors, &layers))
        .or_else(|| unlike_settings(settings))
        .or_else(|| unlike_pooling(settings, declared));
    match unlike {
        Some(why) => Recognised::Unlike { why },
        None => Recognised::Whole {
            at: at.to_string(),
            layers,
            others: beside.others,
        },
    }
}

fn is_known(name: &str, layers: &[Found]) -> bool {
    let map = |rest: &str| matches!(rest, "weight" | "bias");
    let Some(rest) = name.strip_prefix(MARK) else {
        let ends = ["encoder.0.", "decoder.0.output_transform."];
        let mut ends = ends.iter().filter_map(|end| name.strip_prefix(end));
        let last = name.strip_prefix(super::FINAL_NORM);
        return ends.any(map) || last.is_some_and(|part| NORM.contains(&part));
    };
    let inside = rest.split_once('.').map_or("", |(_, inside)| inside);
    let part = |head: &str| inside.strip_prefix(head);
    part("norm.norm.").is_some_and(|part| NORM.contains(&part))
        || part("layer.output_linear.0.").is_some_and(map)
        || part("layer.output_linear.").is_some_and(map)
        || layers.iter().any(|layer| layer.holds(name))
}

/// What the model needs in any case, where it is not there.
fn missing(tensors: &BTreeSet<&str>, layers: &[Found]) -> Option<String> {
    let mut needed = vec![
        "encoder.0.weight".to_string(),
        "decoder.0.output_transform.weight".to_string(),
    ];
    for (index, layer) in layers.iter().enumerate() {
        let place = format!("{MARK}{index}.");
        if !layer.place.starts_with(&format!("{place}layer.")) {
            return Some(format!("`{}` is not layer {index}", layer.place));
        }
        needed.push(format!("{place}norm.norm.weight"));
    }
    let missing = needed.into_iter().find(|name| !tensors.contains(&**name))?;
    Some(format!("there is no tensor `{missing}`"))
}

fn unlike_settings(settings: &Settings) -> Option<String> {
    settings.iter().find_map(|(key, setting)| {
        let dotted = format!(".{key}");
        let (_, values) = KNOWN.iter().find(|(ending, _)| dotted.ends_with(ending))?;
        let value = match setting {
            Setting::Text(text) => text.to_lowercase(),
            Setting::Whole(number) => number.to_string(),
            Setting::Bool(_) | Setting::Number(_) => return None,
        };
        let known = values.contains(&value.as_str());
        (!known).then(|| {
            let values = values.join(", ");
            format!("{key} = {setting} (the file's own settings), expected {values}")
        })
    })
}

/// A mode of the decoder that is no known pooling, where a person does not know better.
fn unlike_pooling(settings: &Settings, declared: Declared) -> Option<String> {
    if declared.pooling.is_some() || declared.per_step {
        return None;
    }
    let (key, mode) = decoder_mode(settings)?;
    (!matches!(mode, "last" | "pool")).then(|| {
        format!(
            "{key} = \"{mode}\" (the file's own settings), expected pool or last (--pooling overrides \
             it)"
        )
    })
}
