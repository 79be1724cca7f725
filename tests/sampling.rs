//! What top-k and top-p keep of long rows, and the tokens drawn from them, by every variant on every backend beside the CPU.

mod common;

use std::cell::OnceCell;

use trefoil::ops::language_model::LogitProcessors;
use trefoil::ops::random::{Distribution, Rng};
use trefoil::{BackendExt, BackendKind, CpuBackend, IGpuBackend};

/// More than 16 sections of 8,192: histograms take two parts for each.
const LONG: usize = 150_001;
/// As many as a cluster of blocks holds at most, less one, so that rows are no whole items of 16 bytes.
const HELD: usize = 131_071;
const NONE: f32 = f32::NEG_INFINITY;

/// Normal numbers times `width`, the same everywhere.
fn normal(n: usize, width: f32, seed: u64) -> Vec<f32> {
    let cpu: &dyn IGpuBackend = &CpuBackend::new();
    let mut y = cpu.upload(&vec![0f32; n]).unwrap();
    cpu.random(Distribution::Normal { mean: 0.0, std: f64::from(width) }, Rng::new(seed), y.view_mut())
        .unwrap();
    cpu.download(y.view()).unwrap()
}

/// Draws of tokens on the CPU, and on devices with an own driver that are CPUs, where a draw takes a thousand times as long as on a GPU.
const DRAWS: [u64; 2] = [8, 1];

/// The ids that are kept of one row, and the tokens of some draws.
fn chosen(gpu: &dyn IGpuBackend, p: &LogitProcessors, row: &[f32]) -> (Vec<usize>, Vec<i64>) {
    let n = row.len();
    let x = gpu.upload(row).unwrap();
    let mut y = gpu.upload(&vec![0f32; n]).unwrap();
    gpu.logit_processors(p, x.shaped(&[1, n]).unwrap(), None, y.shaped_mut(&[1, n]).unwrap()).unwrap();
    let kept = gpu.download::<f32>(y.view()).unwrap();
    let kept = kept.iter().enumerate().filter(|(_, v)| **v > NONE).map(|(i, _)| i).collect();
    let mut id = gpu.upload(&[0i64]).unwrap();
    let draw = |i| {
        let rng = Rng::new(5).at(0, i);
        gpu.sample_tokens(p, rng, x.shaped(&[1, n]).unwrap(), None, id.view_mut()).unwrap();
        gpu.download::<i64>(id.view()).unwrap()[0]
    };
    (
        kept,
        (0..DRAWS[usize::from(gpu.id().kind != BackendKind::Cpu && gpu.caps().is_cpu)]).map(draw).collect(),
    )
}

/// Rows of at most `long` logits and their names: wide and narrow distributions, ties, masks, and what histograms leave to the other kernels.
fn rows(long: usize) -> Vec<(&'static str, Vec<f32>)> {
    let masked = |rest: f32| {
        let mut v = vec![rest; long];
        for (i, x) in [(7, 1.0), (9_000, 2.5), (80_000, 2.0), (long - 2, 2.25), (long - 1, -40.0)] {
            v[i] = x;
        }
        v
    };
    let of = |v: &[f32], f: fn(f32) -> f32| v.iter().map(|x| f(*x)).collect::<Vec<_>>();
    let mut nan = normal(long, 4.0, 4);
    (nan[0], nan[100_000], nan[5]) = (f32::NAN, f32::NAN, NONE);
    let mut infinite = normal(9000, 1.0, 5);
    infinite[4321] = f32::INFINITY;
    vec![
        ("peaked", normal(long, 4.0, 1)),
        ("peaked, shorter", normal(5000, 4.0, 2)),
        ("far from 0", of(&normal(long, 4.0, 1), |x| x + 1000.0)),
        ("beyond bins", of(&normal(long, 4.0, 1), |x| x * 1e5)),
        ("ties", of(&normal(long, 4.0, 3), |x| x.round())),
        ("few of many", masked(NONE)),
        ("few, the others far below", masked(-1e9)),
        ("not a number", nan),
        ("infinite", infinite),
        ("nothing", vec![NONE; 4000]),
        ("all equal", vec![0.5; 20_000]),
    ]
}

fn processors() -> Vec<LogitProcessors> {
    let p = LogitProcessors::new();
    vec![
        p.top_p(0.9),
        p.top_p(0.3).temperature(0.5),
        p.top_k(50),
        p.top_k(3),
        p.top_k(50).top_p(0.8).temperature(1.5),
        p.top_k(2000).min_p(0.01),
        p.top_p(0.999).min_p(0.05),
    ]
}

#[test]
fn every_variant_keeps_what_the_cpu_keeps() {
    let cpu: &dyn IGpuBackend = &CpuBackend::new();
    let cases_of = |long| -> Vec<_> {
        rows(long)
            .into_iter()
            .flat_map(|(name, row)| processors().into_iter().map(move |p| (name, p, row.clone())))
            .map(|(name, p, row)| (name, p, chosen(cpu, &p, &row), row))
            .collect()
    };
    let (cases, held) = (cases_of(LONG), OnceCell::new());
    for gpu in common::backends() {
        if gpu.id().kind == BackendKind::Cpu {
            continue;
        }
        // A third of the cases on devices that are CPUs has all rows and all processors, too.
        let (variants, step): (&[&str], _) = match gpu.caps().is_cpu {
            true => (&["histogram"], 3),
            false if gpu.caps().cluster > 1 => (&["cluster", "histogram", "sections", "rows"], 1),
            false => (&["histogram", "sections", "rows"], 1),
        };
        if step > 1 {
            println!(
                "skipped two thirds of the cases, `sections` and `rows` on {}: a CPU behind a driver",
                gpu.id()
            );
        }
        for variant in variants {
            for op in ["logit_processors", "sample_tokens"] {
                gpu.pin_variant(op, Some(variant)).unwrap();
            }
            let cases = if *variant == "cluster" { held.get_or_init(|| cases_of(HELD)) } else { &cases };
            for (name, p, expected, row) in cases.iter().step_by(step) {
                let (kept, ids) = chosen(&*gpu, p, row);
                let expected = (&expected.0, &expected.1[..ids.len()]);
                assert_eq!((&kept, &ids[..]), expected, "{name}, {p:?} by {variant} on {}", gpu.id());
            }
        }
    }
}

/// Thousands of nearly equal powers: the last of what is kept depends on rounding, no more than that.
#[test]
fn flat_distributions_differ_by_rounding_alone() {
    let (cpu, row) = (CpuBackend::new(), normal(131_072, 1.0, 6));
    let p = LogitProcessors::new().top_p(0.9);
    let expected = chosen(&cpu, &p, &row).0.len();
    for gpu in common::backends() {
        let variants: &[&str] = match gpu.id().kind {
            BackendKind::Cpu => &[],
            _ if gpu.caps().cluster > 1 => &["cluster", "histogram"],
            _ => &["histogram"],
        };
        for variant in variants {
            gpu.pin_variant("logit_processors", Some(variant)).unwrap();
            let kept = chosen(&*gpu, &p, &row).0.len();
            assert!(
                kept.abs_diff(expected) <= 2,
                "{kept} instead of {expected} by {variant} on {}",
                gpu.id()
            );
        }
    }
}
