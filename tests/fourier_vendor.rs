//! The variant `cufft` of Fourier transforms against the CPU: many lengths and layouts, recorded calls, the choice. Skipped where the library is absent,
//! unless `TREFOIL_REQUIRE` names `cufft`.

mod common;

use std::sync::Arc;

use trefoil::ops::fourier::Fft;
use trefoil::{BackendExt, Buffer, CpuBackend, DType, GradMut, IGpuBackend, View, is_required};

type Gpu = Arc<dyn IGpuBackend>;

/// The first device whose driver has the library, with the operations pinned to it.
fn library() -> Option<Gpu> {
    let found = common::backends().into_iter().find(|gpu| {
        let choice = gpu.explain("fft").unwrap();
        let why = choice.rejected.iter().find(|(variant, _)| variant == "cufft");
        println!("{}: {}", gpu.caps().id, why.map_or(choice.chosen.as_str(), |(_, why)| why));
        choice.chosen == "cufft"
    });
    if found.is_none() {
        assert!(!is_required("cufft"), "TREFOIL_REQUIRE names cufft");
        println!("skipped: no device has cuFFT");
    }
    found.inspect(|gpu| pin(gpu, Some("cufft")))
}

fn pin(gpu: &Gpu, variant: Option<&str>) {
    for op in ["fft", "rfft", "irfft"] {
        gpu.pin_variant(op, variant).unwrap();
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Complex,
    ToBins,
    ToReals,
}

/// Transforms of [outer, n, inner] numbers along the middle axis.
#[derive(Debug, Clone, Copy)]
struct Case {
    kind: Kind,
    size: [usize; 3],
    p: Fft,
    accumulate: bool,
    dtype: DType,
}

impl Case {
    /// Shapes of what is read and written.
    fn shapes(&self) -> [Vec<usize>; 2] {
        let [outer, n, inner] = self.size;
        let bins = vec![outer, n / 2 + 1, 2];
        match self.kind {
            Kind::Complex => [vec![outer, n, inner, 2], vec![outer, n, inner, 2]],
            Kind::ToBins => [vec![outer, n], bins],
            Kind::ToReals => [bins, vec![outer, n]],
        }
    }

    fn call(&self, gpu: &dyn IGpuBackend, x: View<'_>, y: GradMut<'_>) -> trefoil::Result<()> {
        match self.kind {
            Kind::Complex => gpu.fft(&self.p, 1, x, y),
            Kind::ToBins => gpu.rfft(&self.p, x, y),
            Kind::ToReals => gpu.irfft(&self.p, x, y),
        }
    }

    /// Operands on a device: numbers that lie nowhere near each other's mirror images, in all imaginary parts too.
    fn operands<B: BackendExt + ?Sized>(&self, gpu: &B) -> [Buffer; 2] {
        let mut word = 1u32;
        self.shapes().map(|shape| {
            let mut value = || {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f64::from(word >> 8) / f64::from(1 << 23) - 1.0
            };
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| value()).collect();
            match self.dtype {
                DType::F64 => gpu.upload(&values),
                _ => gpu.upload(&values.iter().map(|&v| v as f32).collect::<Vec<_>>()),
            }
            .unwrap()
        })
    }

    fn run(&self, gpu: &dyn IGpuBackend, [x, y]: &[Buffer; 2]) -> trefoil::Result<()> {
        let [from, to] = self.shapes();
        let y = GradMut { out: y.alias_mut().reshape(&to)?, accumulate: self.accumulate };
        self.call(gpu, x.shaped(&from)?, y)
    }

    /// The result of a call on fresh operands.
    fn result(&self, gpu: &dyn IGpuBackend) -> Vec<f64> {
        let operands = self.operands(gpu);
        self.run(gpu, &operands).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        download(gpu, &operands[1])
    }
}

fn download(gpu: &dyn IGpuBackend, b: &Buffer) -> Vec<f64> {
    match b.dtype() {
        DType::F64 => gpu.download::<f64>(b.view()).unwrap(),
        _ => gpu.download::<f32>(b.view()).unwrap().into_iter().map(f64::from).collect(),
    }
}

/// Errors of transforms grow with the logarithm of the length and are as large as those of the largest results.
fn compare(case: &Case, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len() as f64).sqrt();
    let unit = if case.dtype == DType::F64 { 4e-15 } else { 2e-6 };
    let within = unit * (2.0 + (case.size[1] as f64).log2()) * rms;
    let off = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
    assert!(off <= within && off.is_finite(), "{case:?}: off by {off}, {within} allowed");
}

/// Small factors, powers of two, primes, and products of large primes; one and two passes of the library.
const LENGTHS: &[usize] = &[
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    16,
    17,
    31,
    60,
    64,
    100,
    127,
    128,
    169,
    202,
    256,
    361,
    500,
    1000,
    1021,
    1024,
    2048,
    2310,
    3000,
    4096,
    4099,
    6930,
    8192,
    10007,
    16384,
    65536,
    100_003,
    1 << 18,
    1 << 19,
];

