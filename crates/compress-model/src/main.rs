//! The program `compress-model`; everything it does stands in [`compress_model::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "train")]
    keep_candle_on_its_thread();
    compress_model::cli::run(std::env::args_os())
}

/// Lets candle's own operations run on the thread that calls them, unless the user has set their number.
///
/// candle 0.11 has a pool of one thread for each core of the machine, whatever `--threads` or the
/// process's share of the cores is, and waits for it in a loop. Where other programs are at work the
/// loop waits for a thread that has no core: two trainings beside one another on two cores took 1.6
/// times as long, one that was held to a single core 2.3 times. On a machine with nothing else to do
/// the pool saves 7 % of a step.
#[cfg(feature = "train")]
fn keep_candle_on_its_thread() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_none() {
        #[allow(unsafe_code, reason = "setting a variable of the environment")]
        // SAFETY: nothing has started a thread yet, so none reads the environment.
        unsafe {
            std::env::set_var(THREADS, "1");
        }
    }
}
