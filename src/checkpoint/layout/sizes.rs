//! By which numbers of a configuration a network makes the states of its layers.

use crate::checkpoint::layout::{HyenaForm, Kind};

/// Keys of a configuration that stand for the stored states of a layer.
pub(in crate::checkpoint) struct SizeKeys {
    pub(in crate::checkpoint) names: &'static [&'static str],
    /// What the number may be times the stored states: 2 where it counts real ones, or both of each
    /// conjugate pair.
    pub(in crate::checkpoint) factors: &'static [usize],
}

const fn keys(names: &'static [&'static str], factors: &'static [usize]) -> SizeKeys {
    SizeKeys { names, factors }
}

impl Kind {
    /// The keys of a family; none where its code has a constant in their place, or a product of several
    /// numbers, or where nothing smaller is written.
    pub(in crate::checkpoint) fn size_keys(self) -> SizeKeys {
        match self {
            Kind::Hyena(HyenaForm::Training) => keys(&["hyena_filter_order"], &[1]),
            Kind::LaughingHyena => keys(&["hyena_filter_order"], &[2]),
            Kind::Hyena(_) => keys(&["state_size"], &[1]),
            Kind::Ema { transformers: true } => keys(&["ema_projection_size"], &[1]),
            Kind::Ema { .. } => keys(&["n_dim", "encoder_n_dim", "decoder_n_dim"], &[1]),
            Kind::FlowState => keys(&["encoder_state_dim"], &[1]),
            Kind::Megalodon => keys(&["cema_ndim"], &[1]),
            Kind::LruRec | Kind::Attenuate | Kind::Centaurus | Kind::LinOss | Kind::MegaHeads => {
                keys(&[], &[1])
            }
            Kind::Bigs => keys(&["num_ssm"], &[1]),
            Kind::Lru | Kind::DelayedLru | Kind::Lrnnx => {
                keys(&["d_hidden", "state_dim", "d_state", "state_size"], &[1])
            }
            Kind::Dss => keys(&["d_state", "state_size"], &[1, 2]),
            Kind::S5 { .. } | Kind::MimoDplr => keys(
                &[
                    "ssm_size",
                    "ssm_size_base",
                    "d_state",
                    "state_size",
                    "state_dim",
                ],
                &[1, 2],
            ),
            _ => keys(&["d_state", "state_size", "state_dim"], &[2, 1]),
        }
    }
}
