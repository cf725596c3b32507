//! Reads sequences of samples, runs one step for each sample, and writes the outputs of the last step:
//! `../c/main.c` in Rust. A real device keeps `classify` of this file.

#![no_std]
#![no_main]

mod board;

use board::{Counter, entry, exit, write};
use hankelite_edge::{ImageView, Input, Plain, StepFault, step};
use static_cell::ConstStaticCell;

// INPUTS, OUTPUTS, STATE, WORK and SAMPLES.
include!(concat!(env!("OUT_DIR"), "/numbers.rs"));

/// Bytes where an image can lie.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/model.edge")));

/// Rounds of the loop that the counter is checked with.
const CALIBRATION: u32 = 100_000;

/// Steps between two looks at the counter, which has few bits.
const COUNT_EVERY: usize = 64;

/// What a stream needs.
struct Memory {
    state: [f32; STATE],
    work: [f32; WORK],
    outputs: [f32; OUTPUTS],
}

static MEMORY: ConstStaticCell<Memory> = ConstStaticCell::new(Memory {
    state: [0.0; STATE],
    work: [0.0; WORK],
    outputs: [0.0; OUTPUTS],
});

/// Runs a signal, and gives its instructions; the outputs are those of the last step. Once in the
/// firmware: every call of `step` is a copy of it.
#[inline(never)]
fn classify(
    image: &ImageView<'_, f32>,
    signal: &[f32],
    memory: &mut Memory,
    counter: &mut Counter,
) -> Result<u64, StepFault> {
    counter.past();
    let mut past = 0;
    memory.state.fill(0.0);
    for (index, sample) in signal.chunks_exact(INPUTS).enumerate() {
        let input = Input::Values(sample);
        let outputs = step(Plain, image, &mut memory.state, &mut memory.work, input)?;
        memory.outputs.copy_from_slice(outputs);
        if index % COUNT_EVERY == 0 {
            past += u64::from(counter.past());
        }
    }
    Ok(past + u64::from(counter.past()))
}

/// A word and numbers of 32 bits, in hexadecimal.
fn line(word: &str, numbers: impl IntoIterator<Item = u32>) {
    write(word);
    for number in numbers {
        write(" ");
        for digit in (0..8).rev() {
            let digit = (number >> (4 * digit) & 15) as usize;
            write(&"0123456789abcdef"[digit..=digit]);
        }
    }
    write("\n");
}

fn run(mut counter: Counter, memory: &mut Memory) -> Result<(), StepFault> {
    let image = ImageView::<f32>::new(&MODEL.0)?;
    counter.past();
    board::spin(CALIBRATION);
    line("loop", [2 * CALIBRATION, counter.past()]);
    for signal in &SAMPLES {
        let past = classify(&image, signal, memory, &mut counter)?;
        line("instructions", [(past >> 32) as u32, past as u32]);
        line("outputs", memory.outputs.map(|y| y.to_bits()));
    }
    Ok(())
}

#[entry]
fn main() -> ! {
    let done = Counter::new().map(|counter| run(counter, MEMORY.take()));
    exit(i32::from(!matches!(done, Some(Ok(())))))
}
