//! SIGINT and SIGTERM: the first one asks the trainer to stop, the second one ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What the handlers set.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handlers.
    pub(crate) fn install(stop: Arc<AtomicBool>) -> io::Result<Self> {
        let signals = Signals { stop, ..Signals::default() };
        for signal in [SIGINT, SIGTERM] {
            // In this order: the handler that ends the process must not see the flag of the same signal.
            flag::register_conditional_shutdown(signal, 128 + signal, signals.stop.clone())?;
            flag::register_usize(signal, signals.received.clone(), signal.unsigned_abs() as usize)?;
            flag::register(signal, signals.stop.clone())?;
        }
        Ok(signals)
    }

    /// Exit code of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM.
    pub(crate) fn exit_code(&self) -> u8 {
        let signal = self.received.load(Ordering::Relaxed);
        u8::try_from(128 + signal).unwrap_or(1)
    }
}

/// Does what Ctrl-C does where the terminal makes a signal of it.
#[cfg(feature = "tui")]
pub(crate) fn interrupt() {
    // A signal that cannot be raised is none that anybody waits for: the training goes on, in plain output.
    let _ = signal_hook::low_level::raise(SIGINT);
}
