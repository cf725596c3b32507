//! Settling what the names of the tensors leave open: what was declared, else the default of a public
//! script, which is then reported, else a question.

use std::collections::{BTreeMap, BTreeSet};

use hankelite_archive::{Archive, Dtype, Setting};
use serde::de::DeserializeOwned;

use crate::checkpoint::declared::{Declared, Discretisation, DssVersion};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Found, Kind, Transform, Version, is_of_events};
use crate::model::{Placement, Pooling};

/// The settings of a training run, by dotted names.
pub(super) type Settings = BTreeMap<String, Setting>;

/// What is settled so far.
pub(super) struct Settling<'a> {
    pub(super) declared: Declared,
    pub(super) assumptions: Vec<String>,
    settings: &'a Settings,
}

impl<'a> Settling<'a> {
    pub(super) fn new(declared: Declared, settings: &'a Settings) -> Self {
        Self {
            declared,
            assumptions: Vec::new(),
            settings,
        }
    }

    /// A setting of the run that made the file, by the last part of its name; none where several
    /// of that name disagree.
    fn setting<T: DeserializeOwned>(&mut self, names: &[&str]) -> Option<T> {
        let last = |key: &str| names.contains(&key.rsplit('.').next().unwrap_or(key));
        let mut found = self.settings.iter().filter(|(key, _)| last(key));
        let (key, setting) = found.next()?;
        if found.any(|(_, other)| other != setting) {
            return None;
        }
        let value = match setting {
            Setting::Bool(value) => toml::Value::Boolean(*value),
            Setting::Whole(value) => toml::Value::Integer(*value),
            Setting::Number(value) => toml::Value::Float(*value),
            Setting::Text(text) => toml::Value::String(text.to_lowercase()),
        };
        let value = value.try_into().ok()?;
        let text = format!("{key} = {setting} (the file's own settings)");
        self.assume(text);
        Some(value)
    }

    /// Where the normalisation stands, as the file's own settings state.
    pub(super) fn placement(&mut self) {
        if self.declared.norm.is_none() {
            let before: Option<bool> = self.setting(&["prenorm"]);
            self.declared.norm = before.map(|before| match before {
                true => Placement::Pre,
                false => Placement::Post,
            });
        }
    }

    /// The full state-spaces/s4 repository has a normalisation before the head where the others
    /// come first in their layers, and only there.
    pub(super) fn repository(&mut self, known: &BTreeSet<&str>, prefix: &str) -> Result<(), Fault> {
        let tensor = format!("{prefix}model.norm.norm.weight");
        let found = match known.contains(tensor.as_str()) {
            true => Placement::Pre,
            false => Placement::Post,
        };
        match (self.declared.norm.replace(found), found) {
            (Some(Placement::Post), Placement::Pre) => Err(Fault::Contradiction {
                declared: "normalisation after the layers (norm post)".to_string(),
                tensor,
            }),
            (Some(Placement::Pre), Placement::Post) => Err(Fault::Missing {
                tensor,
                expected: "the last normalisation of a pre-norm network, as norm pre is declared"
                    .to_string(),
            }),
            _ => {
                self.decoder_pooling();
                Ok(())
            }
        }
    }

    /// The pooling, as the file's own settings state.
    fn decoder_pooling(&mut self) {
        if self.declared.pooling.is_some() || self.declared.per_step {
            return;
        }
        let Some((key, mode)) = decoder_mode(self.settings) else {
            return;
        };
        self.declared.pooling = match mode {
            "last" => Some(Pooling::Last),
            "pool" => Some(Pooling::Mean),
            _ => None,
        };
        if self.declared.pooling.is_some() {
            self.assume(format!("{key} = \"{mode}\" (the file's own settings)"));
        }
    }

