//! Micro-benchmarks of every operation on one device: the problems of `trefoil_bench`.
//!
//!     cargo bench                                   the device that TREFOIL_BACKEND names, or the best there is
//!     TREFOIL_BACKEND=cuda cargo bench -- softmax   only those whose name contains a text, or one of several: "softmax|cumsum/rows"
//!     cargo bench -- --test                         every benchmark once, to see that they run
//!
//! The time is that between two events on the device's stream (on the CPU backend: of the host), over as many calls as criterion's
//! sampling asks for: it includes launches that are not hidden behind the work. Sizes are those of training on a GPU, and small on a CPU.
//! The throughput is bytes that have to move at least once, or floating-point operations for matrix products.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use trefoil::{IGpuBackend, Registry, Result, Selector};
use trefoil_bench::{Context, Prepared, Scale, problems};

/// How long a device works before times count that idled while kernels were compiled: short kernels may take several times as long at first.
const WARM_UP: Duration = Duration::from_millis(300);
/// First calls that take longer have compiled something.
const COMPILES: Duration = Duration::from_millis(20);

/// Compiles, fills caches, and keeps the device busy for a while where that took long.
fn warm_up(gpu: &dyn IGpuBackend, problem: &mut Prepared) -> Result<()> {
    let mut run = || problem.run(gpu, 0).and_then(|()| gpu.record()?.synchronize());
    let start = Instant::now();
    run()?;
    if start.elapsed() < COMPILES {
        return Ok(());
    }
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        run()?;
    }
    Ok(())
}

/// Device time of `iters` calls.
fn timed(gpu: &dyn IGpuBackend, iters: u64, problem: &mut Prepared) -> Result<Duration> {
    // So that the first event does not wait for the host.
    problem.run(gpu, 0)?;
    let from = gpu.record()?;
    for _ in 0..iters {
        problem.run(gpu, 0)?;
    }
    let to = gpu.record()?;
    to.synchronize()?;
    Ok(Duration::from_nanos(from.elapsed_ns(&to)?.max(1)))
}

fn bench(c: &mut Criterion) -> Result<()> {
    let gpu = Registry::default().open(&Selector::from_env()?)?;
    println!("device: {} ({})", gpu.id(), gpu.caps().name);
    // As criterion decides it: without `--bench`, which `cargo bench` passes, everything runs once.
    let smoke = std::env::args().any(|a| a == "--test") || !std::env::args().any(|a| a == "--bench");
    let cx = Context::new(&*gpu, if smoke { Scale::Tiny } else { Scale::of(gpu.caps()) });
    // Criterion takes the argument as a regular expression.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted: Vec<&str> = args.iter().flat_map(|a| a.split('|')).collect();
    for p in problems() {
        for &dtype in p.dtypes {
            let name = format!("{}/{}/{dtype}", p.op, p.name);
            // Criterion filters as well, but only after the operands have been made.
            if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w)) {
                continue;
            }
            let mut problem = (p.prepare)(&cx, dtype)?;
            if !smoke {
                warm_up(&*gpu, &mut problem)?;
            }
            let mut group = c.benchmark_group("ops");
            group.throughput(match problem.flops {
                0 => Throughput::Bytes(problem.bytes),
                flops => Throughput::Elements(flops),
            });
            let mut failed = None;
            group.bench_function(&name, |b| {
                b.iter_custom(|iters| {
                    timed(&*gpu, iters, &mut problem).unwrap_or_else(|e| {
                        failed.get_or_insert(e);
                        Duration::from_nanos(1)
                    })
                });
            });
            group.finish();
            // Memory of this problem goes before the next one's comes.
            drop(problem);
            gpu.synchronize()?;
            if let Some(e) = failed {
                eprintln!("{name}: {e}");
                return Err(e);
            }
        }
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    match bench(&mut criterion) {
        Ok(()) => {
            criterion.final_summary();
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
