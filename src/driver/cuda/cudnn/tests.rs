//! The library on a GPU: every kernel that it offers for some problems, by its notes, its error and its time.

use cudarc::cudnn::sys::cudnnBackendHeurMode_t as Mode;

use super::graph::{Graph, Notes, Way};
use super::*;
use crate::driver::blas_reference::{decode, encode};
use crate::driver::conv_reference::{problem, reference, size};
use crate::driver::cuda::CudaDriver;
use crate::driver::{ConvPass, ConvTensor, Driver};
use crate::dtype::DType;
use crate::test_devices::present;

#[test]
fn only_version_9_is_known() {
    known(91_900).unwrap();
    known(90_000).unwrap();
    assert!(known(8_907).unwrap_err().contains("8907"));
    known(100_000).unwrap_err();
}

/// Values of a problem in device memory, as far as they are stored in its type.
struct Case {
    data: [Vec<f64>; 3],
    mem: [RawMem; 3],
}

impl Case {
    fn new(d: &CudaDriver, s: RawStream, p: &VendorConvProblem) -> Self {
        let mut word = 7u32;
        let mut next = |_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(word >> 8) / f64::from(1 << 23) - 1.0
        };
        let mut data = [&p.x, &p.w, &p.y].map(|t| (0..size(t)).map(&mut next).collect::<Vec<_>>());
        let mem = data.each_mut().map(|v| {
            let bytes = encode(p.dtype, v);
            *v = decode(p.dtype, &bytes);
            let m = d.alloc(bytes.len()).unwrap();
            // SAFETY: just allocated with this size.
            unsafe { d.copy_in(s, m, 0, &bytes).unwrap() };
            m
        });
        Case { data, mem }
    }

    /// The output, after the work on the stream.
    fn output(&self, d: &CudaDriver, s: RawStream, p: &VendorConvProblem) -> Vec<f64> {
        let at = [2, 0, 1][p.pass as usize];
        let mut bytes = vec![0; self.data[at].len() * p.dtype.size()];
        // SAFETY: the tensor has this size.
        unsafe { d.copy_out(s, self.mem[at], 0, &mut bytes).unwrap() };
        decode(p.dtype, &bytes)
    }
}

/// The largest error in units of what is allowed: for f32 the bound of products, coarser roundings for other arithmetic.
fn error(p: &VendorConvProblem, got: &[f64], want: &[[f64; 3]]) -> f64 {
    let u = f64::from(f32::EPSILON) / 2.0;
    let (store, round) = match (p.dtype, p.tf32) {
        (DType::F32, false) => (2.0 * u, u),
        (DType::F32, true) => (2.0 * u, 0.5f64.powi(11)),
        (DType::F16, _) => (0.5f64.powi(10), u),
        _ => (0.5f64.powi(7), u),
    };
    let allowed =
        |[y, m, k]: [f64; 3]| store * y.abs() + (8.0 + k.sqrt()) * round * m / if p.tf32 { 8.0 } else { 1.0 };
    let off = |(&g, &w): (&f64, &[f64; 3])| if g == w[0] { 0.0 } else { (g - w[0]).abs() / allowed(w) };
    got.iter().zip(want).map(off).fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
}

fn small() -> Vec<VendorConvProblem> {
    let mut all = Vec::new();
    for (sizes, window) in [
        ([2, 32, 48, 14, 3], [1, 1, 1, 1]),
        ([3, 8, 16, 15, 5], [2, 2, 1, 2]),
        ([2, 16, 16, 17, 3], [1, 2, 2, 1]),
        ([2, 3, 16, 28, 7], [2, 3, 1, 1]),
    ] {
        for pass in [ConvPass::Forward, ConvPass::Input, ConvPass::Weight] {
            for (dtype, tf32, last) in [
                (DType::F32, false, false),
                (DType::F32, true, false),
                (DType::F16, false, false),
                (DType::Bf16, false, false),
                (DType::Bf16, false, true),
            ] {
                let p = problem(sizes, window, dtype);
                let [x, w, y] =
                    [p.x, p.w, p.y].map(|t| if last { ConvTensor::channels_last(t.extents) } else { t });
                all.push(VendorConvProblem { pass, tf32, x, w, y, ..p });
            }
        }
    }
    all
}

