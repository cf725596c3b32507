//! Models that are known and not taken, recognised by their tensor names.

use crate::checkpoint::error::Fault;

/// A mark in a tensor's name, what it gives away, and why that is refused.
struct Mark {
    ending: &'static [&'static str],
    /// Tensors that must stand at the same place.
    with: &'static [&'static str],
    what: &'static str,
    why: &'static str,
}

/// Ordered: the first mark that any tensor bears decides.
const DPLR: [Mark; 2] = [
    Mark {
        ending: &["kernel.P", "kernel.kernel.P", "kernel.Q"],
        with: &[],
        what: "an S4 layer in diagonal-plus-low-rank form (DPLR)",
        why: "its state matrix is diag(λ) − P P*, not diagonal, and its C is stored as \
              C (I − Ā^L); only diagonal layers are read",
    },
    Mark {
        ending: &[
            "kernel.l_kernel",
            "kernel.omega",
            "kernel.kernel.omega",
            "kernel.z",
        ],
        with: &[],
        what: "an S4 layer in diagonal-plus-low-rank form (DPLR)",
        why: "its C is stored as C (I − Ā^L); only diagonal layers are read",
    },
];

/// Why selective layers are refused.
const SELECTIVE: &str = "its dynamics depend on the input, so it has no fixed poles, Gramians or \
                         Hankel singular values";

/// Why layers with gates in their recurrence are refused, and what could be read.
const GATED: &str = "what its state forgets and keeps depends on the input, so it has no fixed poles, \
                     Gramians or Hankel singular values; layers with fixed poles (S5, LRU) that are \
                     distilled from it could be read";

/// Why attention without a softmax is refused where its decay is fixed.
const KEYS: &str = "its decay is fixed, but keys and queries, which stand where B and C do, depend on the input, \
                    so there is no system to reduce; layers with fixed B and C (S5, LRU) could be read";

/// Why convolutions without a state are refused, and what could be read.
const NO_POLES: &str = "its kernels are time-invariant, but have no poles in the file; fitted by sums of \
                        exponentials (as StripedHyena's `poles` and `residues`) they could be read";

/// What has keys, values and a rule of its own for what its state keeps.
const DELTA: &str = "a network with delta rules (DeltaNet, Qwen3-Next, Kimi)";

/// Ordered likewise.
const MARKS: [Mark; 6] = [
    Mark {
        ending: &["B_bias", "C_bias", "mimo_x", "mimo_z"],
        with: &[],
        what: "a Mamba-3 (selective) layer",
        why: SELECTIVE,
    },
    Mark {
        ending: &["x_proj.weight", "dt_proj.weight"],
        with: &[],
        what: "a Mamba (selective) layer",
        why: SELECTIVE,
    },
    Mark {
        ending: &["in_proj_qkvz.weight", "f_a_proj.weight"],
        with: &["A_log"],
        what: DELTA,
        why: GATED,
    },
    Mark {
        ending: &["A_log"],
        with: &["b_proj.weight"],
        what: DELTA,
        why: GATED,
    },
    Mark {
        ending: &["A_log"],
        with: &[],
        what: "a Mamba-2 (selective) layer",
        why: SELECTIVE,
    },
    Mark {
        ending: &["reverse_layer.kernel.C", "bidirectional_linear.weight"],
        with: &[],
        what: "a bidirectional backbone",
        why: "only causal layers are read",
    },
];

