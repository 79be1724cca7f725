//! The order of calls and the numbers, against the stand-in.

use super::stand_in::{INTERNAL_ERROR, NOT_IMPLEMENTED, STREAM, api, with};
use super::*;
use crate::device::BackendKind;
use crate::driver::blas_reference::{decode, encode};
use crate::driver::conv_reference::{convolution, problem, reference, size};
use crate::dtype::DType;

const PASSES: [ConvPass; 3] = [ConvPass::Forward, ConvPass::Input, ConvPass::Weight];

fn library() -> Miopen {
    Miopen::new(api(), DeviceId::new(BackendKind::Custom, 0), Box::new(|| Ok(()))).unwrap()
}

/// Host memory that begins at a multiple of 16 bytes.
struct Memory(Vec<u128>, usize);

impl Memory {
    fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0u128; bytes.len().div_ceil(16).max(1)];
        bytemuck::cast_slice_mut::<u128, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Memory(words, bytes.len())
    }

    fn raw(&mut self) -> RawMem {
        RawMem(number(self.0.as_mut_ptr().cast()))
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice::<u128, u8>(&self.0)[..self.1]
    }
}

/// Operands of a problem, with a NaN in each element of the output.
struct Case {
    data: [Vec<f64>; 3],
    memory: [Memory; 3],
    scratch: Memory,
}

impl Case {
    fn new(p: &VendorConvProblem) -> Self {
        let value = |i: usize| ((i * 7 + 3) % 11) as f64 / 4.0 - 1.25;
        let mut data = [&p.x, &p.w, &p.y].map(|t| (0..size(t)).map(value).collect::<Vec<_>>());
        data[written(p)].fill(f64::NAN);
        let memory = data.each_ref().map(|v| Memory::new(&encode(p.dtype, v)));
        Case { data, memory, scratch: Memory::new(&[0; 256]) }
    }

    /// Runs the problem with that many bytes of workspace.
    fn run(&mut self, lib: &Miopen, p: &VendorConvProblem, room: usize) -> Result<()> {
        let tensors = self.memory.each_mut().map(|m| (m.raw(), 0));
        let scratch = (room > 0).then(|| (self.scratch.raw(), 0, room));
        // SAFETY: the stand-in works in the host's memory, which is as large as the problem says.
        unsafe { lib.run(RawStream(STREAM), p, tensors, scratch) }
    }

    fn output(&self, p: &VendorConvProblem) -> Vec<f64> {
        decode(p.dtype, self.memory[written(p)].bytes())
    }
}

/// Which of x, w and y is written.
fn written(p: &VendorConvProblem) -> usize {
    match p.pass {
        ConvPass::Forward => 2,
        ConvPass::Input => 0,
        ConvPass::Weight => 1,
    }
}

fn compare(lib: &Miopen, p: &VendorConvProblem) {
    lib.applicable(p).unwrap();
    let mut case = Case::new(p);
    case.run(lib, p, lib.workspace(p)).unwrap();
    let want = reference(p, case.data.each_ref().map(Vec::as_slice));
    let within = if p.dtype == DType::F32 { 1e-6 } else { 1e-2 };
    for (i, (got, [want, _, _])) in case.output(p).into_iter().zip(want).enumerate() {
        assert!((got - want).abs() <= within * (1.0 + want.abs()), "{p:?} {i}: {got} for {want}");
    }
}

/// Strides, padding, dilation, groups, volumes, channels last.
fn problems(dtype: DType) -> Vec<VendorConvProblem> {
    let images = [
        problem([2, 3, 4, 7, 3], [1, 1, 1, 1], dtype),
        problem([2, 4, 6, 8, 3], [2, 1, 1, 2], dtype),
        problem([1, 2, 3, 9, 3], [2, 2, 2, 1], dtype),
        problem([2, 4, 4, 5, 1], [3, 0, 1, 4], dtype),
        convolution(3, [1, 2, 3, 5, 2], [2, 1, 1, 1], dtype),
        convolution(3, [1, 4, 2, 4, 3], [1, 1, 1, 2], dtype),
    ];
    let last = images.map(|p| {
        let [x, w, y] = [p.x, p.w, p.y].map(|t| ConvTensor::channels_last(t.extents));
        VendorConvProblem { x, w, y, ..p }
    });
    let all = images.into_iter().chain(last);
    all.flat_map(|p| PASSES.map(|pass| VendorConvProblem { pass, ..p })).collect()
}

