//! In-order streams, each a thread that works off a queue, and the events recorded on them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use trefoil::{GpuError, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A stream; its thread ends with it.
#[derive(Debug)]
pub(crate) struct Stream {
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub(crate) fn new() -> Result<Self> {
        let (queue, jobs) = channel::<Job>();
        let work = move || jobs.into_iter().for_each(|job| job());
        let thread = std::thread::Builder::new().name("trefoil stream".into()).spawn(work);
        let thread = thread.map_err(|e| GpuError::driver("pthread_create", 0, e.to_string()))?;
        Ok(Stream { queue: Some(queue), thread: Some(thread) })
    }

    /// Puts work behind all that was queued before.
    pub(crate) fn queue(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let ended = || GpuError::driver_fatal("queue", 0, "the stream's thread has ended");
        self.queue.as_ref().and_then(|q| q.send(Box::new(job)).ok()).ok_or_else(ended)
    }

    /// Marks the end of what is queued.
    pub(crate) fn record(&self) -> Result<Event> {
        let event = Event::default();
        let passed = event.clone();
        self.queue(move || passed.pass())?;
        Ok(event)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A job that panicked has been reported on standard error.
            let _ = thread.join();
        }
    }
}

/// A place in a stream, with the time at which it was passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Event(Arc<(Mutex<Option<Instant>>, Condvar)>);

impl Event {
    fn pass(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.0.1.notify_all();
    }

    /// Waits until it is passed; when that was.
    pub(crate) fn wait(&self) -> Instant {
        let mut passed = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *passed {
                Some(at) => return at,
                None => passed = self.0.1.wait(passed).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
