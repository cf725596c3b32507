//! Finding the state space layers of a file by the names of their tensors, wherever they stand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::checkpoint::declared::{Declared, Discretisation, DssVersion};
use crate::checkpoint::layout::annotated::Annotated;
use crate::checkpoint::layout::annotated_dplr::AnnotatedDplr;
use crate::checkpoint::layout::attenuate::Attenuate;
use crate::checkpoint::layout::bigs::{self, Bigs};
use crate::checkpoint::layout::centaurus::Centaurus;
use crate::checkpoint::layout::delayed_lru::DelayedLru;
use crate::checkpoint::layout::dplr::Dplr;
use crate::checkpoint::layout::ema::Ema;
use crate::checkpoint::layout::flow_state::FlowState;
use crate::checkpoint::layout::hyena::{Hyena, HyenaForm};
use crate::checkpoint::layout::laughing_hyena::LaughingHyena;
use crate::checkpoint::layout::lin_oss::LinOss;
use crate::checkpoint::layout::lrnnx::Lrnnx;
use crate::checkpoint::layout::lru::Lru;
use crate::checkpoint::layout::lru_rec::LruRec;
use crate::checkpoint::layout::mega_heads::MegaHeads;
use crate::checkpoint::layout::megalodon::Megalodon;
use crate::checkpoint::layout::mimo_dplr::MimoDplr;
use crate::checkpoint::layout::own::{OwnLayer, OwnLayout};
use crate::checkpoint::layout::s4_repo::{S4Repo, Version};
use crate::checkpoint::layout::s5::S5;
use crate::checkpoint::layout::{Dss, Layout, S4d};

/// A family, as far as names show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::checkpoint) enum Kind {
    S4d,
    S4Repo(Version),
    Dss,
    AnnotatedS4d,
    AnnotatedDss,
    /// The same S4D with one kernel for all channels.
    Bigs,
    /// S4 in diagonal-plus-low-rank form, of annotated-s4.
    AnnotatedDplr,
    /// S4 in diagonal-plus-low-rank form, with one system for all channels.
    MimoDplr,
    S5 {
        torch: bool,
    },
    Lru,
    /// LRU whose output sees the states before the sample at hand (neural-ssm).
    DelayedLru,
    /// Oscillators, with or without damping.
    LinOss,
    /// Cosines with one set of modes for all inputs and outputs (aTENNuate).
    Attenuate,
    /// S5 of lrnnx.
    Lrnnx,
    /// Cosines in groups (Centaurus in lrnnx).
    Centaurus,
    /// S5 with a step for each mode.
    FlowState,
    /// LRU in one tensor, its maps in modules of their own, with a constant input (LRURec).
    LruRec,
    /// The moving average of MEGA, with the names of fairseq or of transformers.
    Ema {
        transformers: bool,
    },
    /// The moving average of mega-pytorch, with one set of poles for all channels.
    MegaHeads,
    /// The complex moving average of Megalodon.
    Megalodon,
    /// The modal filters of StripedHyena, Evo and Evo 2.
    Hyena(HyenaForm),
    /// Modal filters with a first sample of their own.
    LaughingHyena,
    /// As a person described it.
    Own,
    /// S4 in diagonal-plus-low-rank form.
    Dplr {
        v4: bool,
    },
}

