//! Whether operations are recorded for the backward pass: a flag of each thread.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations of this thread are recorded.
pub fn grad_enabled() -> bool {
    ENABLED.with(Cell::get)
}

/// While it lives, operations of this thread are not recorded. Made by [`NoGrad::new`]; [`no_grad`] is the closure form.
#[derive(Debug)]
pub struct NoGrad {
    before: bool,
    // The flag belongs to the thread, so the guard must not leave it.
    _thread: PhantomData<*const ()>,
}

impl NoGrad {
    /// Stops recording until dropped.
    #[expect(clippy::new_without_default, reason = "a guard with an effect, not a value")]
    pub fn new() -> Self {
        NoGrad { before: ENABLED.with(|e| e.replace(false)), _thread: PhantomData }
    }
}

impl Drop for NoGrad {
    fn drop(&mut self) {
        ENABLED.with(|e| e.set(self.before));
    }
}

/// Runs `f` without recording its operations.
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = NoGrad::new();
    f()
}

/// Runs `f` with its operations recorded, also inside of a backward pass.
pub(crate) fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = NoGrad { before: ENABLED.with(|e| e.replace(true)), _thread: PhantomData };
    f()
}
