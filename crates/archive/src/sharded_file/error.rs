//! What can be wrong with a sharded checkpoint.

/// The longest index that is read: as for the header of a safetensors file.
pub(super) const INDEX_LIMIT: u64 = 100_000_000;

/// Why the files of a sharded checkpoint do not make one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The index is longer than any.
    #[error("the index has {found} bytes, expected at most {INDEX_LIMIT}")]
    IndexLength {
        /// Its length.
        found: u64,
    },
    /// The index is no JSON, or not of the form expected.
    #[error(
        "the index is malformed, expected {{\"metadata\": {{…}}, \"weight_map\": {{tensor: file}}}}"
    )]
    Index(#[from] serde_json::Error),
    /// The index names no tensor.
    #[error("the index names no tensor")]
    NoTensors,
    /// A file is to lie elsewhere than beside the index.
    #[error("the index names the file `{shard}`, expected the name of a file beside the index")]
    Outside {
        /// The file named.
        shard: String,
    },
    /// A file is not there.
    #[error("the file `{shard}` of the index is missing")]
    Missing {
        /// The file named.
        shard: String,
    },
    /// A file is in another format.
    #[error("the file `{shard}` is neither a safetensors file nor a zip file of torch.save")]
    Foreign {
        /// The file named.
        shard: String,
    },
    /// A tensor is not in the file that the index names.
    #[error("the index has tensor `{tensor}` in the file `{shard}`, where it is not")]
    Lacking {
        /// The tensor.
        tensor: String,
        /// The file named.
        shard: String,
    },
    /// A tensor is in a file that the index does not name for it.
    #[error("the file `{shard}` has tensor `{tensor}`, which the index has {elsewhere}")]
    Unlisted {
        /// The tensor.
        tensor: String,
        /// The file it is in.
        shard: String,
        /// Where the index has it.
        elsewhere: String,
    },
}