impl Kind {
    /// A tensor that gives the family away.
    pub(in crate::checkpoint) fn mark(self) -> &'static str {
        let mark = MARKS.iter().find(|(kind, _)| *kind == self);
        mark.and_then(|(_, names)| names.first())
            .copied()
            .unwrap_or_default()
    }

    /// The family of a place whose tensors have the names of this one.
    fn at(self, place: &str) -> Self {
        let module = place.strip_suffix("kernel.").unwrap_or(place);
        let module = module.trim_end_matches(['.', '/']);
        let module = module.rsplit(['.', '/']).next().unwrap_or(module);
        match self {
            Kind::AnnotatedS4d if bigs::MODULES.contains(&module) => Kind::Bigs,
            kind => kind,
        }
    }

    /// Tensors, or whole modules, at the place of a kernel that are not of it: they are copied.
    fn beside(self) -> &'static [&'static str] {
        match self {
            Kind::Hyena(_) => &["short_filter_weight", "short_filter_bias", "t"],
            Kind::FlowState => &["output_gate."],
            Kind::LruRec => &["out_proj.bias", "layer_norm."],
            // lrnnx has the tensors of the kernel in the layer itself.
            Kind::S4Repo(Version::V4) | Kind::Dplr { v4: true } => &[
                "input_linear.",
                "input_gate.",
                "output_gate.",
                "output_linear.",
            ],
            _ => &[],
        }
    }

    /// Tensors of a kernel that stand in modules below its place.
    fn below(self) -> &'static [&'static str] {
        match self {
            Kind::LruRec => &["in_proj.weight", "in_proj.bias", "out_proj.weight"],
            _ => &[],
        }
    }
}

/// One layer of a file.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Found {
    /// What the names of its tensors start with, e.g. `s4_layers.0.kernel.`.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) kind: Kind,
    /// Name of D, where there is one.
    pub(in crate::checkpoint) feedthrough: Option<String>,
    /// The description of the layer, where a person gave one.
    pub(in crate::checkpoint) own: Option<Arc<OwnLayout>>,
}

/// For each family the tensors that give it away; the first that are all there decide.
pub(super) const MARKS: [(Kind, &[&str]); 36] = [
    (Kind::Dplr { v4: true }, &["P", "A_real", "inv_dt"]),
    (Kind::Dplr { v4: false }, &["P", "inv_w_real", "log_dt"]),
    (Kind::S4d, &["log_A_real", "log_dt"]),
    (
        Kind::S4Repo(Version::V2),
        &["log_w_real", "w_imag", "log_dt"],
    ),
    (Kind::S4Repo(Version::V3), &["inv_A_real", "log_dt"]),
    (Kind::S4Repo(Version::V4), &["A_real", "inv_dt"]),
    (Kind::AnnotatedDss, &["Lambda_re", "W", "log_step"]),
    (Kind::AnnotatedS4d, &["A_re", "log_step"]),
    (Kind::Bigs, &["A_re", "log_step"]),
    (Kind::AnnotatedDplr, &["Lambda_re", "P", "B", "log_step"]),
    (Kind::MimoDplr, &["Lambda", "P", "B", "log_step"]),
    (Kind::MimoDplr, &["Lambda", "P", "B", "log_dt"]),
    (Kind::MimoDplr, &["Lambda_re", "P", "B", "log_dt"]),
    (Kind::S5 { torch: false }, &["Lambda_re", "log_step"]),
    (Kind::S5 { torch: true }, &["Lambda", "log_step"]),
    (Kind::Dss, &["W", "log_dt"]),
    (Kind::Dss, &["Lambda", "log_dt"]),
    (Kind::Dss, &["Lambda_log_neg_re", "log_dt"]),
    (
        Kind::FlowState,
        &["log_Lambda_real", "Lambda_imag", "log_Delta"],
    ),
    (Kind::DelayedLru, &["nu_log", "theta_log", "Bp"]),
    (Kind::Lru, &["nu_log", "theta_log"]),
    (Kind::LinOss, &["A_diag", "steps"]),
    (Kind::LinOss, &["A_diag", "dt"]),
    (
        Kind::LruRec,
        &["params_log", "in_proj.weight", "out_proj.weight"],
    ),
    (
        Kind::Ema {
            transformers: false,
        },
        &["delta", "alpha", "beta", "gamma"],
    ),
    (
        Kind::Ema { transformers: true },
        &["damping_factor", "decay_factor", "kernel_projection_matrix"],
    ),
    (
        Kind::MegaHeads,
        &["alphas", "dampen_factors", "expansion", "reduction"],
    ),
    (Kind::Megalodon, &["alpha", "delta", "theta", "gamma"]),
    (Kind::Megalodon, &["alpha", "delta", "theta", "gamma_real"]),
    (Kind::Hyena(HyenaForm::Complex), &["poles", "residues"]),
    (
        Kind::Hyena(HyenaForm::Logarithms),
        &["log_poles", "residues"],
    ),
    (Kind::Hyena(HyenaForm::Training), &["p", "gamma", "R"]),
    (Kind::LaughingHyena, &["r", "theta", "R_re", "R_im", "h_0"]),
    (Kind::Centaurus, &["A", "B", "C", "log_delta"]),
    (Kind::Lrnnx, &["A", "B", "C", "D", "log_dt"]),
    (Kind::Attenuate, &["A", "B", "C", "log_dt"]),
];

