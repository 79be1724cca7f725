//! The threads of the CPU backend: those of rayon's global pool.

use std::hint::spin_loop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rayon::{ThreadPoolBuilder, Yield};

/// How long a thread without work stays awake. Waking one costs tens of microseconds, which is what many an operation takes.
const AWAKE: Duration = Duration::from_millis(1);

/// Whether the main thread is one of rayon's.
static INCLUDED: AtomicBool = AtomicBool::new(false);
/// Threads that are kept awake.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Makes the main thread of the program one of rayon's threads, if it is the caller and the program has not set up rayon's threads itself.
///
/// Work of such a thread is shared with the others within microseconds. Any other thread sleeps until the pool has been woken and is done, which
/// costs about 50 us for each operation (two cores of a virtual machine, 2026-11-26).
pub(in crate::cpu) fn include_main_thread() {
    static ONCE: Once = Once::new();
    if thread::current().name() != Some("main") {
        return;
    }
    ONCE.call_once(|| {
        let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
        let threads = asked.unwrap_or_else(|| thread::available_parallelism().map_or(1, |n| n.get()));
        // The main thread works only while it waits: without another one, work of other threads would never be done.
        if threads > 1 {
            // An error says that there is a pool already. The main thread is the first one of this.
            let pool = ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build_global();
            INCLUDED.store(pool.is_ok(), Ordering::Relaxed);
        }
    });
}

/// Keeps the other threads awake for [`AWAKE`] after their last work, if the caller is the main thread and one of rayon's.
pub(in crate::cpu) fn keep_awake() {
    if rayon::current_thread_index() != Some(0) || !INCLUDED.load(Ordering::Relaxed) {
        return;
    }
    let others = rayon::current_num_threads() - 1;
    while WAITING.load(Ordering::Relaxed) < others {
        WAITING.fetch_add(1, Ordering::Relaxed);
        rayon::spawn(wait_for_work);
    }
}

/// Does work of the pool until there has been none for [`AWAKE`]. The main thread, which meets this while it waits for work of its own, does not.
fn wait_for_work() {
    let mut idle = Instant::now();
    while rayon::current_thread_index() != Some(0) && idle.elapsed() < AWAKE {
        match rayon::yield_now() {
            Some(Yield::Executed) => idle = Instant::now(),
            _ => (0..32).for_each(|_| spin_loop()),
        }
    }
    WAITING.fetch_sub(1, Ordering::Relaxed);
}
