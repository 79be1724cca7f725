//! Log messages on the error stream.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Target of the library's messages on files of a run: what was moved, repaired or cannot be checked.
const NOTICE: &str = "trefoil_nn::run";

/// Prints errors, what concerns files of a run, and with `--verbose` all other messages.
struct Messages {
    verbose: AtomicBool,
}

impl log::Log for Messages {
    fn enabled(&self, m: &log::Metadata<'_>) -> bool {
        let shown = self.verbose.load(Ordering::Relaxed) || m.level() == log::Level::Error;
        shown || m.target() == NOTICE
    }
    fn log(&self, r: &log::Record<'_>) {
        if self.enabled(r.metadata()) {
            // A closed error stream is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{}: {}", r.level().as_str().to_lowercase(), r.args());
        }
    }
    fn flush(&self) {}
}

static MESSAGES: Messages = Messages { verbose: AtomicBool::new(false) };

/// Installs the logger.
pub(crate) fn install(verbose: bool) {
    if log::set_logger(&MESSAGES).is_ok() {
        MESSAGES.verbose.store(verbose, Ordering::Relaxed);
        log::set_max_level(if verbose { log::LevelFilter::Info } else { log::LevelFilter::Warn });
    }
}