    /// Settles what one layer needs.
    pub(super) fn layer(
        &mut self,
        layer: &Found,
        archive: &Archive,
        prefix: &str,
    ) -> Result<(), Fault> {
        let place = |name: &str| format!("{prefix}{}{name}", layer.place);
        let has = |name: &str| archive.contains(&place(name));
        self.contradictions(layer, prefix)?;
        match layer.kind {
            Kind::Dss => self.dss_version(&has, layer, prefix)?,
            Kind::S4Repo(version) => self.s4_repo(version, &has)?,
            Kind::Dplr { v4 } => {
                self.dt_transform_of_lrnnx(&has);
                self.dplr(v4)?;
            }
            Kind::S5 { torch } => {
                let pairs = archive.dtype(&place("Lambda")) != Some(Dtype::C64);
                self.steps_of_events(layer)?;
                self.s5(torch, torch && pairs);
            }
            Kind::AnnotatedDplr | Kind::MimoDplr => self.low_rank(layer, &has, prefix)?,
            Kind::FlowState => self.assume(
                "scale_factor 1, the default of FlowState; balancing in continuous time does not depend on it"
                    .to_string(),
            ),
            Kind::LinOss => self.lin_oss(&has, layer, prefix)?,
            Kind::Lrnnx => self.lrnnx(layer, archive, prefix)?,
            Kind::Own
            | Kind::S4d
            | Kind::AnnotatedS4d
            | Kind::AnnotatedDss
            | Kind::Bigs
            | Kind::Lru
            | Kind::DelayedLru
            | Kind::LruRec
            | Kind::Attenuate
            | Kind::Centaurus
            | Kind::Ema { .. }
            | Kind::MegaHeads
            | Kind::Megalodon
            | Kind::Hyena(_)
            | Kind::LaughingHyena => {}
        }
        let softmax = match layer.kind {
            Kind::Dss => self.declared.dss_version == Some(DssVersion::Softmax),
            Kind::S4Repo(_) => self.declared.discretisation == Some(Discretisation::Dss),
            kind => kind == Kind::AnnotatedDss,
        };
        if softmax && self.declared.length.is_none() {
            return Err(Fault::Undeclared {
                what: "the sequence length L",
                needed_for: "the softmax kernel of DSS",
                hint: "declare it with --length L, or `length = L` in the sidecar",
            });
        }
        Ok(())
    }

    /// Layers in diagonal-plus-low-rank form need C, and a request to be made diagonal.
    fn low_rank(
        &self,
        layer: &Found,
        has: &dyn Fn(&str) -> bool,
        prefix: &str,
    ) -> Result<(), Fault> {
        let tensor = format!("{prefix}{}P", layer.place);
        if !has("C") && !has("C_real_imag") {
            return Err(Fault::Unsupported {
                what: "a diagonal-plus-low-rank layer without C",
                tensor,
                why: "no tensor records what stands for C (B, its conjugate, or something else), and no \
                      public layer of these names settles it; save C beside B",
            });
        }
        if self.declared.diagonalise.is_some() {
            return Ok(());
        }
        Err(Fault::Unsupported {
            what: match layer.kind {
                Kind::MimoDplr => {
                    "an S4 layer in diagonal-plus-low-rank form (DPLR) with one system for all channels"
                }
                _ => "an S4 layer of annotated-s4 in diagonal-plus-low-rank form (DPLR)",
            },
            tensor,
            why: "its state matrix is diag(λ) − P P*, not diagonal",
        })
    }

    fn assume(&mut self, text: String) {
        if !self.assumptions.contains(&text) {
            self.assumptions.push(text);
        }
    }

