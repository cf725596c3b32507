//! Models that are known and not taken, recognised by their tensor names.

use crate::checkpoint::error::Fault;

/// A mark in a tensor's name, what it gives away, and why that is refused.
struct Mark {
    ending: &'static [&'static str],
    what: &'static str,
    why: &'static str,
}

/// Ordered: the first mark that any tensor bears decides.
const DPLR: [Mark; 2] = [
    Mark {
        ending: &["kernel.P", "kernel.kernel.P", "kernel.Q"],
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
        what: "an S4 layer in diagonal-plus-low-rank form (DPLR)",
        why: "its C is stored as C (I − Ā^L); only diagonal layers are read",
    },
];

/// Why selective layers are refused.
const SELECTIVE: &str = "its dynamics depend on the input, so it has no fixed poles, Gramians or \
                         Hankel singular values";

/// Ordered likewise.
const MARKS: [Mark; 4] = [
    Mark {
        ending: &["B_bias", "C_bias", "mimo_x", "mimo_z"],
        what: "a Mamba-3 (selective) layer",
        why: SELECTIVE,
    },
    Mark {
        ending: &["x_proj.weight", "dt_proj.weight"],
        what: "a Mamba (selective) layer",
        why: SELECTIVE,
    },
    Mark {
        ending: &["A_log"],
        what: "a Mamba-2 (selective) layer",
        why: SELECTIVE,
    },
    Mark {
        ending: &["reverse_layer.kernel.C", "bidirectional_linear.weight"],
        what: "a bidirectional backbone",
        why: "only causal layers are read",
    },
];

/// Marks of models without a state space layer.
const OTHERS: [Mark; 4] = [
    Mark {
        ending: &[
            "time_decay",
            "time_first",
            "time_faaaa",
            "time_maa_x",
            "time_mix_k",
            "att.w0",
            "att.x_r",
        ],
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
            endings.any(|ending| {
                let before = name.strip_suffix(ending);
                before.is_some_and(|rest| rest.is_empty() || rest.ends_with(['.', '/']))
            })
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
