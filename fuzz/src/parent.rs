//! The parent process: starts workers, watches them, and keeps the inputs that they fell over.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::Args;
use crate::input::Seeds;
use crate::targets::{TARGETS, Target, find};

/// Address space of a worker, in KiB.
const MEMORY: u64 = 5 << 20;
/// Longest time of one input.
const SLOW: Duration = Duration::from_secs(5);
/// Longest time until a worker has set up its target: devices are opened and kernels compiled then.
const SETUP: Duration = Duration::from_secs(300);
/// Inputs that are shown of each kind of failure.
const SHOWN: u64 = 3;

/// What happened to the inputs of a target.
#[derive(Debug, Default)]
struct Report {
    inputs: u64,
    accepted: u64,
    rejected: u64,
    /// By kind, and by what was said.
    failures: BTreeMap<(&'static str, String), u64>,
}

impl Report {
    fn failed(&self, kind: &str) -> u64 {
        self.failures.iter().filter(|((k, _), _)| *k == kind).map(|(_, n)| n).sum()
    }
}

/// A worker and its lines.
struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a worker ended.
enum End {
    Done,
    /// The input under way ended the process.
    Aborted,
    /// The input under way took too long.
    Slow,
}

/// Folder of what is kept.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz")
}

/// Runs what the arguments ask for; true if nothing failed. Errors: an unknown target, a worker that does not start.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    std::fs::create_dir_all(kept()).map_err(|e| e.to_string())?;
    let targets: Vec<&Target> = match args.target.as_str() {
        "all" => TARGETS.iter().collect(),
        name => vec![find(name)?],
    };
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let work = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let fine = fuzz(target, args).unwrap_or_else(|e| {
                eprintln!("{}: {e}", target.name);
                false
            });
            failed.fetch_add(usize::from(!fine), Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| (0..args.jobs.clamp(1, targets.len())).for_each(|_| drop(s.spawn(work))));
    let failed = failed.into_inner();
    println!("count: {} {failed} 0", targets.len() - failed);
    Ok(failed == 0)
}

/// Runs one target to its end, with a new worker after every one that ended early.
fn fuzz(target: &Target, args: &Args) -> Result<bool, String> {
    let seeds = Seeds::load(target.name)?;
    let (began, mut report, mut from) = (Instant::now(), Report::default(), 0);
    loop {
        let left = Duration::from_secs(args.seconds).saturating_sub(began.elapsed());
        if args.count.is_some_and(|n| from >= n) || (args.count.is_none() && left.is_zero()) {
            break;
        }
        let worker = start(target, args, from, left.as_secs().max(1), args.input.as_deref())?;
        let (end, at) = watch(worker, &mut report, |index, kind, what, n| {
            if args.input.is_none() && n <= SHOWN {
                keep(target, &seeds, args.seed, index, kind, what);
            }
        })?;
        let Some(at) = at else {
            let said = std::fs::read_to_string(words_of(target)).unwrap_or_default();
            return Err(format!("the worker ended before its first input: {}", said.trim()));
        };
        // One that is fast alone waited for others of this machine.
        if matches!(end, End::Slow) && (args.input.is_some() || slow_again(target, args, &seeds, at)?) {
            *report.failures.entry(("slow", SLOW_TEXT.into())).or_default() += 1;
            if args.input.is_none() {
                keep(target, &seeds, args.seed, at, "slow", SLOW_TEXT);
            }
        }
        if args.input.is_some() || matches!(end, End::Done) {
            break;
        }
        from = at + 1;
    }
    // Empty but for what a worker said about its end, which has been printed.
    let _ = std::fs::remove_file(words_of(target));
    print(target, &report, began.elapsed());
    Ok(report.failures.is_empty())
}

const SLOW_TEXT: &str = "more than 5 seconds";

fn print(target: &Target, r: &Report, time: Duration) {
    let [panics, wrong, aborts, slow] = ["panic", "wrong", "abort", "slow"].map(|k| r.failed(k));
    println!(
        "{}: {} inputs in {:.0} s, {panics} panics, {wrong} wrong, {aborts} aborts, {slow} slow; {} accepted, {} rejected",
        target.name,
        r.inputs,
        time.as_secs_f64(),
        r.accepted,
        r.rejected
    );
    for ((kind, what), n) in &r.failures {
        println!("  {n} x {kind}: {what}");
    }
}

