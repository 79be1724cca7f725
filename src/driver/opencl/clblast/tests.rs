//! Products of the library on whatever OpenCL device there is, and what it is not given.

use super::*;
use crate::driver::Driver;
use crate::driver::blas_reference::{element, problem, run_gemm};
use crate::driver::opencl::OpenClDriver;
use crate::test_devices::present;

/// A device whose driver has found the library; that it has not is a printed skip, or a failure where `TREFOIL_REQUIRE` names `clblast`.
fn driver() -> Option<OpenClDriver> {
    copy_early();
    let d = present("opencl", OpenClDriver::open(0))?;
    if let Err(why) = d.vendor_blas() {
        assert!(!crate::is_required("clblast"), "TREFOIL_REQUIRE names clblast: {why}");
        println!("skipped: no CLBlast: {why}");
        return None;
    }
    Some(d)
}

/// Tells the library to copy operands of products of 64 x 64 x 64 and larger. From which size on it does is the device's, on PoCL 896, which takes
/// minutes there.
pub(crate) fn copy_early() {
    type Override = unsafe extern "C" fn(
        cl_device_id,
        *const std::ffi::c_char,
        c_int,
        usize,
        *const *const std::ffi::c_char,
        *const usize,
    ) -> c_int;
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let (Ok(d), Ok(lib)) = (OpenClDriver::open(0), open_library()) else { return };
        let (names, values) = ([c"XGEMM_MIN_INDIRECT_SIZE".as_ptr()], [64]);
        for precision in [32, 64] {
            // SAFETY: the prototype is that of clblast_c.h; both lists have one entry.
            let code = unsafe {
                let f: Override = lib.function("CLBlastOverrideParameters").unwrap();
                let device = d.device as cl_device_id;
                f(device, c"GemmRoutine".as_ptr(), precision, 1, names.as_ptr(), values.as_ptr())
            };
            assert_eq!(code, 0);
        }
    });
}

/// A problem whose result lies where C does.
fn in_place([m, n, k, batch]: [usize; 4], trans: [bool; 2], dtype: DType) -> BlasProblem {
    let mut p = BlasProblem { dtype, out_dtype: dtype, ..problem(m, n, k, batch, trans[0], trans[1]) };
    (p.ld[3], p.batch_stride[3]) = (p.ld[2], p.batch_stride[2]);
    p
}

fn compare(d: &OpenClDriver, p: &BlasProblem, shift: u64) {
    d.vendor_blas().unwrap().applicable(p).unwrap_or_else(|why| panic!("{p:?}: {why}"));
    let data = |i: usize| -> Vec<f64> {
        (0..p.batch * p.batch_stride[i] + 64).map(|x| ((x * 7 + i) % 11) as f64 / 4.0 - 1.25).collect()
    };
    let (a, b, c) = (data(0), data(1), data(2));
    let got = run_gemm(d, p, shift, [&a, &b, &c, &[]]);
    for z in 0..p.batch {
        for i in 0..p.m {
            for j in 0..p.ld[3].min(p.batch_stride[3] - i * p.ld[3]) {
                let at = z * p.batch_stride[3] + i * p.ld[3] + j;
                // Between rows lies what lay there.
                let want = if j < p.n { element(p, [0.5, 2.0], [&a, &b, &c], [z, i, j]) } else { c[at] };
                let close = (got[at] - want).abs() <= 1e-5 * (1.0 + want.abs());
                assert!(close, "{p:?}: ({z}, {i}, {j}): {} for {want}", got[at]);
            }
        }
    }
}

#[test]
fn products_match_a_reference_in_every_layout() {
    let Some(d) = driver() else { return };
    for dtype in [DType::F32, DType::F64] {
        for (i, ta) in [false, true].into_iter().enumerate() {
            for (j, tb) in [false, true].into_iter().enumerate() {
                for batch in [1, 3] {
                    let shift = [0, 64, 8, 16][2 * i + j];
                    compare(&d, &in_place([19, 33, 7, batch], [ta, tb], dtype), shift);
                }
            }
        }
    }
}

/// Whether the library copies operands follows from the size alone; where it does, it is given memory for that.
#[test]
fn large_products_use_the_workspace() {
    let Some(d) = driver() else { return };
    let blas = d.vendor_blas().unwrap();
    assert_eq!(blas.workspace(&in_place([4, 4, 4, 1], [false; 2], DType::F32)), 0);
    let p = in_place([131, 257, 173, 2], [true, false], DType::F32);
    let bytes = blas.workspace(&p);
    assert!(bytes >= 4 * p.n.min(p.m) * p.k, "{bytes}");
    assert_eq!(bytes, blas.workspace(&BlasProblem { batch: 1, ..p }));
    compare(&d, &p, 8);
}

#[test]
fn what_it_cannot_do_is_refused_with_the_reason() {
    let p = in_place([8, 8, 8, 2], [false; 2], DType::F32);
    eligible(&p).unwrap();
    let refused = |p: BlasProblem, why: &str| {
        assert!(eligible(&p).is_err_and(|e| e.contains(why)), "{:?}", eligible(&p));
    };
    refused(BlasProblem { dtype: DType::F16, ..p }, "f16");
    refused(BlasProblem { dtype: DType::Bf16, ..p }, "bf16");
    refused(BlasProblem { out_dtype: DType::F64, ..p }, "into");
    refused(BlasProblem { k: 0, ..p }, "extent is 0");
    refused(BlasProblem { bias: true, ..p }, "no bias");
    refused(BlasProblem { act: BlasAct::Relu, ..p }, "activations");
    refused(BlasProblem { ld: [8, 8, 9, 8], ..p }, "memory of the result");
    refused(BlasProblem { batch_stride: [1 << 32, 64, 64, 64], ..p }, "32 bits");
    refused(BlasProblem { batch_stride: [usize::MAX, 64, 64, 64], ..p }, "32 bits");
}

#[test]
fn calls_that_do_not_fit_are_refused_before_anything_is_queued() {
    let Some(d) = driver() else { return };
    let (blas, s) = (d.vendor_blas().unwrap(), d.new_stream().unwrap());
    let p = in_place([131, 257, 173, 1], [false; 2], DType::F32);
    let m = d.alloc(1 << 24).unwrap();
    let bytes = blas.workspace(&p);
    // SAFETY: each call is refused for what it says; the memory is larger than all matrices.
    let refused = |c, at, workspace| unsafe {
        let e = blas.gemm(s, &p, 1.0, 1.0, (m, at), (m, 0), (m, c), (m, 0), None, workspace).unwrap_err();
        assert!(matches!(e, GpuError::Driver(_)), "{e}");
        e.to_string()
    };
    assert!(refused(4, 0, Some((m, 0, bytes))).contains("memory of the result"));
    assert!(refused(0, 2, Some((m, 0, bytes))).contains("within an element"));
    assert!(refused(0, 0, None).contains("workspace"));
    assert!(refused(0, 0, Some((m, 0, 4096))).contains("too small"));
    // SAFETY: nothing was queued.
    unsafe {
        d.destroy_stream(s);
        d.free(m);
    }
}

#[test]
fn statuses_have_names() {
    assert_eq!(status_name(-1011), "CLBlastInsufficientMemory");
    assert_eq!(status_name(-2050), "CLBlastInsufficientMemoryTemp");
    assert_eq!(status_name(-5), "CL_OUT_OF_RESOURCES");
    assert!(matches!(check("x", -4), Err(GpuError::OutOfMemory { .. })));
    assert!(matches!(check("x", -1011), Err(GpuError::Driver(_))));
}
