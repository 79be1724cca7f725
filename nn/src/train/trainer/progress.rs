//! The progress bar of an epoch, on standard error.

/// A bar that disappears when it is dropped. Without the feature `progress` it shows nothing.
pub(super) struct ProgressBar {
    #[cfg(feature = "progress")]
    bar: Option<bar::Bar>,
}

impl ProgressBar {
    /// A bar of `batches` steps behind a title; not `visible`, it shows nothing.
    #[cfg(feature = "progress")]
    pub(super) fn new(visible: bool, batches: usize, title: String) -> Self {
        ProgressBar { bar: visible.then(|| bar::Bar::new(batches, title)) }
    }

    /// No bar.
    #[cfg(not(feature = "progress"))]
    pub(super) fn new(_visible: bool, _batches: usize, _title: String) -> Self {
        ProgressBar {}
    }

    /// One batch more is done.
    pub(super) fn advance(&self) {
        #[cfg(feature = "progress")]
        if let Some(bar) = &self.bar {
            bar.advance();
        }
    }
}

#[cfg(feature = "progress")]
mod bar {
    use std::cell::Cell;
    use std::io::{Write, stderr};
    use std::time::{Duration, Instant};

    /// Between two pictures.
    const TICK: Duration = Duration::from_millis(100);
    /// Letters of the bar itself.
    const WIDTH: usize = 32;

    pub(super) struct Bar {
        title: String,
        batches: usize,
        done: Cell<usize>,
        start: Instant,
        drawn: Cell<Option<Instant>>,
    }

    impl Bar {
        pub(super) fn new(batches: usize, title: String) -> Self {
            Bar { title, batches, done: Cell::new(0), start: Instant::now(), drawn: Cell::new(None) }
        }

        pub(super) fn advance(&self) {
            self.done.set(self.done.get() + 1);
            if self.drawn.get().is_none_or(|at| at.elapsed() >= TICK) {
                self.drawn.set(Some(Instant::now()));
                // A closed error stream is no reason to stop.
                let _ = write!(stderr(), "\r{}\x1b[K", self.line());
            }
        }

        /// `epoch 1/10 ━━━━━━━━──────── 12/23 340/s`
        fn line(&self) -> String {
            let (done, batches) = (self.done.get(), self.batches.max(1));
            let full = (WIDTH * done / batches).min(WIDTH);
            let (full, rest) = ("━".repeat(full), "─".repeat(WIDTH - full));
            let rate = done as f64 / self.start.elapsed().as_secs_f64().max(1e-9);
            format!("{} {full}{rest} {done}/{} {rate:.1}/s", self.title, self.batches)
        }
    }

    impl Drop for Bar {
        fn drop(&mut self) {
            if self.drawn.get().is_some() {
                let _ = write!(stderr(), "\r\x1b[K");
            }
        }
    }
}