/// The driver and its library, if both are there.
fn library(d: &CudaDriver) -> Option<Cudnn> {
    let found = Cudnn::open(d.api, d.caps.id, d.context);
    found.inspect_err(|why| eprintln!("skipped: no cuDNN: {why}")).ok()
}

#[test]
fn every_kernel_that_is_allowed_is_accurate() {
    let Some(d) = present("cuda", CudaDriver::open(0)) else { return };
    let Some(lib) = library(&d) else { return };
    let s = d.new_stream().unwrap();
    // SAFETY: handle and stream are live.
    let set = unsafe { (lib.api.table.cudnnSetStream)(lib.handle as _, s.0 as _) };
    lib.api.check("cudnnSetStream", set).unwrap();
    let mut wrong = Vec::new();
    for p in small() {
        let graph = Graph::conv(&lib.api, lib.handle, &p).unwrap();
        let (case, mut ran) = (Case::new(&d, s, &p), 0);
        let want = reference(&p, case.data.each_ref().map(Vec::as_slice));
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            for config in graph.configs(mode).unwrap_or_default().into_iter().take(6) {
                let Ok(found) = Notes::of(&config) else { continue };
                let Ok(way) = Way::new(lib.handle, config, found) else { continue };
                if way.workspace > MAX_WORKSPACE {
                    continue;
                }
                let scratch = d.alloc(way.workspace.max(256)).unwrap();
                // SAFETY: all memory has the problem's sizes.
                let done = unsafe { way.execute(lib.handle, (&IDS, &case.mem.map(|m| m.0)), scratch.0) };
                let off = done.map(|()| error(&p, &case.output(&d, s, &p), &want));
                // SAFETY: the output was waited for.
                unsafe { d.free(scratch) };
                let allowed = way.notes.allowed(way.engine, &p, false, false);
                let line = format!(
                    "{:?} {} tf32 {} x {:?} w {:?}: engine {} {:?} workspace {} allowed {allowed}: {off:?}",
                    p.pass, p.dtype, p.tf32, p.x.extents, p.w.extents, way.engine, way.notes, way.workspace
                );
                eprintln!("{line}");
                ran += usize::from(allowed && off.is_ok());
                if allowed && off.is_ok_and(|off| off > 1.0) {
                    wrong.push(line);
                }
            }
        }
        // SAFETY: the stream is idle.
        case.mem.into_iter().for_each(|m| unsafe { d.free(m) });
        if ran == 0 {
            eprintln!("no kernel: {p:?}");
        }
    }
    assert!(wrong.is_empty(), "{} kernels are off:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_taken_kernels_match_a_reference() {
    let Some(d) = present("cuda", CudaDriver::open(0)) else { return };
    let Ok(lib) = d.vendor_conv().inspect_err(|why| eprintln!("skipped: {why}")) else { return };
    let s = d.new_stream().unwrap();
    let mut ran = 0;
    for p in small() {
        if let Err(why) = lib.applicable(&p) {
            eprintln!("not applicable: {why}: {p:?}");
            continue;
        }
        let case = Case::new(&d, s, &p);
        let want = reference(&p, case.data.each_ref().map(Vec::as_slice));
        let bytes = lib.workspace(&p);
        let scratch = d.alloc(bytes.max(256)).unwrap();
        // SAFETY: all memory has the problem's sizes.
        unsafe { lib.run(s, &p, case.mem.map(|m| (m, 0)), Some((scratch, 0, bytes))).unwrap() };
        let off = error(&p, &case.output(&d, s, &p), &want);
        assert!(off <= 1.0, "{off}: {p:?}");
        // SAFETY: the stream is idle.
        case.mem.into_iter().chain([scratch]).for_each(|m| unsafe { d.free(m) });
        ran += 1;
    }
    // SAFETY: the stream is idle and not used again.
    unsafe { d.destroy_stream(s) };
    assert!(2 * ran > small().len(), "{ran} of {} problems were served", small().len());
}