    /// What is declared for layers of another kind would be copied in the metadata.
    fn contradictions(&self, layer: &Found, prefix: &str) -> Result<(), Fault> {
        let Declared {
            dss_version,
            discretisation,
            dt_transform,
            real_transform,
            bandlimit,
            conj_sym,
            clip_eigs,
            ..
        } = self.declared;
        let s5 = matches!(layer.kind, Kind::S5 { .. });
        let lrnnx = layer.kind == Kind::Lrnnx;
        let takes = |d: &Discretisation| match layer.kind {
            Kind::S4Repo(_) => matches!(
                d,
                Discretisation::Zoh | Discretisation::Bilinear | Discretisation::Dss
            ),
            // Impulses are those of Event-SSM, which has no bilinear form.
            Kind::S5 { torch } => match d {
                Discretisation::Zoh => true,
                Discretisation::Bilinear => !is_of_events(&layer.place),
                Discretisation::Async | Discretisation::Dirac => !torch,
                _ => false,
            },
            Kind::LinOss => OSCILLATORS.contains(d),
            Kind::Lrnnx => matches!(
                d,
                Discretisation::Zoh | Discretisation::Dirac | Discretisation::Bilinear
            ),
            _ => false,
        };
        let v4 = layer.kind == Kind::S4Repo(Version::V4);
        let dplr = matches!(layer.kind, Kind::Dplr { .. });
        let v3 = layer.kind == Kind::S4Repo(Version::V3);
        let wrong = [
            dss_version
                .filter(|_| layer.kind != Kind::Dss)
                .map(|version| format!("DSS version `{}`", version.name())),
            discretisation
                .filter(|d| !takes(d))
                .map(|d| format!("discretisation `{}`", d.name())),
            dt_transform
                .filter(|_| !v4 && !dplr)
                .map(|t| format!("dt_transform `{}`", t.name())),
            real_transform
                .filter(|_| !v3 && !v4 && !dplr)
                .map(|t| format!("real_transform `{}`", t.name())),
            bandlimit.filter(|_| !v4).map(|b| format!("bandlimit {b}")),
            conj_sym
                .filter(|_| !s5 && !lrnnx)
                .map(|c| format!("conj_sym {c}")),
            clip_eigs.filter(|_| !s5).map(|c| format!("clip_eigs {c}")),
        ];
        match wrong.into_iter().flatten().next() {
            None => Ok(()),
            Some(declared) => Err(Fault::Contradiction {
                declared,
                tensor: format!("{prefix}{}{}", layer.place, layer.kind.mark()),
            }),
        }
    }

    /// Oscillators need to be told how they are discretised, and their damping has a public form for
    /// steps called `dt` only.
    fn lin_oss(
        &mut self,
        has: &dyn Fn(&str) -> bool,
        layer: &Found,
        prefix: &str,
    ) -> Result<(), Fault> {
        let tensor = |name: &str| format!("{prefix}{}{name}", layer.place);
        let damped = has("G_diag");
        if damped && has("steps") {
            return Err(Fault::Unsupported {
                what: "a damped LinOSS layer with `steps`",
                tensor: tensor("G_diag"),
                why: "public code of these names disagrees about what `G_diag` stands for; that of D-LinOSS, \
                      whose steps are called `dt`, is read",
            });
        }
        let declared = self.declared.discretisation;
        let found = declared.or_else(|| self.setting(&["discretization", "discretisation"]));
        let known = if damped {
            &OSCILLATORS[..]
        } else {
            &OSCILLATORS[..2]
        };
        match found {
            Some(form) if known.contains(&form) => {
                self.declared.discretisation = Some(form);
                Ok(())
            }
            Some(form) => Err(Fault::Contradiction {
                declared: format!("discretisation `{}`", form.name()),
                tensor: tensor(if damped { "G_diag" } else { "A_diag" }),
            }),
            None => Err(Fault::Undeclared {
                what: "how the oscillators are discretised",
                needed_for: "a layer of LinOSS",
                hint: "declare --discretisation im or imex, as the layer was trained; D-LinOSS has imex \
                       (DampedIMEX1, that of the paper), imex2, im and ex",
            }),
        }
    }

    /// S5 of lrnnx: the class for sequences has no default discretisation, that for events has.
    fn lrnnx(&mut self, layer: &Found, archive: &Archive, prefix: &str) -> Result<(), Fault> {
        let tensor = |name: &str| format!("{prefix}{}{name}", layer.place);
        let events = archive.shape(&tensor("B")).map(<[usize]>::len) == Some(3);
        let declared = self.declared.discretisation;
        let found = declared.or_else(|| self.setting(&["discretization", "discretisation"]));
        let default = events.then_some(Discretisation::Zoh);
        if let (None, Some(default)) = (found, default) {
            self.assume(format!(
                "discretisation `{}`, and events one step apart (the defaults of the layer; \
                 --discretisation overrides the first)",
                default.name()
            ));
        }
        self.declared.discretisation = found.or(default);
        match self.declared.discretisation {
            Some(Discretisation::Bilinear) if !events => Err(Fault::Unsupported {
                what: "an S5 layer of lrnnx with its bilinear discretisation",
                tensor: tensor("A"),
                why: "that package has a = (1 − Δλ/2)/(1 + Δλ/2), above 1 for every mode that decays, so \
                      that there is nothing to balance",
            }),
            Some(_) if !events && self.declared.conj_sym == Some(true) => {
                Err(Fault::Contradiction {
                    declared: "conj_sym true".to_string(),
                    tensor: tensor("B"),
                })
            }
            Some(_) => {
                if events && self.declared.conj_sym.is_none() {
                    let text = "all modes are stored (the default of the layer; --conj-sym true overrides it)";
                    self.assume(text.to_string());
                    self.declared.conj_sym = Some(false);
                }
                Ok(())
            }
            None => Err(Fault::Undeclared {
                what: "how the layer is discretised",
                needed_for: "an S5 layer of lrnnx, whose class has no default",
                hint: "declare --discretisation zoh or dirac, as the layer was made",
            }),
        }
    }

