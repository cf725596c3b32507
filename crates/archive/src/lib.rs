//! Named tensors in files, whatever the container: safetensors (also sharded), `torch.save`, npz and
//! flax msgpack, read and written without Python.

mod archive;
mod archive_error;
mod array_files;
mod destination;
mod msgpack_file;
mod npz_file;
mod pickle;
mod safetensors_file;
mod sharded_file;
mod spill;
mod strides;
mod tensor;
mod torch_file;
mod zip_records;

pub use archive::{Archive, Container, Replaced};
pub use archive_error::ArchiveError;
pub use array_files::{write_array, write_arrays, write_arrays_with, write_text};
pub use destination::{check_destination, write_whole};
pub use spill::Spill;
pub use tensor::{Dtype, RawTensor};
pub use torch_file::Setting;
