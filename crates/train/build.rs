//! With the feature `cuda`: compiles the kernels of `cuda/` to PTX, which the driver makes into code for
//! its GPU.

use std::path::Path;
use std::process::Command;

/// The files of `cuda/` whose kernels are started.
const FILES: [&str; 7] = [
    "adamw", "bank", "block", "join", "modes", "rounding", "shared",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=cuda");
    for name in ["NVCC", "CUDA_HOME", "CUDA_COMPUTE_CAP"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let nvcc = nvcc();
    // That of the oldest GPU that is meant: newer ones take it, too.
    let capability = std::env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".into());
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for file in FILES {
        let source = format!("cuda/{file}.cu");
        let ptx = format!("{out}/{file}.ptx");
        let mut command = Command::new(&nvcc);
        command.args(["--ptx", "-std=c++17", "-O3"]);
        command.arg(format!("-arch=compute_{capability}"));
        command.args(["-o", &ptx, &source]);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{nvcc} failed on {source}: {status}"),
            Err(error) => panic!(
                "{nvcc}: {error}: the feature `cuda` needs the CUDA toolkit; put nvcc on the PATH, or set NVCC"
            ),
        }
    }
}

fn nvcc() -> String {
    if let Ok(nvcc) = std::env::var("NVCC") {
        return nvcc;
    }
    let home = std::env::var("CUDA_HOME").map(|home| format!("{home}/bin/nvcc"));
    match home {
        Ok(nvcc) if Path::new(&nvcc).exists() => nvcc,
        _ => "nvcc".to_string(),
    }
}
