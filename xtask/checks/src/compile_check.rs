//! `compile-check`: every unit of the table through NVRTC and hiprtc, without a GPU.
//!
//! A unit takes a quarter of a second, and there are many of them times a dozen architectures. So all units are compiled for one architecture of
//! each compiler (`--all-units-for`), and for the others a sample: every kernel with every storage type, one function each. `--full`
//! compiles everything for all of them. What was compiled is printed and stands in the report. `--known` leaves out the files whose text has
//! compiled before, as `--record` wrote down.
//!
//! Each architecture is compiled in a process of its own, because compilers have been seen to die on an architecture that they do not know.
//! The process first compiles a trivial kernel; if that fails or kills it, the architecture is unknown to the compiler, which is reported and
//! is no failure. A process that dies later is blamed on the unit it was at, and the rest is done by a new one.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use trefoil::GpuError;
use trefoil::driver::{CompileUnit, hiprtc_compile_for, hiprtc_version};
use trefoil::spec::{Unit, all_kernels, all_units, expand};

use crate::compiled::{Compiled, Key, Texts};
use crate::nvrtc::Nvrtc;

/// Options of the CUDA driver besides the architecture.
const NVRTC_OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "--generate-line-info"];
/// What `hip-on-cuda` defines when it compiles the HIP dialect with NVRTC.
const HIP_ON_NVIDIA: &str = "-D__HIP_PLATFORM_NVIDIA__=1";
/// Starts the lines of a worker's report; compilers write lines of their own.
const MARK: &str = "@compile-check ";
/// Kinds of errors shown per architecture, and lines of each log.
const SHOWN: (usize, usize) = (5, 12);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compute capabilities for NVRTC; one that it does not know any more is replaced by the oldest that it knows.
    #[arg(long, value_delimiter = ',', default_value = "70,80,90,100")]
    nvrtc_arch: Vec<u32>,
    /// Compute capabilities for the HIP dialect's NVIDIA branch; without a value it is left out.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "90")]
    hip_on_nvidia_arch: Vec<u32>,
    /// Architectures for hiprtc.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "gfx906,gfx908,gfx90a,gfx942,gfx1030,gfx1100,gfx1201"
    )]
    hip_arch: Vec<String>,
    /// Dialects and architectures that compile all units; the others compile a sample.
    #[arg(long, value_delimiter = ',', default_value = "cuda:sm_90,hip:gfx90a")]
    all_units_for: Vec<String>,
    /// All units for all architectures.
    #[arg(long)]
    full: bool,
    /// Leaves out the files that this list, written by `--record`, says have compiled with today's text.
    #[arg(long)]
    known: Option<PathBuf>,
    /// Writes which files have compiled into this list, beside what it holds of today's texts.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Compile only units whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Compilers whose absence is an error.
    #[arg(long, value_delimiter = ',')]
    require: Vec<Compiler>,
    /// Writes the report as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Processes at a time; the number of cores if absent.
    #[arg(long)]
    jobs: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compiler {
    Nvrtc,
    Hiprtc,
}

impl Compiler {
    fn name(self) -> &'static str {
        match self {
            Compiler::Nvrtc => "nvrtc",
            Compiler::Hiprtc => "hiprtc",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    compiler: Compiler,
    #[arg(long)]
    dialect: String,
    #[arg(long)]
    arch: String,
    #[arg(long, default_value = "")]
    filter: String,
    /// Only one function of each kernel and storage type.
    #[arg(long)]
    sample: bool,
    /// Files whose units are left out.
    #[arg(long, value_delimiter = ',')]
    leave_out: Vec<String>,
    /// Units to leave out at the start.
    #[arg(long, default_value_t = 0)]
    skip: usize,
}

/// One architecture to compile for.
#[derive(Debug, Clone)]
struct Target {
    compiler: Compiler,
    dialect: &'static str,
    arch: String,
    /// Whether only the sample is compiled.
    sample: bool,
    /// Files that are left out.
    known: Vec<String>,
    /// Why it is not the one that was asked for.
    note: String,
}

/// A line of a worker's report. The first is the trivial kernel's and names no unit.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    unit: Option<String>,
    /// The log, where it did not compile.
    log: Option<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    unit: String,
    log: String,
}