/// Starts a worker under the limit of memory.
fn start(
    target: &Target,
    args: &Args,
    from: u64,
    seconds: u64,
    input: Option<&Path>,
) -> Result<Worker, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut c = if cfg!(unix) {
        let mut c = Command::new("sh");
        c.arg("-c").arg(format!("ulimit -c 0; ulimit -v {MEMORY}; exec \"$0\" \"$@\"")).arg(exe);
        c
    } else {
        Command::new(exe)
    };
    c.arg(target.name).args(["--seed", &args.seed.to_string(), "--worker", &from.to_string()]);
    match (input, args.count) {
        (Some(path), _) => c.arg("--input").arg(path),
        (None, Some(n)) => c.args(["--count", &n.to_string()]),
        (None, None) => c.args(["--seconds", &seconds.to_string()]),
    };
    let said = File::create(words_of(target)).map_err(|e| e.to_string())?;
    let mut child =
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said).spawn().map_err(|e| e.to_string())?;
    let out = child.stdout.take().ok_or("no output")?;
    let (send, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line).ok())
    });
    Ok(Worker { child, lines })
}

/// Where a worker's standard error goes.
fn words_of(target: &Target) -> PathBuf {
    kept().join(format!("{}-{}.log", target.name, std::process::id()))
}

/// Reads a worker's lines to its end; how it ended, and the input that ran last. `failed` hears of every failure: which input, of which kind,
/// what was said, how many of these there are.
fn watch(
    mut worker: Worker,
    report: &mut Report,
    failed: impl Fn(u64, &'static str, &str, u64),
) -> Result<(End, Option<u64>), String> {
    let (mut at, mut running) = (None, false);
    let fail = |report: &mut Report, index: Option<u64>, kind: &'static str, what: &str| {
        // Panics at one place are one failure, whatever they say; wrong results differ in their numbers.
        let same: String = what.split(": ").next().unwrap_or_default().chars().take(100).collect();
        let n = report.failures.entry((kind, same)).or_default();
        *n += 1;
        failed(index.unwrap_or(0), kind, what, *n);
    };
    loop {
        match worker.lines.recv_timeout(if at.is_none() { SETUP } else { SLOW }) {
            Ok(line) => {
                let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
                running = word == "run";
                match word {
                    "run" => {
                        at = rest.parse().ok();
                        report.inputs += 1;
                    }
                    "accepted" => report.accepted += 1,
                    "rejected" => report.rejected += 1,
                    "panic" => fail(report, at, "panic", rest),
                    "wrong" => fail(report, at, "wrong", rest),
                    other => return Err(format!("the worker said `{other}`")),
                }
            }
            Err(RecvTimeoutError::Timeout) => return Ok((End::Slow, at)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = worker.child.wait().map_err(|e| e.to_string())?;
    if status.success() && !running {
        return Ok((End::Done, at));
    }
    let why = status.to_string();
    fail(report, at, "abort", &why);
    Ok((End::Aborted, at))
}

/// Whether a slow input is so alone, too.
fn slow_again(target: &Target, args: &Args, seeds: &Seeds, index: u64) -> Result<bool, String> {
    let path = save(target, seeds, args.seed, index)?;
    let worker = start(target, args, 0, 0, Some(&path))?;
    let (end, _) = watch(worker, &mut Report::default(), |_, _, _, _| {})?;
    Ok(!matches!(end, End::Done))
}

/// Writes an input into the folder of what is kept.
fn save(target: &Target, seeds: &Seeds, seed: u64, index: u64) -> Result<PathBuf, String> {
    let input = seeds.input(target, seed, index);
    let path = kept().join(format!("{}-{seed}-{index}.{}", target.name, input.kind));
    std::fs::write(&path, &input.bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

/// Keeps an input that failed, and says how to run it again.
fn keep(target: &Target, seeds: &Seeds, seed: u64, index: u64, kind: &str, what: &str) {
    let name = target.name;
    println!("{name}: {kind} with input {index}: {what}");
    if kind == "abort" {
        let said = std::fs::read_to_string(words_of(target)).unwrap_or_default();
        said.lines().take(3).for_each(|line| println!("  {line}"));
    }
    match save(target, seeds, seed, index) {
        Ok(path) => println!("  again: cargo run -p trefoil-fuzz -- {name} --input {}", path.display()),
        Err(e) => println!("  it cannot be kept: {e}"),
    }
}