/// Marks of models without a state space layer.
const OTHERS: [Mark; 16] = [
    Mark {
        ending: &[
            "rg_lru.recurrent_param",
            "rg_lru.a_param",
            "rg_lru/a_param",
            "rg_lru.recurrent_gate_weight",
        ],
        with: &[],
        what: "a network with RG-LRU layers (Griffin, Hawk, RecurrentGemma)",
        why: GATED,
    },
    Mark {
        ending: &[
            "igate_preact.weight",
            "mlstm_cell.igate.weight",
            "slstm_cell._recurrent_kernel_",
        ],
        with: &[],
        what: "an xLSTM",
        why: GATED,
    },
    Mark {
        ending: &["gk_proj.0.weight", "lower_bounds"],
        with: &[],
        what: "a gated linear attention network (GLA, HGRN2)",
        why: GATED,
    },
    Mark {
        ending: &["b_proj.weight"],
        with: &["q_proj.weight"],
        what: DELTA,
        why: GATED,
    },
    Mark {
        ending: &[
            "g_norm_swish_gate.weight",
            "retention.q_proj.weight",
            "retnet_rel_pos.decay",
        ],
        with: &[],
        what: "a retention network (RetNet)",
        why: KEYS,
    },
    Mark {
        ending: &["output_gate.weight"],
        with: &["qkv_proj.weight"],
        what: "a network of lightning attention (MiniMax)",
        why: KEYS,
    },
    Mark {
        ending: &["learnable_ttt_lr_weight"],
        with: &[],
        what: "a network whose state is trained as it runs (TTT)",
        why: GATED,
    },
    Mark {
        ending: &["to_hidden_and_gate.weight"],
        with: &[],
        what: "a minGRU",
        why: GATED,
    },
    Mark {
        ending: &["implicit_filter.0.weight"],
        with: &[],
        what: "a network of implicit long convolutions (Hyena, HyenaDNA, M2-BERT)",
        why: NO_POLES,
    },
    Mark {
        ending: &["stu_filters", "M_phi_plus"],
        with: &[],
        what: "a network of spectral filters (STU)",
        why: NO_POLES,
    },
    Mark {
        ending: &["ab"],
        with: &["h_0"],
        what: "a network of rational transfer functions (RTF)",
        why: "it is time-invariant, but stores the coefficients of numerator and denominator, and only \
              diagonal layers are read; poles and residues of its fractions, in a layout that holds them \
              (DSS, StripedHyena), could be read",
    },
    Mark {
        ending: &["a"],
        with: &["b", "c"],
        what: "a network of companion matrices (SpaceTime)",
        why: "it is time-invariant, but its state matrix is a companion matrix, and only diagonal \
              layers are read; eigenvalues and residues of that matrix, in a layout that holds them (DSS, \
              StripedHyena), could be read",
    },
    Mark {
        ending: &[
            "time_decay",
            "time_first",
            "time_faaaa",
            "time_maa_x",
            "time_mix_k",
            "att.w0",
            "att.x_r",
            "w_lora.lora.0.weight",
        ],
        with: &[],
        what: "an RWKV network",
        why: "it has no state space layer",
    },
    Mark {
        ending: &[
            "attn.in_proj_weight",
            "attn.c_attn.weight",
            "attention.self.query.weight",
            "self_attention.query_key_value.weight",
            "attention.query_key_value.weight",
            "self_attn.q_proj.weight",
            "attn.q_proj.weight",
            "SelfAttention.q.weight",
            "attn.qkv.weight",
            "query/kernel",
        ],
        with: &[],
        what: "a transformer",
        why: "it has no state space layer",
    },
    Mark {
        ending: &[
            "weight_ih_l0",
            "weight_hh_l0",
            "weight_ih",
            "weight_hh",
            "hn/kernel",
            "hi/kernel",
        ],
        with: &[],
        what: "a gated recurrent network (RNN, GRU or LSTM)",
        why: "it has no state space layer",
    },
    Mark {
        ending: &[
            "conv1.weight",
            "features.0.weight",
            "conv.weight",
            "conv1d.weight",
            "conv_stem.weight",
            "Conv_0/kernel",
        ],
        with: &[],
        what: "a convolutional network",
        why: "it has no state space layer",
    },
];

/// An error when a name bears the mark of a model that is known and not taken. S4 layers that are
/// not diagonal are taken where that is requested.
pub(super) fn refuse_known<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    diagonalise: bool,
) -> Result<(), Fault> {
    if !diagonalise {
        refuse(&DPLR, names.clone())?;
    }
    refuse(&MARKS, names)
}

/// The same for models in which no layer was found.
pub(super) fn refuse_others<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<(), Fault> {
    refuse(&OTHERS, names)
}

fn refuse<'a>(marks: &[Mark], names: impl Iterator<Item = &'a str> + Clone) -> Result<(), Fault> {
    for mark in marks {
        let mut bearers = names.clone().filter(|name| {
            let mut endings = mark.ending.iter();
            let place = endings.find_map(|ending| {
                let before = name.strip_suffix(ending)?;
                (before.is_empty() || before.ends_with(['.', '/'])).then_some(before)
            });
            let stands = |other: &&str| {
                let other = format!("{}{other}", place.unwrap_or_default());
                names.clone().any(|name| name == other)
            };
            place.is_some() && mark.with.iter().all(stands)
        });
        if let Some(tensor) = bearers.next() {
            return Err(Fault::Unsupported {
                what: mark.what,
                tensor: tensor.to_string(),
                why: mark.why,
            });
        }
    }
    Ok(())
}
