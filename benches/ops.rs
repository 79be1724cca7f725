//! Micro-benchmarks of every operation on one device.
//!
//!     cargo bench                                   the device that TREFOIL_BACKEND names, or the best there is
//!     TREFOIL_BACKEND=cuda cargo bench -- softmax   only those whose name contains a text
//!     cargo bench -- --test                         every benchmark once, to see that they run
//!
//! The time is that between two events on the device's stream (on the CPU backend: of the host), over as many calls as the sampling asks for, so
//! launches are paid for where they are not hidden behind the work. Sizes are those of training on a GPU, and small on a CPU. Throughput is
//! bytes that have to move at least once, or floating-point operations for matrix products.

mod problems;

use std::time::Duration;

use criterion::{Criterion, Throughput};
use problems::{Bed, rows};
use trefoil::{IGpuBackend, Registry, Result, Selector};

/// Device time of `iters` calls.
fn timed(gpu: &dyn IGpuBackend, iters: u64, run: &mut problems::Run) -> Result<Duration> {
    // The first call compiles and fills caches.
    run(gpu)?;
    let from = gpu.record()?;
    for _ in 0..iters {
        run(gpu)?;
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
    let bed = Bed::new(&*gpu, if smoke { problems::Scale::Tiny } else { problems::Scale::of(gpu.caps()) });
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for row in rows() {
        for &dtype in row.dtypes {
            let name = format!("{}/{}/{dtype}", row.op, row.case);
            // Criterion filters as well, but only after the operands have been made.
            if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
                continue;
            }
            let mut problem = (row.make)(&bed, dtype)?;
            let mut group = c.benchmark_group("ops");
            group.throughput(match problem.flops {
                Some(flops) => Throughput::Elements(flops),
                None => Throughput::Bytes(problem.bytes),
            });
            let mut failed = None;
            group.bench_function(&name, |b| {
                b.iter_custom(|iters| {
                    timed(&*gpu, iters, &mut problem.run).unwrap_or_else(|e| {
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