/// What came of one architecture.
#[derive(Debug, Serialize)]
struct Outcome {
    compiler: Compiler,
    dialect: &'static str,
    arch: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    /// Whether the compiler knows the architecture.
    known: bool,
    /// Whether all units were asked for, or one function of each kernel and storage type.
    all_units: bool,
    compiled: usize,
    failed: Vec<Failure>,
    /// Files of which all units that were asked for have compiled; none where a filter may have left some out.
    #[serde(skip)]
    files: BTreeSet<&'static str>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    date: String,
    compilers: Vec<String>,
    units: usize,
    sample: usize,
    filter: String,
    outcomes: Vec<Outcome>,
}

/// The units to compile; the sample is the smallest list of first functions that has every kernel in every storage type.
fn units(filter: &str, sample: bool, left_out: &[String]) -> Vec<Unit> {
    let sampled: BTreeSet<Unit> = all_kernels()
        .flat_map(|k| {
            k.units.iter().map(move |&(dtypes, ops)| (k.file, dtypes, ops.first().copied().unwrap_or("")))
        })
        .flat_map(|(file, dtypes, op)| dtypes.iter().map(move |&dtype| Unit { file, dtype, op }))
        .collect();
    let wanted = |u: &Unit| {
        u.to_string().contains(filter)
            && (!sample || sampled.contains(u))
            && !left_out.iter().any(|file| file == u.file)
    };
    all_units().into_iter().filter(wanted).collect()
}

