//! `lint`: every unit of the table through a plain C99 compiler. The lint dialect makes 16-bit storage a struct, so that arithmetic on storage
//! does not compile; what C99 takes and OpenCL C does too is portable.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use trefoil::spec::{Unit, all_units, expand};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only units whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// The C compiler.
    #[arg(long, default_value = "cc")]
    cc: String,
}

const OPTIONS: [&str; 9] =
    ["-std=c99", "-pedantic-errors", "-fsyntax-only", "-Wall", "-Werror", "-include", "math.h", "-xc", "-"];
/// Helpers of the prelude that a unit does not call, and NaN tests, are no mistakes; `long long` constants are C99.
const ALLOWED: [&str; 4] = ["-Wno-unused", "-Wno-unknown-pragmas", "-Wno-float-equal", "-Wno-comment"];

/// `lint`
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let units: Vec<Unit> = all_units().into_iter().filter(|u| u.to_string().contains(&args.filter)).collect();
    if units.is_empty() {
        return Err(format!("no unit's name contains {:?}", args.filter));
    }
    let jobs = std::thread::available_parallelism().map_or(1, Into::into);
    let (queue, failures) = (Mutex::new(units.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(unit) = queue.lock().ok().and_then(|mut q| q.next()) {
                    if let Err(e) = check(unit, &args.cc)
                        && let Ok(mut all) = failures.lock()
                    {
                        all.push(format!("{unit}\n{e}"));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().map_err(|e| e.to_string())?;
    failures.sort();
    println!("count: {} {} 0", units.len() - failures.len(), failures.len());
    match failures.first() {
        None => Ok(()),
        Some(first) => {
            Err(format!("{} of {} units are no C99; the first: {first}", failures.len(), units.len()))
        }
    }
}

fn check(unit: &Unit, cc: &str) -> Result<(), String> {
    let text = expand(unit, "lint")?;
    let mut child = Command::new(cc)
        .args(ALLOWED)
        .args(OPTIONS)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{cc}: {e}"))?;
    let written = child.stdin.take().map(|mut pipe| pipe.write_all(text.as_bytes()));
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    match (out.status.success(), written) {
        (true, Some(Ok(()))) => Ok(()),
        (true, _) => Err(format!("{cc} did not read the text")),
        (false, _) => {
            let log = String::from_utf8_lossy(&out.stderr);
            Err(log.lines().take(12).collect::<Vec<_>>().join("\n"))
        }
    }
}
