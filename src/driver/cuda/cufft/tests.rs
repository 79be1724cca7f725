//! The order of calls and the numbers, against the stand-in; the functions of the library itself where it is found.

use std::cell::Cell;

use super::stand_in::{EXEC_FAILED, INVALID_VALUE, STREAM, table, with};
use super::*;
use crate::device::BackendKind;
use crate::driver::blas_reference::{decode, encode};
use crate::driver::fft_reference::{problems, transform};
use crate::driver::loader;

const PLAN: [&str; 4] = ["cufftCreate", "cufftSetAutoAllocation", "cufftMakePlanMany64", "cufftGetSize"];

thread_local! {
    /// Whether streams record what is queued.
    static CAPTURES: Cell<bool> = const { Cell::new(false) };
}

fn library(most: usize) -> Cufft {
    let ties = Ties { enter: Box::new(|| Ok(())), captures: Box::new(|_| Ok(CAPTURES.get())) };
    Cufft::new(table(), DeviceId::new(BackendKind::Custom, 0), ties, most)
}

fn rows(kind: FftKind, n: usize) -> VendorFftProblem {
    VendorFftProblem::rows(kind, n, 2, DType::F32)
}

/// Host memory that begins at a multiple of 16 bytes.
fn memory(bytes: &[u8]) -> Vec<u128> {
    let mut words = vec![0u128; bytes.len().div_ceil(16).max(1)];
    bytemuck::cast_slice_mut::<u128, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

fn place(memory: &mut [u128]) -> (RawMem, u64) {
    (RawMem(memory.as_mut_ptr().expose_provenance() as u64), 0)
}

/// Transforms x of the problem with that many bytes of workspace.
fn run(lib: &Cufft, p: &VendorFftProblem, x: &[f64], room: usize) -> Result<Vec<f64>> {
    let y = vec![f64::NAN; p.reals()[1]];
    let (mut from, mut to) = (memory(&encode(p.dtype, x)), memory(&encode(p.dtype, &y)));
    let mut scratch = memory(&[0; 64]);
    let workspace = (room > 0).then(|| (place(&mut scratch).0, 0, room));
    // SAFETY: the stand-in works in the host's memory, which is as large as the problem says, and does not touch the workspace.
    unsafe { lib.run(RawStream(STREAM), p, place(&mut from), place(&mut to), workspace) }?;
    Ok(decode(p.dtype, &bytemuck::cast_slice::<u128, u8>(&to)[..y.len() * p.dtype.size()]))
}

fn numbers(p: &VendorFftProblem) -> Vec<f64> {
    (0..p.reals()[0]).map(|i| ((i * 7 + 3) % 11) as f64 / 4.0 - 1.25).collect()
}

#[test]
fn transforms_are_what_the_problem_says() {
    let lib = library(MAX_PLANS);
    for dtype in [DType::F32, DType::F64] {
        for p in problems(dtype) {
            lib.applicable(&p).unwrap();
            let mut x = numbers(&p);
            let got = run(&lib, &p, &x, 0).unwrap();
            let mut want = vec![f64::NAN; got.len()];
            transform(&p, &mut x, &mut want);
            let close = |(g, w): (&f64, &f64)| (g - w).abs() <= 1e-5 * (1.0 + w.abs());
            assert!(got.iter().zip(&want).all(close), "{p:?}: {got:?} for {want:?}");
        }
    }
    drop(lib);
    assert_eq!(with(|l| l.live()), 0, "plans were left behind");
}

#[test]
fn a_plan_is_made_once_without_memory_of_its_own() {
    let (lib, p) = (library(MAX_PLANS), VendorFftProblem::columns(FftKind::Inverse, 12, 5, DType::F64));
    with(|l| l.workspace = 48);
    lib.applicable(&p).unwrap();
    assert_eq!(with(|l| std::mem::take(&mut l.calls)), PLAN);
    assert_eq!(lib.workspace(&p), 48);
    for _ in 0..2 {
        run(&lib, &p, &numbers(&p), 48).unwrap();
        assert_eq!(
            with(|l| std::mem::take(&mut l.calls)),
            ["cufftSetStream", "cufftSetWorkArea", "cufftExecZ2Z"]
        );
    }
    let made = with(|l| l.ran[0].clone());
    let given = made.problem.unwrap();
    assert_eq!((given.n, given.batch, given.stride, given.distance), (12, 5, 5, [1, 1]));
    assert_eq!((made.ty, made.auto), (0x69, false));
}

#[test]
fn kinds_and_types_have_their_own_calls() {
    let lib = library(MAX_PLANS);
    use FftKind::{BinsToReal, Forward, Inverse, RealToBins};
    let call = |kind, dtype| {
        let p = VendorFftProblem::rows(kind, 6, 1, dtype);
        run(&lib, &p, &numbers(&p), 0).unwrap();
        with(|l| *l.calls.last().unwrap())
    };
    let calls = |dtype| [Forward, Inverse, RealToBins, BinsToReal].map(|kind| call(kind, dtype));
    assert_eq!(calls(DType::F32), ["cufftExecC2C", "cufftExecC2C", "cufftExecR2C", "cufftExecC2R"]);
    assert_eq!(calls(DType::F64), ["cufftExecZ2Z", "cufftExecZ2Z", "cufftExecD2Z", "cufftExecZ2D"]);
}

#[test]
fn a_plan_that_fails_is_a_reason_and_leaves_nothing() {
    for (call, status) in [("cufftCreate", 7), ("cufftMakePlanMany64", 8), ("cufftGetSize", 5)] {
        let (lib, p) = (library(MAX_PLANS), rows(FftKind::Forward, 64));
        with(|l| l.fails = Some((call, status)));
        let why = lib.applicable(&p).unwrap_err();
        assert!(why.contains(call) && why.contains(status_name(status)), "{why}");
        with(|l| l.fails = None);
        // What failed is not tried again.
        with(|l| l.calls.clear());
        assert_eq!(lib.applicable(&p).unwrap_err(), why);
        assert_eq!((lib.workspace(&p), lib.first_run_loads(&p)), (0, false));
        assert!(matches!(run(&lib, &p, &numbers(&p), 0), Err(GpuError::Unsupported { .. })));
        assert_eq!(with(|l| (l.calls.len(), l.live())), (0, 0));
    }
}

#[test]
fn a_plan_is_made_again_after_an_internal_error() {
    let (lib, p) = (library(MAX_PLANS), rows(FftKind::Forward, 64));
    with(|l| (l.fails, l.times) = (Some(("cufftMakePlanMany64", INTERNAL_ERROR)), Some(ATTEMPTS - 1)));
    lib.applicable(&p).unwrap();
    assert_eq!(with(|l| (l.times, l.live())), (Some(0), 1));
    with(|l| l.times = None);
    let why = lib.applicable(&rows(FftKind::Forward, 65)).unwrap_err();
    assert!(why.contains("CUFFT_INTERNAL_ERROR"), "{why}");
    assert_eq!(with(|l| l.live()), 1);
    with(|l| l.fails = None);
}

#[test]
fn what_the_library_does_not_serve_is_refused_before_a_call() {
    let lib = library(MAX_PLANS);
    let p = rows(FftKind::Forward, 8);
    for (p, why) in [
        (VendorFftProblem { dtype: DType::F16, ..p }, "f16"),
        (VendorFftProblem { batch: 0, ..p }, "an extent is 0"),
        (VendorFftProblem { n: 0, ..p }, "an extent is 0"),
        (VendorFftProblem { stride: usize::MAX, ..p }, "63 bits"),
    ] {
        assert!(lib.applicable(&p).is_err_and(|e| e.contains(why)), "{p:?}");
    }
    assert!(with(|l| l.calls.is_empty()));
    with(|l| l.workspace = MAX_WORKSPACE + 1);
    assert!(lib.applicable(&p).is_err_and(|e| e.contains("bytes of workspace")));
    assert_eq!(with(|l| l.live()), 0);
}

#[test]
fn too_little_workspace_and_failing_runs_are_typed_errors() {
    let (lib, p) = (library(MAX_PLANS), rows(FftKind::RealToBins, 16));
    with(|l| l.workspace = 32);
    lib.applicable(&p).unwrap();
    with(|l| l.calls.clear());
    for room in [0, 31] {
        let e = run(&lib, &p, &numbers(&p), room).unwrap_err();
        assert!(matches!(e, GpuError::Driver(_)) && e.to_string().contains("32 bytes of workspace"), "{e}");
    }
    assert!(with(|l| l.calls.is_empty()));
    for (call, status) in [("cufftSetStream", INVALID_VALUE), ("cufftExecR2C", EXEC_FAILED)] {
        with(|l| l.fails = Some((call, status)));
        let e = run(&lib, &p, &numbers(&p), 32).unwrap_err();
        assert!(e.to_string().contains(call) && e.to_string().contains(status_name(status)), "{e}");
    }
    assert!(lib.first_run_loads(&p), "no run has succeeded");
    with(|l| l.fails = None);
    run(&lib, &p, &numbers(&p), 32).unwrap();
    assert!(!lib.first_run_loads(&p));
}

#[test]
fn plans_in_recorded_graphs_outlive_the_bound() {
    let lib = library(2);
    let all: Vec<_> = [4, 6, 8, 10, 12].map(|n| rows(FftKind::Forward, n)).to_vec();
    CAPTURES.set(true);
    run(&lib, &all[0], &numbers(&all[0]), 0).unwrap();
    CAPTURES.set(false);
    for (p, live) in all[1..].iter().zip([2, 2, 3, 2]) {
        run(&lib, p, &numbers(p), 0).unwrap();
        assert_eq!(with(|l| l.live()), live, "n = {}", p.n);
    }
    drop(lib);
    assert_eq!(with(|l| l.live()), 0);
}

#[test]
fn versions_and_names() {
    for version in [11_000, 11_303, 12_000, 12_200] {
        known(version).unwrap();
    }
    for version in [0, 10_900, 13_000] {
        assert!(known(version).is_err_and(|why| why.contains("neither 11.x nor 12.x")), "{version}");
    }
    if cfg!(not(windows)) {
        assert_eq!(names(13), ["libcufft.so.12", "libcufft.so.11"]);
        assert_eq!(names(12), ["libcufft.so.11", "libcufft.so.12"]);
    }
    assert_eq!(status_name(8), "CUFFT_INVALID_SIZE");
    assert_eq!(status_name(99), "unknown cuFFT status");
}

#[cfg(target_os = "linux")]
#[test]
fn absent_libraries_and_functions_give_reasons() {
    let unset = "TREFOIL_TEST_UNSET_LIB";
    let absent = library_of(unset, vec!["libtrefoil-none.so".into()], "cufft").unwrap_err().to_string();
    assert!(absent.contains("libtrefoil-none.so"), "{absent}");
    // The mathematics library stands in for one without the functions.
    let why = resolve(&loader::open(unset, &["libm.so.6".to_string()]).unwrap()).unwrap_err();
    assert!(why.contains("libm.so.6") && why.contains("cufftCreate"), "{why}");
}

#[test]
fn the_library_itself_has_the_functions() {
    match library_of(VAR, names(13), "cufft") {
        Ok(lib) => drop(resolve(&lib).unwrap()),
        Err(why) => println!("skipped: no cuFFT: {why}"),
    }
}