/// The layers of a file whose names start with `prefix`, in the order in which people count; names
/// are relative to it. Where a person described layers, only such are looked for.
pub(in crate::checkpoint) fn find_layers<'a>(
    names: impl Iterator<Item = &'a str>,
    prefix: &str,
    own: Option<&Arc<OwnLayout>>,
) -> Vec<Found> {
    let inside = names.filter_map(|name| name.strip_prefix(prefix));
    let names: BTreeSet<&str> = inside.collect();
    let places: BTreeSet<&str> = names.iter().map(|name| place_of(name)).collect();
    let mut found: Vec<Found> = places
        .into_iter()
        .filter_map(|place| {
            let has = |tensor: &&str| names.contains(format!("{place}{tensor}").as_str());
            let kind = match own {
                Some(own) => own.marks().iter().all(has).then_some(Kind::Own),
                None => {
                    let mut marked = MARKS.iter();
                    let marked = marked.find(|(_, marks)| marks.iter().all(has));
                    marked.map(|(kind, _)| kind.at(place))
                }
            };
            // Other families have those tensors and more; what one of them lacks is named elsewhere.
            let short = |kind: &Kind| matches!(kind, Kind::Attenuate | Kind::Lrnnx);
            let kind = kind.filter(|kind| !short(kind) || !has(&"A_imag"))?;
            Some(Found {
                place: place.to_string(),
                kind,
                feedthrough: feedthrough(&names, place, kind),
                own: own.cloned(),
            })
        })
        .collect();
    found.extend(damaged(&names, &found));
    found.sort_by_cached_key(|found| counted(&found.place));
    found
}

/// Places that have some of the tensors of a described layer, with those that they lack: at most five, the
/// nearest first.
pub(in crate::checkpoint) fn nearly<'a>(
    names: impl Iterator<Item = &'a str>,
    own: &OwnLayout,
) -> Vec<(String, Vec<String>)> {
    let names: BTreeSet<&str> = names.collect();
    let places: BTreeSet<&str> = names.iter().map(|name| place_of(name)).collect();
    let marks = own.marks();
    let lacking = places.into_iter().filter_map(|place| {
        let lacks = |mark: &&&str| !names.contains(format!("{place}{mark}").as_str());
        let lacking: Vec<String> = marks.iter().filter(lacks).map(|m| m.to_string()).collect();
        (lacking.len() < marks.len()).then(|| (place.to_string(), lacking))
    });
    let mut nearly: Vec<_> = lacking.collect();
    nearly.sort_by_key(|(place, lacking)| (lacking.len(), counted(place)));
    nearly.truncate(5);
    nearly
}

