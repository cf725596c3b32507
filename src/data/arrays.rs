//! Data sets in a safetensors file: `inputs` and `labels`.

use std::path::Path;

use crate::checkpoint::Archive;
use crate::checkpoint::ArchiveError;
use crate::checkpoint::RawTensor;
use crate::data::DataError;
use crate::data::Dataset;
use crate::data::Inputs;
use crate::data::content;

const INPUTS: &str =
    "`inputs` of shape (B, L, d_in) or (B, L), floating point, or integer tokens (B, L)";

pub(super) fn read(path: &Path) -> Result<Dataset, DataError> {
    let archive = Archive::open(path)?;
    let Some(shape) = archive.shape("inputs").map(<[usize]>::to_vec) else {
        let names: Vec<&str> = archive.names().take(5).collect();
        return Err(content(path, format!("tensors {names:?}"), INPUTS));
    };
    let raw = archive.tensor("inputs")?;
    let (inputs, count, length) = match (raw.to_i64("inputs"), shape.as_slice()) {
        (Ok(tokens), &[count, length]) => (tokens_of(path, &tokens)?, count, length),
        (Ok(_), _) => return Err(wrong_shape(path, &shape)),
        (Err(_), &[count, length] | &[count, length, _]) => {
            let values = raw
                .to_f64("inputs")
                .map_err(|error| unsuitable(path, error))?;
            let values = values.into_iter().map(|value| value as f32).collect();
            (Inputs::Values(values), count, length)
        }
        (Err(_), _) => return Err(wrong_shape(path, &shape)),
    };
    if shape.contains(&0) {
        let found = format!("`inputs` of shape {shape:?}");
        return Err(content(
            path,
            found,
            "at least one sequence of at least one step",
        ));
    }
    let labels = match archive.contains("labels") {
        true => Some(labels_of(path, &archive.tensor("labels")?, count)?),
        false => None,
    };
    Ok(Dataset {
        inputs,
        labels,
        count,
        length,
    })
}

fn unsuitable(path: &Path, source: ArchiveError) -> DataError {
    DataError::Tensor {
        path: path.to_path_buf(),
        source,
    }
}

fn wrong_shape(path: &Path, shape: &[usize]) -> DataError {
    content(path, format!("`inputs` of shape {shape:?}"), INPUTS)
}

fn tokens_of(path: &Path, tokens: &[i64]) -> Result<Inputs, DataError> {
    let converted = tokens.iter().map(|&token| {
        u32::try_from(token)
            .map_err(|_| content(path, format!("token {token}"), "tokens of at least 0"))
    });
    Ok(Inputs::Tokens(converted.collect::<Result<_, _>>()?))
}

fn labels_of(path: &Path, raw: &RawTensor, count: usize) -> Result<Vec<usize>, DataError> {
    if raw.shape != [count] {
        let found = format!("`labels` of shape {:?}", raw.shape);
        return Err(content(
            path,
            found,
            format!("[{count}], one for each sequence"),
        ));
    }
    let labels = raw
        .to_i64("labels")
        .map_err(|error| unsuitable(path, error))?;
    let converted = labels.into_iter().map(|label| {
        usize::try_from(label)
            .map_err(|_| content(path, format!("label {label}"), "labels of at least 0"))
    });
    converted.collect()
}
