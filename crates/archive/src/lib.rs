#![doc = include_str!("../README.md")]

mod archive;
mod array_files;
mod changes;
mod container;
mod contents;
mod destination;
mod endings;
mod error;
mod foreign;
mod msgpack_file;
mod npz_file;
mod pickle;
mod place;
mod safetensors_file;
mod sharded_file;
mod strides;
mod temporary;
mod tensor;
mod torch_file;
mod unchanging;
mod zip_records;

pub use archive::Archive;
pub use array_files::write_arrays;
pub use changes::{Changes, ChangesOnDisk};
pub use container::Container;
pub use destination::write_whole;
pub use error::ArchiveError;
pub use foreign::ForeignFormat;
pub use msgpack_file::MsgpackError;
pub use npz_file::NpyError;
pub use pickle::PickleError;
pub use place::{check_destination, check_output};
pub use sharded_file::ShardError;
pub use temporary::is_temporary;
pub use tensor::{Dtype, Header, RawTensor, TensorError};
pub use torch_file::Setting;