/// Layers that lack tensors which another of the same numbered name has, and have nothing else: they
/// are read as what that one is, and what they lack is named.
fn damaged(names: &BTreeSet<&str>, found: &[Found]) -> Vec<Found> {
    let mut known: BTreeMap<String, (&Found, BTreeSet<&str>)> = BTreeMap::new();
    for layer in found {
        let (_, tensors) = known
            .entry(unnumbered(&layer.place))
            .or_insert((layer, BTreeSet::new()));
        let own = names.iter().filter(|name| layer.is_kernel(name));
        tensors.extend(own.map(|name| &name[layer.place.len()..]));
    }
    let places: BTreeSet<&str> = names.iter().map(|name| place_of(name)).collect();
    let missed = places.into_iter().filter_map(|place| {
        let (like, tensors) = known.get(&unnumbered(place))?;
        let mut own = names.iter().filter(|name| place_of(name) == place);
        let all = own.all(|name| tensors.contains(&name[place.len()..]));
        let met = found.iter().any(|layer| layer.place == place);
        (all && !met).then(|| Found {
            place: place.to_string(),
            feedthrough: feedthrough(names, place, like.kind),
            ..(*like).clone()
        })
    });
    missed.collect()
}

/// A name without its numbers.
fn unnumbered(name: &str) -> String {
    counted(name)
        .into_iter()
        .map(|(text, _)| text + "#")
        .collect()
}

/// Everything up to the last separator, which is a dot, or a slash in flax.
fn place_of(name: &str) -> &str {
    name.rfind(['.', '/']).map_or("", |at| &name[..=at])
}

/// What may stand between a layer and the tensors of its kernel: the kernel's own name, and what wrappers
/// of a part (torch.compile, DataParallel) put into names.
const AROUND_KERNEL: [&str; 3] = ["kernel.", "_orig_mod.", "module."];

/// The map of a gate between the output of a system and D.
const GATE: &str = "output_gate.weight";

/// What holds K[0] of Laughing Hyena.
const FIRST_SAMPLE: &str = "h_0";

/// D beside the kernel, or around it.
fn feedthrough(names: &BTreeSet<&str>, place: &str, kind: Kind) -> Option<String> {
    if let Kind::Ema { .. } | Kind::Megalodon = kind {
        let skip = match kind {
            Kind::Ema { transformers: true } => "residual_weight",
            _ => "omega",
        };
        let skip = format!("{place}{skip}");
        if names.contains(skip.as_str()) {
            return Some(skip);
        }
    }
    if kind == Kind::Hyena(HyenaForm::Training) {
        let bias = format!("{}conv_bias", place.strip_suffix("filter.")?);
        return names.contains(bias.as_str()).then_some(bias);
    }
    if kind == Kind::LaughingHyena {
        let around = place.strip_suffix("filter.").unwrap_or(place);
        let mut biases = ["long_conv_bias", "conv_bias"].map(|b| format!("{around}{b}"));
        let bias = biases.iter_mut().find(|b| names.contains(b.as_str()));
        // Without a bias the first sample of the filter holds all of D.
        return Some(bias.map_or(format!("{place}{FIRST_SAMPLE}"), std::mem::take));
    }
    if kind == Kind::FlowState && names.contains(format!("{place}{GATE}").as_str()) {
        // D is added behind the gate, not to the system's output.
        return None;
    }
    let mut around = place;
    loop {
        let name = format!("{around}D");
        if names.contains(name.as_str()) {
            return Some(name);
        }
        let mut outer = AROUND_KERNEL.iter();
        around = outer.find_map(|part| around.strip_suffix(part))?;
    }
}

/// Numbers within a name count as numbers: layer 10 comes after layer 9.
fn counted(name: &str) -> Vec<(String, u64)> {
    let runs = name.split_inclusive(|c: char| !c.is_ascii_digit());
    runs.map(|run| {
        let digits = run.trim_end_matches(|c: char| !c.is_ascii_digit());
        let text = run[digits.len()..].to_string();
        (text, digits.parse().unwrap_or(0))
    })
    .collect()
}

impl Found {
    /// What people call the layer: the place without what only holds the kernel.
    pub(in crate::checkpoint) fn layer(&self) -> String {
        let mut name = self.place.trim_end_matches(['.', '/']);
        while let Some(shorter) = name
            .strip_suffix("kernel")
            .and_then(|n| n.strip_suffix(['.', '/']))
        {
            name = shorter;
        }
        match name {
            "" | "kernel" => "layer".to_string(),
            name => name.to_string(),
        }
    }

