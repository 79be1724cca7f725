//! The vendor's variant on an OpenCL device whose driver has a library: one that transforms on the host as cuFFT does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::backend::BackendExt;
use crate::cpu::CpuBackend;
use crate::device::Caps;
use crate::driver::blas_reference::{decode, encode};
use crate::driver::fft_reference::transform;
use crate::driver::{
    Arg, CompileUnit, Driver, FftKind, LaunchConfig, RawEvent, RawFunction, RawMem, RawModule, RawStream,
    VendorFft, VendorFftProblem,
};
use crate::error::GpuError;
use crate::ops::IGpuBackend;
use crate::ops::core::{CoreOps, InteropOps};
use crate::ops::shape::ShapeOps;
use crate::test_devices::present;

/// What a stand-in of the library does wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It scales its results, as no version of cuFFT does.
    Scales,
    /// It has no plan of a length.
    Refuses(usize),
}

/// An OpenCL device with a library.
#[derive(Debug)]
struct WithLibrary {
    inner: Arc<dyn Driver>,
    fault: Fault,
    runs: AtomicUsize,
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {$(
        unsafe fn $name(&self, $($arg: $ty),*) $(-> $out)? {
            // SAFETY: the caller's promise.
            unsafe { self.inner.$name($($arg),*) }
        }
    )*};
}

impl Driver for WithLibrary {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn dialect(&self) -> &'static str {
        self.inner.dialect()
    }

    fn compiler_id(&self) -> String {
        self.inner.compiler_id()
    }

    fn alloc(&self, bytes: usize) -> Result<RawMem> {
        self.inner.alloc(bytes)
    }

    fn new_stream(&self) -> Result<RawStream> {
        self.inner.new_stream()
    }

    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        self.inner.compile(unit)
    }

    forward! {
        free(mem: RawMem);
        destroy_stream(s: RawStream);
        copy_in(s: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()>;
        copy_out(s: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()>;
        copy(s: RawStream, src: (RawMem, u64), dst: (RawMem, u64), bytes: usize) -> Result<()>;
        load(image: &[u8]) -> Result<RawModule>;
        function(module: RawModule, entry: &str) -> Result<RawFunction>;
        launch(s: RawStream, f: RawFunction, cfg: &LaunchConfig, args: &[Arg<'_>]) -> Result<()>;
        synchronize(s: RawStream) -> Result<()>;
        record(s: RawStream) -> Result<RawEvent>;
        wait(s: RawStream, e: RawEvent) -> Result<()>;
        event_synchronize(e: RawEvent) -> Result<()>;
        elapsed_ns(from: RawEvent, to: RawEvent) -> Result<u64>;
        destroy_event(e: RawEvent);
    }

    fn vendor_fft(&self) -> std::result::Result<&dyn VendorFft, &str> {
        Ok(self)
    }
}

impl VendorFft for WithLibrary {
    fn name(&self) -> &'static str {
        "cufft"
    }

    fn applicable(&self, p: &VendorFftProblem) -> std::result::Result<(), String> {
        match self.fault {
            Fault::Refuses(n) if n == p.n => Err("cufftMakePlanMany64: CUFFT_INVALID_SIZE".into()),
            _ => Ok(()),
        }
    }

    fn workspace(&self, p: &VendorFftProblem) -> usize {
        16 * p.n
    }

    fn first_run_loads(&self, _: &VendorFftProblem) -> bool {
        self.runs.load(Ordering::Relaxed) == 0
    }

    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorFftProblem,
        x: (RawMem, u64),
        y: (RawMem, u64),
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        assert_eq!(workspace.map(|w| w.2), Some(self.workspace(p)));
        self.runs.fetch_add(1, Ordering::Relaxed);
        let [mut from, mut to] = p.reals().map(|reals| vec![0; reals * p.dtype.size()]);
        // SAFETY: the memory is as large as the problem says.
        unsafe {
            self.inner.copy_out(s, x.0, x.1, &mut from)?;
            self.inner.copy_out(s, y.0, y.1, &mut to)?;
        }
        let (mut reals, mut results) = (decode(p.dtype, &from), decode(p.dtype, &to));
        transform(p, &mut reals, &mut results);
        if self.fault == Fault::Scales {
            results.iter_mut().for_each(|v| *v /= p.n as f64);
        }
        // SAFETY: as above.
        unsafe {
            self.inner.copy_in(s, x.0, x.1, &encode(p.dtype, &reals))?;
            self.inner.copy_in(s, y.0, y.1, &encode(p.dtype, &results))
        }
    }
}

/// The device, and the library that it counts runs in.
fn device(fault: Fault) -> Option<(Engine, Arc<WithLibrary>)> {
    let inner = present("opencl", crate::driver::opencl_open(0))?;
    let driver = Arc::new(WithLibrary { inner, fault, runs: AtomicUsize::new(0) });
    Some((Engine::new(driver.clone()).unwrap(), driver))
}

/// A call: which transform, of what shape, with what parameters.
#[derive(Debug, Clone, Copy)]
struct Case {
    kind: FftKind,
    outer: usize,
    n: usize,
    inner: usize,
    p: Fft,
    accumulate: bool,
}

impl Case {
    fn new(kind: FftKind, [outer, n, inner]: [usize; 3]) -> Self {
        let p = Fft::new().inverse(kind == FftKind::Inverse);
        Case { kind, outer, n, inner, p, accumulate: false }
    }

    fn shapes(&self) -> [Vec<usize>; 2] {
        let (lengths, widths) = (self.kind.lengths(self.n), self.kind.widths());
        [0, 1].map(|side| {
            let mut shape = vec![self.outer, lengths[side]];
            shape.extend((self.inner > 1).then_some(self.inner));
            shape.extend((widths[side] == 2).then_some(2));
            shape
        })
    }

    fn op(&self) -> &'static str {
        match self.kind {
            FftKind::RealToBins => "rfft",
            FftKind::BinsToReal => "irfft",
            _ => "fft",
        }
    }

    fn call(&self, gpu: &dyn IGpuBackend, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        match self.kind {
            FftKind::RealToBins => gpu.rfft(&self.p, x, y),
            FftKind::BinsToReal => gpu.irfft(&self.p, x, y),
            _ => gpu.fft(&self.p, 1, x, y),
        }
    }

    /// The result on a device.
    fn on<B: BackendExt + IGpuBackend>(&self, gpu: &B, dtype: DType) -> Vec<f64> {
        let [from, to] = self.shapes();
        let values = |shape: &[usize], seed: usize| -> Vec<f64> {
            (0..shape.iter().product()).map(|i| ((i * 7 + seed) % 13) as f64 / 4.0 - 1.5).collect()
        };
        let (x, y) = (values(&from, 3), values(&to, 5));
        let upload = |v: &[f64]| match dtype {
            DType::F64 => gpu.upload(v),
            _ => gpu.upload(&v.iter().map(|&v| v as f32).collect::<Vec<_>>()),
        };
        let (x, y) = (upload(&x).unwrap(), upload(&y).unwrap());
        let target = GradMut { out: y.alias_mut().reshape(&to).unwrap(), accumulate: self.accumulate };
        self.call(gpu, x.shaped(&from).unwrap(), target).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        download(gpu, &y)
    }
}

