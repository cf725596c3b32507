//! The layouts as a table, for `docs/formats.md`.

use std::path::Path;

use crate::checkpoint::layout::find::MARKS;
use crate::checkpoint::layout::{HyenaForm, Kind, Version};

/// What a person wants to know of a family.
struct Row {
    family: &'static str,
    tensors: &'static str,
    open: &'static str,
    written: &'static str,
}

fn row(kind: Kind) -> Row {
    match kind {
        Kind::S4d => S4D,
        Kind::S4Repo(Version::V2) => S4_V2,
        Kind::S4Repo(Version::V3) => S4_V3,
        Kind::S4Repo(Version::V4) => S4_V4,
        Kind::Dplr { .. } => DPLR,
        Kind::Dss => DSS,
        Kind::AnnotatedS4d => ANNOTATED_S4D,
        Kind::AnnotatedDss => ANNOTATED_DSS,
        Kind::Bigs => BIGS,
        Kind::AnnotatedDplr => ANNOTATED_DPLR,
        Kind::MimoDplr => MIMO_DPLR,
        Kind::S5 { torch: false } => S5,
        Kind::S5 { torch: true } => S5_TORCH,
        Kind::FlowState => FLOW_STATE,
        Kind::Attenuate => ATTENUATE,
        Kind::Lrnnx => LRNNX,
        Kind::Centaurus => CENTAURUS,
        Kind::Lru => LRU,
        Kind::DelayedLru => DELAYED_LRU,
        Kind::LinOss => LIN_OSS,
        Kind::LruRec => LRU_REC,
        Kind::Own => OWN,
        Kind::Ema {
            transformers: false,
        } => EMA,
        Kind::Ema { transformers: true } => EMA_TRANSFORMERS,
        Kind::MegaHeads => MEGA_HEADS,
        Kind::Megalodon => MEGALODON,
        Kind::Hyena(HyenaForm::Complex) => HYENA,
        Kind::Hyena(HyenaForm::Logarithms) => EVO_2,
        Kind::Hyena(HyenaForm::Training) => EVO_2_TRAINING,
        Kind::LaughingHyena => LAUGHING_HYENA,
    }
}

const S4D: Row = Row {
    family: "S4D, standalone (`models/s4/s4d.py` v3, v4); hand-written layers without `kernel.`",
    tensors: "`log_dt` (H), `log_A_real`, `A_imag` (H, N), `C` (H, N, 2), `D` (H)",
    open: "",
    written: "N",
};

const ANNOTATED_DPLR: Row = Row {
    family: "S4 (DPLR) of annotated-s4",
    tensors: "`Lambda_re`, `Lambda_im`, `P`, `B` (N, H), `C` or `C_real_imag` (N, H, 2), `D`, `log_step` \
              (1, H)",
    open: "**`--diagonalise R`**, **L**",
    written: "a diagonal kernel of v4, zoh",
};

const MIMO_DPLR: Row = Row {
    family: "S4 (DPLR), hand-written, one system for all channels",
    tensors: "`Lambda` (N) complex or `Lambda_re`, `Lambda_im` (N), `P` (N, r) or (N), `B` (N, H), `C` \
              (H, N) complex, `D` (H), `log_step` or `log_dt` (1)",
    open: "**`--diagonalise R`**",
    written: "S5 (flax), zoh, conj_sym",
};

const S4_V2: Row = Row {
    family: "S4D of state-spaces/s4 v2.1",
    tensors: "`log_dt` (H), `log_w_real`, `w_imag` (S, N), `C` (c, H, N, 2), `D` (c′, H)",
    open: "",
    written: "N; S = H, or S as it was with `--share-poles`",
};

const S4_V3: Row = Row {
    family: "diagonal kernel of state-spaces/s4 v3, H3, safari",
    tensors: "`log_dt` (H), `inv_A_real`, `A_imag` (S, N), `B` (S, N, 2), `C` (c, H, N, 2), \
              `D` (c′, H) or (H); `A` is read by nothing",
    open: "discretisation (bilinear), real transform (exp), L for `dss`",
    written: "N, S as above; B = 1",
};

const S4_V4: Row = Row {
    family: "diagonal kernel of state-spaces/s4 v4",
    tensors: "`inv_dt` (H, 1) or (H, N), `A_real`, `A_imag` (S, N), `B` (1, S, N, 2), `C` \
              (c, H, N, 2), `D` (c′, H); real with `is_real`",
    open: "**dt transform**, discretisation (zoh), real transform (exp), bandlimit, L for `dss`",
    written: "N, S as above; B = 1; one step per channel",
};