    /// Whether a tensor belongs to the kernel.
    pub(in crate::checkpoint) fn is_kernel(&self, name: &str) -> bool {
        let below = name.strip_prefix(self.place.as_str());
        let below = below.is_some_and(|rest| self.kind.below().contains(&rest));
        below || place_of(name) == self.place && !self.is_beside(name)
    }

    /// Whether a tensor stands at the kernel's place, or below it, and is not of it.
    pub(in crate::checkpoint) fn is_beside(&self, name: &str) -> bool {
        let rest = name.strip_prefix(self.place.as_str());
        let mut beside = self.kind.beside().iter();
        let behind_gate = self.kind == Kind::FlowState && self.feedthrough.is_none();
        rest.is_some_and(|rest| {
            behind_gate && rest == "D"
                || beside.any(|part| rest == *part || part.ends_with('.') && rest.starts_with(part))
        })
    }

    /// Whether a tensor belongs to the kernel or is D.
    pub(in crate::checkpoint) fn holds(&self, name: &str) -> bool {
        self.feedthrough.as_deref() == Some(name) || self.is_kernel(name)
    }

    /// Whether there is a tensor that D is written to.
    pub(in crate::checkpoint) fn holds_feedthrough(&self) -> bool {
        match &self.own {
            Some(own) => own.feedthrough.is_some(),
            None => self.feedthrough.is_some(),
        }
    }

    /// The layout of the layer, once it is settled what its names leave open.
    pub(in crate::checkpoint) fn layout(&self, settled: Declared) -> Arc<dyn Layout> {
        let (layer, place) = (self.layer(), self.place.clone());
        let feedthrough = self.feedthrough.clone();
        if let Some(layout) = self.own.clone() {
            return Arc::new(OwnLayer {
                layer,
                place,
                layout,
            });
        }
        match self.kind {
            Kind::S4d | Kind::Own => Arc::new(S4d {
                layer,
                kernel: place,
                feedthrough,
            }),
            Kind::S4Repo(version) => Arc::new(S4Repo {
                layer,
                kernel: place,
                feedthrough,
                version,
                settled,
            }),
            Kind::Dss => Arc::new(Dss {
                layer,
                kernel: place,
                feedthrough,
                version: settled.dss_version.unwrap_or(DssVersion::Softmax),
                length: settled.length,
            }),
            Kind::AnnotatedS4d | Kind::AnnotatedDss => Arc::new(Annotated {
                layer,
                place,
                dss: self.kind == Kind::AnnotatedDss,
                settled,
            }),
            Kind::Dplr { .. } | Kind::AnnotatedDplr | Kind::MimoDplr => {
                self.low_rank_layout(layer, settled)
            }
            Kind::Bigs => Arc::new(Bigs {
                layer,
                place,
                feedthrough,
            }),
            Kind::S5 { .. }
            | Kind::FlowState
            | Kind::Lru
            | Kind::DelayedLru
            | Kind::LinOss
            | Kind::LruRec
            | Kind::Lrnnx
            | Kind::Centaurus
            | Kind::Attenuate => self.shared_layout(layer, settled),
            Kind::Ema { .. } | Kind::MegaHeads | Kind::Megalodon => self.moving_average(layer),
            Kind::Hyena(_) | Kind::LaughingHyena => self.modal_filters(layer),
        }
    }
}

impl Found {
    /// Of the families with one system for all channels.
    fn shared_layout(&self, layer: String, settled: Declared) -> Arc<dyn Layout> {
        let place = self.place.clone();
        match self.kind {
            Kind::S5 { torch } => Arc::new(S5 {
                layer,
                place,
                torch,
                settled,
            }),
            Kind::FlowState => Arc::new(FlowState {
                layer,
                place,
                feedthrough: self.feedthrough.clone(),
            }),
            Kind::LruRec => Arc::new(LruRec { layer, place }),
            Kind::DelayedLru => Arc::new(DelayedLru { layer, place }),
            Kind::LinOss => Arc::new(LinOss {
                layer,
                place,
                discretisation: settled.discretisation.unwrap_or(Discretisation::Im),
            }),
            Kind::Attenuate => Arc::new(Attenuate { layer, place }),
            Kind::Centaurus => Arc::new(Centaurus { layer, place }),
            Kind::Lrnnx => Arc::new(Lrnnx {
                layer,
                place,
                settled,
            }),
            _ => Arc::new(Lru { layer, place }),
        }
    }