#[test]
fn passes_compute_what_the_problem_says() {
    let lib = library();
    let mut kinds = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let all = problems(dtype);
        all.iter().for_each(|p| compare(&lib, p));
        kinds.push(all.len());
    }
    assert_eq!(with(|l| l.ran.len()), kinds.into_iter().sum::<usize>());
    drop(lib);
    assert_eq!(with(|l| l.live()), 0, "something was left behind");
}

#[test]
fn the_library_is_given_its_own_numbers() {
    let lib = library();
    let p =
        VendorConvProblem { pass: ConvPass::Input, ..problem([2, 4, 6, 8, 3], [2, 1, 1, 2], DType::Bf16) };
    compare(&lib, &p);
    let (id, given) = with(|l| l.ran.pop()).unwrap();
    assert_eq!(id, 82);
    let [x, w, y] = given.tensors;
    assert_eq!((x.ty, x.extents, x.strides), (5, vec![2, 4, 8, 8], vec![256, 64, 8, 1]));
    assert_eq!((w.ty, w.extents, w.strides), (5, vec![6, 2, 3, 3], vec![18, 9, 3, 1]));
    assert_eq!((y.ty, y.extents, y.strides), (5, vec![2, 6, 4, 4], vec![96, 16, 4, 1]));
    let c = given.conv;
    assert_eq!((c.pad, c.stride, c.dilation, c.groups), (vec![1, 1], vec![2, 2], vec![1, 1], 2));
    // No f16 by way of bf16, results that repeat, no TF32.
    assert_eq!(c.attributes.into_iter().collect::<Vec<_>>(), [(0, 0), (1, 1), (3, 1)]);
    let calls = with(|l| std::mem::take(&mut l.calls));
    let of_pass = calls.iter().filter_map(|c| c.strip_prefix("miopenConvolutionBackwardData"));
    let order =
        ["GetSolutionCount", "GetSolution", "GetSolutionWorkspaceSize", "CompileSolution", "Immediate"];
    assert_eq!(of_pass.collect::<Vec<_>>(), order);
    // A volume, channels last.
    let t = ConvTensor::channels_last;
    let v = convolution(3, [1, 2, 3, 5, 2], [2, 1, 1, 1], DType::F16);
    compare(&lib, &VendorConvProblem { x: t(v.x.extents), w: t(v.w.extents), y: t(v.y.extents), ..v });
    let x = with(|l| l.ran.pop()).unwrap().1.tensors[0].clone();
    assert_eq!((x.ty, x.extents, x.strides), (0, vec![1, 2, 5, 5, 5], vec![250, 1, 50, 10, 2]));
    compare(&lib, &problem([1, 2, 3, 5, 3], [1, 1, 1, 1], DType::F32));
    assert_eq!(with(|l| l.ran.pop()).unwrap().1.tensors[0].ty, 1);
}

#[test]
fn a_version_without_tf32_is_not_told_of_it() {
    let lib = library();
    with(|l| l.has_tf32 = false);
    compare(&lib, &problem([1, 2, 3, 5, 3], [1, 1, 1, 1], DType::F32));
    let attributes = with(|l| l.ran.pop()).unwrap().1.conv.attributes;
    assert_eq!(attributes.into_iter().collect::<Vec<_>>(), [(0, 0), (1, 1)]);
}

fn solution(id: u64, algorithm: u32) -> Solution {
    Solution { time: 1.0, workspace: 0, id, algorithm }
}

#[test]
fn the_first_solution_that_may_be_taken_is_kept() {
    let lib = library();
    let p = problem([1, 2, 3, 5, 3], [1, 1, 1, 1], DType::F32);
    let large = Solution { workspace: MAX_WORKSPACE + 1, ..solution(7, 5) };
    with(|l| {
        l.offered = vec![solution(53, WINOGRAD), solution(34, FFT), solution(85, 1), large];
        l.offered.extend([solution(9, 5), solution(11, 1), solution(12, 1)]);
        l.broken.insert(9);
    });
    (0..3).for_each(|_| compare(&lib, &p));
    with(|l| {
        assert_eq!(l.compiled, [11]);
        assert_eq!(l.ran.iter().map(|r| r.0).collect::<Vec<_>>(), [11; 3]);
        assert_eq!(l.calls.iter().filter(|c| c.ends_with("CompileSolution")).count(), 2);
        assert_eq!(l.calls.iter().filter(|c| c.ends_with("GetSolution")).count(), 1);
    });
}