const DPLR: Row = Row {
    family: "S4 (DPLR) of v3 and v4",
    tensors: "as the diagonal kernel, with `P` (r, S, N, 2) and `l_kernel` or `L`; v3 names \
              `inv_w_real`, `w_imag`",
    open: "**`--diagonalise R`**, dt transform (v4)",
    written: "a diagonal kernel of v4, zoh",
};

const DSS: Row = Row {
    family: "DSS (ag1988/dss), all versions",
    tensors: "`log_dt` (H) or (H, 2), `Lambda` (N, 2) or `Lambda_log_neg_re` with \
              `Lambda_im` or `Lambda_log_im` (N), `W` (c, H, N, 2), `D` (c′, H)",
    open: "version (softmax or exp), L for `softmax`",
    written: "N; Λ (H, N), or (N) with `--share-poles`",
};

const ANNOTATED_S4D: Row = Row {
    family: "S4D of annotated-s4",
    tensors: "`A_re`, `A_im` (N, H), `C` (N, H, 2), `D`, `log_step` (1, H); `B_re`, `B_im` are \
              read by nothing",
    open: "",
    written: "N",
};

const BIGS: Row = Row {
    family: "BiGS, below `fs4` and `bs4`",
    tensors: "`A_re`, `A_im` (N), `C` (N, 2), `log_step`, `D` (1): one kernel for all channels of a \
              direction, read as one channel",
    open: "",
    written: "N (`num_ssm`)",
};

const ANNOTATED_DSS: Row = Row {
    family: "DSS of annotated-s4",
    tensors: "`Lambda_re`, `Lambda_im` (N, H), `W` (1, H, N, 2), `D`, `log_step` (1, H)",
    open: "**L**",
    written: "N",
};

const S5: Row = Row {
    family: "S5 (flax) and its relatives",
    tensors: "`Lambda_re`, `Lambda_im` (P), `B` (P, H, 2), `C` (H, P, 2) or (H, 2P, 2) or `C1`, \
              `C2`, `D` (H), `log_step` (P, 1); in Event-SSM `B` (P, inputs, 2), `C` (outputs, P, 2), `D` \
              (outputs, inputs)",
    open: "discretisation (zoh; Event-SSM **async, dirac or zoh**), conj_sym (true), clip_eigs (false)",
    written: "P; one step for all modes",
};

const S5_TORCH: Row = Row {
    family: "s5-pytorch",
    tensors: "`Lambda` (P), `C` (H, P) complex64 or (…, 2), `B` (P, H, 2), `D` (H), `log_step` (P); \
              or factors `BH` (H, k), `BP` (P, k), `CH` (k, H), `CP` (k, P) in place of `B`, `C`",
    open: "discretisation (zoh; bilinear where `Lambda` is (P, 2)), conj_sym (false)",
    written: "P; one step for all modes; `B` and `C` in place of factors",
};

const LRU: Row = Row {
    family: "LRU (minimal-LRU, compressm, LRU-pytorch, lru-reduction)",
    tensors: "`nu_log`, `theta_log`, `gamma_log` (N), `B` (N, H), `C` (H, N) complex64 or \
              `_re`, `_im`, `D` (H) or (H, H)",
    open: "",
    written: "N; γ = √(1 − \\|a\\|²)",
};

const DELAYED_LRU: Row = Row {
    family: "LRU of neural-ssm",
    tensors: "`nu_log`, `theta_log`, `gamma_log` (N), `Bp` (N, inputs), `C` (outputs, N) complex64, `D` \
              (outputs, inputs); the output sees the states before the sample",
    open: "",
    written: "N; γ = √(1 − \\|a\\|²), and D with the states",
};

const LIN_OSS: Row = Row {
    family: "LinOSS, and D-LinOSS with `G_diag` and `dt`",
    tensors: "`A_diag`, `steps` or `dt` (P), `B` (P, H, 2), `C` (H, P, 2) or complex64, `D` (H); two \
              stored modes for each of P oscillators",
    open: "**discretisation** (im, imex; D-LinOSS imex2, ex too)",
    written: "P; oscillators only (`--method in-layout`); Δ = ½",
};

const MEGA_HEADS: Row = Row {
    family: "moving average of mega-pytorch",
    tensors: "`alphas`, `dampen_factors` (h), `expansion`, `reduction` (h, D); both directions with \
              `reverse_alphas`, `reverse_dampen_factors` (h) and 2h rows",
    open: "",
    written: "nothing: `convert --to mega` first",
};