    /// Of StripedHyena and its relatives.
    fn modal_filters(&self, layer: String) -> Arc<dyn Layout> {
        let (place, feedthrough) = (self.place.clone(), self.feedthrough.clone());
        match self.kind {
            Kind::Hyena(form) => Arc::new(Hyena {
                layer,
                place,
                feedthrough,
                form,
            }),
            _ => Arc::new(LaughingHyena {
                layer,
                place,
                bias: feedthrough.filter(|name| !self.is_kernel(name)),
            }),
        }
    }

    /// Of MEGA and its relatives.
    fn moving_average(&self, layer: String) -> Arc<dyn Layout> {
        let (place, skip) = (self.place.clone(), self.feedthrough.clone());
        match self.kind {
            Kind::MegaHeads => Arc::new(MegaHeads { layer, place }),
            Kind::Megalodon => Arc::new(Megalodon { layer, place, skip }),
            kind => Arc::new(Ema {
                layer,
                place,
                transformers: kind == Kind::Ema { transformers: true },
                skip,
            }),
        }
    }

    /// Of the families that are not diagonal.
    fn low_rank_layout(&self, layer: String, settled: Declared) -> Arc<dyn Layout> {
        let place = self.place.clone();
        match self.kind {
            Kind::MimoDplr => Arc::new(MimoDplr {
                layer,
                place,
                settled,
            }),
            Kind::AnnotatedDplr => Arc::new(AnnotatedDplr {
                layer,
                place,
                settled,
            }),
            kind => Arc::new(Dplr {
                layer,
                kernel: place,
                feedthrough: self.feedthrough.clone(),
                v4: kind == Kind::Dplr { v4: true },
                settled,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feedthrough_is_found_around_a_kernel_that_is_wrapped() {
        for (kernel, d) in [
            ("layers.1.kernel.", "layers.1.D"),
            ("layers.1.kernel._orig_mod.", "layers.1.D"),
            ("layers.1.kernel.module.", "layers.1.D"),
            ("layers.1._orig_mod.kernel.", "layers.1._orig_mod.D"),
            ("layers.1.kernel.kernel.", "layers.1.D"),
        ] {
            let tensors = ["log_dt", "A_imag", "C", "log_A_real"].map(|t| format!("{kernel}{t}"));
            let names = tensors.iter().map(String::as_str);
            let found = find_layers(names.clone().chain([d]), "", None);
            assert_eq!(found[0].feedthrough.as_deref(), Some(d), "{kernel}");
            assert!(found[0].holds_feedthrough());
            assert!(!find_layers(names, "", None)[0].holds_feedthrough());
        }
    }

    #[test]
    fn layers_are_found_in_the_order_in_which_people_count() {
        let mut names = Vec::new();
        for layer in ["layers.10", "layers.9", "layers.1"] {
            for tensor in ["log_dt", "A_imag", "C", "log_A_real"] {
                names.push(format!("{layer}.kernel.{tensor}"));
            }
            names.push(format!("{layer}.D"));
        }
        let found = find_layers(names.iter().map(String::as_str), "", None);
        let layers: Vec<String> = found.iter().map(Found::layer).collect();
        assert_eq!(layers, ["layers.1", "layers.9", "layers.10"]);
        assert_eq!(found[0].feedthrough.as_deref(), Some("layers.1.D"));
        assert!(found.iter().all(|found| found.kind == Kind::S4d));
    }
}