fn download<B: BackendExt>(gpu: &B, b: &Buffer) -> Vec<f64> {
    match b.dtype() {
        DType::F64 => gpu.download::<f64>(b.view()).unwrap(),
        _ => gpu.download::<f32>(b.view()).unwrap().into_iter().map(f64::from).collect(),
    }
}

fn compare(case: &Case, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-4 * (1.0 + w.abs()), "{case:?} {i}: {g} for {w}");
    }
}

/// All kinds and layouts, plain, scaled, and added to something.
fn cases() -> Vec<Case> {
    use FftKind::{BinsToReal, Forward, Inverse, RealToBins};
    let rows = [1, 2, 5, 12, 17, 64]
        .into_iter()
        .flat_map(|n| [Forward, Inverse, RealToBins, BinsToReal].map(move |kind| Case::new(kind, [3, n, 1])));
    let columns =
        [Forward, Inverse].into_iter().flat_map(|kind| [1, 3].map(|outer| Case::new(kind, [outer, 12, 4])));
    rows.chain(columns)
        .flat_map(|case| {
            let scaled = Case { p: case.p.scale(1.0 / case.n as f64), ..case };
            let added = Case { accumulate: true, ..case };
            [case, scaled, added, Case { accumulate: true, ..scaled }]
        })
        .collect()
}

#[test]
fn calls_come_out_right_whatever_follows_them() {
    let Some((gpu, lib)) = device(Fault::None) else { return };
    for op in ["fft", "rfft", "irfft"] {
        gpu.pin_variant(op, Some("cufft")).unwrap();
    }
    let cpu = CpuBackend::new();
    for dtype in [DType::F32, DType::F64] {
        for case in cases() {
            let before = lib.runs.load(Ordering::Relaxed);
            compare(&case, &case.on(&gpu, dtype), &case.on(&cpu, dtype));
            assert!(lib.runs.load(Ordering::Relaxed) > before, "{case:?} was not the library's");
        }
    }
}

