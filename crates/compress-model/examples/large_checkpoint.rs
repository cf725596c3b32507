//! A sharded checkpoint of any size, made without ever holding it, to see what reading and reducing
//! it costs in memory:
//!
//! ```text
//! cargo run --release -p compress-model --example large_checkpoint -- /big/full 4
//! command time -v target/release/compress-model reduce /big/full --order 4 --output /big/small
//! ```
//!
//! S4D layers in the classifier of `example.py` (state-spaces/s4), H = 4096 channels of 16 modes, or
//! as many as a third argument gives. The output map (2H, H) of a layer takes 128 MiB, its dynamics
//! 64 KiB for each mode.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use hankelite_archive::{Dtype, RawTensor, TensorError, write_arrays, write_whole};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CHANNELS: usize = 4096;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "expected a folder, a size in GiB, and perhaps a number of modes";
    let folder = arguments.next().context(usage)?;
    let size: f64 = arguments.next().context(usage)?.parse().context(usage)?;
    let modes: usize = arguments.next().map_or(Ok(16), |modes| modes.parse())?;
    let layer_bytes = 4 * CHANNELS * (2 * CHANNELS + 4 * modes);
    let layers = (size * f64::from(1 << 30) / layer_bytes as f64).ceil();
    let layers = layers.max(1.0) as usize;
    std::fs::create_dir_all(&folder)?;
    let folder = Path::new(&folder);
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut weight_map = BTreeMap::new();
    for layer in 0..layers {
        let shard = format!("model-{:05}-of-{layers:05}.safetensors", layer + 1);
        let mut arrays = layer_of(layer, modes, &mut random)?;
        if layer == 0 {
            arrays.extend(ends(&mut random)?);
        }
        weight_map.extend(arrays.iter().map(|(name, _)| (name.clone(), shard.clone())));
        write_arrays(folder.join(&shard), arrays, "")?;
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
    let path = folder.join("model.safetensors.index.json");
    write_whole(&path, format!("{index:#}\n"))?;
    Ok(())
}

type Arrays = Result<Vec<(String, RawTensor)>, TensorError>;

/// Usual initial values, scattered: Re λ = −1/2, Im λ_n = πn, Δ from 0.001 to 0.1.
fn layer_of(layer: usize, modes: usize, random: &mut ChaCha8Rng) -> Arrays {
    let (h, n) = (CHANNELS, modes);
    let kernel = |name: &str| format!("s4_layers.{layer}.kernel.{name}");
    let own = |name: &str| format!("s4_layers.{layer}.{name}");
    let norm = |name: &str| format!("norms.{layer}.{name}");
    let mut uniform = |shape: &[usize], from: f64, to: f64| {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|_| random.random_range(from..to)).collect();
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values)
    };
    let mut frequencies = uniform(&[h, n], -0.5, 0.5)?.to_f64()?;
    for (index, frequency) in frequencies.iter_mut().enumerate() {
        *frequency += std::f64::consts::PI * (index % n) as f64;
    }
    let scale = 1.0 / (h as f64).sqrt();
    Ok(vec![
        (kernel("log_dt"), uniform(&[h], -6.9, -2.3)?),
        (kernel("log_A_real"), uniform(&[h, n], -1.0, -0.4)?),
        (
            kernel("A_imag"),
            RawTensor::from_f64(Dtype::F32, vec![h, n], &frequencies)?,
        ),
        (kernel("C"), uniform(&[h, n, 2], -1.0, 1.0)?),
        (own("D"), uniform(&[h], -1.0, 1.0)?),
        (
            own("output_linear.0.weight"),
            uniform(&[2 * h, h, 1], -scale, scale)?,
        ),
        (
            own("output_linear.0.bias"),
            uniform(&[2 * h], -scale, scale)?,
        ),
        (norm("weight"), uniform(&[h], 0.9, 1.1)?),
        (norm("bias"), uniform(&[h], -0.1, 0.1)?),
    ])
}

fn ends(random: &mut ChaCha8Rng) -> Arrays {
    let shapes: [(&str, &[usize]); 4] = [
        ("encoder.weight", &[CHANNELS, 1]),
        ("encoder.bias", &[CHANNELS]),
        ("decoder.weight", &[10, CHANNELS]),
        ("decoder.bias", &[10]),
    ];
    let array = |(name, shape): (&str, &[usize])| {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|_| random.random_range(-0.1..0.1)).collect();
        let array = RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values)?;
        Ok((name.to_owned(), array))
    };
    shapes.into_iter().map(array).collect()
}