/// Why a problem is refused where these solutions are all that there are. Each time it is another problem.
fn refusal(lib: &Miopen, p: &VendorConvProblem, offered: Vec<Solution>) -> String {
    with(|l| l.offered = offered);
    let why = lib.applicable(p).unwrap_err();
    assert_eq!((lib.applicable(p).unwrap_err(), lib.workspace(p)), (why.clone(), 0));
    why
}

#[test]
fn solutions_that_may_not_be_taken_are_a_reason() {
    let lib = library();
    let of = |n, dtype, pass| VendorConvProblem { pass, ..problem([n, 2, 3, 5, 3], [1, 1, 1, 1], dtype) };
    let single = |n| of(n, DType::F32, ConvPass::Forward);
    assert!(refusal(&lib, &single(1), vec![]).contains("no kernel for it"));
    assert!(refusal(&lib, &single(2), vec![solution(1, WINOGRAD)]).contains("transform"));
    assert!(refusal(&lib, &single(3), vec![solution(87, 1)]).contains("naive"));
    let large = Solution { workspace: MAX_WORKSPACE + 1, ..solution(7, 5) };
    assert!(refusal(&lib, &single(4), vec![large]).contains("bytes of workspace"));
    // Sums in 16 bits.
    for (dtype, pass) in [(DType::F16, ConvPass::Weight), (DType::Bf16, ConvPass::Input)] {
        assert!(refusal(&lib, &of(1, dtype, pass), vec![solution(91, GEMM)]).contains("sums in f32"));
    }
    for (dtype, pass) in [(DType::F16, ConvPass::Forward), (DType::F32, ConvPass::Weight)] {
        compare(&lib, &of(6, dtype, pass));
    }
    // A refused problem is refused by `run`, too.
    match Case::new(&single(1)).run(&lib, &single(1), 96) {
        Err(GpuError::Unsupported { why, .. }) => assert!(why.contains("no kernel for it")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn problems_of_other_kinds_are_refused_without_a_call() {
    let lib = library();
    with(|l| l.calls.clear());
    let p = problem([2, 4, 4, 8, 3], [1, 1, 1, 1], DType::F32);
    let gap = ConvTensor { strides: [1024, 128, 8, 1, 1], ..p.x };
    let last = ConvTensor::channels_last(p.x.extents);
    let empty = ConvTensor::packed([0, 4, 8, 8, 1]);
    for (p, what) in [
        (VendorConvProblem { dtype: DType::F64, ..p }, "f64 convolutions"),
        (VendorConvProblem { pad_end: [1, 2, 0], ..p }, "zeros behind an axis"),
        (VendorConvProblem { align: 4, ..p }, "multiple of 16 bytes"),
        (VendorConvProblem { x: gap, ..p }, "neither all packed"),
        (VendorConvProblem { x: last, ..p }, "neither all packed"),
        (VendorConvProblem { x: empty, ..p }, "an extent is 0"),
        (VendorConvProblem { pad: [1 << 21; 3], ..p }, "64 bits"),
        (problem([2, 4, 4, 9, 3], [1, 1, 2, 2], DType::F32), "groups and dilation"),
    ] {
        let why = lib.applicable(&p).unwrap_err();
        assert!(why.contains(what), "{why}");
    }
    assert_eq!(with(|l| l.calls.clone()), Vec::<String>::new());
}

#[test]
fn a_call_that_fails_is_a_reason_or_an_error() {
    let p = problem([1, 2, 3, 5, 3], [1, 1, 1, 1], DType::F32);
    for call in [
        "miopenCreateTensorDescriptor",
        "miopenSetTensorDescriptor",
        "miopenCreateConvolutionDescriptor",
        "miopenInitConvolutionNdDescriptor",
        "miopenSetConvolutionGroupCount",
        "miopenSetConvolutionAttribute",
        "miopenConvolutionForwardGetSolutionCount",
        "miopenConvolutionForwardGetSolution",
        "miopenConvolutionForwardGetSolutionWorkspaceSize",
        "miopenConvolutionForwardCompileSolution",
    ] {
        let lib = library();
        with(|l| l.fails = Some((call, NOT_IMPLEMENTED)));
        let why = lib.applicable(&p).unwrap_err();
        assert!(why.contains(call) && why.contains("miopenStatusNotImplemented"), "{why}");
        assert_eq!(with(|l| l.live()), 1, "{call}: more than the handle is left");
    }
    for call in ["miopenSetStream", "miopenConvolutionForwardImmediate"] {
        let lib = library();
        let (mut case, room) = (Case::new(&p), lib.workspace(&p));
        with(|l| l.fails = Some((call, INTERNAL_ERROR)));
        match case.run(&lib, &p, room) {
            Err(GpuError::Driver(f)) => {
                assert_eq!((f.call, f.code, &f.name[..]), (call, 5, "miopenStatusInternalError"));
            }
            other => panic!("{other:?}"),
        }
        assert!(case.output(&p).iter().all(|y| y.is_nan()) && with(|l| l.ran.is_empty()));
        // The next call may succeed.
        with(|l| l.fails = None);
        case.run(&lib, &p, room).unwrap();
    }
}

#[test]
fn a_workspace_that_does_not_fit_is_an_error() {
    let lib = library();
    let p = problem([1, 2, 3, 5, 3], [1, 1, 1, 1], DType::F32);
    // The list says 64.
    assert_eq!(lib.workspace(&p), 96);
    for room in [0, 64, 95] {
        let mut case = Case::new(&p);
        match case.run(&lib, &p, room) {
            Err(GpuError::Driver(f)) => {
                assert!(f.name.contains(&format!("96 bytes of workspace needed, {room} given")));
            }
            other => panic!("{other:?}"),
        }
        assert!(case.output(&p).iter().all(|y| y.is_nan()));
    }
    assert!(with(|l| l.ran.is_empty() && !l.calls.contains(&"miopenSetStream".to_string())));
    let mut case = Case::new(&p);
    case.run(&lib, &p, 200).unwrap();
    // What lies behind the workspace that it wants is not written.
    assert!(case.scratch.bytes()[..96].iter().all(|&b| b == 0xff));
    assert!(case.scratch.bytes()[96..].iter().all(|&b| b == 0));
}

#[test]
fn a_library_that_does_not_start_has_a_reason() {
    let new = |enter| Miopen::new(api(), DeviceId::new(BackendKind::Custom, 0), enter);
    let lost: Enter = Box::new(|| Err(GpuError::driver("hipSetDevice", 1, "hipErrorInvalidValue")));
    assert!(new(lost).unwrap_err().to_string().contains("hipSetDevice"));
    let functions = api();
    with(|l| l.fails = Some(("miopenCreate", 1)));
    let why = Miopen::new(functions, DeviceId::new(BackendKind::Custom, 0), Box::new(|| Ok(())));
    let why = why.unwrap_err().to_string();
    assert!(why.contains("miopenCreate") && why.contains("miopenStatusNotInitialized"), "{why}");
}

unsafe extern "C" fn version<const MAJOR: usize>(
    major: *mut usize,
    minor: *mut usize,
    patch: *mut usize,
) -> u32 {
    // SAFETY: the caller passes places for three numbers.
    unsafe { (*major, *minor, *patch) = (MAJOR, 20, 0) };
    u32::from(MAJOR == 0)
}

#[test]
fn only_version_3_is_known() {
    let of = |f: Version| known(Call { name: "miopenGetVersion", f });
    of(version::<3>).unwrap();
    assert_eq!(of(version::<2>).unwrap_err(), "version 2.20.0 is not 3.x");
    of(version::<4>).unwrap_err();
    assert!(of(version::<0>).unwrap_err().contains("miopenGetVersion"));
}

/// The C library stands in for one without the functions.
#[cfg(target_os = "linux")]
#[test]
fn a_library_without_the_functions_is_refused() {
    use crate::driver::loader;
    use crate::error::Unavailable;
    let lib = loader::open_named("libc.so.6").unwrap();
    let why = resolve(&lib).unwrap_err();
    assert!(why.contains("miopenGetVersion") && why.contains("libc.so.6"), "{why}");
    match Api::resolve(&lib) {
        Err(Unavailable::SymbolMissing { symbol, .. }) => assert_eq!(symbol, "miopenCreate"),
        other => panic!("{other:?}"),
    }
}
