//! Lays out what the firmware holds: the model, the samples, and arrays of the sizes that it needs.
//!
//! `FIRMWARE_MODEL` names an image of `compress-model pack`, `FIRMWARE_SAMPLES` a file of raw f32 with
//! `FIRMWARE_SEQUENCES` sequences of one length.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use hankelite_edge::ImageView;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let model = read("FIRMWARE_MODEL")?;
    let samples = read("FIRMWARE_SAMPLES")?;
    fs::write(out.join("model.edge"), &model)?;
    fs::write(out.join("numbers.rs"), numbers(&model, &samples)?)?;
    memory(&out)
}

/// The bytes of the file that a variable names.
fn read(variable: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed={variable}");
    let file = env::var(variable).map_err(|_| format!("{variable} names no file"))?;
    println!("cargo:rerun-if-changed={file}");
    fs::read(&file).map_err(|error| format!("{file}: {error}").into())
}

/// Sizes and samples as Rust.
fn numbers(model: &[u8], samples: &[u8]) -> Result<String, Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=FIRMWARE_SEQUENCES");
    let sequences: usize = env::var("FIRMWARE_SEQUENCES")?.parse()?;
    // Bytes of a file may lie anywhere; an image has to be aligned.
    let mut words = vec![0u32; model.len().div_ceil(size_of::<u32>())];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..model.len()];
    bytes.copy_from_slice(model);
    let image = ImageView::<f32>::new(bytes).map_err(|fault| format!("the model: {fault}"))?;
    let samples: Vec<f32> = samples
        .as_chunks()
        .0
        .iter()
        .map(|four| f32::from_le_bytes(*four))
        .collect();
    let length = samples.len() / sequences;
    let rows: Vec<String> = samples
        .chunks(length)
        .map(|row| format!("{row:?}"))
        .collect();
    Ok(format!(
        "const INPUTS: usize = {};\nconst OUTPUTS: usize = {};\nconst STATE: usize = {};\nconst WORK: usize = {};\n\
         static SAMPLES: [[f32; {length}]; {sequences}] = [{}];\n",
        image.header().inputs,
        image.header().outputs,
        image.state_len(),
        image.work_len(1),
        rows.join(",\n")
    ))
}

/// Where flash and memory are: those of the emulated boards.
fn memory(out: &Path) -> Result<(), Box<dyn Error>> {
    let arm = env::var("CARGO_CFG_TARGET_ARCH")? == "arm";
    let (flash, ram) = match arm {
        true => ("0x00000000", "0x20000000"),
        false => ("0x80000000", "0x80400000"),
    };
    let mut text = format!(
        "MEMORY {{ FLASH : ORIGIN = {flash}, LENGTH = 4M  RAM : ORIGIN = {ram}, LENGTH = 4M }}\n"
    );
    if !arm {
        for (region, place) in [
            ("TEXT", "FLASH"),
            ("RODATA", "FLASH"),
            ("DATA", "RAM"),
            ("BSS", "RAM"),
            ("HEAP", "RAM"),
            ("STACK", "RAM"),
        ] {
            text += &format!("REGION_ALIAS(\"REGION_{region}\", {place});\n");
        }
        println!("cargo:rustc-link-arg=-Tmemory.x");
    }
    fs::write(out.join("memory.x"), text)?;
    println!("cargo:rustc-link-search={}", out.display());
    println!("cargo:rustc-link-arg=-Tlink.x");
    Ok(())
}
