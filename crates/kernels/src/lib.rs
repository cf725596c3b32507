#![doc = include_str!("../README.md")]

mod convolution;
mod double;
mod elements;
mod fourier;
mod kernel;
mod lanes;
mod mix;
mod norm;
mod operator;
mod pool;
mod product;
mod real;
mod scan;
mod shared;

pub use convolution::{Dynamics, DynamicsGradient};
pub use elements::{GeluForm, add_squares, gelu, gelu_backward, sigmoid};
pub use fourier::Point;
pub use kernel::Modes;
pub use lanes::Lanes;
pub use mix::{Mix, MixGradient, MixScratch, MixSlopes, Mixing};
pub use norm::{Affine, AffineGradient, ChannelStatistics, Means, layer_norm, layer_norm_backward};
pub use operator::{Operator, is_recurrent};
pub use pool::{Lease, Workspace, Workspaces};
pub use product::{RealNumber, RowMajor, multiply_rows};
pub use real::{LANE_WIDTH, LaneReal, add};
pub use scan::Scan;
pub use shared::{SharedDynamics, SharedGradient, SharedScan, SharedWay};
