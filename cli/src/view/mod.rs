//! The live view of `trefoil train --tui`: curves, progress, throughput and memory on the terminal, drawn by a thread of its own.

mod draw;
mod state;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use trefoil_nn::Device;
use trefoil_nn::trainer::{Callback, EpochStats, StepEnd};

pub(crate) use self::state::Plan;

use self::state::{Memory, State, Step};
use crate::commands::train::line;
use crate::{messages, signals};

/// Between two pictures.
const TICK: Duration = Duration::from_millis(100);
/// Between two losses that are read: reading waits for the device.
const LOSSES: Duration = Duration::from_millis(200);

/// What is on the screen.
struct Screen {
    state: State,
    /// Whether the view has the terminal; plain lines wait until it has not.
    open: bool,
    /// Epochs whose plain lines are written.
    written: usize,
}

impl Screen {
    /// Writes the plain lines of epochs that have none yet, unless the view has the terminal.
    fn flush(&mut self, out: &mut dyn Write) -> io::Result<()> {
        while let Some(stats) = self.state.history.get(self.written).filter(|_| !self.open) {
            writeln!(out, "{}", line(stats, self.state.plan.epochs))?;
            self.written += 1;
        }
        Ok(())
    }
}

/// What the thread of the view and the training share.
struct Shared {
    screen: Mutex<Screen>,
    start: Instant,
    /// The training has no more use for the view.
    done: AtomicBool,
}

impl Shared {
    fn new(plan: Plan) -> Arc<Self> {
        let screen = Mutex::new(Screen { state: State::new(plan), open: false, written: 0 });
        Arc::new(Shared { screen, start: Instant::now(), done: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// The view of a training. Dropped, it gives the terminal back.
pub(crate) struct View {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl View {
    /// A view that is not shown yet; none, with a word about it, where the standard output is no terminal.
    pub(crate) fn new(plan: Plan) -> Option<Self> {
        if !io::stdout().is_terminal() {
            plain("the standard output is no terminal");
            return None;
        }
        Some(View { shared: Shared::new(plan), thread: None })
    }

    /// What tells the view of the training.
    pub(crate) fn events(&self, device: &Device) -> impl Callback + use<> {
        Events { shared: self.shared.clone(), device: device.clone(), read: None }
    }

    /// Shows the view until the training is done, or `q`, Ctrl-C or `stop` ends it. `past` are the epochs before a resumption. A terminal that
    /// cannot be used is no error: the output is plain then.
    pub(crate) fn open(&mut self, past: Vec<EpochStats>, stop: Arc<AtomicBool>) {
        let mut screen = self.shared.lock();
        screen.written = past.len();
        screen.state.history = past;
        match ratatui::try_init() {
            Ok(terminal) => {
                screen.open = true;
                messages::hold();
                let shared = self.shared.clone();
                end_at_panics(shared.clone());
                self.thread = Some(std::thread::spawn(move || show(terminal, &shared, &stop)));
            }
            Err(e) => {
                ratatui::restore();
                plain(&format!("the terminal cannot be used ({e})"));
            }
        }
    }

    /// Writes a plain line for every epoch that has none yet, unless the view has the terminal.
    pub(crate) fn flush(&self, out: &mut dyn Write) -> io::Result<()> {
        self.shared.lock().flush(out)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked, the terminal has been given back by the hook of panics.
            let _ = thread.join();
        }
    }
}

/// Lets the view draw no more when something panics; the hook that was there gives the terminal back.
fn end_at_panics(shared: Arc<Shared>) {
    let restore = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        shared.done.store(true, Ordering::Relaxed);
        restore(info);
    }));
}

/// Says why there is no view. A closed error stream is no reason to stop.
fn plain(why: &str) {
    let _ = writeln!(io::stderr(), "--tui: {why}; the output is plain");
}

/// Why a view ended.
enum Ended {
    Closed,
    Interrupted,
}

/// Draws until the view ends, and gives the terminal back.
fn show(mut terminal: DefaultTerminal, shared: &Shared, stop: &AtomicBool) {
    let ended = watch(&mut terminal, shared, stop);
    drop(terminal);
    ratatui::restore();
    messages::release();
    let mut screen = shared.lock();
    screen.open = false;
    // A closed output is reported by the next line of the training.
    let _ = screen.flush(&mut io::stdout());
    drop(screen);
    match ended {
        Ok(Ended::Closed) => {}
        // As Ctrl-C does where no view has the keys.
        Ok(Ended::Interrupted) => signals::interrupt(),
        Err(e) => plain(&format!("the terminal cannot be used any longer ({e})")),
    }
}

fn watch(terminal: &mut DefaultTerminal, shared: &Shared, stop: &AtomicBool) -> io::Result<Ended> {
    loop {
        if shared.done.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed) {
            return Ok(Ended::Closed);
        }
        terminal.draw(|frame| draw::draw(frame, &shared.lock().state))?;
        if event::poll(TICK)?
            && let Some(ended) = key(&event::read()?)
        {
            return Ok(ended);
        }
    }
}

/// What a key ends.
fn key(event: &Event) -> Option<Ended> {
    let Event::Key(key) = event else { return None };
    match key.code {
        _ if key.kind != KeyEventKind::Press => None,
        KeyCode::Char('q') => Some(Ended::Closed),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Ended::Interrupted),
        _ => None,
    }
}

/// Tells the view of the trainer's events.
struct Events {
    shared: Arc<Shared>,
    device: Device,
    /// When a loss was read for the last time.
    read: Option<Instant>,
}

impl Events {
    fn seconds(&self) -> f64 {
        self.shared.start.elapsed().as_secs_f64()
    }
}

impl Callback for Events {
    fn epoch_begin(&mut self, epoch: u64) -> trefoil_nn::Result<()> {
        self.shared.lock().state.begin(epoch);
        Ok(())
    }

    fn step_end(&mut self, end: &StepEnd<'_>) -> trefoil_nn::Result<()> {
        let mut step = Step { epoch: end.epoch, number: end.step, lr: end.lr, loss: None };
        let due = self.read.is_none_or(|at| at.elapsed() >= LOSSES);
        let open = self.shared.lock().open;
        if due && open {
            step.loss = Some(end.loss.item::<f32>()?.into());
            self.read = Some(Instant::now());
        }
        let (seconds, pool) = (self.seconds(), self.device.memory());
        let total = self.device.caps().memory_bytes;
        let mut screen = self.shared.lock();
        screen.state.memory = Memory { in_use: pool.in_use as u64, peak: pool.peak as u64, total };
        screen.state.step(seconds, step);
        Ok(())
    }

    fn epoch_end(&mut self, stats: &EpochStats) -> trefoil_nn::Result<bool> {
        let seconds = self.seconds();
        self.shared.lock().state.end(seconds, stats.clone());
        Ok(true)
    }
}
