#![doc = include_str!("../README.md")]

mod control;
mod linalg;
mod ssm;

pub use control::{
    Balanced, ClassInput, ControlError, DcBalanced, DenseBalanced, DenseGramians, DenseReduced,
    GramianFactors, H2Refined, HankelValues, HinfNorm, HorizonBalanced, HorizonMethod,
    HorizonReduced, InClass, InputStatistics, InputWeight, ModalScore, OscillatorPoles,
    OverHorizon, PartedChannel, RealPoles, Realisation, Reduced, Refined, Refinement,
    RefinementState, SlowParts, StatisticsError, SystemClass, WeightedBalanced, WeightedChannel,
    WeightedInClass, balance, balance_for_dc, balance_over_horizon, balance_weighted,
    complex_gramian_factors, dc_gain, dense_balance, dense_gramian_factors, dense_gramians,
    dense_h2_norm, dense_hankel_values, dense_moment_balance, dense_stochastic_balance,
    dense_weighted_balance, diagonalise, h2_error, h2_in_class, h2_norm, h2_optimal, h2_real_poles,
    h2_refine, hankel_values, hinf_error, hinf_norm, in_parallel, kernel_square, lags_of,
    modal_scores, modal_truncation, output_slopes, part_slow_modes, real_gramian_factors,
    reduce_over_horizon, residue_gram, weighted_error, weighted_in_class, weighted_norm,
    weighted_refine, weighted_residues, with_moved_residues,
};
pub use linalg::{
    Convolver, LinalgError, UpperRoot, cross_gram, gram_matrix, product, solve_positive,
};
pub use nalgebra;
pub use num_complex;
pub use ssm::{
    DSS_EPSILON, DenseSystem, DiagonalSystem, Siso, StableSystem, SystemError, Time, dss_exp_gain,
    dss_softmax_gain, from_bilinear, geometric_sum, side_by_side, to_bilinear, undo_gain, zoh_gain,
};