const MEGALODON: Row = Row {
    family: "complex moving average of Megalodon",
    tensors: "`alpha`, `delta` (D, N, 1), `theta` (D, 1, 1), `gamma` (D, N, 2) or `gamma_real`, \
              `gamma_imag` (D, N), `omega` (D, 1) or (D)",
    open: "",
    written: "N (`cema_ndim`); angles n φ only (`--method in-layout`)",
};

const ATTENUATE: Row = Row {
    family: "aTENNuate",
    tensors: "`log_dt` (M), `A` (M, 2), `B` (M, inputs), `C` (outputs, M), all real; no `D`",
    open: "",
    written: "M (`num_coeffs` × `repeat`); cosines without a phase only (`--method in-layout`); Δ = 1",
};

const LRNNX: Row = Row {
    family: "S5 of lrnnx",
    tensors: "`log_dt` (P), `A` (P, 2), `B` (P, H) real, `C` (H, P, 2), `D` (inputs, outputs); that for \
              events with `B` (P, H, 2), `D` (H)",
    open: "**discretisation** (zoh, dirac); for events discretisation (zoh), conj_sym (false)",
    written: "P (`d_state`); Δ = 1; with a real `B` modes that inputs reach in one phase only \
              (`--method in-layout`)",
};

const CENTAURUS: Row = Row {
    family: "Centaurus of lrnnx",
    tensors: "`log_delta` (N), `A` (N, M) complex, `E` (N, M), `B` (N, H) and `C` (H, N), or (N) each; \
              without `E` `B` (N M, H), `C` (H, N M)",
    open: "",
    written: "nothing: `convert --to s5` or `--to s4d` first",
};

const FLOW_STATE: Row = Row {
    family: "FlowState r1 and r1.1",
    tensors: "`log_Lambda_real`, `Lambda_imag`, `log_Delta` (P), `B_tilde_r`, `B_tilde_i` (P, H), \
              `C_tilde_r`, `C_tilde_i` (H, P), `D` (H); beside `output_gate` (r1.1) `D` is copied",
    open: "scale (1)",
    written: "P (`encoder_state_dim`, a multiple of `encoder_num_hippo_blocks`, the same in all layers); \
              Δ = 1",
};

const LRU_REC: Row = Row {
    family: "LRURec",
    tensors: "`params_log` (3, P), `in_proj.weight` (P, d), `in_proj.bias` (P), `out_proj.weight` (d, P) \
              complex64; `out_proj.bias`, `layer_norm` are copied",
    open: "",
    written: "P (`hidden_size`); γ = √(1 − \\|a\\|²)",
};

const OWN: Row = Row {
    family: "own layout",
    tensors: "",
    open: "",
    written: "",
};

const EMA: Row = Row {
    family: "moving average of MEGA",
    tensors: "`delta`, `alpha`, `beta` (K, n, 1), `gamma` (K, n), `omega` (D), K = D or 2D",
    open: "",
    written: "n; real poles between 0 and 1 only",
};

const EMA_TRANSFORMERS: Row = Row {
    family: "moving average of MEGA in transformers",
    tensors: "`damping_factor`, `decay_factor`, `ema_expansion_matrix` (K, n, 1), \
              `kernel_projection_matrix` (K, n), `residual_weight` (D), K = D or 2D",
    open: "",
    written: "n (`ema_projection_size`); real poles between 0 and 1 only",
};

const HYENA: Row = Row {
    family: "StripedHyena, Evo 1 and 1.5 (modal filters)",
    tensors: "`poles`, `residues` (S, N, 1, 2), `D` (H); channel h has filter ⌊h S/H⌋; \
              `short_filter_weight`, `short_filter_bias` are copied",
    open: "",
    written: "N (`state_size`); S = H where the channels of a filter differ",
};

const EVO_2: Row = Row {
    family: "Evo 2 (real poles)",
    tensors: "`log_poles` (S, N, 1), `residues` (S, N), `D` (H), else as StripedHyena; `t` is copied",
    open: "",
    written: "N (`state_size`), S as above; positive real poles only",
};

const EVO_2_TRAINING: Row = Row {
    family: "Evo 2 in training (savanna, NeMo)",
    tensors: "`filter.p`, `filter.gamma`, `filter.R` (S, N), `conv_bias` (H); `t` is copied",
    open: "",
    written: "N (`hyena_filter_order`), S as above; gamma = 0; positive real poles only",
};

