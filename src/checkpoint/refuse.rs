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

/// Ordered likewise.
const MARKS: [Mark; 3] = [
    Mark {
        ending: &["A_log", "x_proj.weight", "dt_proj.weight"],
        what: "a Mamba (selective) layer",
        why: "its dynamics depend on the input, so it has no fixed poles, Gramians or Hankel \
              singular values",
    },
    Mark {
        ending: &["reverse_layer.kernel.C", "bidirectional_linear.weight"],
        what: "a bidirectional backbone",
        why: "only causal layers are read",
    },
    Mark {
        ending: &["weight_g", "weight_v"],
        what: "a model with weight normalisation",
        why: "fold it before saving (torch.nn.utils.remove_weight_norm)",
    },
];

/// Marks of models without a state space layer.
const OTHERS: [Mark; 3] = [
    Mark {
        ending: &[
            "attn.in_proj_weight",
            "self_attn.in_proj_weight",
            "attn.c_attn.weight",
        ],
        what: "a transformer",
        why: "it has no state space layer",
    },
    Mark {
        ending: &["weight_ih_l0", "weight_hh_l0"],
        what: "a gated recurrent network (RNN, GRU or LSTM)",
        why: "it has no state space layer",
    },
    Mark {
        ending: &["conv1.weight", "features.0.weight", "conv.weight"],
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
            endings.any(|ending| *name == *ending || name.ends_with(&format!(".{ending}")))
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
