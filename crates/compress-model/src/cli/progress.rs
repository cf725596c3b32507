//! Bars for the long work of the library.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hankelite::ProgressSink;
use indicatif::ProgressBar;

use crate::cli::printer::Printer;

/// One bar for each stage of the work, on stderr; it goes with this value.
pub(super) struct Bars<'a> {
    printer: &'a Printer,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    part: String,
    bar: Option<ProgressBar>,
}

impl<'a> Bars<'a> {
    pub(super) fn new(printer: &'a Printer) -> Self {
        Self {
            printer,
            shown: Mutex::default(),
        }
    }

    /// What the bars from now on belong to, e.g. `size 2 of 9`.
    pub(super) fn part(&self, part: String) {
        self.shown().part = part;
    }

    /// Takes the bar away, for work that draws its own.
    pub(super) fn clear(&self) {
        if let Some(bar) = self.shown().bar.take() {
            bar.finish_and_clear();
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgressSink for Bars<'_> {
    fn begin(&self, stage: &'static str, total: usize) {
        self.clear();
        #[cfg(feature = "train")]
        hankelite_train::give_back_now();
        let mut shown = self.shown();
        let what = match shown.part.as_str() {
            "" => stage.to_string(),
            part => format!("{part}: {stage}"),
        };
        shown.bar = Some(self.printer.progress(total, &what));
    }

    fn advance(&self, units: usize) {
        if let Some(bar) = &self.shown().bar {
            bar.inc(units as u64);
        }
    }
}

impl Drop for Bars<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