fn cases(dtype: DType) -> Vec<Case> {
    let of = |kind, size, inverse| {
        let p = Fft::new().inverse(inverse);
        Case { kind, size, p, accumulate: false, dtype }
    };
    let rows = LENGTHS.iter().flat_map(|&n| {
        let outer = if n < 5000 { 5 } else { 2 };
        let size = [outer, n, 1];
        [
            of(Kind::Complex, size, false),
            of(Kind::Complex, size, true),
            of(Kind::ToBins, size, false),
            of(Kind::ToReals, size, true),
        ]
    });
    let columns =
        [[1, 8, 3], [1, 17, 64], [3, 60, 5], [2, 1024, 33], [1, 4096, 16], [16, 12, 2], [1, 1021, 7]];
    let columns = columns.into_iter().flat_map(|size| [false, true].map(|i| of(Kind::Complex, size, i)));
    rows.chain(columns).collect()
}

#[test]
fn lengths_and_layouts_match_the_cpu() {
    let Some(gpu) = library() else { return };
    let cpu = CpuBackend::new();
    let mut ran = 0;
    for case in [DType::F32, DType::F64].into_iter().flat_map(cases) {
        compare(&case, &case.result(&*gpu), &case.result(&cpu));
        ran += 1;
    }
    println!("{ran} transforms by cuFFT agree with the CPU");
}

#[test]
fn factors_and_sums_match_the_cpu() {
    let Some(gpu) = library() else { return };
    let cpu = CpuBackend::new();
    for case in cases(DType::F32).into_iter().filter(|c| c.size[1] <= 1024) {
        let scale = 1.0 / (case.size[1] as f64).sqrt();
        for (scale, accumulate) in [(scale, false), (1.0, true), (scale, true)] {
            let case = Case { p: case.p.scale(scale), accumulate, ..case };
            compare(&case, &case.result(&*gpu), &case.result(&cpu));
        }
    }
}

#[test]
fn results_repeat_and_recorded_calls_have_the_same_bits() {
    let Some(gpu) = library() else { return };
    for case in cases(DType::F32).into_iter().filter(|c| [60, 202, 1024, 4099, 16384].contains(&c.size[1])) {
        let case = Case { p: case.p.scale(0.5), ..case };
        let want = case.result(&*gpu);
        assert_eq!(case.result(&*gpu), want, "{case:?}: another call");
        let operands = case.operands(&*gpu);
        let (graph, ()) = gpu.capture(|gpu| case.run(&**gpu, &operands)).unwrap();
        let in_use = gpu.memory().in_use;
        for _ in 0..3 {
            gpu.fill(-1.0, operands[1].alias_mut()).unwrap();
            graph.replay().unwrap();
            assert_eq!(download(&*gpu, &operands[1]), want, "{case:?}: replayed");
        }
        assert_eq!(gpu.memory().in_use, in_use);
    }
}

/// More problems than plans are kept, with a graph recorded before them.
#[test]
fn graphs_outlive_the_plans_that_are_given_up() {
    let Some(gpu) = library() else { return };
    let of = |n| Case {
        kind: Kind::Complex,
        size: [2, n, 1],
        p: Fft::new(),
        accumulate: false,
        dtype: DType::F32,
    };
    let case = of(210);
    let (operands, want) = (case.operands(&*gpu), case.result(&*gpu));
    let (graph, ()) = gpu.capture(|gpu| case.run(&**gpu, &operands)).unwrap();
    let cpu = CpuBackend::new();
    for n in 300..900 {
        let got = of(n).result(&*gpu);
        if n % 100 == 0 {
            compare(&of(n), &got, &of(n).result(&cpu));
        }
    }
    graph.replay().unwrap();
    assert_eq!(download(&*gpu, &operands[1]), want);
}

/// Lengths with a large prime, which the library transforms as convolutions.
#[test]
fn several_threads_make_plans_at_a_time() {
    if library().is_none() {
        return;
    }
    std::thread::scope(|s| {
        for first in [1000, 1001, 1002, 1003] {
            s.spawn(move || {
                let Some(gpu) = library() else { return };
                for n in (first..first + 60).step_by(4) {
                    let size = [2, 2 * n + 1, 1];
                    let case = Case {
                        kind: Kind::Complex,
                        size,
                        p: Fft::new(),
                        accumulate: false,
                        dtype: DType::F32,
                    };
                    assert!(case.result(&*gpu).iter().all(|v| v.is_finite()), "{case:?}");
                }
            });
        }
    });
}

#[test]
fn large_calls_take_the_library_by_themselves() {
    let Some(gpu) = library() else { return };
    pin(&gpu, None);
    let chosen = |kind, size| {
        let case = Case { kind, size, p: Fft::new(), accumulate: false, dtype: DType::F32 };
        let operands = case.operands(&*gpu);
        let made = gpu.explain_calls(&mut || case.run(&*gpu, &operands)).unwrap();
        made.into_iter().find(|c| c.op.ends_with("fft")).unwrap().chosen
    };
    assert_eq!(chosen(Kind::Complex, [1024, 1024, 1]), "cufft");
    assert_eq!(chosen(Kind::Complex, [1, 1024, 1024]), "cufft");
    assert_eq!(chosen(Kind::Complex, [256, 4099, 1]), "cufft");
    assert_eq!(chosen(Kind::ToBins, [512, 2048, 1]), "cufft");
    assert_ne!(chosen(Kind::ToReals, [512, 2048, 1]), "cufft");
    assert_ne!(chosen(Kind::Complex, [256, 4096, 1]), "cufft");
    assert_ne!(chosen(Kind::Complex, [2, 64, 1]), "cufft");
}