/// `compile-check`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let (count, sample) = (units(&args.filter, false, &[]).len(), units(&args.filter, true, &[]).len());
    if count == 0 {
        return Err(format!("no unit's name contains {:?}", args.filter));
    }
    let mut targets = VecDeque::new();
    let mut compilers = Vec::new();
    for (compiler, found) in
        [(Compiler::Nvrtc, nvrtc_targets(args)), (Compiler::Hiprtc, hiprtc_targets(args))]
    {
        match found {
            Ok((version, found)) => {
                println!("{version}");
                compilers.push(version);
                targets.extend(found);
            }
            Err(why) if args.require.contains(&compiler) => return Err(why),
            Err(why) => println!("skipped {}: {why}", compiler.name()),
        }
    }
    let names = |sample| -> String {
        let of = targets.iter().filter(|t| t.sample == sample);
        let names: Vec<String> = of.map(|t| format!("{} ({})", t.arch, t.dialect)).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    println!("all {count} units for {}", names(false));
    println!("{sample} units (one function of each kernel and type) for {}", names(true));
    let texts = Texts::default();
    if let Some(path) = &args.known {
        let known = Compiled::read(path)?;
        for t in targets.iter_mut().filter(|t| t.sample) {
            t.known = known.files(&key(t), &texts)?;
            let all = units(&args.filter, true, &[]).len();
            let left_out = all - units(&args.filter, true, &t.known).len();
            println!(
                "skipped {left_out} of {all} units for {} ({}): their text has compiled before",
                t.arch, t.dialect
            );
        }
    }
    let compilations: usize = targets.iter().map(|t| units(&args.filter, t.sample, &t.known).len()).sum();
    println!("{compilations} compilations");

    let jobs =
        args.jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1).max(1);
    let (queue, outcomes) = (Mutex::new(targets), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(target) = queue.lock().ok().and_then(|mut q| q.pop_front()) {
                    let outcome = check(&target, &args.filter);
                    print_outcome(&outcome);
                    if let Ok(mut all) = outcomes.lock() {
                        all.push(outcome);
                    }
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().map_err(|e| e.to_string())?;
    outcomes.sort_by(|a, b| {
        (a.compiler.name(), a.dialect, &a.arch).cmp(&(b.compiler.name(), b.dialect, &b.arch))
    });
    let date = parity_tests::report::today();
    let report = Report { date, compilers, units: count, sample, filter: args.filter.clone(), outcomes };
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if let Some(path) = &args.record {
        record(path, &report, &texts)?;
    }
    verdict(&report, &args.require)
}

/// Where a target stands in the list of what has compiled.
fn key(t: &Target) -> Key {
    (t.compiler.name().into(), t.dialect.into(), t.arch.clone())
}

/// Adds the files of which every unit compiled to the list.
fn record(path: &Path, report: &Report, texts: &Texts) -> Result<(), String> {
    let mut list = if path.exists() { Compiled::read(path)? } else { Compiled::default() };
    for o in &report.outcomes {
        let version = report.compilers.iter().find(|v| v.to_lowercase().starts_with(o.compiler.name()));
        let how = format!("{} {}", report.date, version.map_or("", |v| v.split(" (").next().unwrap_or(v)));
        list.add((o.compiler.name().into(), o.dialect.into(), o.arch.clone()), &o.files, &how, texts)?;
    }
    list.write(path, texts)
}

/// Fails where a unit failed, and where a required compiler knew none of the architectures.
fn verdict(report: &Report, require: &[Compiler]) -> Result<(), String> {
    let failed: usize = report.outcomes.iter().map(|o| o.failed.len()).sum();
    let compiled: usize = report.outcomes.iter().map(|o| o.compiled).sum();
    let unknown = report.outcomes.iter().filter(|o| !o.known).count();
    println!(
        "compile check: {compiled} passed, {failed} failed; {unknown} architectures unknown to their compiler"
    );
    if failed > 0 {
        return Err(format!("{failed} compilations failed"));
    }
    match require.iter().find(|c| !report.outcomes.iter().any(|o| o.compiler == **c && o.known)) {
        Some(c) => Err(format!("{} knows none of the architectures", c.name())),
        None => Ok(()),
    }
}

fn nvrtc_targets(args: &Args) -> Result<(String, Vec<Target>), String> {
    let nvrtc = Nvrtc::open()?;
    if args.hip_on_nvidia_arch.is_empty() {
        println!("skipped the HIP dialect on NVIDIA: no architecture asked for");
    }
    let (major, minor) = nvrtc.version()?;
    let known: Vec<u32> = nvrtc.architectures()?.into_iter().filter_map(|a| u32::try_from(a).ok()).collect();
    let wanted = |dialect, asked: &[u32]| {
        replace_unknown(asked, &known).into_iter().map(move |(arch, note)| Target {
            compiler: Compiler::Nvrtc,
            dialect,
            sample: is_sampled(args, dialect, &format!("sm_{arch}")),
            // As the driver compiles for Hopper.
            arch: if arch == 90 { "sm_90a".into() } else { format!("sm_{arch}") },
            known: Vec::new(),
            note,
        })
    };
    let targets = wanted("cuda", &args.nvrtc_arch).chain(wanted("hip", &args.hip_on_nvidia_arch)).collect();
    Ok((format!("NVRTC {major}.{minor} ({})", nvrtc.path), targets))
}

/// Whether an architecture compiles the sample only.
fn is_sampled(args: &Args, dialect: &str, arch: &str) -> bool {
    !args.full && !args.all_units_for.iter().any(|a| a.split_once(':') == Some((dialect, arch)))
}

/// The architectures to compile for: an asked one that is older than all known ones becomes the oldest known one, with a note.
fn replace_unknown(asked: &[u32], known: &[u32]) -> Vec<(u32, String)> {
    let mut chosen: Vec<(u32, String)> = Vec::new();
    for &arch in asked {
        let (arch, note) = match known.first() {
            Some(&oldest) if arch < oldest => {
                (oldest, format!("for sm_{arch}, which this NVRTC does not know any more"))
            }
            _ => (arch, String::new()),
        };
        if !chosen.iter().any(|(a, _)| *a == arch) {
            chosen.push((arch, note));
        }
    }
    chosen
}

fn hiprtc_targets(args: &Args) -> Result<(String, Vec<Target>), String> {
    let version = hiprtc_version().map_err(|e| e.to_string())?;
    let target = |arch: &String| Target {
        compiler: Compiler::Hiprtc,
        dialect: "hip",
        arch: arch.clone(),
        sample: is_sampled(args, "hip", arch),
        known: Vec::new(),
        note: String::new(),
    };
    Ok((version, args.hip_arch.iter().map(target).collect()))
}

/// Compiles all units for one architecture, in as many processes as that takes.
fn check(target: &Target, filter: &str) -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome {
        compiler: target.compiler,
        dialect: target.dialect,
        arch: target.arch.clone(),
        note: target.note.clone(),
        known: false,
        all_units: !target.sample,
        compiled: 0,
        failed: Vec::new(),
        files: BTreeSet::new(),
        seconds: 0.0,
    };
    let asked = units(filter, target.sample, &target.known);
    let names: Vec<String> = asked.iter().map(Unit::to_string).collect();
    let count = names.len();
    let mut done = 0;
    // With nothing to compile the trivial kernel is, which tells whether the compiler is there.
    while done < count || !outcome.known {
        let (lines, ended) = match worker(target, filter, done) {
            Ok(ended) => ended,
            Err(e) => (Vec::new(), e),
        };
        let mut lines = lines.into_iter();
        match lines.next() {
            Some(Line { unit: None, log: None }) => outcome.known = true,
            first if outcome.known => {
                // It compiled before, so this is no matter of the architecture.
                let log = first.and_then(|l| l.log).unwrap_or(ended);
                outcome.failed.push(Failure { unit: names[done].clone(), log });
                break;
            }
            Some(Line { log: Some(log), .. }) => {
                outcome.note = log;
                break;
            }
            _ => {
                outcome.note = ended;
                break;
            }
        }
        for line in lines {
            done += 1;
            match (line.unit, line.log) {
                (Some(unit), Some(log)) => outcome.failed.push(Failure { unit, log }),
                _ => outcome.compiled += 1,
            }
        }
        if done < count {
            outcome
                .failed
                .push(Failure { unit: names[done].clone(), log: format!("the compiler died: {ended}") });
            done += 1;
        }
    }
    let files = asked.iter().map(|u| u.file);
    let failed = |file: &str| outcome.failed.iter().any(|f| f.unit.starts_with(&format!("{file}@")));
    if filter.is_empty() && done == count && outcome.known {
        outcome.files = files.filter(|file| !failed(file)).collect();
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome
}

/// Runs a worker to its end: its lines, and how it ended.
fn worker(target: &Target, filter: &str, skip: usize) -> Result<(Vec<Line>, String), String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(exe)
        .args(["compile-worker", "--compiler", target.compiler.name(), "--dialect", target.dialect])
        .args(["--arch", &target.arch, "--filter", filter, "--skip", &skip.to_string()])
        .args(target.sample.then_some("--sample"))
        .args(["--leave-out", &target.known.join(",")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut lines = Vec::new();
    if let Some(out) = child.stdout.take() {
        for text in BufReader::new(out).lines().map_while(Result::ok) {
            if let Some(line) = text.strip_prefix(MARK).and_then(|t| serde_json::from_str(t).ok()) {
                lines.push(line);
            }
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    Ok((lines, status.to_string()))
}

fn print_outcome(o: &Outcome) {
    // One string, so that the lines of two architectures do not mix.
    let mut text = format!("{:7} {:4} {:8} ", o.compiler.name(), o.dialect, o.arch);
    if !o.known {
        let first = o.note.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
        text += &format!("unknown to this {} ({first})\n", o.compiler.name());
    } else {
        let which = if o.all_units { "all units" } else { "sample" };
        text += &format!("{which}: {} compiled, {} failed, {:.1} s", o.compiled, o.failed.len(), o.seconds);
        text += &if o.note.is_empty() { "\n".into() } else { format!(" ({})\n", o.note) };
    }
    // One mistake in a shared file fails many units: each is shown once, with the first unit that met it.
    let mut kinds: Vec<(&str, &Failure, usize)> = Vec::new();
    for f in &o.failed {
        let kind = f.log.lines().find(|l| l.contains("error")).unwrap_or(&f.log);
        match kinds.iter_mut().find(|(k, ..)| *k == kind) {
            Some((.., count)) => *count += 1,
            None => kinds.push((kind, f, 1)),
        }
    }
    for (_, f, count) in kinds.iter().take(SHOWN.0) {
        let others = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        text += &format!("  {}{others}\n", f.unit);
        for line in f.log.lines().take(SHOWN.1) {
            text += &format!("    {line}\n");
        }
    }
    if kinds.len() > SHOWN.0 {
        text += &format!("  and {} more kinds of errors\n", kinds.len() - SHOWN.0);
    }
    print!("{text}");
}

/// `compile-worker`
pub(crate) fn work(args: &WorkerArgs) -> Result<(), String> {
    let compile = compile_for(args)?;
    let trivial = "extern \"C\" __global__ void trivial(float* x) { x[0] = 1.0f; }";
    let log = compile("trivial", trivial).err();
    let known = log.is_none();
    report(&Line { unit: None, log })?;
    if !known {
        return Ok(());
    }
    for unit in units(&args.filter, args.sample, &args.leave_out).iter().skip(args.skip) {
        let name = unit.to_string();
        let outcome = expand(unit, &args.dialect).and_then(|source| compile(&name, &source));
        report(&Line { unit: Some(name), log: outcome.err() })?;
    }
    Ok(())
}

fn report(line: &Line) -> Result<(), String> {
    let text = serde_json::to_string(line).map_err(|e| e.to_string())?;
    let mut out = std::io::stdout().lock();
    // A line break first: a compiler may have left a line of its own open.
    writeln!(out, "\n{MARK}{text}").and_then(|()| out.flush()).map_err(|e| e.to_string())
}

/// Compiles one text; the error is the log.
type Compile = Box<dyn Fn(&str, &str) -> Result<(), String>>;

fn compile_for(args: &WorkerArgs) -> Result<Compile, String> {
    let arch = args.arch.clone();
    match args.compiler {
        Compiler::Nvrtc => {
            let nvrtc = Nvrtc::open()?;
            let mut options = vec![format!("--gpu-architecture={arch}")];
            options.extend(NVRTC_OPTIONS.map(String::from));
            if args.dialect == "hip" {
                options.push(HIP_ON_NVIDIA.into());
            }
            Ok(Box::new(move |name, source| nvrtc.compile(name, source, &options).map(|_| ())))
        }
        Compiler::Hiprtc => Ok(Box::new(move |name, source| {
            match hiprtc_compile_for(&arch, &CompileUnit::new(name, source)) {
                Ok(_) => Ok(()),
                Err(GpuError::Compile(failure)) => Err(failure.log),
                Err(e) => Err(e.to_string()),
            }
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_known_architecture_stands_in_for_older_ones() {
        let chosen = replace_unknown(&[60, 70, 80, 90, 200], &[75, 80, 90, 100]);
        let archs: Vec<u32> = chosen.iter().map(|(a, _)| *a).collect();
        assert_eq!(archs, [75, 80, 90, 200]);
        assert!(chosen[0].1.contains("sm_60") && chosen[1].1.is_empty());
    }

    #[test]
    fn the_sample_has_every_kernel_in_every_type() {
        let (all, sample) = (units("", false, &[]), units("", true, &[]));
        assert!(sample.len() < all.len() && sample.iter().all(|u| all.contains(u)));
        for k in all_kernels() {
            for dtype in k.dtypes() {
                let serves = |u: &Unit| u.file == k.file && u.dtype == dtype && k.has_unit(dtype, u.op);
                assert!(sample.iter().any(serves), "{} {dtype}", k.entry);
            }
        }
        let left_out = ["random/random.c".to_string()];
        assert!(units("", true, &left_out).iter().all(|u| u.file != "random/random.c"));
        assert!(units("random", true, &[]).iter().all(|u| u.file == "random/random.c"));
    }

    #[test]
    fn failures_and_missing_compilers_fail_the_check() {
        let outcome = |known, failed: usize| Outcome {
            compiler: Compiler::Hiprtc,
            dialect: "hip",
            arch: "gfx90a".into(),
            note: String::new(),
            known,
            all_units: true,
            compiled: 1,
            failed: (0..failed).map(|i| Failure { unit: i.to_string(), log: String::new() }).collect(),
            files: BTreeSet::new(),
            seconds: 0.0,
        };
        let report = |o| Report {
            date: String::new(),
            compilers: Vec::new(),
            units: 1,
            sample: 1,
            filter: String::new(),
            outcomes: vec![o],
        };
        assert!(verdict(&report(outcome(true, 0)), &[Compiler::Hiprtc]).is_ok());
        assert!(verdict(&report(outcome(true, 1)), &[]).is_err());
        assert!(verdict(&report(outcome(false, 0)), &[]).is_ok());
        assert!(verdict(&report(outcome(false, 0)), &[Compiler::Hiprtc]).is_err());
        assert!(verdict(&report(outcome(true, 0)), &[Compiler::Nvrtc]).is_err());
    }
}