    fn dss_version(
        &mut self,
        has: &dyn Fn(&str) -> bool,
        layer: &Found,
        prefix: &str,
    ) -> Result<(), Fault> {
        let (possible, default): (&[DssVersion], _) = if has("Lambda_log_im") {
            (&[DssVersion::ExpReIm], DssVersion::ExpReIm)
        } else if has("Lambda_log_neg_re") {
            (&[DssVersion::Exp, DssVersion::ExpNoScale], DssVersion::Exp)
        } else {
            let versions = &[
                DssVersion::Softmax,
                DssVersion::Clip,
                DssVersion::ClipNoScale,
            ];
            (versions, DssVersion::Softmax)
        };
        match self.declared.dss_version {
            Some(version) if possible.contains(&version) => {}
            Some(version) => {
                let poles = ["Lambda_log_im", "Lambda_log_neg_re"];
                let poles = poles.into_iter().find(|name| has(name)).unwrap_or("Lambda");
                return Err(Fault::Contradiction {
                    declared: format!("DSS version `{}`", version.name()),
                    tensor: format!("{prefix}{}{poles}", layer.place),
                });
            }
            None => {
                if possible.len() > 1 {
                    let names: Vec<&str> = possible.iter().map(|version| version.name()).collect();
                    self.assume(format!(
                        "DSS version `{}` (the file fits {}; --dss-version overrides it)",
                        default.name(),
                        names.join(", "),
                    ));
                }
                self.declared.dss_version = Some(default);
            }
        }
        Ok(())
    }

    fn s4_repo(&mut self, version: Version, has: &dyn Fn(&str) -> bool) -> Result<(), Fault> {
        self.dt_transform_of_lrnnx(has);
        if self.declared.discretisation.is_none() && version != Version::V2 {
            self.declared.discretisation = self.setting(&["disc"]);
        }
        if self.declared.discretisation.is_none() {
            let default = match version {
                Version::V3 => Discretisation::Bilinear,
                Version::V2 | Version::V4 => Discretisation::Zoh,
            };
            if version != Version::V2 {
                self.assume(format!(
                    "discretisation `{}` (the default of the layer; --discretisation overrides it)",
                    default.name()
                ));
            }
            self.declared.discretisation = Some(default);
        }
        if version != Version::V2 && self.declared.real_transform.is_none() {
            self.declared.real_transform = self.setting(&["real_transform", "real_type"]);
        }
        if version == Version::V4 && self.declared.bandlimit.is_none() {
            self.declared.bandlimit = self.setting(&["bandlimit"]);
        }
        if version == Version::V4 && self.declared.dt_transform.is_none() {
            self.declared.dt_transform = self.setting(&["dt_transform"]);
        }
        if version != Version::V2 && self.declared.real_transform.is_none() {
            let text =
                "decays stored as `exp` (the default of the layer; --real-transform overrides it)";
            self.assume(text.to_string());
            self.declared.real_transform = Some(Transform::Exp);
        }
        if version == Version::V4 && self.declared.dt_transform.is_none() && has("inv_dt") {
            return Err(undeclared_steps());
        }
        Ok(())
    }

    /// lrnnx keeps the tensors of a layer under two names, has no configuration files, and `exp` for the
    /// default of its classes.
    fn dt_transform_of_lrnnx(&mut self, has: &dyn Fn(&str) -> bool) {
        if self.declared.dt_transform.is_none() && has("layer.kernel.inv_dt") {
            self.declared.dt_transform = self.setting(&["dt_transform"]).or_else(|| {
                let text =
                    "steps stored as `exp` (the default of lrnnx; --dt-transform overrides it)";
                self.assume(text.to_string());
                Some(Transform::Exp)
            });
        }
    }

