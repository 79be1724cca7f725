//! The child process: runs inputs one after another and says before each which it is.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Args;
use crate::input::{Input, Seeds};
use crate::targets::{Run, Target, Verdict};

/// What the last panic said, of whichever thread.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the message and the place of a panic instead of printing them.
fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text =
            payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a message");
        let at = info.location().map_or_else(String::new, |l| format!("{}:{}: ", l.file(), l.line()));
        let mut last = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
        last.get_or_insert_with(|| format!("{at}{text}").replace('\n', " "));
    }));
}

fn take_panic() -> Option<String> {
    PANIC.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs one input; the word that the parent reads.
fn attempt(run: &mut Run, input: &Input) -> String {
    let done = catch_unwind(AssertUnwindSafe(|| run(input)));
    match (take_panic(), done) {
        (Some(message), _) => format!("panic {message}"),
        (None, Err(_)) => "panic of a silent kind".into(),
        (None, Ok(Verdict::Accepted)) => "accepted".into(),
        (None, Ok(Verdict::Rejected)) => "rejected".into(),
        // What it is about stands first; lists of elements can be long.
        (None, Ok(Verdict::Wrong(what))) => {
            format!("wrong {}", what.replace('\n', " ").chars().take(1000).collect::<String>())
        }
    }
}

/// Runs inputs from number `from` on, or the one file that was asked for. Writes `run N` in front of each and the verdict behind it, both in
/// one write per input. Errors: a target that cannot be set up.
pub(crate) fn run(target: &Target, args: &Args, from: u64) -> Result<bool, String> {
    note_panics();
    let seeds = Seeds::load(target.name)?;
    let mut run = (target.open)()?;
    let mut out = std::io::stdout().lock();
    let mut tell =
        |line: String| out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|e| e.to_string());
    if let Some(path) = &args.input {
        let input = Input::load(path)?;
        tell("run 0\n".into())?;
        return tell(attempt(&mut run, &input) + "\n").map(|()| true);
    }
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut line = String::new();
    let mut index = from;
    while args.count.map_or_else(|| Instant::now() < end, |n| index < n) {
        let input = seeds.input(target, args.seed, index);
        tell(format!("{line}run {index}\n"))?;
        line = attempt(&mut run, &input) + "\n";
        if line.starts_with("panic") {
            // What it left behind is of no concern to the next input.
            run = (target.open)()?;
            take_panic();
        }
        index += 1;
    }
    tell(line)?;
    Ok(true)
}
