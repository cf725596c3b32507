//! Long work beside the interpreter: without the GIL, with progress, ended by Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hankelite::ProgressSink;
use pyo3::prelude::*;

/// How often Ctrl-C is looked for while nothing is reported.
const LOOK: Duration = Duration::from_millis(50);

enum Event {
    Begin(&'static str, usize),
    Advance(usize),
    Done,
}

/// Sends what is reported to the thread that holds the interpreter.
struct Sink {
    events: Sender<Event>,
    cancelled: AtomicBool,
}

impl ProgressSink for Sink {
    fn begin(&self, stage: &'static str, total: usize) {
        let _ = self.events.send(Event::Begin(stage, total));
    }

    fn advance(&self, units: usize) {
        let _ = self.events.send(Event::Advance(units));
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Reports the end, also that by a panic.
struct End<'a>(&'a Sink);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.0.events.send(Event::Done);
    }
}

/// Runs work on a thread of its own; `progress` is called here, as `progress(stage, done, total)`.
/// Where it raises, or the user presses Ctrl-C, the work ends soon and that exception is raised.
pub(crate) fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&dyn ProgressSink) -> T + Send,
) -> PyResult<T> {
    let (events, mut receiver) = channel();
    let sink = Sink {
        events,
        cancelled: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let sink = &sink;
        let worker = scope.spawn(move || {
            let _end = End(sink);
            work(sink)
        });
        let raised = follow(py, &mut receiver, progress, &sink.cancelled);
        let made = py.detach(|| worker.join());
        let made = made.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        raised.map_or(Ok(made), Err)
    })
}

/// What was raised until the work ended.
fn follow(
    py: Python<'_>,
    events: &mut Receiver<Event>,
    progress: Option<&Bound<'_, PyAny>>,
    cancelled: &AtomicBool,
) -> Option<PyErr> {
    let mut raised = None;
    let mut state: Option<(&'static str, usize, usize)> = None;
    loop {
        // The receiver goes into the closure and comes back: it can be sent, not shared.
        let waiting = &mut *events;
        let event = py.detach(move || waiting.recv_timeout(LOOK));
        match event {
            Ok(Event::Done) | Err(RecvTimeoutError::Disconnected) => return raised,
            Ok(Event::Begin(stage, total)) => state = Some((stage, 0, total)),
            Ok(Event::Advance(units)) => {
                if let Some((_, done, _)) = &mut state {
                    *done += units;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if raised.is_some() {
            continue;
        }
        let report = || match (event, progress, state) {
            (Ok(_), Some(progress), Some((stage, done, total))) => {
                progress.call1((stage, done, total)).map(drop)
            }
            _ => Ok(()),
        };
        if let Err(error) = py.check_signals().and_then(|()| report()) {
            cancelled.store(true, Ordering::Relaxed);
            raised = Some(error);
        }
    }
}