const LAUGHING_HYENA: Row = Row {
    family: "Laughing Hyena (modal filters)",
    tensors: "`r`, `theta`, `R_re`, `R_im` (N, S), `h_0` (1, S), the modes first; `long_conv_bias` or \
              `conv_bias` (H) beside the filter; channel h has filter ⌊h S/H⌋",
    open: "",
    written: "N (`hyena_filter_order` is 2 N), S as above",
};

/// The layouts as a Markdown table, one row for each family in the order in which they are looked
/// for: the tensors that give it away, all its tensors, what no tensor records (in bold without a
/// default, else with it), and what changes with the order in a reduced file.
fn layout_table() -> String {
    let header = [
        "family",
        "known by",
        "tensors of a layer",
        "declared",
        "a reduced file changes",
    ];
    let mut lines = vec![line(&header), "|---|---|---|---|---|".to_string()];
    let mut seen = Vec::new();
    for (kind, _) in &MARKS {
        let Row {
            family,
            tensors,
            open,
            written,
        } = row(*kind);
        if seen.contains(&family) {
            continue;
        }
        seen.push(family);
        let marks = MARKS
            .iter()
            .filter(|(other, _)| row(*other).family == family);
        let marks = marks.map(|(_, names)| {
            let names = names.iter().map(|name| format!("`{name}`"));
            names.collect::<Vec<_>>().join(", ")
        });
        let marks = marks.collect::<Vec<_>>().join("; or ");
        lines.push(line(&[family, &marks, tensors, open, written]));
    }
    lines.join("\n")
}

/// The name by which the table of models lists a family.
fn listed(kind: Kind) -> &'static str {
    match kind {
        Kind::S4d => "S4D",
        Kind::S4Repo(_) => "state-spaces/s4",
        Kind::Dplr { .. } | Kind::AnnotatedDplr | Kind::MimoDplr => "DPLR",
        Kind::Dss => "DSS",
        Kind::AnnotatedS4d | Kind::AnnotatedDss => "annotated-s4",
        Kind::Bigs => "BiGS",
        Kind::S5 { torch: false } => "S5",
        Kind::S5 { torch: true } => "s5-pytorch",
        Kind::FlowState => "FlowState",
        Kind::Attenuate => "aTENNuate",
        Kind::Lrnnx => "S5 of lrnnx",
        Kind::Centaurus => "Centaurus",
        Kind::Lru => "LRU",
        Kind::DelayedLru => "neural-ssm",
        Kind::LinOss => "LinOSS",
        Kind::LruRec => "LRURec",
        Kind::Own => "a layout of your own",
        Kind::Ema {
            transformers: false,
        } => "MEGA (fairseq",
        Kind::Ema { transformers: true } => "transformers",
        Kind::MegaHeads => "mega-pytorch",
        Kind::Megalodon => "Megalodon",
        Kind::Hyena(HyenaForm::Complex) => "StripedHyena",
        Kind::Hyena(_) => "Evo 2",
        Kind::LaughingHyena => "Laughing Hyena",
    }
}

/// The names by which people know the models that are read, for the first table of `docs/formats.md`.
fn listed_models() -> Vec<&'static str> {
    let kinds = MARKS.iter().map(|(kind, _)| *kind).chain([Kind::Own]);
    let mut names: Vec<&str> = kinds.map(listed).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn line(cells: &[&str]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// `HANKELITE_WRITE_DOCS=1 cargo test --release -p hankelite --lib layout::table` writes the table.
#[test]
fn the_table_in_the_documentation_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/formats.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- layouts -->\n").unwrap();
    let (table, after) = rest.split_once("\n<!-- end of layouts -->").unwrap();
    let code = layout_table();
    if std::env::var_os("HANKELITE_WRITE_DOCS").is_some() {
        let text = format!("{before}<!-- layouts -->\n{code}\n<!-- end of layouts -->{after}");
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert_eq!(table, code, "docs/formats.md is not that of the code");
}

#[test]
fn the_table_of_models_lists_every_family_of_the_code() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/formats.md"))
            .unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let table: Vec<&str> = lines
        .by_ref()
        .take_while(|line| line.starts_with('|'))
        .collect();
    let models = table.iter().filter_map(|line| line.split('|').nth(1));
    let models = models.collect::<Vec<_>>().join("\n");
    for name in listed_models() {
        assert!(models.contains(name), "{name} is not in\n{models}");
    }
}