#[test]
fn recorded_calls_replay_without_new_memory() {
    let Some((gpu, _)) = device(Fault::None) else { return };
    let gpu = Arc::new(gpu);
    for kind in [FftKind::Inverse, FftKind::RealToBins, FftKind::BinsToReal] {
        let case = Case { p: Fft::new().scale(0.5).inverse(true), ..Case::new(kind, [2, 30, 1]) };
        let [from, to] = case.shapes();
        let x: Vec<f32> = (0..from.iter().product::<usize>()).map(|i| (i * 5 % 7) as f32 - 3.0).collect();
        let (x, y) = (gpu.upload(&x).unwrap(), gpu.zeros(DType::F32, to.iter().product()).unwrap());
        let run = |gpu: &Engine| {
            case.call(gpu, x.shaped(&from)?, GradMut { out: y.alias_mut().reshape(&to)?, accumulate: false })
        };
        gpu.pin_variant(case.op(), None).unwrap();
        run(&gpu).unwrap();
        let want = download(&*gpu, &y);
        gpu.pin_variant(case.op(), Some("cufft")).unwrap();
        let (graph, ()) = gpu.capture(|g| run(g)).unwrap();
        let names: Vec<_> = graph.info().calls.iter().map(String::as_str).collect();
        assert!(names.contains(&"a Fourier transform of the vendor's library"), "{names:?}");
        let base = gpu.memory().in_use;
        for _ in 0..3 {
            gpu.fill(-1.0, y.alias_mut()).unwrap();
            graph.replay().unwrap();
            compare(&case, &download(&*gpu, &y), &want);
        }
        assert_eq!(gpu.memory().in_use, base);
    }
}

/// Why a call is not the library's, where its variant is pinned.
fn refusal(gpu: &Engine, case: &Case, at: usize) -> String {
    gpu.pin_variant(case.op(), Some("cufft")).unwrap();
    let [from, to] = case.shapes();
    let [x, y] = [&from, &to].map(|s| gpu.zeros(DType::F32, at + s.iter().product::<usize>()).unwrap());
    let place = |shape: &[usize]| {
        let shape = shape.to_vec();
        move |l: &crate::Layout| l.narrow(0, at, shape.iter().product())?.reshape(&shape)
    };
    let x = x.view().map("x", place(&from)).unwrap();
    let y = y.alias_mut().map("y", place(&to)).unwrap();
    match case.call(gpu, x, y.into()) {
        Err(GpuError::Unsupported { why, .. }) => why.to_string(),
        other => panic!("{case:?}: {other:?}"),
    }
}

#[test]
fn what_the_library_is_not_given_has_a_reason() {
    let Some((gpu, _)) = device(Fault::Refuses(34)) else { return };
    let case = Case::new(FftKind::RealToBins, [2, 12, 1]);
    let inner = Case { p: case.p.inner(2.0), ..case };
    assert!(refusal(&gpu, &inner, 0).contains("a factor of their own"));
    assert!(refusal(&gpu, &case, 1).contains("multiple of a complex number"));
    let columns = Case::new(FftKind::Forward, [17, 12, 4]);
    assert!(refusal(&gpu, &columns, 0).contains("columns of more than 16 matrices"));
    let length = Case { n: 34, ..case };
    assert!(refusal(&gpu, &length, 0).contains("CUFFT_INVALID_SIZE"));
}

#[test]
fn a_library_whose_results_differ_is_not_used() {
    let Some((gpu, _)) = device(Fault::Scales) else { return };
    let case = Case::new(FftKind::Forward, [2, 12, 1]);
    assert!(refusal(&gpu, &case, 0).contains("results differed"));
    gpu.pin_variant("fft", None).unwrap();
    compare(&case, &case.on(&gpu, DType::F32), &case.on(&CpuBackend::new(), DType::F32));
}

#[test]
fn small_calls_do_not_ask_the_library_and_explain_names_it() {
    let Some((gpu, lib)) = device(Fault::None) else { return };
    let case = Case::new(FftKind::Forward, [2, 12, 1]);
    case.on(&gpu, DType::F32);
    assert_eq!(lib.runs.load(Ordering::Relaxed), 0, "its own check is not due either");
    assert_eq!(gpu.explain("fft").unwrap().chosen, "cufft");
    assert_eq!(gpu.explain("irfft").unwrap().chosen, "real_pairs");
    let made = gpu.explain_calls(&mut || {
        case.on(&gpu, DType::F32);
        Ok(())
    });
    let made = made.unwrap().into_iter().find(|c| c.op == "fft").unwrap();
    assert_eq!(made.chosen, "local");
    assert!(made.alternatives().any(|v| v == "cufft"), "{made:?}");
}

#[test]
fn without_a_library_the_reason_is_there() {
    let Some(gpu) = present("opencl", crate::driver::opencl_open(0).and_then(Engine::new)) else { return };
    for op in ["fft", "rfft", "irfft"] {
        let c = gpu.explain(op).unwrap();
        let why = c.rejected.iter().find(|(v, _)| v == "cufft").map(|(_, why)| why.as_str());
        assert_eq!(why, Some("no vendor library was found"), "{op}");
    }
}