    /// Always bilinear; only version 4 has transforms.
    fn dplr(&mut self, v4: bool) -> Result<(), Fault> {
        if v4 && self.declared.dt_transform.is_none() {
            self.declared.dt_transform = self.setting(&["dt_transform"]);
        }
        if v4 && self.declared.dt_transform.is_none() {
            return Err(undeclared_steps());
        }
        if self.declared.real_transform.is_none() {
            let text =
                "decays stored as `exp` (the default of the layer; --real-transform overrides it)";
            self.assume(text.to_string());
            self.declared.real_transform = Some(Transform::Exp);
        }
        Ok(())
    }

    /// Layers of Event-SSM have the tensors of S5, and steps of their own.
    fn steps_of_events(&mut self, layer: &Found) -> Result<(), Fault> {
        let known = self.declared.discretisation;
        let known: Option<Discretisation> =
            known.or_else(|| self.setting(&["discretization", "discretisation"]));
        match is_of_events(&layer.place) && known.is_none() {
            true => Err(Fault::Undeclared {
                what: "how the layer is discretised",
                needed_for: "a layer of Event-SSM",
                hint: "declare --discretisation async, dirac or zoh, as the network was trained; kernels \
                       are shown for events one step apart, and reductions suit events at any times",
            }),
            false => Ok(()),
        }
    }

    /// The class that stores pairs of real numbers in `Lambda` (S5-ViT) knows the bilinear
    /// discretisation only; that of s5-pytorch stores complex ones.
    fn s5(&mut self, torch: bool, pairs: bool) {
        let declared = self.declared;
        self.declared.discretisation = declared
            .discretisation
            .or_else(|| self.setting(&["discretization", "discretisation"]));
        self.declared.conj_sym = declared.conj_sym.or_else(|| self.setting(&["conj_sym"]));
        self.declared.clip_eigs = declared.clip_eigs.or_else(|| self.setting(&["clip_eigs"]));
        if self.declared.discretisation.is_none() {
            let (default, of) = match pairs {
                true => (Discretisation::Bilinear, "S5 with `Lambda` in real pairs"),
                false => (Discretisation::Zoh, "S5"),
            };
            self.assume(format!(
                "discretisation `{}` (the default of {of}; --discretisation overrides it)",
                default.name()
            ));
            self.declared.discretisation = Some(default);
        }
        if self.declared.conj_sym.is_none() {
            self.assume(match torch {
                true => {
                    "all modes are stored (as in s5-pytorch; --conj-sym true overrides it)".into()
                }
                false => "one of each conjugate pair is stored (conj_sym, the default of S5; \
                          --conj-sym false overrides it)"
                    .into(),
            });
            self.declared.conj_sym = Some(!torch);
        }
        if self.declared.clip_eigs.is_none() {
            if !torch {
                let text = "clip_eigs is off (the default of S5; --clip-eigs true overrides it)";
                self.assume(text.to_string());
            }
            self.declared.clip_eigs = Some(false);
        }
    }
}

/// The discretisations of LinOSS, first those without damping.
const OSCILLATORS: [Discretisation; 4] = [
    Discretisation::Im,
    Discretisation::Imex,
    Discretisation::Imex2,
    Discretisation::Ex,
];

/// Key and value of the mode of the full repository's decoder. Layers have a `mode` of their own.
pub(super) fn decoder_mode(settings: &Settings) -> Option<(&str, &str)> {
    let of_decoder = |key: &str| key == "mode" || format!(".{key}").ends_with(".decoder.mode");
    settings.iter().find_map(|(key, setting)| match setting {
        Setting::Text(mode) if of_decoder(key) => Some((key.as_str(), mode.as_str())),
        _ => None,
    })
}

fn undeclared_steps() -> Fault {
    Fault::Undeclared {
        what: "what the stored steps `inv_dt` go through",
        needed_for: "a layer of state-spaces/s4 v4",
        hint: "declare --dt-transform exp (the default of the class) or softplus (the default of its \
               configuration files), or `dt_transform` in the sidecar",
    }
}
