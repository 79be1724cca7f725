//! Log messages on the error stream.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Target of the library's messages on files of a run: what was moved, repaired or cannot be checked.
const NOTICE: &str = "trefoil_nn::run";

/// Prints errors, what concerns files of a run, and with `--verbose` all other messages.
struct Messages {
    verbose: AtomicBool,
    /// What waits while the terminal shows something else.
    held: Mutex<Option<Vec<String>>>,
}

impl Messages {
    fn held(&self) -> MutexGuard<'_, Option<Vec<String>>> {
        self.held.lock().unwrap_or_else(|p| p.into_inner())
    }
}

fn print(text: &str) {
    // A closed error stream is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{text}");
}

impl log::Log for Messages {
    fn enabled(&self, m: &log::Metadata<'_>) -> bool {
        let shown = self.verbose.load(Ordering::Relaxed) || m.level() == log::Level::Error;
        shown || m.target() == NOTICE
    }
    fn log(&self, r: &log::Record<'_>) {
        if self.enabled(r.metadata()) {
            let text = format!("{}: {}", r.level().as_str().to_lowercase(), r.args());
            match &mut *self.held() {
                Some(held) => held.push(text),
                None => print(&text),
            }
        }
    }
    fn flush(&self) {}
}

static MESSAGES: Messages = Messages { verbose: AtomicBool::new(false), held: Mutex::new(None) };

/// Keeps messages until [`release`].
#[cfg(feature = "tui")]
pub(crate) fn hold() {
    MESSAGES.held().get_or_insert_default();
}

/// Prints the messages that were kept, and all others as they come.
#[cfg(feature = "tui")]
pub(crate) fn release() {
    let held = MESSAGES.held().take();
    held.into_iter().flatten().for_each(|text| print(&text));
}

/// Installs the logger.
pub(crate) fn install(verbose: bool) {
    if log::set_logger(&MESSAGES).is_ok() {
        MESSAGES.verbose.store(verbose, Ordering::Relaxed);
        log::set_max_level(if verbose { log::LevelFilter::Info } else { log::LevelFilter::Warn });
    }
}
